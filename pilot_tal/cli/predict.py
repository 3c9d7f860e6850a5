"""`pilot-tal predict`: labels for new images."""

from pathlib import Path
from typing import Annotated

import typer

from pilot_tal.cli.output import echo

RunOrFolder = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run directory, a model folder of learn, a folder that export wrote, or hf://user/name."
    ),
]
AfterTask = Annotated[
    int | None, typer.Option(help="The model as it was after so many tasks.", show_default="the last one", min=1)
]
Weights = Annotated[
    str | None, typer.Option(help="File of the ViT's weights.", show_default="as the run had them", metavar="FILE")
]
Device = Annotated[str, typer.Option(help="auto, cpu, mps, cuda or cuda:NUMBER.")]
Plugins = Annotated[
    str, typer.Option(help="Modules or files that register the run's method or dataset, if it is a plugin.")
]


def predict(
    run: RunOrFolder,
    images: Annotated[list[str], typer.Argument(metavar="PATH…", help="Images, folders of them, or patterns.")],
    top: Annotated[int, typer.Option(help="How many of the best classes to show.", min=1)] = 5,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A .csv or .json file to write, in place of the table.")
    ] = None,
    reject: Annotated[
        float | None,
        typer.Option(
            help="Show images unlike the training images as none of the classes: with 0.05, such that about 5 % of "
            "images of known classes are rejected. For plda.",
        ),
    ] = None,
    after_task: AfterTask = None,
    batch_size: Annotated[int, typer.Option(help="Images that pass the ViT at once.", min=1)] = 32,
    device: Device = "auto",
    weights: Weights = None,
    plugins: Plugins = "",
) -> None:
    """Label new images with the model of RUN.

    Images that cannot be read are named and skipped; the exit status is then 1. Where the images' folders are named
    after classes, the accuracy is counted.

    Example: pilot-tal predict runs/photos-l2p-tal-s1993-1a2b3c4d photos --top 3 -o labels.csv
    """
    from data_lt.errors import UserError
    from data_lt.files import given_path, write_text
    from pilot_tal.config.parse import split_values
    from pilot_tal.config.plugins import load_plugins
    from pilot_tal.model.images import find_images
    from pilot_tal.model.load import load_model, refuse_inside_run
    from pilot_tal.model.results import FORMATS, csv_text, json_text, score, score_text, table_text

    output = None if output is None else given_path(output, "--output")
    if output is not None and output.suffix.lower() not in FORMATS:
        raise UserError(f"--output must end in {' or '.join(FORMATS)}, got {output}")
    if output is not None:
        refuse_inside_run(output)
    files = find_images(images)
    load_plugins(tuple(split_values(plugins)))
    model = load_model(run, after_task, weights, device)
    found, unreadable = _label(model, files, top, batch_size, reject)
    scores = score(model, found)
    if output is None:
        if found:
            echo(table_text(found))
    else:
        as_json = output.suffix.lower() == ".json"
        write_text(output, json_text(model, found, unreadable, scores) if as_json else csv_text(found))
        echo(f"{len(found)} image{'s' * (len(found) != 1)}: {output}")
    if scores:
        echo(score_text(scores))
    if unreadable:
        echo(f"{len(unreadable)} of {len(files)} images could not be read and were skipped", err=True)
        raise typer.Exit(1)


def _label(model, files: list[Path], top: int, batch_size: int, reject: float | None) -> tuple[list, dict[Path, str]]:
    """Predictions for the readable files, and the problem of each other file, reported at once."""
    from data_lt.errors import UserError
    from data_lt.progress import progress
    from pilot_tal.model.images import read_image
    from pilot_tal.model.results import labelled

    unreadable: dict[Path, str] = {}

    def pictures():
        for file in files:
            try:
                yield read_image(file)
            except UserError as error:
                unreadable[file] = str(error)
                bar.clear()
                echo(f"skipped: {error}", err=True)
            bar.update(1)

    if model.note:
        echo(f"note: {model.note}", err=True)
    with progress("predicting", len(files)) as bar:
        results = list(model.each(pictures(), top, batch_size, reject))
    readable = [file for file in files if file not in unreadable]
    return [labelled(model, *pair) for pair in zip(readable, results, strict=True)], unreadable
