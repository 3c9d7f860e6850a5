"""`python -m pilot_tal.watch tensorboard|wandb RUN…`: brings the log of runs up to date; nothing is logged twice."""

import sys

from data_lt.errors import UserError, unknown_name
from pilot_tal.record.run_dir import find_runs, load_run


def main(arguments: list[str]) -> None:
    """Follows runs, finished or not."""
    if len(arguments) < 2:
        raise UserError("usage: python -m pilot_tal.watch tensorboard|wandb RUN…")
    log, *paths = arguments
    if log == "tensorboard":
        from pilot_tal.watch.tensorboard import follow
    elif log == "wandb":
        from pilot_tal.watch.wandb import follow
    else:
        raise unknown_name("log", log, ("tensorboard", "wandb"))
    for path in find_runs(paths):
        follow(load_run(path))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
