"""Checks a checkout's source, without importing it, against what the driver relies on."""

import ast
from dataclasses import dataclass
from pathlib import Path

from data_lt.errors import UserError
from pilot_tal.upstream.sites import BASE_FILE, TOOLBOXES, LearnerSites, Seam, Site, Toolbox

# A call whose last name is one of these may be a classification loss, so it must be in the table of sites.
_CROSS_ENTROPIES = {"cross_entropy", "CrossEntropyLoss", "nll_loss", "NLLLoss"}
# Names that the driver replaces in the checkout's modules, and what they must stand for there.
_REPLACED = {"F": "torch.nn.functional", "DataLoader": "torch.utils.data.DataLoader"}


class MovedSeam(UserError):
    """Something the driver relies on is not where it was in the commit it was written for."""

    def __init__(self, toolbox: Toolbox, file: str, problem: str):
        super().__init__(
            f"{file} of the {toolbox.title} checkout has moved: {problem}; nothing was trained "
            f"(the driver is made for commit {toolbox.tested_commit})"
        )


@dataclass(frozen=True)
class LocatedSite:
    """A call site and the lines its call spans, which identify it while running."""

    site: Site
    first_line: int
    last_line: int


def find_toolbox(repo: Path) -> Toolbox:
    """Which toolbox the checkout at `repo` is."""
    if not repo.is_dir():
        raise UserError(f"repo must be the directory of a checkout, got {repo}, which does not exist")
    for toolbox in TOOLBOXES:
        if (repo / "trainer.py").is_file() and (repo / toolbox.mark).is_dir():
            return toolbox
    titles = " or ".join(toolbox.title for toolbox in TOOLBOXES)
    raise UserError(f"{repo} is not a checkout of {titles}: it needs trainer.py and backbone/ or convs/")


def check_seams(repo: Path, toolbox: Toolbox, learner: LearnerSites) -> tuple[LocatedSite, ...]:
    """Checks every seam that running `learner` needs.

    Returns:
        The learner's cross-entropies, located.

    Raises:
        MovedSeam: Names the first one that is not as expected.
    """
    trees: dict[str, ast.Module] = {}
    for seam in (*toolbox.seams, *learner.seams):
        if seam.file not in trees:
            trees[seam.file] = _parse(repo, toolbox, seam.file)
        _check_seam(toolbox, trees[seam.file], seam)
    for file, names in ((BASE_FILE, ("DataLoader",)), (learner.file, ("DataLoader", "F"))):
        imported = _imported(trees[file])
        for name in names:
            if imported.get(name) != _REPLACED[name]:
                raise MovedSeam(toolbox, file, f"{name} is not imported from {_REPLACED[name].rpartition('.')[0]}")
    return _locate(toolbox, trees[learner.file], learner)


def module_numbers(repo: Path, learner: LearnerSites) -> dict[str, int | float]:
    """Numbers that a learner's file sets at its top level (epochs, batch size …), by name."""
    found = {}
    for node in ast.parse((repo / learner.file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            value = node.value.value if isinstance(node.value, ast.Constant) else None
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                found[node.targets[0].id] = value
    return found


def _parse(repo: Path, toolbox: Toolbox, file: str) -> ast.Module:
    try:
        return ast.parse((repo / file).read_text(encoding="utf-8"))
    except OSError as error:
        raise MovedSeam(toolbox, file, f"it cannot be read ({error.strerror or error})") from error
    except (SyntaxError, ValueError) as error:
        raise MovedSeam(toolbox, file, f"it is not Python that can be read ({error})") from error


def _check_seam(toolbox: Toolbox, tree: ast.Module, seam: Seam) -> None:
    function = _functions(tree).get(seam.function)
    if function is None:
        raise MovedSeam(toolbox, seam.file, f"{seam.function} is not there")
    parameters = tuple(argument.arg for argument in function.args.args)
    if parameters != seam.parameters:
        raise MovedSeam(
            toolbox,
            seam.file,
            f"{seam.function} takes ({', '.join(parameters)}) instead of ({', '.join(seam.parameters)})",
        )
    present = _assigned_attributes(function)
    for name in seam.sets:
        if name not in present:
            raise MovedSeam(toolbox, seam.file, f"{seam.function} does not set self.{name}")
    calls = {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
    for name in seam.calls:
        if name not in calls:
            raise MovedSeam(toolbox, seam.file, f"{seam.function} does not call {name}")


def _imported(tree: ast.Module) -> dict[str, str]:
    """What `from … import …` at the top level binds, by name."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """Functions and methods by qualified name."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{item.name}": item for item in node.body if isinstance(item, ast.FunctionDef)}
    return found


def _assigned_attributes(function: ast.FunctionDef) -> set[str]:
    stored = (node for node in ast.walk(function) if isinstance(node, ast.Attribute))
    return {
        node.attr
        for node in stored
        if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def _locate(toolbox: Toolbox, tree: ast.Module, learner: LearnerSites) -> tuple[LocatedSite, ...]:
    """Matches the cross-entropies of the file with the table, in their order."""
    found: list[tuple[str, ast.Call]] = []
    for name, function in _functions(tree).items():
        calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
        found += [(name, call) for call in calls if _last_name(call.func) in _CROSS_ENTROPIES]
    found.sort(key=lambda item: item[1].lineno)
    everywhere = sum(isinstance(n, ast.Call) and _last_name(n.func) in _CROSS_ENTROPIES for n in ast.walk(tree))
    if everywhere != len(found):
        raise MovedSeam(toolbox, learner.file, "a cross-entropy stands outside the functions and methods")
    lines = [line for _, call in found for line in range(call.lineno, _last_line(call) + 1)]
    if len(set(lines)) != len(lines):
        raise MovedSeam(toolbox, learner.file, "two cross-entropies share a line")
    for place in range(max(len(found), len(learner.sites))):
        wanted = _wanted(learner.sites[place]) if place < len(learner.sites) else "no further cross-entropy"
        given = _given(*found[place]) if place < len(found) else "none"
        if wanted != given:
            raise MovedSeam(toolbox, learner.file, f"expected {wanted}, found {given}")
    return tuple(
        LocatedSite(site, call.lineno, _last_line(call)) for site, (_, call) in zip(learner.sites, found, strict=True)
    )


def _last_line(call: ast.Call) -> int:
    return call.end_lineno or call.lineno


def _wanted(site: Site) -> str:
    return f"{site.written} in {site.function}"


def _given(function: str, call: ast.Call) -> str:
    arguments = [_argument(argument) for argument in call.args]
    arguments += [f"{keyword.arg or '**'}={_argument(keyword.value)}" for keyword in call.keywords]
    return f"{ast.unparse(call.func)}({', '.join(arguments)}) in {function}"


def _argument(node: ast.expr) -> str:
    """A name, or a name's method without arguments, as it is written; for the rest its variables in braces."""
    plain = node.func if isinstance(node, ast.Call) and not node.args and not node.keywords else node
    while isinstance(plain, ast.Attribute):
        plain = plain.value
    if isinstance(plain, ast.Name):
        return ast.unparse(node)
    inner = list(ast.walk(node))
    names = {n.id for n in inner if isinstance(n, ast.Name)} - {"self", "torch"}
    names |= {
        f"self.{n.attr}"
        for n in inner
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "self"
    }
    return f"{{{', '.join(sorted(names))}}}"


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
