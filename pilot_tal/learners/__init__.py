"""The learners on one frozen ViT, one file each, behind one registry."""

from importlib import import_module

from pilot_tal.learners.base import FIDELITIES, LEARNERS, Learner, build_learner
from pilot_tal.learners.config import MethodConfig, TrainedConfig

# In the order in which they are listed: the paper's table, then the others.
for _method in (
    *("l2p", "dualprompt", "coda_prompt", "lae", "mos"),
    *("plda", "simplecil", "ranpac", "air", "fecam", "aper", "ease", "linear"),
):
    import_module(f"{__name__}.{_method}")

__all__ = ["FIDELITIES", "LEARNERS", "Learner", "MethodConfig", "TrainedConfig", "build_learner"]
