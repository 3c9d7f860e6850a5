"""A model on disk, as a run directory after any of its tasks or as a folder that `export` wrote; loads it to predict.

model.json             what it is: the run's record, the classes, what an image must look like, versions, checksums
learner.safetensors    the learned tensors
vit.safetensors        the frozen ViT, if the folder is to suffice alone
model.onnx             the whole classifier as one graph, if asked for
README.md              the model card
"""

import contextlib
import itertools
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from data_lt.errors import UserError
from data_lt.files import check_regular, checksum, given_path, read_json
from pilot_tal.backbone import FrozenBackbone
from pilot_tal.backbone.load import BUNDLED, DEMO, given_statistics, load_backbone
from pilot_tal.config.parse import load_plugins
from pilot_tal.config.settings import Hardware
from pilot_tal.engine.checkpoint import load_checkpoint
from pilot_tal.engine.hardware import choose_device
from pilot_tal.learners import LEARNERS, Learner, build_learner
from pilot_tal.learners.posthoc import build_posthoc
from pilot_tal.model.images import LARGEST_WEIGHTS
from pilot_tal.model.model import Model
from pilot_tal.model.sessions import complete_session
from pilot_tal.record.run_dir import RECORD, find_runs, read_run_record, unsealed
from pilot_tal.record.run_record import RunRecord
from pilot_tal.schema import build, settings_of
from pilot_tal.stream.transforms import build_transforms

FORMAT = 2
ABOUT, LEARNER, VIT, GRAPH, CARD = "model.json", "learner.safetensors", "vit.safetensors", "model.onnx", "README.md"
_BY_NAME = ("hub", "random", BUNDLED)


@dataclass(frozen=True)
class AboutModel:
    """The content of `model.json`; `classes`, `input` and `scores` repeat the record for readers without this code."""

    record: RunRecord
    tasks_done: int
    files: dict[str, Any]
    classes: tuple[dict[str, Any], ...]
    input: dict[str, Any]
    scores: str
    metrics: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT


@dataclass(frozen=True)
class StoredModel:
    """A learner after `tasks_done` tasks, read back.

    Attributes:
        path: The run directory, or the exported folder.
        vit: The ViT's own file beside it, if there is one.
    """

    path: Path
    record: RunRecord
    tasks_done: int
    tensors: dict[str, Tensor]
    vit: Path | None = None


def read_stored(path: str | Path, after_task: int | None = None) -> StoredModel:
    """Reads a model, without the ViT.

    Args:
        path: A run directory, a folder that `export` wrote, or `hf://user/name@revision`.
        after_task: Of a run, the model as it was after so many tasks; after the last one that is finished if None.

    Raises:
        UserError: there is no model, or its files are damaged.
    """
    if str(path).startswith("hf://"):
        from pilot_tal.model.hub import fetch_export

        path = fetch_export(str(path))
    path = given_path(path, "the model")
    if (path / RECORD).is_file():
        complete_session(path)
        return _of_run(path, after_task)
    if not (path / ABOUT).is_file():
        raise UserError(_no_model(path))
    stored = _of_folder(path)
    if after_task not in (None, stored.tasks_done):
        raise UserError(f"{path} holds the model after task {stored.tasks_done} only, not after task {after_task}")
    return stored


def _of_run(path: Path, after_task: int | None) -> StoredModel:
    record = read_run_record(path)
    if record.engine.name != "native":
        raise UserError(f"{path} was trained by {record.engine.title}, which keeps its models itself")
    checkpoint = load_checkpoint(path, after_task)
    if checkpoint is None:
        raise UserError(
            f"{path} has no model: no task is finished, or its folder checkpoint was removed; put that back, or run it "
            "again"
        )
    return StoredModel(path, record, checkpoint.tasks_done, checkpoint.learner)


def refuse_inside_run(target: Path) -> None:
    """Raise if writing `target` would touch a run directory or an exported model."""
    for folder in Path(os.path.abspath(target)).parents:
        if (folder / RECORD).is_file() or (folder / ABOUT).is_file():
            raise UserError(f"{target} lies in the run directory or exported model {folder}; give another place")


def read_about(path: Path) -> AboutModel:
    """Read the `model.json` of an exported folder."""
    content = read_json(path / ABOUT)
    try:
        rest = unsealed(content if isinstance(content, dict) else {})
        if rest.get("format") != FORMAT:
            raise UserError(f"it is not of format {FORMAT}, which this version reads")
        about = build(AboutModel, rest)
        if not 1 <= about.tasks_done <= about.record.num_tasks:
            raise UserError(f"tasks_done is {about.tasks_done}")
    except UserError as error:
        raise UserError(f"{path / ABOUT} is damaged ({error}); export the run again") from error
    return about


def _of_folder(path: Path) -> StoredModel:
    about = read_about(path)
    for name in (LEARNER, VIT):
        if name in about.files and not ((path / name).is_file() and checksum(path / name) == about.files[name]):
            raise UserError(f"{path / name} is missing or damaged (checksum mismatch); export the run again")
    try:
        tensors = load_file(path / LEARNER)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path / LEARNER} cannot be read ({str(error)[:80]}); export the run again") from error
    vit = path / VIT if VIT in about.files else None
    return StoredModel(path, about.record, about.tasks_done, tensors, vit)


def _no_model(path: Path) -> str:
    if not path.exists():
        return f"{path} does not exist; give a run directory or an exported model"
    with contextlib.suppress(UserError):
        return f"{path} holds runs; give one of them, such as {find_runs([path])[0]}"
    return f"{path} is neither a run directory (it has no {RECORD}) nor an exported model (no {ABOUT})"


def load_model(
    run_or_folder: str | Path,
    after_task: int | None = None,
    weights: str | Path | None = None,
    device: str = "auto",
) -> Model:
    """Loads the model of a run, or one that `pilot-tal export` wrote, ready to predict.

    Args:
        run_or_folder: The run directory, the model folder of `learn`, the exported folder, or `hf://user/name`, where
            `hf://user/name@revision` pins a branch, tag or commit.
        after_task: Of a run, the model as it was after so many tasks (1 is the first); None: after the last.
        weights: The file of the ViT's weights, if it is not found where the run had it.
        device: auto, cpu, mps, cuda or cuda:NUMBER.

    Raises:
        UserError: there is no model, or the ViT is not the one that the model was trained on.

    Example:
        >>> model = load_model("runs/photos-l2p-tal-s1993-1a2b3c4d")  # doctest: +SKIP
        >>> model.predict(["bird.jpg"])[0].label  # doctest: +SKIP
    """
    place = choose_device(settings_of(Hardware)["device"].check(str(device)))
    stored = read_stored(run_or_folder, after_task)
    load_plugins()
    with torch.random.fork_rng(devices=[]):  # ViT and learner draw their first tensors; the caller's numbers stay
        vit = find_vit(stored.record, stored.vit if weights is None else weights)
        learner = restore_learner(stored, vit).to(place)
    record = stored.record
    statistics = given_statistics(record.stream.normalize)
    _, transform = build_transforms(record.stream.transform, vit.img_size[0], statistics)
    return Model(record, stored.tasks_done, learner, transform, statistics, place, stored.path)


def learner_class(record: RunRecord) -> type[Learner]:
    """The class of a model's method."""
    if record.method.name not in LEARNERS:
        raise UserError(
            f"the method {record.method.name!r} is not of pilot_tal itself: name the module or file that registers it "
            "with --plugins (in Python, import it first)"
        )
    return LEARNERS[record.method.name]


def restore_learner(stored: StoredModel, vit: FrozenBackbone) -> Learner:
    """The learner with its tensors; what only further training needs is left out."""
    record = stored.record
    config = build(learner_class(record).config_class, record.method.settings, record.method.name)
    learner = build_learner(record.method.name, vit, config, *record.capacity, record.method.fidelity)
    learner.posthoc = build_posthoc(record.posthoc, record.stream.task_sizes, record.stream.train_counts)
    learner.grow_to(list(itertools.accumulate(record.stream.task_sizes[: stored.tasks_done])))
    wanted = learner.named_tensors()
    tensors = {name: tensor for name, tensor in stored.tensors.items() if name in wanted}
    broken = next((name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())), None)
    if broken is not None:
        raise UserError(f"the model in {stored.path} has non-finite values in {broken}; train the run again")
    learner.import_tensors(tensors)
    return learner.eval().requires_grad_(False)


def find_vit(record: RunRecord, weights: str | Path | None = None) -> FrozenBackbone:
    """The frozen ViT that a model was trained on; another one is refused."""
    source = weights_source(record, weights)
    vit = load_backbone(record.backbone.name, source, record.backbone.img_size)
    if vit.checksum != record.backbone.checksum:
        raise UserError(
            f"the ViT {record.backbone.name} from {source} is not the one that {record.name} was trained on "
            f"(checksum {vit.checksum[:12]}…, not {str(record.backbone.checksum)[:12]}…); give its weights with "
            "--weights FILE (weights= in Python)"
        )
    return vit


def weights_source(record: RunRecord, weights: str | Path | None = None) -> str:
    """Where the ViT's weights are: where the user says, where they always are, or where the run had them."""
    backbone = record.backbone
    if weights is not None:
        file = given_path(weights, "weights")
        check_regular(file, "weights from", LARGEST_WEIGHTS)
        return str(file)
    if backbone.name == DEMO:
        return BUNDLED
    if backbone.weights in _BY_NAME:
        return backbone.weights
    for environment in reversed(record.environment):
        known = environment.get("weights")
        if isinstance(known, str) and Path(known).is_file():
            return known
    raise UserError(
        f"the ViT's weights {backbone.weights.partition('@')[0]} are not where the run had them; give the file with "
        "--weights FILE (weights= in Python)"
    )
