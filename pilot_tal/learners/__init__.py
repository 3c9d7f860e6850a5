"""The learners on one frozen ViT, one file each, behind one registry."""

from pilot_tal.learners.base import FIDELITIES, LEARNERS, Learner, build_learner
from pilot_tal.learners.config import MethodConfig, TrainedConfig

# In the order in which they are listed: the paper's table, then the others.
# isort: off
from pilot_tal.learners.l2p import L2P
from pilot_tal.learners.dualprompt import DualPrompt
from pilot_tal.learners.coda_prompt import CODAPrompt
from pilot_tal.learners.lae import LAE
from pilot_tal.learners.mos import MOS
from pilot_tal.learners.plda import PLDA
from pilot_tal.learners.simplecil import SimpleCIL
from pilot_tal.learners.ranpac import RanPAC
from pilot_tal.learners.air import AIR
from pilot_tal.learners.fecam import FeCAM
from pilot_tal.learners.aper import APER
from pilot_tal.learners.ease import EASE
from pilot_tal.learners.linear import Linear
# isort: on

__all__ = [
    "AIR",
    "APER",
    "EASE",
    "FIDELITIES",
    "L2P",
    "LAE",
    "LEARNERS",
    "MOS",
    "PLDA",
    "CODAPrompt",
    "DualPrompt",
    "FeCAM",
    "Learner",
    "Linear",
    "MethodConfig",
    "RanPAC",
    "SimpleCIL",
    "TrainedConfig",
    "build_learner",
]
