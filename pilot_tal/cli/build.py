"""`pilot-tal build`: makes a long-tailed set from images on a disk, checks it and writes it down."""

import contextlib
from collections.abc import Callable
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from data_lt.cards import CARDS, DatasetCard
from data_lt.errors import UserError
from data_lt.files import given_path, staged_folder
from data_lt.manifest import Manifest, read_manifest, seal
from data_lt.options import DataOptions, is_shipped, make_recipe
from data_lt.pictures import shortened, verify_images
from data_lt.prepare import build_manifest, find_pool, find_set
from pilot_tal.cli.shared import DataRoot, Plugins, echo, print_table, use_plugins
from pilot_tal.schema import settings_of

_Built = tuple[str, Manifest, str]  # name, manifest and state


def _with_dataset_options(function: Callable) -> Callable:
    """Adds an option `--n-max` for every dataset option (`n_max`) to the command."""
    usual = signature(function)
    parameters = {name: parameter for name, parameter in usual.parameters.items() if name != "options"}
    for name, setting in settings_of(DataOptions).items():
        if name == "manifest":  # which is what the command makes
            continue
        flags = [f"--{name.replace('_', '-')}", *(["--seed"] if name == "split_seed" else [])]
        kind: Any = bool if setting.kind is bool else str | None
        text, choices = setting.rule.help, ", ".join(setting.rule.choices)
        text = text[0].upper() + text[1:] + (f" ({choices})." if choices else ".")
        annotation = Annotated[kind, typer.Option(*flags, help=text, show_default=False)]
        default = False if kind is bool else None
        parameters[name] = Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    function.__signature__ = usual.replace(parameters=[*parameters.values()])  # type: ignore[attr-defined]
    function.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return function


@_with_dataset_options
def build(
    datasets: Annotated[list[str] | None, typer.Argument(metavar="DATASETS", help=f"{', '.join(CARDS)}.")] = None,
    data_root: DataRoot = "data",
    out: Annotated[str, typer.Option("--out", "-o", help="Folder of the manifests.")] = "runs/build",
    download: Annotated[bool, typer.Option("--download", help="Fetch the official archive first.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Open every image, to find broken ones.")] = False,
    shipped: Annotated[bool, typer.Option("--shipped", help="Show the shipped manifests; needs no images.")] = False,
    check: Annotated[str | None, typer.Option(help="Check a manifest that was edited by hand, and accept it.")] = None,
    plugins: Plugins = "",
    **options: Any,
) -> None:
    """Build long-tailed training sets from your images, with a table and a manifest.

    Without options that change the split, the result must equal the manifest that ships with the project, and
    the command reports whether it does.

    Example: pilot-tal build cub_lt --download

    Example: pilot-tal build folder_lt --data-root my/images --n-max 200 --rho 50 --test-per-class 25
    """
    use_plugins(plugins)
    if check is not None:
        manifest = seal(check)
        echo(f"{check}: {sum(manifest.counts):,} training images; checksum {manifest.checksum[:12]}")
    elif not datasets:
        raise UserError(f"name a dataset: one or more of {', '.join(CARDS)}")
    if not datasets:
        return
    root, target, known = given_path(data_root, "--data-root"), given_path(out, "--out"), settings_of(DataOptions)
    given = {name: value for name, value in options.items() if value is not None}
    chosen = DataOptions(**{k: known[k].parse(v) if isinstance(v, str) else v for k, v in given.items()})
    cards = [CARDS[name] for name in dict.fromkeys(datasets)]
    for card in cards:  # wrong options are refused before any work
        make_recipe(card, chosen)
        if shipped and not is_shipped(card, chosen):
            raise UserError(f"--shipped shows the shipped manifest of {card.name}; there is none with these options")
    if shipped:
        _show([(card.name, read_manifest(card.name), "shipped") for card in cards])
        return
    results = [_built(card, root, chosen, download, verify) for card in cards]
    _show(results)
    with staged_folder(target) as folder:  # all or none
        for name, manifest, _ in results:
            manifest.write(folder / f"{name}.txt")
    echo("wrote " + ", ".join(str(target / f"{name}.txt") for name, _, _ in results))


def _built(card: DatasetCard, root: Path, options: DataOptions, download: bool, verify: bool) -> _Built:
    if download:
        _download(card, root, options.folder)
    found, official = find_set(card, root, options)
    if verify:
        count, turned = verify_images(found.root, found.frame.path)
        echo(f"{found.name}: all {count:,} images can be read")
        if turned:
            rotate = "which runs ignore, as LAMDA-PILOT does; rotate the files themselves if needed"
            echo(f"{found.name}: {turned:,} of them have an EXIF orientation, {rotate}")
    if not is_shipped(card, options):
        return found.name, official, "as asked"
    rebuilt = build_manifest(card, find_pool(card, root, options), options)
    if official.text() == rebuilt.text():
        return found.name, rebuilt, "identical"
    sizes, wanted = rebuilt.split.pool, official.split.pool
    other = [f"{k} ({sizes[k]} images, officially {wanted[k]})" for k in wanted if sizes[k] != wanted[k]]
    where = f"these classes have other files: {shortened(other)}" if other else "file names differ"
    echo(
        f"{card.name}: NOT identical to the shipped manifest, since the images below {found.root} are not "
        f"the official ones; {where}. All images of the shipped manifest are there, and runs use that one."
    )
    return found.name, rebuilt, "differs"


def _download(card: DatasetCard, root: Path, folder: str | None) -> None:
    from data_lt.download import download

    if card.url is not None:
        with contextlib.suppress(UserError):  # not here, or not all of it: that is what the download is for
            found, _ = find_set(card, root, DataOptions(folder=folder))
            echo(f"{card.title}: all images are there already, in {found.root}")
            return
        echo(f"{card.title}: fetching {card.url} to {root}")
        echo(f"Licence: {card.licence}. Cite: {card.citation}")
    echo(f"{card.title}: extracted to {download(card, root)}; the archive beside it may be removed")


def _show(results: list[_Built]) -> None:
    from rich.table import Table

    table = Table(title="Long-tailed training sets")
    numbers = ("classes", "train", "largest", "smallest", "ρ", "head", "tail", "test")
    for heading in ("dataset", *numbers, "profile", "manifest"):
        table.add_column(heading, justify="right" if heading in numbers else "left")
    for name, manifest, state in results:
        header, counts = manifest.header, sorted(manifest.counts)
        tail = 100 * sum(counts[: len(counts) // 2]) / sum(counts)
        sizes = (header["classes"], f"{header['train']:,}", counts[-1], counts[0], f"{counts[-1] / counts[0]:.4g}")
        shares = (f"{100 - tail:.1f} %", f"{tail:.1f} %", f"{header['test']:,}")
        origin = (f"{header['law']}, seed {header['seed']}", f"{manifest.checksum[:12]} {state}")
        table.add_row(*map(str, (name, *sizes, *shares, *origin)))
    print_table(table)
    echo("head, tail: share of the training images in the larger and the smaller half of the classes")
