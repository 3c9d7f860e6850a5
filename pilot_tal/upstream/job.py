"""One run of a checkout as a file: written by the command line, read by the driver."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from data_lt.files import read_json, write_json

CLASSIFIERS = ("cnn", "nme")


@dataclass(frozen=True)
class Data:
    """A long-tailed set on the disk.

    `alias` is its name in the checkout, `template` the data source of the checkout whose transforms are used.
    `train` and `test` hold (path below `root`, label) pairs.
    """

    root: str
    alias: str
    template: str
    class_names: list[str]
    train: list[tuple[str, int]]
    test: list[tuple[str, int]]


@dataclass(frozen=True)
class Job:
    """One run: a checkout, its settings, a loss, and where the results go.

    Attributes:
        repo: The checkout.
        run_dir: The run directory to write.
        args: The checkout's own settings.
        record: The `RunRecord` as plain values, but for what only the checkout knows: its order of the classes.
        constants: Numbers at the top of the learner's file to set.
        data: A long-tailed set, or None for a dataset of the checkout's own.
        data_root: Where a dataset of the checkout's own is downloaded to, if the checkout has no data folder.
        device: Devices as the checkout counts them ([-1] is the CPU), or None for its own choice.
        workers: Processes that load images, or None for the checkout's own number.
        weights: A file of ViT weights, "random", or None for the checkout's own download.
        vit: Changes to the ViT's shape, for trials.
        classifier: Whose predictions are recorded: "cnn", or "nme" (nearest class mean, where there is one).
        plugins: Modules or files that register losses of the user's own.
    """

    repo: str
    run_dir: str
    args: dict[str, Any]
    record: dict[str, Any]
    constants: dict[str, int | float] = field(default_factory=dict)
    data: Data | None = None
    data_root: str = "data"
    device: list[int | str] | None = None
    workers: int | None = None
    weights: str | None = None
    vit: dict[str, Any] = field(default_factory=dict)
    classifier: str = "cnn"
    plugins: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        """Name of the learner."""
        return self.record["method"]["name"]

    @property
    def loss(self) -> str:
        """Name of the loss."""
        return self.record["loss"]["name"]

    @property
    def seed(self) -> int:
        """The one seed of this run."""
        return self.record["seed"]

    @property
    def work_dir(self) -> Path:
        """Where the checkout runs: its own logs land here, never in the checkout."""
        return Path(self.run_dir) / "upstream"

    @property
    def file(self) -> Path:
        """The job's own file."""
        return self.work_dir / "job.json"

    def write(self) -> None:
        """Writes the job's file."""
        write_json(self.file, asdict(self))


def read_job(path: str | Path) -> Job:
    """Reads a job's file."""
    content = read_json(path)
    data = content.pop("data")
    return Job(**content, data=data and Data(**data))
