"""The toolboxes, their learners, and what happens to every cross-entropy inside them."""

from dataclasses import dataclass, field

from data_lt.errors import unknown_name

BASE_FILE = "models/base.py"
F_CE, TORCH_CE = "F.cross_entropy", "torch.nn.functional.cross_entropy"
COLUMNS = {
    "masked": "all classes so far, old ones at −inf, labels as they are: the loss gets the columns of the task",
    "task": "the classes of the task, labels from 0: the loss gets them as they are",
    "seen": "all classes so far, old ones replayed: the loss gets them all, and TAL keeps its state",
}
"""Which logits and labels a learner gives its cross-entropy, and what the loss gets of them."""


@dataclass(frozen=True)
class Site:
    """One call of a cross-entropy: where it stands, what it is given, and whether it is swapped.

    An argument is a name as the source has it, or for anything longer its variables in braces.
    """

    function: str
    arguments: str
    swap: bool
    what: str
    call: str = F_CE

    @property
    def written(self) -> str:
        """The call with its arguments, the longer ones in braces."""
        return f"{self.call}({self.arguments})"


@dataclass(frozen=True)
class Seam:
    """A function or method the driver calls or replaces, with the attributes it must set on `self`."""

    file: str
    function: str
    parameters: tuple[str, ...]
    sets: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()


@dataclass(frozen=True)
class LearnerSites:
    """A learner of a toolbox: its file, its class and its cross-entropies in the order of the file.

    Attributes:
        columns: One of `COLUMNS`.
        epochs: Where the number of epochs of the first task and of a later one is set; `a+b` is trained in turn.
        packages: What this learner alone imports.
        least: Training images a class must have.
        extra: Further seams.
    """

    file: str
    title: str
    cls: str
    sites: tuple[Site, ...]
    columns: str
    epochs: tuple[str, str] = ("", "")
    packages: tuple[str, ...] = ()
    least: int = 1
    extra: tuple[Seam, ...] = ()

    @property
    def growing(self) -> bool:
        """Whether old classes are replayed, so that a loss sees all classes so far."""
        return self.columns == "seen"

    @property
    def trains(self) -> bool:
        """Whether there is a loss to swap at all."""
        return any(site.swap for site in self.sites)

    @property
    def module(self) -> str:
        """The file as a module's name."""
        return self.file.removesuffix(".py").replace("/", ".")

    @property
    def seams(self) -> tuple[Seam, ...]:
        """What the driver relies on in the learner's own file, apart from the calls."""
        loaders = ("train_loader", "test_loader", "_cur_task", "_total_classes")
        train = Seam(self.file, f"{self.cls}.incremental_train", ("self", "data_manager"), sets=loaders)
        return (train, *self.extra)


@dataclass(frozen=True)
class Toolbox:
    """A toolbox: how to recognise it, what the driver relies on, and its supported learners."""

    engine: str
    title: str
    mark: str
    tested_commit: str
    seams: tuple[Seam, ...]
    learners: dict[str, LearnerSites] = field(default_factory=dict)

    def learner(self, name: str) -> LearnerSites:
        """The learner called `name` in a config's `model_name`."""
        if name.lower() not in self.learners:
            raise unknown_name(f"learner of {self.title} (model_name)", name, self.learners)
        return self.learners[name.lower()]


def vit_module(backbone_type: str) -> str:
    """The module that builds LAMDA-PILOT's ViT of that type: one of its own, or timm's for a plain ViT."""
    for mark in ("memo", "ssf", "vpt", "adapter", "l2p", "dualprompt", "coda_prompt", "ease", "lae", "mos"):
        if f"_{mark}" in backbone_type.lower():
            return "backbone." + {"vpt": "vpt", "coda_prompt": "vit_coda_promtpt"}.get(mark, f"vit_{mark}")
    return "timm.models.vision_transformer"


def _shared(idata_parameters: tuple[str, ...]) -> tuple[Seam, ...]:
    """What both toolboxes have in common."""
    data_attributes = ("_train_targets", "_test_targets", "_class_order", "use_path")
    base_attributes = ("topk", "_cur_task", "_known_classes", "_total_classes", "_device")
    task_calls = ("model.incremental_train", "model.eval_task", "model.after_task")
    return (
        Seam("trainer.py", "train", ("args",), calls=("_train",)),
        Seam("trainer.py", "_train", ("args",), calls=("factory.get_model", "DataManager", *task_calls)),
        Seam("utils/factory.py", "get_model", ("model_name", "args")),
        Seam("utils/data_manager.py", "_get_idata", idata_parameters),
        Seam("utils/data_manager.py", "DataManager._setup_data", ("self", "dataset_name", "shuffle", "seed"),
             sets=data_attributes, calls=("_get_idata", "idata.download_data")),
        Seam("utils/data_manager.py", "DataManager.get_task_size", ("self", "task")),
        Seam("utils/data_manager.py", "DataManager.nb_tasks", ("self",)),
        Seam(BASE_FILE, "BaseLearner.__init__", ("self", "args"), sets=base_attributes),
        Seam(BASE_FILE, "BaseLearner._evaluate", ("self", "y_pred", "y_true")),
        Seam(BASE_FILE, "BaseLearner._eval_cnn", ("self", "loader")),
        Seam(BASE_FILE, "BaseLearner._eval_nme", ("self", "loader", "class_means")),
        Seam(BASE_FILE, "BaseLearner._construct_exemplar", ("self", "data_manager", "m")),
        Seam(BASE_FILE, "BaseLearner._construct_exemplar_unified", ("self", "data_manager", "m")),
    )  # fmt: skip


_REAL = "real images of the task"
_REPLAY = "real images, new and replayed"
_GAUSSIAN = "Gaussian samples of all classes, as many of each: balanced by construction"
_PLAIN, _LONG = "logits, targets", "logits, targets.long()"
_LATER = "{logits, self._known_classes}"
_LOCAL = f"{_LATER}, cur_targets"
_WEIGHTED = "{logits, self.per_cls_weights}, targets"

_TASK = ("_init_train", _LONG, True, _REAL)
_ONCE = ("_init_train", _PLAIN, True, "real images of the first task, the only one that is trained")
_FIRST = ("_init_train", _PLAIN, True, "real images of the first task")
_UPDATE = ("_update_representation", _PLAIN, True, _REPLAY)
_AUX = ("_update_representation", "aux_logits, aux_targets", False, "auxiliary classifier: new classes against “old”")
_ALIGN = (
    ("_stage2_compact_classifier", "decoupled_logits, tgt", False, _GAUSSIAN),
    ("_stage2_compact_classifier", "{crct_num, logits}, tgt", False, "the same without `ca_with_logit_norm`"),
)
_BOOST = (
    ("_feature_boosting", _WEIGHTED, True, f"{_REPLAY}; FOSTER's class weights stay"),
    ("_feature_boosting", "fe_logits, targets", False, "auxiliary classifier on the new features alone"),
)
_ROWS = ("orth_loss", "sim, {self._device, sim}", False)


def _learner(name: str, title: str, columns: str, epochs: str, *sites: tuple | Site, cls: str = "Learner",
             **more) -> LearnerSites:  # fmt: skip
    """A learner; sites as (method, arguments, swap, what, call), `epochs` as `first later`, or one word for both."""
    first, _, later = epochs.partition(" ")
    made = tuple(site if isinstance(site, Site) else Site(f"{cls}.{site[0]}", *site[1:]) for site in sites)
    return LearnerSites(f"models/{name}.py", title, cls, made, columns, (first, later or first), **more)


def _by_name(*learners: LearnerSites) -> dict[str, LearnerSites]:
    return {learner.module.removeprefix("models."): learner for learner in learners}


_FISHER = Seam("models/cofima.py", "Learner.getFisherDiagonal", ("self", "train_loader", "optimizer"))
_DUCT = Seam("models/duct.py", "Learner.incremental_train", ("self", "data_manager"),
             calls=("self._compute_class_mean",))  # fmt: skip
_CODA = (
    Seam("models/coda_prompt.py", "CosineSchedule.__init__", ("self", "optimizer", "K")),
    Seam("backbone/vit_coda_promtpt.py", "VisionTransformer.forward",
         ("self", "x", "register_blk", "prompt", "q", "train", "task_id"), calls=("torch.zeros",)),
)  # fmt: skip
LAMDA_PILOT = Toolbox(
    engine="lamda-pilot",
    title="LAMDA-PILOT",
    mark="backbone",
    tested_commit="5240714",
    seams=(
        *_shared(("dataset_name", "args")),
        Seam("utils/inc_net.py", "get_backbone", ("args", "pretrained"), calls=("timm.create_model",)),
    ),
    learners=_by_name(
        _learner("l2p", "L2P", "masked", "tuned_epoch", _TASK),
        _learner("dualprompt", "DualPrompt", "masked", "tuned_epoch", _TASK),
        _learner("coda_prompt", "CODA-Prompt", "masked", "tuned_epoch", _TASK, extra=_CODA),
        _learner("lae", "LAE", "masked", "tuned_epoch", _TASK),
        _learner(
            "mos", "MOS", "masked", "tuned_epoch", _TASK,
            ("classifer_align", "logits, tgt", False, _GAUSSIAN),
            (*_ROWS, "features and old class means told apart: the targets are rows, not classes", TORCH_CE),
            (*_ROWS, "the same in the first task, features alone", TORCH_CE),
        ),
        _learner("simplecil", "SimpleCIL", "task", ""),
        _learner("aper_adapter", "APER with adapter", "task", "tuned_epoch", _ONCE),
        _learner("aper_finetune", "APER, fine-tuned", "task", "tuned_epoch", _ONCE),
        _learner("aper_ssf", "APER with SSF", "task", "tuned_epoch", _ONCE),
        _learner("aper_vpt", "APER with VPT", "task", "tuned_epoch", _ONCE),
        _learner("ranpac", "RanPAC", "task", "tuned_epoch", _ONCE),
        _learner("fecam", "FeCAM", "task", "tuned_epoch", _ONCE, least=2),
        _learner(
            "ease", "EASE", "task", "init_epochs later_epochs", ("_init_train", "logits, aux_targets", True, _REAL)
        ),
        _learner(
            "finetune", "Finetune", "task", "init_epoch epochs", _FIRST,
            ("_update_representation", f"{_LATER}, fake_targets", True, _REAL),
        ),
        _learner("slca", "SLCA", "task", "epochs", ("_run", _LOCAL, True, _REAL), *_ALIGN, least=2),
        _learner(
            "cofima", "CoFiMA", "task", "epochs",
            ("getFisherDiagonal", _PLAIN, False,
             "real images, but nothing is trained: squared gradients say what an average of weights keeps", TORCH_CE),
            ("_run", _LOCAL, True, _REAL), *_ALIGN, least=2, extra=(_FISHER,),
        ),
        _learner(
            "duct", "DUCT", "task", "epochs+epc_re",
            ("_train", "logits, cur_targets", True,
             "real images with `cls_fixed` (domains, not classes): refused once labels and columns differ"),
            ("_train", _LOCAL, True, f"{_REAL}, and again for the head alone"),
            packages=("POT",), extra=(_DUCT,),
        ),
        _learner("icarl", "iCaRL", "seen", "init_epoch epochs", _FIRST, _UPDATE),
        _learner("der", "DER", "seen", "init_epoch epochs", _FIRST, _UPDATE, _AUX),
        _learner("foster", "FOSTER", "seen", "init_epochs boosting_epochs", _FIRST, *_BOOST),
        _learner("memo", "MEMO", "seen", "init_epoch epochs", _FIRST, _UPDATE, _AUX),
        _learner(
            "dgr", "DGR", "seen", "init_epoch epochs",
            Site("regularized_cn", "{outputs, prior_regularization}, targets", True,
                 f"{_REPLAY}; DGR's own prior stays"),
        ),
        _learner("coil", "COIL", "seen", "epochs", _UPDATE, packages=("POT",)),
    ),
)  # fmt: skip

_SPLIT = Seam("utils/data_manager.py", "DataManager.get_dataset_with_split",
              ("self", "indices", "source", "mode", "appendent", "val_samples_per_class"))  # fmt: skip
PYCIL = Toolbox(
    engine="pycil",
    title="PyCIL",
    mark="convs",
    tested_commit="f3509b8",
    seams=_shared(("dataset_name",)),
    learners=_by_name(
        _learner("replay", "Replay", "seen", "init_epoch epochs", _FIRST, _UPDATE, cls="Replay"),
        _learner("icarl", "iCaRL", "seen", "init_epoch epochs", _FIRST, _UPDATE, cls="iCaRL"),
        _learner("der", "DER", "seen", "init_epoch epochs", _FIRST, _UPDATE, _AUX, cls="DER"),
        _learner("foster", "FOSTER", "seen", "init_epochs boosting_epochs", _FIRST, *_BOOST, cls="FOSTER"),
        _learner("memo", "MEMO", "seen", "init_epoch epochs", _FIRST, _UPDATE, _AUX, cls="MEMO"),
        _learner(
            "tagfex", "TagFex", "seen", "init_epoch epochs", _FIRST,
            ("_update_representation", _PLAIN, True, f"{_REPLAY}, each in two views"),
            _AUX,
            ("_update_representation",
             "{cur_task_mask, trans_logits}, {cur_task_mask, self._known_classes, targets}", False,
             "auxiliary classifier on the merged features, the teacher of the transfer"),
            cls="TagFex",
        ),
        _learner(
            "bic", "BiC", "seen", "epochs",
            ("_run", _PLAIN, True, f"{_REPLAY} (stage 1)"),
            ("_run", "{logits}, targets", False, "two numbers a task fitted on a balanced validation set (stage 2)"),
            cls="BiC", extra=(_SPLIT,),
        ),
    ),
)  # fmt: skip

TOOLBOXES = (LAMDA_PILOT, PYCIL)
