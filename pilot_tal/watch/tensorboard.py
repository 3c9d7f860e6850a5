"""Event files for TensorBoard: `tensorboard --logdir runs/tensorboard`.

One file for each finished task, and one with the pictures; each appears whole. A file whose task has been trained
anew since is replaced, others are left alone, so that a run that goes on later just gets more of them.
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from pilot_tal.record.run_dir import StoredRun
from pilot_tal.report.svg import to_png
from pilot_tal.watch.values import comparison, pictures, task_values

FOLDER = "tensorboard"


def follow(run: StoredRun) -> None:
    """Writes what is not there yet."""
    folder = run.path.parent / FOLDER / comparison(run) / run.path.name
    before, last = 0, ""
    for values in task_values(run):
        scalars = [
            (name, before + step, value) for step, named in values.steps.items() for name, value in named.items()
        ]
        scalars += [(name, values.task + 1, value) for name, value in values.after.items()]
        events = (Event(step=step, summary=_scalar(name, value)) for name, step, value in scalars)
        _write(folder, f".task{values.task:02d}", values.mark, events)
        before, last = before + len(values.steps), values.mark
    if run.finished:
        drawn = (Event(step=run.tasks_done, summary=_image(plot.name, to_png(plot))) for plot in pictures(run))
        _write(folder, ".pictures", last, drawn)


def _write(folder: Path, kind: str, mark: str, events: Iterable[Event]) -> None:
    """Writes a file whose name ends in `kind.mark`, in place of one of the same kind with another mark."""
    there = list(folder.glob(f"events.out.tfevents.*{kind}.*"))
    if any(file.name.endswith(f"{kind}.{mark}") for file in there):
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", suffix=".tmp", dir=folder.parent) as temporary:
        writer = EventFileWriter(temporary, filename_suffix=f"{kind}.{mark}")
        for event in events:
            writer.add_event(event)
        writer.close()
        for file in there:
            file.unlink()
        for file in Path(temporary).iterdir():
            file.replace(folder / file.name)


def _scalar(name: str, value: float) -> Summary:
    return Summary(value=[Summary.Value(tag=name, simple_value=value)])


def _image(name: str, png: bytes) -> Summary:
    return Summary(value=[Summary.Value(tag=name, image=Summary.Image(encoded_image_string=png))])
