"""A model on disk, or on the Hugging Face hub: a run directory after any of its tasks, or a folder of `export`.

model.json             what it is: the run's record, the classes, what an image must look like, versions, checksums
learner.safetensors    the learned tensors
vit.safetensors        the frozen ViT, if the folder is to suffice alone
README.md              the model card
"""

import contextlib
import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from data_lt.errors import UserError, one_line, sentence
from data_lt.files import check_regular, checksum, given_path, read_json
from pilot_tal.backbone import FrozenBackbone
from pilot_tal.backbone.load import BUNDLED, DEMO, given_statistics, load_backbone
from pilot_tal.config.parse import load_plugins
from pilot_tal.config.settings import Hardware
from pilot_tal.engine.checkpoint import load_checkpoint
from pilot_tal.engine.hardware import choose_device
from pilot_tal.learners import LEARNERS, Learner, build_learner
from pilot_tal.learners.posthoc import build_posthoc
from pilot_tal.model.model import Model
from pilot_tal.model.sessions import complete_session
from pilot_tal.record.run_dir import RECORD, find_runs, read_run_record, unsealed
from pilot_tal.record.run_record import RunRecord
from pilot_tal.schema import build, settings_of
from pilot_tal.stream.transforms import build_transforms

FORMAT = 2
ABOUT, LEARNER, VIT, CARD = "model.json", "learner.safetensors", "vit.safetensors", "README.md"
SCHEME = "hf://"
_ADDRESS = re.compile(r"(\w[\w.-]{0,95}/\w[\w.-]{0,95})(?:@([\w./-]{1,200}))?", re.ASCII)


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
    """A learner after `tasks_done` tasks, read back; `vit` is the ViT's own file, if there is one."""

    path: Path
    record: RunRecord
    tasks_done: int
    tensors: dict[str, Tensor]
    vit: Path | None = None


def read_stored(path: str | Path, after_task: int | None = None) -> StoredModel:
    """Reads a model, without the ViT; the arguments are those of `load_model`."""
    if str(path).startswith(SCHEME):
        path = fetch_export(str(path))
    path = given_path(path, "the model")
    if (path / RECORD).is_file():
        return _of_run(path, after_task)
    if not path.exists():
        raise UserError(f"{path} does not exist; give a run directory or an exported model")
    if (path / ABOUT).is_file():
        return _of_folder(path, after_task)
    try:
        problem = f"holds runs; give one of them, such as {find_runs([path])[0]}"
    except UserError:
        problem = f"is neither a run directory (it has no {RECORD}) nor an exported model (no {ABOUT})"
    raise UserError(f"{path} {problem}")


def _of_run(path: Path, after_task: int | None) -> StoredModel:
    complete_session(path)
    record = read_run_record(path)
    if record.engine.name != "native":
        raise UserError(f"{path} was trained by {record.engine.title}, which keeps its models itself")
    checkpoint = load_checkpoint(path, after_task)
    if checkpoint is None:
        cause = "no task is finished, or its folder checkpoint was removed; put that back, or run it again"
        raise UserError(f"{path} has no model: {cause}")
    return StoredModel(path, record, checkpoint.tasks_done, checkpoint.learner)


def _of_folder(path: Path, after_task: int | None) -> StoredModel:
    about = read_about(path)
    for name in (LEARNER, VIT):
        if name in about.files and not ((path / name).is_file() and checksum(path / name) == about.files[name]):
            raise UserError(f"{path / name} is missing or damaged (checksum mismatch); export the run again")
    if after_task not in (None, about.tasks_done):
        raise UserError(f"{path} holds the model after task {about.tasks_done} only, not after task {after_task}")
    vit = path / VIT if VIT in about.files else None
    return StoredModel(path, about.record, about.tasks_done, load_file(path / LEARNER), vit)


def read_about(path: Path) -> AboutModel:
    """Reads the `model.json` of an exported folder."""
    try:
        content = read_json(path / ABOUT)
        rest = unsealed(content if isinstance(content, dict) else {})
        if rest.get("format") != FORMAT:
            raise UserError(f"it is not of format {FORMAT}, which this version reads")
        about = build(AboutModel, rest)
        if not 1 <= about.tasks_done <= about.record.num_tasks:
            raise UserError(f"tasks_done is {about.tasks_done}")
    except UserError as error:
        raise UserError(f"{path / ABOUT} is damaged ({error}); export the run again") from error
    return about


def refuse_inside_run(target: Path) -> None:
    """Raises if writing `target` would touch a run directory or an exported model."""
    for folder in Path(os.path.abspath(target)).parents:
        if (folder / RECORD).is_file() or (folder / ABOUT).is_file():
            raise UserError(f"{target} lies in the run directory or exported model {folder}; give another place")


def fetch_export(address: str) -> Path:
    """Downloads an exported model from `hf://user/name@revision`, or finds it in the hub's cache; its folder."""
    from huggingface_hub import snapshot_download

    name, revision = parse_address(address.removeprefix(SCHEME))
    with hub_errors(f"cannot fetch {SCHEME}{name}"):
        endpoint, files = os.environ.get("HF_ENDPOINT"), [ABOUT, LEARNER, VIT, CARD]
        return Path(snapshot_download(name, revision=revision, allow_patterns=files, endpoint=endpoint))


def parse_address(address: str) -> tuple[str, str | None]:
    """Repository and revision of `user/name` or `user/name@revision`."""
    found = _ADDRESS.fullmatch(address)
    if not found:
        raise UserError(f"a model on the hub is user/name or user/name@revision, got {one_line(address)[:80]!r}")
    return found[1], found[2]


@contextlib.contextmanager
def hub_errors(problem: str) -> Iterator[None]:
    """Turns what huggingface_hub raises into one sentence with a remedy."""
    from huggingface_hub import errors

    try:
        yield
    except errors.RevisionNotFoundError as error:
        raise UserError(f"{problem}: there is no such revision") from error
    except Exception as error:  # each version has its own errors for a missing network
        reason = f"{sentence(error)[:160]}; check the network connection, or try again later"
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, (errors.LocalTokenNotFoundError, errors.RepositoryNotFoundError)) or status in (401, 403):
            reason = "it does not exist, or your token gives no access to it; run `hf auth login`, or set HF_TOKEN"
        raise UserError(f"{problem}: {reason}") from error


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
    """
    place = choose_device(settings_of(Hardware)["device"].check(str(device)))
    stored = read_stored(run_or_folder, after_task)
    record, name = stored.record, stored.record.method.name
    load_plugins()
    if name not in LEARNERS:
        raise UserError(
            f"the method {name!r} is not of pilot_tal itself: name the module or file that registers it with --plugins "
            "(in Python, import it first)"
        )
    with torch.random.fork_rng(devices=[]):  # ViT and learner draw their first tensors; the caller's numbers stay
        vit = find_vit(record, stored.vit if weights is None else weights)
        learner = restore_learner(stored, vit).to(place)
    pixels = given_statistics(record.stream.normalize)
    _, transform = build_transforms(record.stream.transform, vit.img_size[0], pixels)
    return Model(record, stored.tasks_done, learner, transform, place, stored.path)


def restore_learner(stored: StoredModel, vit: FrozenBackbone) -> Learner:
    """The learner with its tensors; what only further training needs is left out."""
    record, method = stored.record, stored.record.method
    config = LEARNERS[method.name].config_class.recorded(method.settings, method.name)
    learner = build_learner(method.name, vit, config, *record.capacity, method.fidelity)
    stream = record.stream
    learner.posthoc = build_posthoc(record.posthoc, stream.task_sizes, stream.train_counts, record.sampler)
    learner.grow_to(list(itertools.accumulate(stream.task_sizes[: stored.tasks_done])))
    wanted = learner.named_tensors()
    tensors = {name: tensor for name, tensor in stored.tensors.items() if name in wanted}
    broken = next((name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())), None)
    if broken is not None:
        raise UserError(f"the model in {stored.path} has non-finite values in {broken}; train the run again")
    learner.import_tensors(tensors)
    return learner.eval().requires_grad_(False)


def find_vit(record: RunRecord, weights: str | Path | None = None) -> FrozenBackbone:
    """The frozen ViT that a model was trained on, from the file given or from where the run had it."""
    backbone, give = record.backbone, "with --weights FILE (weights= in Python)"
    used = (environment.get("weights") for environment in reversed(record.environment))
    if weights is not None:
        source = str(given_path(weights, "weights"))
        check_regular(Path(source), "weights from")
    elif backbone.name == DEMO:
        source = BUNDLED
    elif backbone.weights in ("hub", "random", BUNDLED):
        source = backbone.weights
    elif found := next((file for file in used if isinstance(file, str) and Path(file).is_file()), None):
        source = found
    else:
        file = backbone.weights.partition("@")[0]
        raise UserError(f"the ViT's weights {file} are not where the run had them; give the file {give}")
    vit = load_backbone(backbone.name, source, backbone.img_size)
    if vit.checksum != backbone.checksum:
        raise UserError(
            f"the ViT {backbone.name} from {source} is not the one that {record.name} was trained on (checksum "
            f"{vit.checksum[:12]}…, not {str(backbone.checksum)[:12]}…); give its weights {give}"
        )
    return vit
