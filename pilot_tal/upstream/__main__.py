"""The driver's own command line, for the environment of the checkout.

    python pilot_tal/upstream/__main__.py check --repo PATH
    python pilot_tal/upstream/__main__.py run JOB.json

Started as a file it finds `pilot_tal` beside itself and nothing else: the packages are the environment's own.
"""

import argparse
import importlib.util
import sys
from pathlib import Path


def _find_own_packages() -> None:
    """Makes `pilot_tal` and `data_lt` importable without putting the folder they lie in on the path."""
    root = Path(__file__).resolve().parents[2]
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != root / "pilot_tal" / "upstream"]
    for name in ("data_lt", "pilot_tal"):
        spec = importlib.util.spec_from_file_location(name, root / name / "__init__.py")
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; an error meant for the user is one sentence and exit status 2."""
    from data_lt.errors import UserError

    parser = argparse.ArgumentParser(prog="pilot_tal.upstream", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="Check a checkout and this environment; nothing is trained.")
    check.add_argument("--repo", required=True, type=Path, help="The checkout of LAMDA-PILOT or PyCIL.")
    run = commands.add_parser("run", help="Run a job that `pilot-tal upstream` has written.")
    run.add_argument("job", type=Path)
    given = parser.parse_args(arguments)
    try:
        if given.command == "check":
            _check(given.repo)
        else:
            _run(given.job)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _check(repo: Path) -> None:
    from pilot_tal.upstream.driver import check_environment
    from pilot_tal.upstream.seams import check_seams, find_toolbox

    toolbox = find_toolbox(repo)
    for learner in toolbox.learners.values():
        check_seams(repo, toolbox, learner)
    versions = check_environment(toolbox, repo, toolbox.learners.values())
    print(f"{toolbox.title}: all seams are there ({', '.join(f'{k} {v}' for k, v in versions.items())})")


def _run(path: Path) -> None:
    from pilot_tal.upstream.driver import run
    from pilot_tal.upstream.job import read_job

    run(read_job(path))


if __name__ == "__main__":
    if not __package__:
        _find_own_packages()
    sys.exit(main())
