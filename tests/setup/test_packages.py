"""Every import is declared, and CONTRIBUTING lists every package in the order of the layers."""

import ast
import re
import sys
from importlib.metadata import packages_distributions

import pytest
from helpers.cli import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOOSE_AT_MOST = 12


def imported(folder: str) -> set[str]:
    """Packages that a folder's files import, at any depth."""
    found = set()
    for file in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(str(node.module).partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"data_lt", "pilot_tal"}


def names(requirements: list[str]) -> set[str]:
    return {re.match(r"[\w-]+", line)[0].lower().replace("_", "-") for line in requirements}


def undeclared(folder: str, declared: set[str]) -> set[str]:
    distributions = packages_distributions()
    packages = {package for package in imported(folder) if package in distributions}  # others are the folder's own
    return {p for p in packages if not declared & {d.lower().replace("_", "-") for d in distributions[p]}}


@pytest.mark.parametrize("folder", ["data_lt", "pilot_tal", "tests", "scripts"])
def test_every_direct_import_is_declared(folder):
    needed, extras = PROJECT["project"]["dependencies"], PROJECT["project"]["optional-dependencies"]
    for_users = [line for extra, lines in extras.items() if extra != "test" for line in lines]
    declared = names(needed) | names(for_users) | (names(extras["test"]) if folder == "tests" else set())
    assert undeclared(folder, declared) == set()
    pinned = (line for file in ROOT.glob("requirements*.txt") for line in file.read_text().splitlines())
    missing = names(needed) - names([line for line in pinned if re.match(r"\w", line)])
    assert not missing, f"{missing} are not pinned in requirements.txt"


def packages() -> set[str]:
    inside = {path.name.removesuffix(".py") for path in (ROOT / "pilot_tal").iterdir() if path.suffix == ".py"}
    inside |= {path.parent.name for path in (ROOT / "pilot_tal").glob("*/__init__.py")}
    return inside - {"__init__", "__main__"}


def layers() -> list[list[str]]:
    """The layers as import-linter knows them, lowest first."""
    contract = PROJECT["tool"]["importlinter"]["contracts"][0]
    assert contract["type"] == "layers" and contract["exhaustive"]
    return [re.split(r" \| ", line) for line in reversed(contract["layers"])]


def test_contributing_lists_every_package_lowest_layer_first():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text[text.index("| package | contents |") :].split("\n\n")[0]
    first = [re.split(r"\s\|", line)[0] for line in table.splitlines()[2:]]
    mapped = [re.sub(r"^pilot_tal/|/$|\.py$", "", name) for row in first for name in re.findall(r"`([^`]+)`", row)]
    assert mapped[0] == "data_lt" and len(mapped) == len(set(mapped))
    level = {package: number for number, row in enumerate(layers()) for package in row}
    assert set(mapped[1:]) == level.keys() - {"_torchvision", "version"}
    assert [level[package] for package in mapped[1:]] == sorted(level[package] for package in mapped[1:])
    assert level.keys() == packages()


def test_few_modules_outside_packages():
    assert len([*(ROOT / "pilot_tal").glob("*.py")]) <= LOOSE_AT_MOST
