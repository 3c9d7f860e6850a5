"""`pilot-tal build`: makes a long-tailed set from images on a disk, checks it, writes it down, draws it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pilot_tal.errors import PilotTalError

if TYPE_CHECKING:
    from data_lt.manifest import Manifest
    from data_lt.pools import Pool


Datasets = Annotated[
    list[str],
    typer.Argument(help="One or more of cub_lt, imagenetr_lt, food101_lt, folder_lt, demo_lt.", show_default=False),
]
DataRoot = Annotated[Path, typer.Option(help="Where the images are: the dataset's folder, or a parent of it.")]
Out = Annotated[Path, typer.Option(help="Where the manifest and the pictures go.")]
Download = Annotated[
    bool, typer.Option("--download", help="Fetch the official archive first, unless all images are there.")
]
Verify = Annotated[bool, typer.Option("--verify", help="Open every image of the set, to find broken ones.")]
Shipped = Annotated[
    bool, typer.Option("--shipped", help="Only look at the manifest that comes along; needs no images.")
]
Classes = Annotated[str, typer.Option(help="all, or present: build from the classes that are there.")]
Law = Annotated[
    str | None,
    typer.Option(
        help="profile (Pareto, deterministic), draw (Pareto, seeded), exponential, none (balanced).",
        show_default="the dataset's: profile",
    ),
]
Shape = Annotated[float | None, typer.Option(help="Shape of the Pareto law.", show_default="the dataset's: 6")]
Seed = Annotated[
    int | None, typer.Option(help="Seed of the split and of the draw.", show_default="the dataset's: 1993")
]
NMax = Annotated[
    int | None,
    typer.Option(
        help="Training images of the largest class.",
        show_default="the dataset's; for folder_lt the largest that fits",
    ),
]
NMin = Annotated[int | None, typer.Option(help="Training images of the smallest class.", show_default="the dataset's")]
TestPerClass = Annotated[int | None, typer.Option(help="Test images of every class.", show_default="the dataset's")]
Folder = Annotated[
    Path | None,
    typer.Option(help="The images' folder below the data root, if its name is unusual.", show_default=False),
]


def build(
    datasets: Datasets,
    data_root: DataRoot = Path("data"),
    out: Out = Path("runs/build"),
    download: Download = False,
    verify: Verify = False,
    shipped: Shipped = False,
    classes: Classes = "all",
    law: Law = None,
    shape: Shape = None,
    seed: Seed = None,
    n_max: NMax = None,
    n_min: NMin = None,
    test_per_class: TestPerClass = None,
    folder: Folder = None,
) -> None:
    """Build long-tailed training sets from the images you have, and look at them.

    Without options that change the split, the result must equal the manifest that ships with the project, and
    the command says whether it does.

    Examples:

      pilot-tal build cub_lt --download

      pilot-tal build cub_lt imagenetr_lt food101_lt --shipped

      pilot-tal build folder_lt --data-root my/images --n-max 200 --n-min 4 --test-per-class 25
    """
    from data_lt import find_card, read_manifest
    from data_lt.prepare import is_shipped, make_recipe

    data_root = data_root.expanduser()
    options = {"law": law, "shape": shape, "seed": seed, "n_max": n_max, "n_min": n_min}
    options["test_per_class"] = test_per_class
    jobs = []
    for card in map(find_card, dict.fromkeys(datasets)):  # wrong options are refused before any work
        recipe = make_recipe(card, **options)
        jobs.append((card, recipe, is_shipped(card, recipe, classes)))
        if shipped and not jobs[-1][2]:
            raise PilotTalError(f"--shipped shows what comes along for {card.name}; no such manifest has these options")
    results = []
    for card, recipe, default in jobs:
        if shipped:
            results.append((read_manifest(card.name), "shipped"))
            continue
        if download:
            _download(card, data_root, folder)
        pool, manifest = _build(card, recipe, classes, data_root, folder, out)
        if verify:
            _verify(manifest, pool)
        results.append((manifest, _compare(manifest, pool) if default else "as asked"))
    _show(results, out, write_manifests=not shipped)


def _build(
    card: Any, recipe: Any, classes: str, data_root: Path, folder: Path | None, out: Path
) -> "tuple[Pool, Manifest]":
    from data_lt.manifest import read_manifest
    from data_lt.prepare import MissingImages, build_manifest, find_pool, is_shipped, locate
    from pilot_tal.files import write_text

    pool = find_pool(card, data_root, folder)
    try:
        if is_shipped(card, recipe, classes):
            locate(read_manifest(card.name), card, pool, data_root)  # says what a run would lack
        return pool, build_manifest(card, pool, recipe, classes, data_root)
    except MissingImages as error:
        path = out / f"{card.name}.missing.txt"
        write_text(path, "\n".join(error.missing) + "\n")
        raise PilotTalError(f"{error}; {path} lists all that is missing") from error


def _download(card: Any, data_root: Path, folder: Path | None) -> None:
    from data_lt.download import download
    from data_lt.prepare import find_pool, locate, read_manifest

    if card.shipped and data_root.is_dir():
        try:
            pool = find_pool(card, data_root, folder)
            locate(read_manifest(card.name), card, pool, data_root)
        except PilotTalError:
            pass  # not here, or not all of it: that is what the download is for
        else:
            typer.echo(f"{card.title}: all images are there already, in {pool.layout.root}")
            return
    typer.echo(f"{card.title}: fetching {card.url} to {data_root}")
    typer.echo(f"Licence: {card.licence}. Cite: {card.citation}")
    typer.echo(f"{card.title}: extracted to {download(card, data_root)}; the archive beside it may be removed")


def _verify(manifest: "Manifest", pool: "Pool") -> None:
    from data_lt.verify import verify_images

    split = manifest.split
    count = verify_images(
        pool.layout.root,
        [pool.files[k][name] for k in manifest.class_names for name in (*split.train[k], *split.test[k])],
    )
    typer.echo(f"{manifest.name}: all {count:,} images can be read")


def _compare(manifest: "Manifest", pool: "Pool") -> str:
    """Says whether a rebuilt manifest equals the shipped one, and if not, where the images differ."""
    from data_lt.manifest import read_manifest
    from data_lt.pools import shortened

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


def _show(results: "list[tuple[Manifest, str]]", out: Path, write_manifests: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from data_lt.figure import draw_distributions, summarize

    table = Table(title="Long-tailed training sets")
    for heading in (
        "dataset",
        "classes",
        "train",
        "largest",
        "smallest",
        "ρ",
        "head",
        "tail",
        "test",
        "law",
        "manifest",
    ):
        table.add_column(heading, justify="left" if heading in ("dataset", "law", "manifest") else "right")
    for manifest, state in results:
        facts, recipe = summarize(manifest), manifest.split.recipe
        table.add_row(
            manifest.name,
            str(facts.classes),
            f"{facts.train:,}",
            str(facts.largest),
            str(facts.smallest),
            f"{facts.rho:.4g}",
            f"{100 * (1 - facts.tail_share):.1f} %",
            f"{100 * facts.tail_share:.1f} %",
            f"{facts.test:,}",
            f"{recipe.law}, seed {recipe.seed}",
            f"{manifest.checksum[:12]} {state}",
        )
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    console.print(table)
    typer.echo("head, tail: share of the training images in the larger and the smaller half of the classes")
    written = []
    for manifest, _ in results:
        if write_manifests:
            manifest.write(out / f"{manifest.name}.txt")
            written.append(out / f"{manifest.name}.txt")
    stem = results[0][0].name if len(results) == 1 else "distributions"
    written += draw_distributions([manifest for manifest, _ in results], out / stem)
    typer.echo("wrote " + ", ".join(map(str, written)))
