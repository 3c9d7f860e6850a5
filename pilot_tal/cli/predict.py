"""`pilot-tal predict`: labels for new images."""

from pathlib import Path
from typing import Annotated

import typer

from pilot_tal.cli.shared import AfterTask, Plugins, Weights, echo, use_plugins


def predict(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Run directory, folder of learn or export, hf://user/name.")
    ],
    images: Annotated[list[str], typer.Argument(metavar="IMAGES", help="Images, folders of them, or patterns.")],
    top: Annotated[int, typer.Option(help="How many of the best classes to show.", min=1)] = 5,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A CSV file to write, not the table.")] = None,
    reject: Annotated[
        float | None,
        typer.Option(help="Mark images as none of the classes; 0.05 rejects about 5 % of the known ones. For plda."),
    ] = None,
    after_task: AfterTask = None,
    batch_size: Annotated[int, typer.Option(help="Images that pass the ViT at once.", min=1)] = 32,
    device: Annotated[str, typer.Option(help="auto, cpu, mps, cuda or cuda:NUMBER.")] = "auto",
    weights: Weights = None,
    plugins: Plugins = "",
) -> None:
    """Label new images with the model of RUN.

    Images that cannot be read are named and skipped; the exit status is then 1.

    Example: pilot-tal predict runs/photos-l2p-tal-s1993-1a2b3c4d photos --top 3 -o labels.csv
    """
    from data_lt.errors import UserError
    from data_lt.files import given_path, progress, write_text
    from pilot_tal.model.load import load_model, refuse_inside_run
    from pilot_tal.model.model import read_image
    from pilot_tal.model.predictions import csv_text, find_images, prediction_table, table_text

    if output is not None:
        output = given_path(output, "--output")
        refuse_inside_run(output)
        if output.suffix.lower() != ".csv":
            raise UserError(f"--output must end in .csv, got {output}")
    use_plugins(plugins)
    model = load_model(run, after_task, weights, device)
    if model.note:
        echo(f"note: {model.note}", err=True)
    files = find_images(images)
    labelled: list[Path] = []

    def readable():
        for file in files:
            try:
                image = read_image(file)
            except UserError as error:
                bar.clear()
                echo(f"skipped: {error}", err=True)
            else:
                labelled.append(file)
                yield image
            bar.update(1)

    with progress("predicting", len(files)) as bar:
        predictions = list(model.each(readable(), top, batch_size, reject))
    table = prediction_table(labelled, predictions)
    if output is not None:
        write_text(output, csv_text(table))
        echo(f"{len(table)} image{'s' * (len(table) != 1)}: {output}")
    elif len(table):
        echo(table_text(table))
    if len(labelled) < len(files):
        echo(f"{len(files) - len(labelled)} of {len(files)} images could not be read and were skipped", err=True)
        raise typer.Exit(1)
