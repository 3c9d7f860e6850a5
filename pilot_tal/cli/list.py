"""`pilot-tal list`: what there is to choose from."""

from typing import Annotated, Any

import typer

from pilot_tal.cli.shared import Plugins, echo, use_plugins


def list_names(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A method or loss, to list its settings with their defaults.")
    ] = None,
    dataset: Annotated[str, typer.Option(help="Dataset whose defaults are shown.")] = "cub_lt",
    plugins: Plugins = "",
) -> None:
    """List methods, datasets and losses; with NAME, every setting with its range and default.

    Example: pilot-tal list l2p --dataset demo_lt

    Example: pilot-tal list tal
    """
    from data_lt import CARDS
    from data_lt.errors import command
    from pilot_tal.learners import LEARNERS
    from pilot_tal.losses import LOSSES

    use_plugins(plugins)
    if name is not None:
        _list_settings(name, dataset)
        return
    echo("methods:")
    for learner in LEARNERS.values():
        advice = f" (recommended: {learner.recommended})" * bool(learner.recommended)
        echo(f"  {learner.name:17} {learner.title}{advice}")
    echo("datasets:")
    for card in CARDS.values():
        classes = f"{card.classes} classes" if card.classes else "as many classes as there are folders"
        largest = card.n_max if card.n_max is not None else "the most"
        echo(f"  {card.name:17} {classes}, {largest} … {card.n_min} training images per class")
    echo("losses:")
    for loss in LOSSES.values():
        advice = f" (recommended: {loss.recommended})" * bool(loss.recommended)
        echo(f"  {loss.name:17} {loss.title}; prior: {loss.prior}{advice}")
    echo(f"settings of a method or loss: {command('list', next(iter(LEARNERS)))} or {command('list', 'tal')}")


def _list_settings(name: str, dataset: str) -> None:
    from data_lt.errors import command, unknown_name
    from pilot_tal.config.grid import USUAL, known_settings, loss_settings
    from pilot_tal.config.parse import as_typed
    from pilot_tal.config.settings import defaults
    from pilot_tal.learners import LEARNERS
    from pilot_tal.losses import LOSSES
    from pilot_tal.schema import REQUIRED

    if name not in (known := {*LEARNERS, *LOSSES}):
        raise unknown_name("method or loss", name, known, command("list"))
    values: dict[str, Any] = {}
    if name in LOSSES:
        settings = loss_settings(name)
        echo(f"{LOSSES[name].title}; prior: {LOSSES[name].prior}" + "; no settings" * (not settings))
    else:
        values = {**defaults(name, dataset), "seeds": USUAL["seeds"]}
        settings = known_settings(name)
    for key, setting in settings.items():
        value = values.get(key, setting.default)
        shown = "" if value in (None, REQUIRED) else as_typed(value)
        about = "; ".join(dict.fromkeys(filter(None, (setting.rule.help, setting.allowed))))
        echo(f"{f'{setting.name}={shown}':44} {about}")
