"""`pilot-tal build`: makes a long-tailed set from images on a disk, checks it, writes it down, draws it."""

from pathlib import Path
from typing import Annotated

import typer

from data_lt.cards import CARDS, DatasetCard
from data_lt.errors import UserError
from data_lt.figure import draw_distributions, facts_of
from data_lt.files import given_path, staged_folder, write_text
from data_lt.laws import LAWS
from data_lt.manifest import Manifest, read_manifest
from data_lt.pools import Pool, shortened
from data_lt.prepare import MissingImages, build_manifest, find_pool, is_shipped, locate, make_recipe
from data_lt.split import Recipe
from pilot_tal.config.parse import split_values
from pilot_tal.config.plugins import load_plugins


def _option(help: str, *names: str, default: str | bool = "the dataset's") -> typer.models.OptionInfo:
    return typer.Option(*names, help=help, show_default=default)


def build(
    datasets: Annotated[list[str], typer.Argument(help=f"One or more of {', '.join(CARDS)}.", show_default=False)],
    data_root: Annotated[
        str, typer.Option(envvar="PILOT_TAL_DATA", help="The folder of the images, or a parent of it.")
    ] = "data",
    out: Annotated[str, typer.Option("--out", "-o", help="Where the manifest and the pictures go.")] = "runs/build",
    download: Annotated[bool, _option("Fetch the official archive first.", "--download", default=False)] = False,
    verify: Annotated[bool, _option("Open every image, to find broken ones.", "--verify", default=False)] = False,
    shipped: Annotated[bool, _option("Show what comes along; needs no images.", "--shipped", default=False)] = False,
    classes: Annotated[str, typer.Option(help="all, or present: build from the classes that are there.")] = "all",
    law: Annotated[str | None, _option("; ".join(f"{law}: {what}" for law, what in LAWS.items()) + ".")] = None,
    shape: Annotated[float | None, _option("Shape of the Pareto law.")] = None,
    seed: Annotated[int | None, _option("Seed of the split and of the draw.")] = None,
    n_max: Annotated[int | None, _option("Training images of the largest class.")] = None,
    n_min: Annotated[int | None, _option("Training images of the smallest class.")] = None,
    rho: Annotated[float | None, _option("Imbalance n_max / n_min, in place of n_min.")] = None,
    test_per_class: Annotated[int | None, _option("Test images of every class.")] = None,
    folder: Annotated[str | None, _option("The images' folder, if its name is unusual.", default=False)] = None,
    plugins: Annotated[str, _option("Modules or files that register further sets.", default=False)] = "",
) -> None:
    """Build long-tailed training sets from the images you have, and look at them.

    Without options that change the split, the result must equal the manifest that ships with the project, and
    the command says whether it does.

    Examples:

      pilot-tal build cub_lt --download

      pilot-tal build cub_lt imagenetr_lt food101_lt --shipped

      pilot-tal build folder_lt --data-root my/images --n-max 200 --rho 50 --test-per-class 25
    """
    load_plugins(tuple(split_values(plugins)))
    root, target = given_path(data_root, "--data-root"), given_path(out, "--out")
    options = {"law": law, "shape": shape, "seed": seed, "n_max": n_max, "n_min": n_min, "rho": rho}
    jobs = []
    for card in [CARDS[name] for name in dict.fromkeys(datasets)]:  # wrong options are refused before any work
        recipe = make_recipe(card, **options, test_per_class=test_per_class)
        jobs.append((card, recipe, is_shipped(card, recipe, classes)))
        if shipped and not jobs[-1][2]:
            raise UserError(f"--shipped shows what comes along for {card.name}; no such manifest has these options")
    results = []
    for card, recipe, default in jobs:
        if shipped:
            results.append((read_manifest(card.name), "shipped"))
            continue
        if download:
            _download(card, root, folder)
        pool = find_pool(card, root, folder)
        manifest = _manifest(card, pool, recipe, classes, root, target)
        if verify:
            _verify(manifest, pool)
        results.append((manifest, _state(manifest, pool) if default else "as asked"))
    _show(results)
    _write(results, target, with_manifests=not shipped)


def _manifest(card: DatasetCard, pool: Pool, recipe: Recipe, classes: str, root: Path, target: Path) -> Manifest:
    try:
        if is_shipped(card, recipe, classes):
            locate(read_manifest(card.name), card, pool, root)  # says what a run would lack
        return build_manifest(card, pool, recipe, classes, root)
    except MissingImages as error:
        path = target / f"{card.name}.missing.txt"
        write_text(path, "\n".join(error.missing) + "\n")
        raise UserError(f"{error}; {path} lists all that is missing") from error


def _download(card: DatasetCard, root: Path, folder: str | None) -> None:
    from data_lt.download import download

    if card.url is not None and root.is_dir():
        try:
            pool = find_pool(card, root, folder)
            manifest = read_manifest(card.name) if card.shipped else build_manifest(card, pool, make_recipe(card))
            locate(manifest, card, pool, root)
        except UserError:
            pass  # not here, or not all of it: that is what the download is for
        else:
            typer.echo(f"{card.title}: all images are there already, in {pool.layout.root}")
            return
    if card.url is not None:
        typer.echo(f"{card.title}: fetching {card.url} to {root}")
        typer.echo(f"Licence: {card.licence}. Cite: {card.citation}")
    typer.echo(f"{card.title}: extracted to {download(card, root)}; the archive beside it may be removed")


def _verify(manifest: Manifest, pool: Pool) -> None:
    from data_lt.verify import verify_images

    split = manifest.split
    names = [(label, name) for label in manifest.class_names for name in (*split.train[label], *split.test[label])]
    count, turned = verify_images(pool.layout.root, [pool.files[label][name] for label, name in names])
    typer.echo(f"{manifest.name}: all {count:,} images can be read")
    if turned:
        typer.echo(
            f"{manifest.name}: {turned:,} of them carry a camera's note to be turned (EXIF orientation). Runs take "
            "them as they are stored, as LAMDA-PILOT does; turn the files themselves if they are to stand upright."
        )


def _state(manifest: Manifest, pool: Pool) -> str:
    """Says whether a rebuilt manifest equals the shipped one, and if not, where the images differ."""
    official = read_manifest(manifest.name)
    if official.text() == manifest.text():
        return "identical"
    sizes, wanted = manifest.split.pool, official.split.pool
    other = [f"{k} ({sizes[k]} images, officially {wanted[k]})" for k in wanted if sizes[k] != wanted[k]]
    where = f"these classes have other files: {shortened(other)}" if other else "file names differ"
    typer.echo(
        f"{manifest.name}: NOT identical to the shipped manifest, since the images below "
        f"{pool.layout.root} are not the official ones; {where}. "
        "All images of the shipped manifest are there, and a run uses that one."
    )
    return "differs"


def _show(results: list[tuple[Manifest, str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Long-tailed training sets")
    numbers = ("classes", "train", "largest", "smallest", "ρ", "head", "tail", "test")
    for heading in ("dataset", *numbers, "law", "manifest"):
        table.add_column(heading, justify="right" if heading in numbers else "left")
    for manifest, state in results:
        facts, recipe = facts_of(manifest), manifest.split.recipe
        shares = (f"{100 * share:.1f} %" for share in (1 - facts.tail_share, facts.tail_share))
        sizes = (facts.classes, f"{facts.train:,}", facts.largest, facts.smallest, f"{facts.rho:.4g}", *shares)
        law, checksum = f"{recipe.law}, seed {recipe.seed}", f"{manifest.checksum[:12]} {state}"
        table.add_row(*map(str, (manifest.name, *sizes, f"{facts.test:,}", law, checksum)))
    console = Console()
    (console if console.is_terminal else Console(width=140)).print(table)
    typer.echo("head, tail: share of the training images in the larger and the smaller half of the classes")


def _write(results: list[tuple[Manifest, str]], target: Path, with_manifests: bool) -> None:
    """Manifests and pictures, all or none."""
    stem = results[0][0].name if len(results) == 1 else "distributions"
    with staged_folder(target) as folder:
        if with_manifests:
            for manifest, _ in results:
                manifest.write(folder / f"{manifest.name}.txt")
        draw_distributions([manifest for manifest, _ in results], folder / stem)
        written = sorted(path.name for path in folder.iterdir())
    typer.echo("wrote " + ", ".join(str(target / name) for name in written))
