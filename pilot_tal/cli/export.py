"""`pilot-tal export`: a run's model as a folder that can be handed on."""

from pathlib import Path
from typing import Annotated

import typer

from pilot_tal.cli.predict import AfterTask, Plugins, Weights


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write.")],
    with_backbone: Annotated[
        bool, typer.Option("--with-backbone", help="Put the ViT's weights in, so that the folder suffices alone.")
    ] = False,
    onnx: Annotated[bool, typer.Option("--onnx", help="Also write the classifier as one ONNX graph.")] = False,
    after_task: AfterTask = None,
    weights: Weights = None,
    plugins: Plugins = "",
) -> None:
    """Write the model of RUN as a folder: its tensors, what it is as JSON, and a model card.

    Example: pilot-tal export runs/photos-l2p-tal-s1993-1a2b3c4d -o model --with-backbone
    """
    from data_lt.errors import command
    from pilot_tal.config.parse import split_values
    from pilot_tal.config.plugins import load_plugins
    from pilot_tal.model.card import weights_note
    from pilot_tal.model.export import export_model
    from pilot_tal.model.stored import read_about

    load_plugins(tuple(split_values(plugins)))
    folder = export_model(run, output, after_task=after_task, with_backbone=with_backbone, onnx=onnx, weights=weights)
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    use = command("predict", folder, "PHOTO", *(["--plugins", plugins] if plugins else []))
    typer.echo(f"model: {folder} ({size / 1e6:.1f} MB); use it with: {use}")
    typer.echo(weights_note(read_about(folder)))
