"""`pilot-tal list`: what there is to choose from."""

import typer


def list_names(
    method: str = typer.Argument(None, help="A method, to list every key=value setting with its default."),
    dataset: str = typer.Option("cub_lt", help="Dataset whose defaults are shown."),
) -> None:
    """List methods, datasets and losses; with METHOD, all settings and their defaults."""
    from data_lt import CARDS
    from pilot_tal.config import all_keys, make_plan
    from pilot_tal.learners import METHODS
    from pilot_tal.losses import LOSSES, loss_options

    if method is None:
        typer.echo(f"methods:  {' '.join(METHODS)}")
        typer.echo("datasets:")
        for card in CARDS.values():
            classes = f"{card.classes} classes" if card.classes else "as many classes as there are folders"
            largest = card.n_max if card.n_max is not None else "the most"
            typer.echo(f"  {card.name:13} {classes}, {largest} … {card.n_min} training images a class")
        typer.echo("losses:")
        for loss in LOSSES:
            options = ", ".join(f"{loss}.{key}={value}" for key, value in loss_options(loss).items())
            typer.echo(f"  {loss:17} {options}")
        typer.echo("`pilot-tal list METHOD` shows every setting.")
        return
    plan = make_plan(method, dataset, [f"losses={','.join(LOSSES)}"])
    run = plan.runs[0]
    values = {**vars(plan.machine), **vars(run), **vars(run.data), **run.settings}
    values |= {"losses": "ce,tal", "seeds": "1993,1994,1995", "epochs": run.settings["tuned_epoch"]}
    for config in plan.runs:
        values |= {f"{config.loss}.{key}": value for key, value in config.loss_options.items()}
    for key in all_keys(method):
        if key not in ("loss", "seed"):
            value = values[key]
            typer.echo(f"{key}={'' if value is None else value}")
