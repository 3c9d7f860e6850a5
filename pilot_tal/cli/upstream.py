"""`pilot-tal upstream`: losses and long-tailed sets of ours inside a checkout of LAMDA-PILOT."""

import os
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from data_lt.errors import UserError, command
from data_lt.files import given_path
from pilot_tal.cli.shared import DataRoot, Plugins, echo

ROOT = Path(__file__).resolve().parents[2]
DRIVER = ROOT / "pilot_tal" / "upstream" / "__main__.py"
SETTINGS = (
    "Any key of the config (init_cls=20 increment=20 tuned_epoch=20); tal.lam=0.99 for the loss, "
    "data.classes=present for the dataset."
)
WEIGHTS = "File with the ViT's weights (.npz, .pth, .safetensors), of ViT-B/16 or a smaller ViT; or random for a test."


def upstream(
    repo: Annotated[str, typer.Option(help="Your checkout of LAMDA-PILOT; nothing is written into it.")],
    config: Annotated[str, typer.Option(help="A config of the checkout, such as exps/l2p.json.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help=SETTINGS, show_default=False)
    ] = None,
    loss: Annotated[
        list[str] | None,
        typer.Option(
            help="Loss to train with; give it again for each further one.",
            show_default="tal; none for a learner that trains nothing",
        ),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="One of our long-tailed sets.", show_default="the config's own dataset")
    ] = None,
    data_root: DataRoot = "data",
    seed: Annotated[
        list[int] | None,
        typer.Option(help="Seed; give it again for more.", show_default="the config's seeds", min=0, max=2**32 - 1),
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="Where the run directories go.")] = "runs",
    device: Annotated[
        str | None,
        typer.Option(help="cpu, or GPU numbers such as 0.", show_default="the config's, or the CPU without a GPU"),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0, help="Processes that load images.", show_default="the checkout's own, at most one per core"
        ),
    ] = None,
    weights: Annotated[str | None, typer.Option(help=WEIGHTS, show_default="downloaded by the checkout")] = None,
    plugins: Plugins = "",
    python: Annotated[
        Path,
        typer.Option(
            help="Interpreter of the checkout's environment.", show_default="that of scripts/setup_upstream.sh"
        ),
    ] = ROOT / ".venv-upstream" / "bin" / "python",
) -> None:
    """Run a learner of an unmodified LAMDA-PILOT checkout with one of our losses.

    The checkout's own trainer runs in its own environment, with its classification cross-entropy replaced in memory.
    Run directories have the same format as ours, so that `pilot-tal report` shows both side by side.

    Example: pilot-tal upstream --repo LAMDA-PILOT --config exps/l2p.json --dataset cub_lt --loss ce --loss tal
    """
    checkout = given_path(repo, "--repo")
    images, runs = given_path(data_root, "--data-root"), given_path(output, "--output")
    if not python.is_file():
        raise UserError(
            f"python must be the interpreter of the checkout's environment, but {python} does not exist; "
            f"make it with: bash scripts/setup_upstream.sh {checkout}"
        )
    from pilot_tal.config.parse import split_values
    from pilot_tal.record.run_dir import is_finished
    from pilot_tal.upstream.plan import make_jobs

    jobs = make_jobs(
        checkout, config, settings or [], losses=list(dict.fromkeys(loss or [])), dataset=dataset, data_root=images,
        seeds=seed or [], output=runs, device=device, workers=workers, weights=weights,
        plugins=tuple(split_values(plugins)),
    )  # fmt: skip
    # -B and no PYTHONPATH: no bytecode in the checkout, and no package of ours in its environment.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for number, job in enumerate(jobs, start=1):
        echo(f"run {number} of {len(jobs)}: {job.run_dir}")
        if is_finished(Path(job.run_dir)):
            echo("done already")
            continue
        job.write()
        status = subprocess.run([str(python), "-B", str(DRIVER), "run", str(job.file)], env=environment).returncode
        if status or not is_finished(Path(job.run_dir)):
            echo(f"the run in {job.run_dir} stopped with status {status}", err=True)
            raise typer.Exit(2 if status == 2 else 1)
    echo(f"next: {command('report', *(job.run_dir for job in jobs))}")
