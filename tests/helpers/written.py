"""Run directories written without training."""

from collections.abc import Callable
from pathlib import Path

import torch

from pilot_tal.engine.checkpoint import Checkpoint, resume, save_checkpoint
from pilot_tal.record.run_dir import is_finished
from pilot_tal.record.run_record import (
    BackboneRecord,
    DataRecord,
    EngineRecord,
    LossRecord,
    MethodRecord,
    RunRecord,
    StreamRecord,
)
from pilot_tal.record.writer import RunWriter, open_run


def make_record(tasks: int) -> RunRecord:
    names = tuple(f"c{number}" for number in range(tasks))
    return RunRecord(
        engine=EngineRecord("native", "native"),
        method=MethodRecord("l2p", "L2P", "pilot", {}),
        loss=LossRecord("ce", "CE"),
        seed=1,
        data=DataRecord("cub_lt", "CUB-LT"),
        backbone=BackboneRecord("vit", "random"),
        stream=StreamRecord("pilot", "none", "shuffled", (1,) * tasks, names, tuple(range(tasks)), (3,) * tasks),
    )


RECORD = make_record(4)


def some_state(done: int, cached: bool = True) -> Checkpoint:
    cache = {"b": torch.full((2,), float(done))} if cached else {}
    return Checkpoint(done, {"a": torch.full((3,), float(done))}, cache)


def add_task(writer: RunWriter, done: int, record: RunRecord = RECORD, state: Checkpoint | None = None) -> None:
    writer.write_task(done - 1, ["x.jpg"], [0], [0], steps=[{"step": 0}])
    save_checkpoint(writer, state or some_state(done, cached=done < record.num_tasks))
    writer.commit(record, done)


def write_tasks(path: Path, first: int, last: int, record: RunRecord = RECORD) -> None:
    with open_run(path) as writer:
        resume(writer)
        writer.write_record(record)
        for done in range(first, last + 1):
            add_task(writer, done, record)


def execute(path: Path, record: RunRecord = RECORD, pause: Callable[[], object] = lambda: None) -> None:
    """Writes what is left of a run, in the order of `Trainer.execute`; `pause` is called before its last task."""
    with open_run(path) as writer:
        if is_finished(path):
            return
        checkpoint, _ = resume(writer)
        done = checkpoint.tasks_done if checkpoint else 0
        writer.write_record(record, resumed=done > 0)
        if not done:
            writer.commit(record, 0)
        for task in range(done, record.num_tasks):
            if task + 1 == record.num_tasks:
                pause()
            add_task(writer, task + 1, record)
            writer.append_log(f"task {task + 1} done")
