"""`pilot-tal list`: what there is to choose from."""

from typing import Annotated

import typer

from pilot_tal.cli.shared import Plugins, echo, use_plugins


def list_names(
    method: Annotated[
        str | None, typer.Argument(metavar="METHOD", help="A method, to list its settings with their defaults.")
    ] = None,
    dataset: Annotated[str, typer.Option(help="Dataset whose defaults are shown.")] = "cub_lt",
    plugins: Plugins = "",
) -> None:
    """List methods, datasets and losses; with METHOD, every setting with its range and default.

    Example: pilot-tal list l2p --dataset demo_lt
    """
    from data_lt import CARDS
    from data_lt.errors import command
    from pilot_tal.learners import LEARNERS
    from pilot_tal.losses import LOSSES

    use_plugins(plugins)
    if method is not None:
        _list_settings(method, dataset)
        return
    echo("methods:")
    for name, learner in LEARNERS.items():
        advice = f" (recommended: {learner.recommended})" * bool(learner.recommended)
        echo(f"  {name:17} {learner.title}{advice}")
    echo("datasets:")
    for card in CARDS.values():
        classes = f"{card.classes} classes" if card.classes else "as many classes as there are folders"
        largest = card.n_max if card.n_max is not None else "the most"
        echo(f"  {card.name:17} {classes}, {largest} … {card.n_min} training images per class")
    echo("losses:")
    for name, loss in LOSSES.items():
        advice = f" (recommended: {loss.recommended})" * bool(loss.recommended)
        echo(f"  {name:17} {loss.title}; prior: {loss.prior}{advice}")
    echo(f"every setting of a method is shown by: {command('list', next(iter(LEARNERS)))}")


def _list_settings(method: str, dataset: str) -> None:
    from pilot_tal.config.grid import USUAL, known_settings
    from pilot_tal.config.parse import as_typed
    from pilot_tal.config.settings import defaults
    from pilot_tal.schema import REQUIRED

    values = {**defaults(method, dataset), "seeds": USUAL["seeds"]}
    for key, setting in known_settings(method).items():
        value = values.get(key, setting.default)
        shown = "" if value in (None, REQUIRED) else as_typed(value)
        about = "; ".join(dict.fromkeys(filter(None, (setting.rule.help, setting.allowed))))
        echo(f"{f'{setting.name}={shown}':44} {about}")
