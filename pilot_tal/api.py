"""The Python API: everything that the command line does is one call here.

    import pilot_tal as pt

    study = pt.compare("l2p", "demo_lt", losses=["ce", "tal_auto"], seeds=[1993, 1994, 1995], tasks=5)
    study.report("report")

Settings are keyword arguments with the names of the command line, dotted ones as `**{"tal.lam": [0.99, 0.995]}`.
A list of values is a grid, as a comma-separated list is on the command line; a setting whose value is itself a list
takes a tuple; `backbone` also takes an nn.Module. Wrong settings, missing images and
failed trainings raise `UserError`, whose text is one sentence.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_lt.errors import UserError

if TYPE_CHECKING:
    from torch import nn

    from pilot_tal.backbone import FrozenBackbone
    from pilot_tal.config.settings import StudyConfig
    from pilot_tal.engine.callbacks import Callback
    from pilot_tal.engine.launch import Outcome
    from pilot_tal.learners import Learner
    from pilot_tal.record.run_dir import Run
    from pilot_tal.results.study import Study

Names = str | Sequence[str]


def run(
    method: str,
    dataset: str,
    *,
    loss: str | None = None,
    seed: int = 1993,
    quick: bool = False,
    callbacks: "Sequence[Callback]" = (),
    **settings: Any,
) -> "Run":
    """Trains one method on one dataset with one loss and one seed.

    A run that was interrupted resumes after its last finished task; a finished one is not trained again.

    Args:
        method: Name of a method, see `list_methods`.
        dataset: Name of a dataset, see `list_datasets`.
        loss: Name of a loss, see `list_losses`; None: tal, or no loss for a method that trains nothing.
        seed: Seed of the class order, the batches and the initial weights.
        quick: Smoke test of a few steps.
        callbacks: Called during training.
        **settings: Further settings, such as `tasks=10`, `epochs=2`, `data_root="photos"`.

    Returns:
        The finished run.
    """
    from pilot_tal.config.grid import run_config
    from pilot_tal.record.run_dir import load_run

    study = run_config(method, dataset, settings_items(loss=loss, seed=seed, **settings), quick)
    return load_run(launch(study, callbacks).jobs[0].path)


def compare(
    methods: Names,
    datasets: Names,
    *,
    losses: Names | None = None,
    seeds: int | Sequence[int] | None = None,
    references: Names | None = None,
    quick: bool = False,
    callbacks: "Sequence[Callback]" = (),
    **settings: Any,
) -> "Study":
    """Trains every combination of methods, datasets, losses, seeds and listed settings.

    Finished runs are not trained again, so the same call after an interruption trains what is missing. Several runs
    are trained at a time, in processes of their own; the failure of one leaves the others alone.

    Args:
        methods: One or more methods, or "all".
        datasets: One or more datasets, or "all" (the three of the paper).
        losses: One or more losses; None: ce, tal and tal_auto.
        seeds: One or more seeds; None: 1993, 1994 and 1995.
        references: Training-free methods to run beside one that trains, or "none"; None: simplecil and plda.
        quick: Smoke test of a few steps.
        callbacks: Called during training, in the process that trains.
        **settings: Further settings; a list of values is a grid.

    Returns:
        The study of all runs; what failed is listed there.
    """
    from pilot_tal.config.grid import study_config

    items = settings_items(losses=losses, seeds=seeds, references=references, **settings)
    outcome = launch(study_config(_typed(methods), _typed(datasets), items, quick), callbacks)
    if len(outcome.failed) == len(outcome.jobs):
        raise UserError(f"every run failed; the first: {outcome.failed[0].failure}")
    return study_of([job.path for job in outcome.jobs if (job.path / "run.json").is_file()], outcome.study.baseline)


def load_runs(paths: str | Path | Iterable[str | Path], baseline: str = "ce") -> "Study":
    """Reads run directories, or folders of them, native or upstream, as one study.

    Args:
        paths: Run directories, or folders of them; a damaged run is a `UserError`.
        baseline: Loss that the study compares the others with.
    """
    from pilot_tal.results import load_study

    return load_study([paths] if isinstance(paths, (str, Path)) else list(paths), baseline)


def report(
    runs: "Study | str | Path | Iterable[str | Path]",
    folder: str | Path = "report",
    baseline: str = "ce",
    plots: bool = False,
    features: bool = False,
) -> Path:
    """Write the report on a study or on run directories: an overview page, one page per group, and tables.

    Args:
        runs: A study, which has its own baseline; or run directories, or folders of them.
        folder: Folder of the report.
        baseline: Loss that the report compares the others with.
        plots: Draw every plot, and write each as SVG, PDF and PNG.
        features: Add a map of the frozen features of the test images; needs `umap-learn`, images and weights.

    Returns:
        The overview page, `folder/index.html`.
    """
    from pilot_tal.results import build_report

    paths = [runs] if isinstance(runs, (str, Path)) else runs
    return build_report(paths, folder, baseline, plots=plots, features=features)


def list_methods() -> list[str]:
    """Names of all methods, including those of installed plugins."""
    from pilot_tal.learners import LEARNERS

    return _names(LEARNERS)


def list_losses() -> list[str]:
    """Names of all losses, including those of installed plugins."""
    from pilot_tal.losses import LOSSES

    return _names(LOSSES)


def list_datasets() -> list[str]:
    """Names of all datasets, including those of installed plugins."""
    from data_lt import CARDS

    return _names(CARDS)


def _names(registry: Iterable[str]) -> list[str]:
    from pilot_tal.config.parse import load_plugins

    load_plugins()
    return list(registry)


def create_learner(
    method: str, backbone: "FrozenBackbone", num_classes: int, num_tasks: int, fidelity: str = "pilot", **settings: Any
) -> "Learner":
    """Builds the learner of a method on a frozen backbone, for a training loop of your own.

    Args:
        method: Name of a method.
        backbone: A `FrozenViT`, or for methods that need features alone any `FrozenBackbone`.
        num_classes: Classes over all tasks.
        num_tasks: Number of tasks.
        fidelity: `pilot` or `fixed`.
        **settings: Settings of the method that differ from its defaults.
    """
    from pilot_tal.config.settings import method_config
    from pilot_tal.learners import build_learner

    return build_learner(method, backbone, method_config(method, **settings), num_classes, num_tasks, fidelity)


def create_loss(name: str, **options: Any) -> "nn.Module":
    """Builds a loss by name: `create_loss("tal", lam=0.99)`. Call `begin_task` before its first batch."""
    from pilot_tal.losses import build_loss

    return build_loss(name, **options)


def launch(study: "StudyConfig", callbacks: "Sequence[Callback]" = ()) -> "Outcome":
    """Trains the runs of a study and shows progress on standard error, or below the cell of a notebook."""
    from pilot_tal.display import make_display
    from pilot_tal.engine import launch as engine

    return engine.launch(study, make_display(), callbacks)


def settings_items(**settings: Any) -> list[str]:
    """Keyword arguments as `key=value`; None is left out for those that have a default of their own."""
    named = ("loss", "losses", "seeds", "references")
    return [f"{key}={_typed(value)}" for key, value in settings.items() if value is not None or key not in named]


def _typed(value: Any) -> str:
    from pilot_tal.config.parse import as_typed

    if isinstance(value, (list, range)):
        return ",".join(map(_typed, value))
    if hasattr(value, "state_dict"):  # backbone=my_module
        from pilot_tal.backbone.load import register_backbone

        return register_backbone(value)
    return as_typed(value)


def study_of(paths: Sequence[Path], baseline: str) -> "Study":
    """The study of runs just launched; with the default baseline if every run with the one asked for failed."""
    try:
        return load_runs(paths, baseline)
    except UserError:
        return load_runs(paths)


def write_slurm_report(paths: Sequence[str], folder: str, baseline: str = "ce") -> None:
    """The last job of a study on SLURM: the report on the runs that are finished by then."""
    from pilot_tal.record.run_dir import is_finished

    finished = [Path(path) for path in paths if is_finished(Path(path))]
    if finished:
        report(study_of(finished, baseline), folder)
