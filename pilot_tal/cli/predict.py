"""`pilot-tal predict`: labels for new images."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pilot_tal.cli.arguments import AfterTask, Plugins, Weights, use_plugins
from pilot_tal.cli.output import echo

if TYPE_CHECKING:
    from pilot_tal.model.model import Model, Prediction


def predict(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run directory, a folder of learn or export, or hf://user/name."),
    ],
    images: Annotated[list[str], typer.Argument(metavar="IMAGES", help="Images, folders of them, or patterns.")],
    top: Annotated[int, typer.Option(help="How many of the best classes to show.", min=1)] = 5,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A .csv or .json file to write, in place of the table.")
    ] = None,
    reject: Annotated[
        float | None,
        typer.Option(
            help="Mark images unlike the training images as none of the classes; 0.05 rejects about 5 % of the images "
            "of known classes. For plda."
        ),
    ] = None,
    after_task: AfterTask = None,
    batch_size: Annotated[int, typer.Option(help="Images that pass the ViT at once.", min=1)] = 32,
    device: Annotated[str, typer.Option(help="auto, cpu, mps, cuda or cuda:NUMBER.")] = "auto",
    weights: Weights = None,
    plugins: Plugins = "",
) -> None:
    """Label new images with the model of RUN.

    Images that cannot be read are named and skipped; the exit status is then 1. If the images are in folders named
    after classes, the accuracy is printed.

    Example: pilot-tal predict runs/photos-l2p-tal-s1993-1a2b3c4d photos --top 3 -o labels.csv
    """
    from data_lt.errors import UserError
    from data_lt.files import given_path, write_text
    from pilot_tal.model.images import find_images
    from pilot_tal.model.load import load_model, refuse_inside_run
    from pilot_tal.model.table import FORMATS, csv_text, json_text, prediction_table, score, score_text, table_text

    if output is not None:
        output = given_path(output, "--output")
        if output.suffix.lower() not in FORMATS:
            raise UserError(f"--output must end in {' or '.join(FORMATS)}, got {output}")
        refuse_inside_run(output)
    use_plugins(plugins)
    model = load_model(run, after_task, weights, device)
    if model.note:
        echo(f"note: {model.note}", err=True)
    files = find_images(images)
    predictions, unreadable = _label(model, files, top, batch_size, reject)
    table = prediction_table(model, [file for file in files if file not in unreadable], predictions)
    scores = score(model, table)
    if output is not None:
        as_json = output.suffix.lower() == ".json"
        write_text(output, json_text(model, table, unreadable, scores) if as_json else csv_text(table))
        echo(f"{len(table)} image{'s' * (len(table) != 1)}: {output}")
    elif len(table):
        echo(table_text(table))
    if scores:
        echo(score_text(scores))
    if unreadable:
        echo(f"{len(unreadable)} of {len(files)} images could not be read and were skipped", err=True)
        raise typer.Exit(1)


def _label(
    model: "Model", files: list[Path], top: int, batch_size: int, reject: float | None
) -> "tuple[list[Prediction], dict[Path, str]]":
    """Predictions for the readable files, and the problem of each other file, printed at once."""
    from data_lt.errors import UserError
    from data_lt.files import progress
    from pilot_tal.model.images import read_image

    unreadable: dict[Path, str] = {}

    def readable():
        for file in files:
            try:
                yield read_image(file)
            except UserError as error:
                unreadable[file] = str(error)
                bar.clear()
                echo(f"skipped: {error}", err=True)
            bar.update(1)

    with progress("predicting", len(files)) as bar:
        return list(model.each(readable(), top, batch_size, reject)), unreadable
