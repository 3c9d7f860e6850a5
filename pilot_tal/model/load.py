"""Loads a run's model, or an exported one: nothing is needed but its folder and the ViT's weights."""

from pathlib import Path

import torch

from data_lt.errors import UserError
from data_lt.files import check_regular, given_path
from pilot_tal.backbone import FrozenBackbone
from pilot_tal.backbone.load import BUNDLED, DEMO, given_statistics, load_backbone
from pilot_tal.config.plugins import load_plugins
from pilot_tal.config.settings import Hardware
from pilot_tal.engine.hardware import choose_device
from pilot_tal.learners import LEARNERS, Learner, build_learner
from pilot_tal.learners.posthoc import build_posthoc
from pilot_tal.model.images import LARGEST_WEIGHTS
from pilot_tal.model.model import Model
from pilot_tal.model.stored import StoredModel, read_stored
from pilot_tal.schema import build, settings_of
from pilot_tal.stream.transforms import build_transforms

_BY_NAME = ("hub", "random", BUNDLED)


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
        vit = find_vit(stored, weights)
        learner = restore_learner(stored, vit).to(place)
    record = stored.record
    statistics = given_statistics(record.stream.normalize)
    _, transform = build_transforms(record.stream.transform, vit.img_size[0], statistics)
    return Model(record, stored.tasks_done, learner, transform, statistics, place, stored.path)


def restore_learner(stored: StoredModel, vit: FrozenBackbone) -> Learner:
    """The learner with its tensors; what only further training needs is left out."""
    record = stored.record
    if record.method.name not in LEARNERS:
        raise UserError(
            f"the method {record.method.name!r} of {stored.path} is not of pilot_tal itself: name the module or file "
            "that registers it with --plugins (in Python, import it first)"
        )
    config = build(LEARNERS[record.method.name].config_class, record.method.settings, record.method.name)
    shape = (config, *record.capacity, record.method.fidelity)
    learner = build_learner(record.method.name, vit, *shape)
    learner.posthoc = build_posthoc(record.posthoc, record.stream.task_sizes, record.stream.train_counts)
    sizes = record.stream.task_sizes[: stored.tasks_done]
    learner.grow_to([sum(sizes[: task + 1]) for task in range(len(sizes))])
    wanted = learner.named_tensors()
    tensors = {name: tensor for name, tensor in stored.tensors.items() if name in wanted}
    broken = next((name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())), None)
    if broken is not None:
        raise UserError(f"the model in {stored.path} has non-finite values in {broken}; train the run again")
    learner.import_tensors(tensors)
    return learner.eval().requires_grad_(False)


def find_vit(stored: StoredModel, weights: str | Path | None = None) -> FrozenBackbone:
    """The frozen ViT that the model was trained on; another one is refused."""
    record = stored.record
    source = weights_source(stored, weights)
    vit = load_backbone(record.backbone.name, source, record.backbone.img_size)
    if vit.checksum != record.backbone.checksum:
        raise UserError(
            f"the ViT {record.backbone.name} from {source} is not the one that {stored.path.name} was trained on "
            f"(checksum {vit.checksum[:12]}…, not {str(record.backbone.checksum)[:12]}…); give its weights with "
            "--weights FILE (weights= in Python)"
        )
    return vit


def weights_source(stored: StoredModel, weights: str | Path | None) -> str:
    """Where the ViT's weights are: where the user says, in the folder, where they always are, or where the run was."""
    backbone = stored.record.backbone
    if weights is not None or stored.vit is not None:
        file = given_path(weights, "weights") if weights is not None else stored.vit
        check_regular(Path(str(file)), "weights from", LARGEST_WEIGHTS)
        return str(file)
    if backbone.name == DEMO:
        return BUNDLED
    if backbone.weights in _BY_NAME:
        return backbone.weights
    for environment in reversed(stored.record.environment):
        file = environment.get("weights")
        if isinstance(file, str) and Path(file).is_file():
            return file
    raise UserError(
        f"the ViT's weights {backbone.weights.partition('@')[0]} are not where the run had them; give the file with "
        "--weights FILE (weights= in Python)"
    )
