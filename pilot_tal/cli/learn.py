"""`pilot-tal learn`: teaches a model new classes."""

from typing import Annotated, Optional

import typer

from pilot_tal.cli.shared import echo


def learn(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="The model folder; the first session creates it.")],
    photos: Annotated[
        str | None,
        typer.Argument(metavar="PHOTOS", help="A folder with one folder of images per class, or train/ and test/."),
    ] = None,
    settings: Annotated[
        Optional[list[str]],  # noqa: UP045, typer reads this form on every Python
        typer.Argument(
            metavar="KEY=VALUE",
            help="Settings of a new model, e.g. backbone=deit_tiny_patch16_224 epochs=5 loss=tal max_tasks=50, and of "
            "the hardware at any time, e.g. device=cuda.",
        ),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Method of a new model; `pilot-tal list` names all.", show_default="plda")
    ] = None,
    hold_out: Annotated[
        float, typer.Option(help="Share of each class held out for the report, where there is no test/.")
    ] = 0.2,
    forget: Annotated[
        str | None,
        typer.Option(metavar="CLASS", help="Remove a class instead of learning; closed-form methods only."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also train on images that were trained on in an earlier session.")
    ] = False,
) -> None:
    """Teach the model in FOLDER the classes of PHOTOS; images of earlier sessions are not needed again.

    A session takes effect as a whole: if it is interrupted, the model is as it was, and the same command starts over.

    Example: pilot-tal learn birds photos/monday
    """
    from data_lt.errors import UserError, command
    from pilot_tal.display import make_display
    from pilot_tal.model.learn import forget as remove
    from pilot_tal.model.learn import learn as teach

    given, display = list(settings or ()), make_display()
    if forget is not None:
        given = [photos, *given] if photos else given
        if any("=" not in text for text in given) or method or again:
            raise UserError("--forget takes no PHOTOS and no option but settings of the hardware")
        remove(folder, forget, settings=given)
        echo(f"forgot {forget}")
        return
    if photos is None:
        raise UserError("give the folder of PHOTOS to learn, or a class to remove with --forget")
    session = teach(folder, photos, method=method, settings=given, hold_out=hold_out, again=again, display=display)
    trained, held_out = sum(session.train.values()), sum(session.held_out.values())
    left_out = f", {session.repeated} repeated left out" if session.repeated else ""
    echo(
        f"session {session.number + 1}: classes {len(session.train)}, training images {trained}, held out {held_out}"
        f"{left_out}; {session.seconds:.1f} s\nuse it with: {command('predict', folder, 'PHOTO')}"
    )
