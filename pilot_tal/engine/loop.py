"""The one training loop and the one evaluation loop: the engine runs them, and `verify` does."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from data_lt.errors import UserError, unknown_name
from pilot_tal.config.settings import PRECISIONS
from pilot_tal.engine.callbacks import StepInfo
from pilot_tal.learners import Learner, MethodConfig, TrainedConfig
from pilot_tal.losses import TaskLoss
from pilot_tal.stream.task import TaskInfo

DIVERGED = "lower init_lr, or use precision=fp32"


def train_task(
    learner: Learner,
    criterion: TaskLoss,
    task: TaskInfo,
    batches: Callable[[int], Iterable[tuple[Tensor, Tensor]]],
    *,
    epochs: int,
    config: MethodConfig,
    device: torch.device | str,
    precision: str = "fp32",
    on_begin: Callable[[], None] | None = None,
    on_step: Callable[[StepInfo], None] | None = None,
) -> None:
    """Trains one task, from `begin_task` to the last epoch; `end_task` is left to the caller.

    Args:
        learner: The learner, on `device`.
        criterion: The loss; it sees the logits of the task's own classes and targets from 0.
        task: The task that begins.
        batches: Gives the batches (images, labels) of an epoch.
        epochs: Number of epochs.
        config: Optimizer and weight decay.
        device: Where the batches go.
        precision: Arithmetic: fp32 and bf16 on any device, tf32 on CUDA.
        on_begin: Called when learner and loss are ready and the optimizer is not yet built.
        on_step: Called after every step.
    """
    device = torch.device(device)
    check_precision(precision, device)
    learner.begin_task(task)
    criterion.begin_task(task)
    if on_begin is not None:
        on_begin()
    groups = learner.param_groups()
    if not groups or not isinstance(config, TrainedConfig):
        return  # the learner trains nothing in this task
    optimizer = build_optimizer(groups, config)
    bases = [group["lr"] for group in optimizer.param_groups]
    step = 0
    for epoch in range(epochs):
        for group, base in zip(optimizer.param_groups, bases, strict=True):
            group["lr"] = learner.learning_rate(base, epoch, epochs)
        learner.begin_epoch(epoch, epochs)
        criterion.begin_epoch(epoch, epochs)
        for x, y in batches(epoch):
            x, y = sent(device, x, y)
            with tensor_cores(device, precision):
                with autocast(device, precision):
                    logits, aux = learner.observe(x)
                targets = y - task.first
                loss = _checked(criterion(logits.float(), targets), criterion)
                optimizer.zero_grad(set_to_none=True)
                (loss + aux).backward()
            optimizer.step()
            learner.after_step()
            if on_step is not None:
                accuracy = (logits.detach().argmax(dim=1) == targets).float().mean()
                on_step(StepInfo(epoch, step, optimizer.param_groups[0]["lr"], loss.detach(), aux.detach(), accuracy))
            step += 1


def _checked(loss: Any, criterion: TaskLoss) -> Tensor:
    if not isinstance(loss, Tensor):
        got = type(loss).__name__
    elif loss.ndim or not loss.requires_grad:
        got = f"shape {tuple(loss.shape)}" if loss.ndim else "no gradient"
    else:
        return loss
    raise UserError(f"the loss {type(criterion).__name__} must return a scalar tensor with a gradient, got {got}")


@torch.no_grad()
def evaluate(
    learner: Learner,
    batches: Iterable[tuple[Tensor, Tensor, Tensor | None]],
    device: torch.device | str,
    precision: str = "fp32",
    picks: list[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """True and predicted labels of (images, labels, ids) batches, on the host; the learner is on `device`.

    `picks` gets the prompts [B, k] that the images picked, if the learner has a pool of prompts.
    """
    device = torch.device(device)
    non_finite = torch.zeros((), dtype=torch.bool, device=device)
    true, predicted = [torch.zeros(0, dtype=torch.long)], [torch.zeros(0, dtype=torch.long, device=device)]
    for x, y, ids in batches:
        with tensor_cores(device, precision), autocast(device, precision):
            scores = learner.scores(x.to(device, non_blocking=True), ids)
        if picks is not None and learner.picked is not None:
            picks.append(learner.picked.expand(len(x), -1))
        true.append(y.cpu())
        non_finite |= ~scores.isfinite().all()
        predicted.append(scores.argmax(dim=1))
    if bool(non_finite):
        raise UserError(f"the scores of the classes became NaN or infinite; {DIVERGED}")
    return torch.cat(true), torch.cat(predicted).cpu()


def sent(device: torch.device, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Images and labels on their way to a device; the host goes on meanwhile, if they lie in pinned memory."""
    return x.to(device, non_blocking=True), y.to(device, non_blocking=True)


def build_optimizer(groups: list[dict[str, Any]], config: TrainedConfig) -> torch.optim.Optimizer:
    """A fresh optimizer over a learner's groups, with LAMDA-PILOT's settings."""
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=0.9, weight_decay=config.weight_decay)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, weight_decay=config.weight_decay)


def check_precision(precision: str, device: torch.device) -> None:
    """Refuses an unknown name of an arithmetic, and one that the device does not have."""
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    if precision == "tf32" and device.type != "cuda":
        raise UserError(
            f"precision={precision} needs a CUDA device, and this run is on {device}; use fp32 or bf16, "
            "or on SLURM ask for a GPU with --slurm gpus=1"
        )


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Forward passes in bf16 with that precision."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


@contextlib.contextmanager
def tensor_cores(device: torch.device, precision: str) -> Iterator[None]:
    """TF32 on CUDA for every precision but fp32, which has none; forward and backward. No effect elsewhere."""
    flags: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn) if device.type == "cuda" else ()
    before = [flag.allow_tf32 for flag in flags]
    for flag in flags:
        flag.allow_tf32 = precision != "fp32"
    try:
        yield
    finally:
        for flag, value in zip(flags, before, strict=True):
            flag.allow_tf32 = value
