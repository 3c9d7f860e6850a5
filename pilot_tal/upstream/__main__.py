"""The driver's own command line, for the environment of the checkout.

    python pilot_tal/upstream/__main__.py check PATH_OF_THE_CHECKOUT
    python pilot_tal/upstream/__main__.py run JOB.json

Started as a file it finds `pilot_tal` beside itself and nothing else: the packages are the environment's own.
"""

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


def main(command: str, path: str) -> None:
    """Runs a command; an error meant for the user is one sentence and exit status 2."""
    from data_lt.errors import UserError
    from data_lt.files import read_json
    from pilot_tal.upstream import checkout

    try:
        versions = checkout.check_environment()
        if command == "run":
            from pilot_tal.upstream.driver import Job, run

            run(Job(**read_json(path)), versions)
        else:
            for learner in checkout.LEARNERS.values():
                checkout.locate(Path(path), learner)
            print(f"LAMDA-PILOT: all call sites are there ({', '.join(f'{k} {v}' for k, v in versions.items())})")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    if not __package__:
        _find_own_packages()
    main(*sys.argv[1:])
