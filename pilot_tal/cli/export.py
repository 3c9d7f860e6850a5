"""`pilot-tal export`: a run's model as a folder that can be handed on."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from pilot_tal.cli.shared import AfterTask, Plugins, Weights, echo, use_plugins


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, or a model folder of learn.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder to write; not needed with --push.")
    ] = None,
    with_backbone: Annotated[
        bool, typer.Option("--with-backbone", help="Include the ViT's weights, so that nothing else is needed.")
    ] = False,
    push: Annotated[
        str | None, typer.Option(metavar="USER/NAME", help="Upload to this repository of the Hugging Face hub.")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Make a new repository of --push public.")] = False,
    after_task: AfterTask = None,
    weights: Weights = None,
    plugins: Plugins = "",
) -> None:
    """Write the model of RUN as a folder: tensors, description (JSON) and model card.

    With --push it is also uploaded, private unless --public is given, with the token of `hf auth login`.

    Example: pilot-tal export runs/photos-l2p-tal-s1993-1a2b3c4d -o model --with-backbone
    """
    from data_lt.errors import UserError, command
    from pilot_tal.model.export import export_model, push_export, weights_note
    from pilot_tal.model.load import read_about

    if output is None and push is None:
        raise UserError("give the folder to write with --output, or a repository with --push")
    use_plugins(plugins)
    with tempfile.TemporaryDirectory() as scratch:
        folder = output or Path(scratch) / "model"
        folder = export_model(run, folder, after_task=after_task, with_backbone=with_backbone, weights=weights)
        note = weights_note(read_about(folder))
        shown: str | Path = folder if push is None else push_export(folder, push, private=not public)
    use = command("predict", shown, "PHOTO", *(["--plugins", plugins] if plugins else []))
    echo(f"model: {shown}; use it with: {use}\n{note}")
