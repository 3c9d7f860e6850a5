"""Checks a checkout's source, without importing it, against what the driver relies on."""

import ast
from itertools import zip_longest
from pathlib import Path
from typing import Any

from data_lt.errors import UserError
from pilot_tal.upstream.sites import TOOLBOXES, LearnerSites, Seam, Site, Toolbox

# A call whose last name is one of these may be a classification loss, so it must be in the table of sites.
_CROSS_ENTROPIES = {"cross_entropy", "CrossEntropyLoss", "nll_loss", "NLLLoss"}
Located = tuple[tuple[range, Site], ...]
"""Call sites with the lines that each call spans, which identify it while running."""


class MovedSeam(UserError):
    """Something the driver relies on is not where it was in the commit it was written for."""

    def __init__(self, toolbox: Toolbox, file: str, problem: str):
        super().__init__(
            f"{file} of the {toolbox.title} checkout has moved: {problem}; nothing was trained "
            f"(the driver is made for commit {toolbox.tested_commit})"
        )


def find_toolbox(repo: Path) -> Toolbox:
    """Which toolbox the checkout at `repo` is."""
    if not repo.is_dir():
        raise UserError(f"repo must be the directory of a checkout, got {repo}, which does not exist")
    for toolbox in TOOLBOXES:
        if (repo / "trainer.py").is_file() and (repo / toolbox.mark).is_dir():
            return toolbox
    titles = " or ".join(toolbox.title for toolbox in TOOLBOXES)
    raise UserError(f"{repo} is not a checkout of {titles}: it needs trainer.py and backbone/ or convs/")


def check_seams(repo: Path, toolbox: Toolbox, learner: LearnerSites) -> Located:
    """Checks every seam that running `learner` needs.

    Returns:
        The learner's cross-entropies, located.

    Raises:
        MovedSeam: Names the first one that is not as expected.
    """
    seams = (*toolbox.seams, *learner.seams)
    trees = {file: _parse(repo, toolbox, file) for file in dict.fromkeys(seam.file for seam in seams)}
    for seam in seams:
        problem = _problem(trees[seam.file], seam)
        if problem:
            raise MovedSeam(toolbox, seam.file, problem)
    calls = _cross_entropies(trees[learner.file])
    wanted = [f"{site.call} in {site.function}" for site in learner.sites]
    for expected, found in zip_longest(wanted, (text for text, _ in calls), fillvalue="none"):
        if expected != found:
            raise MovedSeam(toolbox, learner.file, f"expected {expected}, found {found}")
    lines = [line for _, span in calls for line in span]
    if len(set(lines)) != len(lines):
        raise MovedSeam(toolbox, learner.file, "two cross-entropies share a line")
    return tuple((span, site) for site, (_, span) in zip(learner.sites, calls, strict=True))


def module_numbers(repo: Path, learner: LearnerSites) -> dict[str, int | float]:
    """Numbers that a learner's file sets at its top level (epochs, batch size …), by name."""
    found: dict[str, Any] = {}
    for node in ast.parse((repo / learner.file).read_text(encoding="utf-8")).body:
        value = node.value.value if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) else None
        if isinstance(node, ast.Assign) and type(value) in (int, float):
            found |= {ast.unparse(target): value for target in node.targets}
    return found


def _parse(repo: Path, toolbox: Toolbox, file: str) -> ast.Module:
    try:
        return ast.parse((repo / file).read_text(encoding="utf-8"))
    except OSError as error:
        raise MovedSeam(toolbox, file, f"it cannot be read ({error.strerror or error})") from error
    except (SyntaxError, ValueError) as error:
        raise MovedSeam(toolbox, file, f"it is not Python that can be read ({error})") from error


def _problem(tree: ast.Module, seam: Seam) -> str:
    """What is missing of a seam; "" if nothing."""
    if not seam.function:
        imports = (node for node in tree.body if isinstance(node, ast.ImportFrom))
        present = {f"from {node.module} import {ast.unparse(alias)}" for node in imports for alias in node.names}
        return next((f"{need!r} is not there" for need in seam.needs if need not in present), "")
    name = seam.function.partition("(")[0]
    function = _functions(tree).get(name)
    if function is None:
        return f"{name} is not there"
    parameters = ", ".join(argument.arg for argument in function.args.args)
    if f"{name}({parameters})" != seam.function:
        return f"{name} takes ({parameters}) instead of {seam.function.removeprefix(name)}"
    nodes = list(ast.walk(function))
    present = {f"{ast.unparse(node.func)}()" for node in nodes if isinstance(node, ast.Call)}
    present |= {ast.unparse(n) for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    return next((f"{name} has no {need}" for need in seam.needs if need not in present), "")


def _functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """Functions and methods by qualified name."""
    owners: list[tuple[str, ast.Module | ast.ClassDef]] = [("", tree)]
    owners += [(f"{node.name}.", node) for node in tree.body if isinstance(node, ast.ClassDef)]
    found = ((owner, item) for owner, node in owners for item in node.body)
    return {f"{owner}{item.name}": item for owner, item in found if isinstance(item, ast.FunctionDef)}


def _cross_entropies(tree: ast.Module) -> list[tuple[str, range]]:
    """Every cross-entropy in order: `call(variables of each argument) in function`, and its lines."""
    found = []
    for name, function in _functions(tree).items():
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _CROSS_ENTROPIES:
                given = [_variables(argument) for argument in node.args]
                given += [f"{keyword.arg}={_variables(keyword.value)}" for keyword in node.keywords]
                lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                found.append((f"{ast.unparse(node.func)}({', '.join(given)}) in {name}", lines))
    return sorted(found, key=lambda call: call[1].start)


def _variables(node: ast.expr) -> str:
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return " ".join(sorted(names - {"self", "torch"}))
