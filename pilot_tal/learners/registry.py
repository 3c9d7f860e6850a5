"""Learners by name."""

from data_lt.errors import Registry, UserError, unknown_name
from pilot_tal.backbone import FrozenBackbone, FrozenViT
from pilot_tal.learners.base import FIDELITIES, Learner
from pilot_tal.learners.config import MethodConfig
from pilot_tal.schema import defaults_of

LEARNERS: Registry[type[Learner]] = Registry("method")


def build_learner(
    method: str,
    backbone: FrozenBackbone,
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
    if learner.needs_vit(config) and not isinstance(backbone, FrozenViT):
        others = ", ".join(name for name, other in LEARNERS.items() if other.needs == "features")
        raise UserError(
            f"{method} puts prompts or adapters into the blocks of a timm ViT with a CLS token, and {backbone.name} is "
            f"none; use such a ViT, or a method that needs features alone ({others}; without adapters)"
        )
    _check_blocks(config, backbone.depth)
    return learner(backbone, config, num_classes, num_tasks, fidelity)


def _check_blocks(config: MethodConfig, depth: int) -> None:
    """Blocks that a user names must be there; with none to learn in, nothing would be learnt.

    The usual ones are meant for twelve blocks: of these a smaller ViT takes those it has, as in LAMDA-PILOT.
    """
    for name, usual in defaults_of(type(config)).items():
        if name not in ("adapt_blocks", "prompt_layer_idx", "g_prompt_layer_idx", "e_prompt_layer_idx"):
            continue
        blocks = getattr(config, name)
        needed = name != "g_prompt_layer_idx"
        if (blocks != usual and any(block >= depth for block in blocks)) or (
            needed and not any(block < depth for block in blocks)
        ):
            some = " at least one and only" if needed else " only"
            raise UserError(f"{name} must name{some} blocks of the ViT, which are 0 … {depth - 1}, got {list(blocks)}")
