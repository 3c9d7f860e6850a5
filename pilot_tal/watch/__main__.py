"""`python -m pilot_tal.watch tensorboard|wandb RUN…`: brings the log of runs up to date; nothing is logged twice."""

import os
import sys

from data_lt.errors import UserError, unknown_name
from data_lt.files import given_path
from pilot_tal.engine.follower import check_log
from pilot_tal.record.run_dir import find_runs, load_run


def main(arguments: list[str]) -> int:
    """Follows runs, finished or not; gives 1 if one of them could not be logged."""
    if len(arguments) < 2:
        raise UserError("usage: python -m pilot_tal.watch tensorboard|wandb RUN…")
    log, *paths = arguments
    if log not in ("tensorboard", "wandb"):
        raise unknown_name("log", log, ("tensorboard", "wandb"))
    check_log(log)
    if log == "tensorboard":
        from pilot_tal.watch.tensorboard import follow
    else:
        from pilot_tal.watch.wandb import follow
    status = 0
    # The name of `.` is the folder's; a link keeps its own.
    for path in find_runs(os.path.abspath(given_path(path, "RUN")) for path in paths):
        try:
            follow(load_run(path))
            continue
        except UserError as error:
            reason = str(error)
        except OSError as error:
            reason = f"cannot write the log of {path}: {error.strerror or error}"
        print(f"error: {reason}", file=sys.stderr)  # the others are logged all the same
        status = 1
    return status


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
