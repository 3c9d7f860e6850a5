"""The toolboxes, their learners, and what happens to every cross-entropy inside them."""

from dataclasses import dataclass, field

from pilot_tal.errors import unknown_name

BASE_FILE = "models/base.py"


@dataclass(frozen=True)
class Site:
    """One call of a cross-entropy: where it stands, what it is given, and whether it is swapped.

    An argument is a name as the source has it, or for anything longer its variables in braces.
    """

    function: str
    call: str
    arguments: tuple[str, ...]
    swap: bool
    what: str

    @property
    def written(self) -> str:
        """The call with its arguments, the longer ones in braces."""
        return f"{self.call}({', '.join(self.arguments)})"


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
    """A learner of a toolbox: its file, its class and its cross-entropies in the order of the file."""

    file: str
    cls: str
    sites: tuple[Site, ...]
    backbone: str = ""
    extra: tuple[Seam, ...] = ()

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
    """A toolbox: how to tell it, what the driver relies on, and the learners that are served.

    `growing` says that the loss sees all classes so far (old ones are replayed), so that TAL's state lives on
    across tasks; otherwise the loss sees the classes of one task and starts anew in each.
    """

    engine: str
    title: str
    mark: str
    tested_commit: str
    growing: bool
    seams: tuple[Seam, ...]
    learners: dict[str, LearnerSites] = field(default_factory=dict)

    def learner(self, name: str) -> LearnerSites:
        """The learner called `name` in a config's `model_name`."""
        if name.lower() not in self.learners:
            raise unknown_name(f"learner of {self.title} (model_name)", name, self.learners)
        return self.learners[name.lower()]


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
    )  # fmt: skip


F_CE, TORCH_CE = "F.cross_entropy", "torch.nn.functional.cross_entropy"
_REAL = "real images of the task"
_REPLAY = "real images, new and replayed"
_BOOST = f"{_REPLAY}; FOSTER's class weights stay"


def _pilot(name: str, *rest: Site, backbone: str = "", extra: tuple[Seam, ...] = ()) -> LearnerSites:
    main = Site("Learner._init_train", F_CE, ("logits", "targets.long()"), True, _REAL)
    vit = Seam("utils/inc_net.py", "get_backbone", ("args", "pretrained"), calls=("timm.create_model",))
    backbone = f"backbone.{backbone or 'vit_' + name}"
    return LearnerSites(f"models/{name}.py", "Learner", (main, *rest), backbone, (vit, *extra))


_ROWS = "{self._device, sim}"
LAMDA_PILOT = Toolbox(
    engine="lamda-pilot",
    title="LAMDA-PILOT",
    mark="backbone",
    tested_commit="5240714",
    growing=False,
    seams=_shared(("dataset_name", "args")),
    learners={
        "l2p": _pilot("l2p"),
        "dualprompt": _pilot("dualprompt"),
        "coda_prompt": _pilot(
            "coda_prompt", backbone="vit_coda_promtpt",
            extra=(
                Seam("models/coda_prompt.py", "CosineSchedule.__init__", ("self", "optimizer", "K")),
                Seam("backbone/vit_coda_promtpt.py", "VisionTransformer.forward",
                     ("self", "x", "register_blk", "prompt", "q", "train", "task_id"), calls=("torch.zeros",)),
            ),
        ),
        "lae": _pilot("lae"),
        "mos": _pilot(
            "mos",
            Site("Learner.classifer_align", F_CE, ("logits", "tgt"), False,
                 "Gaussian samples of all classes, as many of each: balanced by construction"),
            Site("Learner.orth_loss", TORCH_CE, ("sim", _ROWS), False,
                 "features and old class means told apart: the targets are rows, not classes"),
            Site("Learner.orth_loss", TORCH_CE, ("sim", _ROWS), False,
                 "the same in the first task, features alone"),
        ),
    },
)  # fmt: skip


def _pycil(name: str, cls: str, *sites: tuple[str, str, bool, str]) -> LearnerSites:
    """Sites as (method, logits, swap, what); targets that are not `targets` follow as `logits | targets`."""
    made = []
    for function, arguments, swap, what in sites:
        logits, _, own = arguments.partition(" | ")
        made.append(Site(f"{cls}.{function}", F_CE, (logits, own or "targets"), swap, what))
    extra = (Seam("utils/data_manager.py", "DataManager.get_dataset_with_split",
                  ("self", "indices", "source", "mode", "appendent", "val_samples_per_class")),)  # fmt: skip
    return LearnerSites(f"models/{name}.py", cls, tuple(made), extra=extra if name == "bic" else ())


_INIT = ("_init_train", "logits", True, "real images of the first task")
_UPDATE = ("_update_representation", "logits", True, _REPLAY)
_AUX = ("_update_representation", "aux_logits | aux_targets", False,
        "auxiliary classifier: new classes against “old”")  # fmt: skip
PYCIL = Toolbox(
    engine="pycil",
    title="PyCIL",
    mark="convs",
    tested_commit="f3509b8",
    growing=True,
    seams=(
        *_shared(("dataset_name",)),
        Seam(BASE_FILE, "BaseLearner._construct_exemplar", ("self", "data_manager", "m")),
        Seam(BASE_FILE, "BaseLearner._construct_exemplar_unified", ("self", "data_manager", "m")),
    ),
    learners={
        "replay": _pycil("replay", "Replay", _INIT, _UPDATE),
        "icarl": _pycil("icarl", "iCaRL", _INIT, _UPDATE),
        "der": _pycil("der", "DER", _INIT, _UPDATE, _AUX),
        "foster": _pycil(
            "foster", "FOSTER", _INIT,
            ("_feature_boosting", "{logits, self.per_cls_weights}", True, _BOOST),
            ("_feature_boosting", "fe_logits", False, "auxiliary classifier on the new features alone"),
        ),
        "memo": _pycil("memo", "MEMO", _INIT, _UPDATE, _AUX),
        "tagfex": _pycil(
            "tagfex", "TagFex", _INIT,
            ("_update_representation", "logits", True, f"{_REPLAY}, each in two views"),
            _AUX,
            ("_update_representation",
             "{cur_task_mask, trans_logits} | {cur_task_mask, self._known_classes, targets}", False,
             "auxiliary classifier on the merged features, the teacher of the transfer"),
        ),
        "bic": _pycil(
            "bic", "BiC",
            ("_run", "logits", True, "real images, new and replayed (stage 1)"),
            ("_run", "{logits}", False,
             "two numbers a task fitted on a balanced validation set (stage 2)"),
        ),
    },
)  # fmt: skip

TOOLBOXES = (LAMDA_PILOT, PYCIL)
