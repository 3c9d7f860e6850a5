"""The five learners on one frozen ViT."""

from pilot_tal.backbone import FrozenViT
from pilot_tal.errors import PilotTalError, unknown_name
from pilot_tal.learners.base import FIDELITIES, Learner
from pilot_tal.learners.coda_prompt import CODAPrompt
from pilot_tal.learners.config import CONFIGS, MethodConfig, config_dict, load_method_config, make_config
from pilot_tal.learners.dualprompt import DualPrompt
from pilot_tal.learners.l2p import L2P
from pilot_tal.learners.lae import LAE
from pilot_tal.learners.mos import MOS

_LEARNERS: dict[str, type[Learner]] = {
    "l2p": L2P,
    "dualprompt": DualPrompt,
    "coda_prompt": CODAPrompt,
    "lae": LAE,
    "mos": MOS,
}
METHODS: tuple[str, ...] = tuple(_LEARNERS)

__all__ = [
    "FIDELITIES",
    "METHODS",
    "Learner",
    "MethodConfig",
    "build_learner",
    "config_dict",
    "load_method_config",
    "make_config",
]


def build_learner(
    method: str,
    backbone: FrozenViT,
    config: MethodConfig,
    num_classes: int,
    num_tasks: int,
    fidelity: str = "pilot",
) -> Learner:
    """Builds a learner for a stream of `num_tasks` tasks with `num_classes` classes in all."""
    if method not in _LEARNERS:
        raise unknown_name("method", method, METHODS)
    if fidelity not in FIDELITIES:
        raise unknown_name("fidelity", fidelity, FIDELITIES)
    if not isinstance(config, CONFIGS[method]):
        raise PilotTalError(f"{method} needs a {CONFIGS[method].__name__}, got {type(config).__name__}")
    if not 1 <= num_tasks <= num_classes:
        raise PilotTalError(f"{num_tasks} tasks cannot share {num_classes} classes")
    _check_blocks(config, backbone.depth)
    return _LEARNERS[method](backbone, config, num_classes, num_tasks, fidelity)


def _check_blocks(config: MethodConfig, depth: int) -> None:
    """A ViT with fewer blocks than named takes those it has, as in LAMDA-PILOT; with none, nothing would be learnt."""
    for name in ("adapt_blocks", "prompt_layer_idx", "e_prompt_layer_idx"):
        blocks = getattr(config, name, [0])
        if not any(0 <= block < depth for block in blocks):
            raise PilotTalError(f"{name} must name at least one of the ViT's blocks 0 … {depth - 1}, got {blocks}")
