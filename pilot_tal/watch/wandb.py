"""Runs in Weights & Biases, under their own names; with WANDB_MODE=offline they wait on the disk for `wandb sync`."""

import io
import os
from pathlib import Path
from typing import Any

import wandb
from PIL import Image

from data_lt.errors import UserError, one_line
from data_lt.files import read_json, write_json
from pilot_tal.record.run_dir import Run
from pilot_tal.results.svg import to_png
from pilot_tal.watch.values import comparison, pictures, task_values

FOLDER = "wandb"
PROJECT = "pilot-tal"


def follow(run: Run) -> None:
    """Sends what has not been sent: every task once, and the pictures of a finished run."""
    folder = run.path.parent / FOLDER
    note = folder / f"{run.path.name}.json"
    tasks = list(task_values(run))
    marks = [values.mark for values in tasks] + ["pictures"] * run.finished
    sent = _sent(note)
    sent = sent if sent == marks[: len(sent)] else []
    if sent == marks:
        return
    folder.mkdir(parents=True, exist_ok=True)
    try:
        opened = _open(run)
    except (wandb.errors.Error, ValueError) as error:  # not logged in, no way to the server, an unknown WANDB_MODE
        raise UserError(f"Weights & Biases: {one_line(str(error))[:300]}") from error
    with opened as logged:
        logged.define_metric("task")
        logged.define_metric("after task/*", step_metric="task")
        before = 0  # each task takes a place a step, and one for what is known after it
        for place, values in enumerate(tasks):
            if place >= len(sent):
                for step, named in values.steps.items():
                    logged.log(named, step=before + step)
                logged.log({"task": values.task + 1, **values.after}, step=before + len(values.steps))
            before += len(values.steps) + 1
        if run.finished:
            drawn = {plot.name: wandb.Image(Image.open(io.BytesIO(to_png(plot)))) for plot in pictures(run)}
            logged.log(drawn, step=before)
    if not logged.disabled:  # with WANDB_MODE=disabled nothing was sent
        write_json(note, marks)


def _open(run: Run) -> Any:
    record = run.record
    return wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        id=run.path.name,
        name=run.path.name,
        group=comparison(run),
        resume="allow",
        dir=str(run.path.parent),  # in which it makes its folder `wandb`
        config={
            "loss": record.loss.name,
            "seed": record.seed,
            **record.identity()["conditions"],
            **record.loss.options,
        },
        settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
    )


def _sent(note: Path) -> list[str]:
    try:
        content = read_json(note)
    except UserError:
        return []
    return content if isinstance(content, list) else []
