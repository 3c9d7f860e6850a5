"""Event files for TensorBoard: `tensorboard --logdir runs/tensorboard`.

One file for each finished task, and one with the pictures; each appears whole. A file whose task has been trained
anew since is replaced, others are left alone, so that a run that goes on later just gets more of them. Their names sort
as the tasks come: TensorBoard reads files in that order, and drops what seems to go back.
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from pilot_tal.record.run_dir import Run
from pilot_tal.results.svg import to_png
from pilot_tal.watch.values import comparison, pictures, task_values

FOLDER = "tensorboard"


def follow(run: Run) -> None:
    """Writes what is not there yet."""
    folder = run.path.parent / FOLDER / comparison(run) / run.path.name
    before, last, time = 0, "", 0.0
    for values in task_values(run):
        scalars = [
            (name, before + step, value) for step, named in values.steps.items() for name, value in named.items()
        ]
        scalars += [(name, values.task + 1, value) for name, value in values.after.items()]
        before, last, time = before + len(values.steps), values.mark, values.time
        summaries = ((step, _scalar(name, value)) for name, step, value in scalars)
        _write(folder, values.task, "task", last, time, summaries)
    if run.finished:
        drawn = ((run.tasks_done, _image(plot.name, to_png(plot))) for plot in pictures(run))
        _write(folder, run.tasks_done, "pictures", last, time, drawn)


def _write(
    folder: Path, place: int, kind: str, mark: str, time: float, summaries: Iterable[tuple[int, Summary]]
) -> None:
    """Writes the file of a place in the order, instead of one there with another mark; nothing if it has this one."""
    target = folder / f"events.out.tfevents.{place:05d}.{kind}.{mark}"
    if target.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", suffix=".tmp", dir=folder.parent) as temporary:
        writer = EventFileWriter(temporary)
        for step, summary in summaries:
            writer.add_event(Event(step=step, wall_time=time, summary=summary))
        writer.close()
        for file in folder.glob(f"events.out.tfevents.{place:05d}.{kind}.*"):
            file.unlink()
        (written,) = Path(temporary).iterdir()
        written.replace(target)


def _scalar(name: str, value: float) -> Summary:
    return Summary(value=[Summary.Value(tag=name, simple_value=value)])


def _image(name: str, png: bytes) -> Summary:
    return Summary(value=[Summary.Value(tag=name, image=Summary.Image(encoded_image_string=png))])
