"""Learners by name."""

from data_lt.errors import UserError, unknown_name
from data_lt.registry import Registry
from pilot_tal.backbone import FrozenViT
from pilot_tal.learners.base import FIDELITIES, Learner
from pilot_tal.learners.config import MethodConfig

LEARNERS: Registry[type[Learner]] = Registry("method")


def build_learner(
    method: str,
    backbone: FrozenViT,
    config: MethodConfig,
    num_classes: int,
    num_tasks: int,
    fidelity: str = "pilot",
) -> Learner:
    """Builds a learner for a stream of `num_tasks` tasks with `num_classes` classes in all."""
    learner = LEARNERS[method]
    if fidelity not in FIDELITIES:
        raise unknown_name("fidelity", fidelity, FIDELITIES)
    if not isinstance(config, learner.config_class):
        raise UserError(f"{method} needs a {learner.config_class.__name__}, got {type(config).__name__}")
    if not 1 <= num_tasks <= num_classes:
        raise UserError(f"{num_tasks} tasks cannot share {num_classes} classes")
    _check_blocks(config, backbone.depth)
    return learner(backbone, config, num_classes, num_tasks, fidelity)


def _check_blocks(config: MethodConfig, depth: int) -> None:
    """A ViT with fewer blocks than named takes those it has, as in LAMDA-PILOT; with none, nothing would be learnt."""
    for name in ("adapt_blocks", "prompt_layer_idx", "e_prompt_layer_idx"):
        blocks = getattr(config, name, (0,))
        if not any(block < depth for block in blocks):
            raise UserError(f"{name} must name at least one of the ViT's blocks 0 … {depth - 1}, got {list(blocks)}")
