"""A model that learns folder by folder: exact, atomic, recorded."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers.cli import command
from helpers.images import make_images
from PIL import Image
from safetensors.torch import load_file

import pilot_tal as pt
from data_lt.errors import UserError
from pilot_tal.config.settings import method_config
from pilot_tal.learners import LEARNERS
from pilot_tal.model.learn import learn
from pilot_tal.model.load import read_stored
from pilot_tal.model.session_trainer import ClosedFormSession, closed_forms
from pilot_tal.record.lock import locked
from pilot_tal.record.run_dir import find_runs
from pilot_tal.schema import settings_of

CLASSES = [f"class {label} é" for label in range(6)]
SMALL = {  # where a method has it
    **{"M": 60, "crct_epochs": 2, "size": 6, "top_k": 2, "prompt_param": "[6,2,0]", "tuned_epoch": 2, "batch_size": 5}
}
VIT = {"backbone": "demo_vit", "device": "cpu", "normalize": "0.4/0.3"}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """`monday` and `tuesday` with three classes each, split into train/ and test/, and `both`."""
    root = tmp_path_factory.mktemp("photos")
    make_images(root / "plain", 6, 5)
    for label, name in enumerate(CLASSES):
        for file in sorted((root / "plain" / name).iterdir()):
            part = "test" if int(file.stem) < 2 else "train"
            for day in ("both", "monday" if label < 3 else "tuesday"):
                target = root / day / part / name / file.name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
    return root


def own_settings(method: str) -> dict:
    config = LEARNERS[method].config_class
    wanted = {key: value for key, value in SMALL.items() if key in settings_of(config)}
    if "tuned_epoch" in wanted:
        wanted["epochs"] = wanted.pop("tuned_epoch")
    return {**VIT, **wanted, **({"loss": "tal"} if LEARNERS[method].trains(method_config(method)) else {})}


def items(**settings) -> list[str]:
    return [f"{key}={value}" for key, value in settings.items()]


def files_of(folder: Path) -> dict[str, bytes]:
    """Everything but locks."""
    found = (file for file in sorted(folder.rglob("*")) if file.is_file() and not file.name.startswith(".lock-"))
    return {str(file.relative_to(folder)): file.read_bytes() for file in found}


def tensors_of(folder: Path, task: int) -> dict[str, torch.Tensor]:
    """The learner after a task, with what only further learning needs."""
    files = sorted((folder / "checkpoint").glob(f"task{task:02d}.*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


@pytest.fixture
def birds(photos, tmp_path):
    """A model of SimpleCIL that has learned monday's classes."""
    learn(tmp_path / "birds", photos / "monday", method="simplecil", settings=items(**VIT))
    return tmp_path / "birds"


@pytest.mark.parametrize("method", LEARNERS)
def test_learning_by_folders_equals_the_benchmark_run(method, photos, tmp_path):
    order = tmp_path / "order.txt"
    order.write_text("\n".join(CLASSES), encoding="utf-8")
    where = {"data_root": photos / "both", "output": tmp_path / "runs", "order": order, "tasks": 2}
    run = pt.run(method, "folder_lt", **own_settings(method), **where)
    for session, day in enumerate(("monday", "tuesday")):
        given = {**own_settings(method), "max_tasks": 2, "max_classes": 6}
        learn(tmp_path / "model", photos / day, method=method, settings=items(**given))
        wanted, found = read_stored(run.path, session + 1).tensors, tensors_of(tmp_path / "model", session)
        assert wanted.keys() == {name for name in found if not name.startswith("held_out.")}
        for name, tensor in wanted.items():
            assert torch.equal(tensor, found[name]), name
    learned = pt.load_runs(tmp_path / "model").runs[0]
    for one, other in zip(learned.labels, run.labels, strict=True):
        assert [part.tolist() for part in one] == [part.tolist() for part in other]


@pytest.mark.parametrize("method", ["lae", "ease", "simplecil"])
def test_max_classes_has_no_effect_on_growing_classifiers(method, photos, tmp_path):
    for folder, more in (("small", {"max_classes": 6, "max_tasks": 2}), ("large", {})):
        for day in ("monday", "tuesday"):
            learn(tmp_path / folder, photos / day, method=method, settings=items(**own_settings(method), **more))
    small, large = (read_stored(tmp_path / folder).tensors for folder in ("small", "large"))
    assert all(torch.equal(tensor, large[name]) for name, tensor in small.items())


def test_classifier_of_fixed_size_grows_when_it_is_full(photos, tmp_path):
    for day in ("monday", "tuesday"):
        learn(
            tmp_path / "model",
            photos / day,
            method="l2p",
            settings=items(**own_settings("l2p"), max_classes=3, max_tasks=1),
        )
    model = pt.load_model(tmp_path / "model")
    assert list(model.classes) == CLASSES and model.record.capacity == (6, 2)
    assert len(model.learner.head.weight) == 6


@pytest.mark.parametrize("method", ["dualprompt", "coda_prompt"])
def test_max_tasks_ends_methods_whose_prompts_are_divided(method, photos, tmp_path):
    given = {key: value for key, value in own_settings(method).items() if key != "size"}
    learn(tmp_path / "model", photos / "monday", method=method, settings=items(**given, max_tasks=1))
    before = files_of(tmp_path / "model")
    with pytest.raises(UserError, match=r"max_tasks=1 .*plda"):
        learn(tmp_path / "model", photos / "tuesday")
    assert files_of(tmp_path / "model") == before


def test_session_is_recorded(birds, photos):
    session = learn(birds, photos / "tuesday")
    first, second = pt.load_model(birds).history
    assert second == session and (first.number, second.number) == (0, 1)
    assert second.train == dict.fromkeys(CLASSES[3:], 3) and second.held_out == dict.fromkeys(CLASSES[3:], 2)
    assert second.source == str(photos / "tuesday") and second.date > "2026" and second.seconds > 0
    record = pt.load_model(birds).record
    assert record.stream.task_sizes == (3, 3) and record.stream.train_counts == (3,) * 6 and record.is_open


def test_failed_session_leaves_the_folder_as_it_was(birds, photos, tmp_path, monkeypatch):
    before = files_of(birds)
    shutil.copytree(photos / "tuesday", tmp_path / "photos")
    (tmp_path / "photos" / "train" / CLASSES[4] / "03.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"03.png"):
        learn(birds, tmp_path / "photos")
    assert files_of(birds) == before and not list(birds.glob(".*"))
    with pytest.raises(UserError, match=r"03.png"):
        learn(tmp_path / "new", tmp_path / "photos", method="simplecil", settings=items(**VIT))
    assert not (tmp_path / "new").exists()

    class Killed(BaseException):
        """Stands for a power cut."""

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(ClosedFormSession, "evaluate", killed)
        learn(birds, photos / "tuesday")
    assert {name: content for name, content in files_of(birds).items() if not name.startswith(".")} == before
    (birds / ".session").mkdir()  # of a process that was killed: not a run of its own
    shutil.copy(birds / "run.json", birds / ".session")
    assert find_runs([birds.parent]) == [birds]
    learn(birds, photos / "tuesday")
    assert list(pt.load_model(birds).classes) == CLASSES


def test_session_killed_while_its_files_move_is_completed(birds, photos, tmp_path, monkeypatch):
    """Wherever the process dies after the commit, the next use of the model finishes the session."""
    shutil.copytree(birds, tmp_path / "other")
    learn(tmp_path / "other", photos / "tuesday")
    wanted = read_stored(tmp_path / "other").tensors
    move, moves = Path.replace, []

    def broken(self, target):
        if ".session-ready" in str(self):
            moves.append(target)
            if len(moves) > 4:
                raise KeyboardInterrupt
        return move(self, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", broken)
        learn(birds, photos / "tuesday")
    found = pt.load_model(birds)
    assert list(found.classes) == CLASSES and len(found.history) == 2
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in read_stored(birds).tensors.items())
    assert not list(birds.glob(".session*"))


def test_lock_admits_one_session_at_a_time(birds, photos):
    with locked(birds), pytest.raises(UserError, match="another process"):
        learn(birds, photos / "tuesday")


def test_hold_out_is_a_share_of_each_class_and_none_of_single_images(photos, tmp_path):
    shutil.copytree(photos / "plain", tmp_path / "photos")
    for file in sorted((tmp_path / "photos" / CLASSES[0]).iterdir())[1:]:
        file.unlink()
    for file in sorted((tmp_path / "photos" / CLASSES[1]).iterdir())[2:]:
        file.unlink()
    session = learn(tmp_path / "model", tmp_path / "photos", method="simplecil", settings=items(**VIT), hold_out=0.4)
    assert session.train == {CLASSES[0]: 1, CLASSES[1]: 1, **dict.fromkeys(CLASSES[2:], 3)}
    assert session.held_out == {CLASSES[1]: 1, **dict.fromkeys(CLASSES[2:], 2)}
    assert any(CLASSES[0] in note for note in pt.load_model(tmp_path / "model").record.notes)
    with pytest.raises(UserError, match="hold_out"):
        learn(tmp_path / "model", photos / "both", hold_out=1.5)
    with pytest.raises(UserError, match="held out"):
        learn(tmp_path / "other", photos / "plain", method="simplecil", settings=items(**VIT), hold_out=0)


def test_repeated_images_are_left_out(birds, photos, tmp_path):
    shutil.copytree(photos / "tuesday", tmp_path / "photos")
    shutil.copytree(photos / "monday" / "test" / CLASSES[0], tmp_path / "photos" / "train" / CLASSES[0])
    session = learn(birds, tmp_path / "photos")
    assert session.repeated == 2 and list(session.train) == CLASSES[3:]
    with pytest.raises(UserError, match="no new image"):
        learn(birds, photos / "tuesday")
    shutil.copytree(photos / "monday" / "train" / CLASSES[0], tmp_path / "more" / "other")
    with pytest.raises(UserError, match="learned as"):
        learn(birds, tmp_path / "more")


def test_again_trains_on_repeated_images_and_holds_none_of_them_out(photos, tmp_path):
    model = pt.Model.create("simplecil", **VIT)
    model.learn(photos / "plain")
    first = model.history[0]
    again = model.learn(photos / "plain", again=True)
    assert again.train == first.train and not again.held_out and again.repeated == sum(first.held_out.values())
    assert model.record.stream.train_counts == tuple(2 * number for number in first.train.values())
    shutil.copytree(photos / "plain" / CLASSES[0], tmp_path / "photos" / "test" / CLASSES[0])
    shutil.copytree(photos / "plain" / CLASSES[1], tmp_path / "photos" / "train" / CLASSES[1])
    assert not model.learn(tmp_path / "photos", again=True).held_out  # were trained on before


def test_more_images_of_a_known_class_need_a_method_that_can(photos, tmp_path):
    learn(tmp_path / "model", photos / "monday", method="lae", settings=items(**own_settings("lae")))
    make_images(tmp_path / "more", 1, 12)
    before = files_of(tmp_path / "model")
    with pytest.raises(UserError, match=r"LAE cannot learn more images of .*plda"):
        learn(tmp_path / "model", tmp_path / "more")
    assert files_of(tmp_path / "model") == before


def test_method_and_settings_stay_as_created(birds, photos, workspace):
    with pytest.raises(UserError, match="simplecil, not of lae"):
        learn(birds, photos / "tuesday", method="lae")
    with pytest.raises(UserError, match="batch_size=7"):
        learn(birds, photos / "tuesday", settings=["batch_size=7"])
    with pytest.raises(UserError, match="learn takes no tasks"):
        learn(birds, photos / "tuesday", settings=["tasks=3"])
    with pytest.raises(UserError, match="closed"):
        learn(workspace.run("simplecil"), photos / "tuesday")
    learn(birds, photos / "tuesday", method="simplecil", settings=items(**VIT))


def test_python_api_creates_learns_saves_and_loads(photos, tmp_path):
    model = pt.Model.create("simplecil", backbone="demo_vit", device="cpu")
    assert model.classes == () and model.history == () and "no classes" in repr(model)
    with pytest.raises(UserError, match="no classes yet"):
        model.predict(photos)
    with pytest.raises(UserError):
        model.save(tmp_path / "birds")
    model.learn(photos / "monday")
    files = sorted((photos / "plain" / CLASSES[4]).iterdir())
    model.learn({"wren": [Image.open(files[0]), *files[1:]]}, hold_out=0.25)
    assert model.save(tmp_path / "birds") == tmp_path / "birds"
    loaded = pt.load_model(tmp_path / "birds", device="cpu")
    assert loaded.classes == model.classes == (*CLASSES[:3], "wren") and len(loaded.history) == 2
    assert loaded.predict(files) == model.predict(files) and loaded.record.data.title == "birds"
    loaded.learn({"robin": sorted((photos / "plain" / CLASSES[5]).iterdir())})
    assert pt.load_model(tmp_path / "birds").classes[-1] == "robin"
    with pytest.raises(UserError, match="exists"):
        loaded.save(photos)


def test_wrong_settings_are_refused_at_creation():
    with pytest.raises(UserError, match="unknown method"):
        pt.Model.create("nearest")
    with pytest.raises(UserError, match="max_tasks"):
        pt.Model.create("simplecil", max_tasks=0)


def test_command_line_learns_predicts_reports_and_exports(photos, tmp_path):
    folder = str(tmp_path / "birds")
    status, printed = command("learn", folder, str(photos / "monday"), "--method", "simplecil", *items(**VIT))
    assert status == 0 and "classes 3" in printed
    assert command("learn", folder, str(photos / "tuesday"))[0] == 0
    assert command("predict", folder, str(photos / "plain"), "--top", "2")[0] == 0
    status, printed = command("status", str(tmp_path), "--json")
    assert [run["state"] for run in json.loads(printed)["runs"]] == ["done"]
    assert [run["name"] for run in json.loads(command("status", folder, "--json")[1])["runs"]] == ["birds"]
    status, printed = command("report", folder, "-o", str(tmp_path / "report"))
    assert status == 0 and "One seed only" not in printed
    assert command("export", folder, "-o", str(tmp_path / "export"))[0] == 0
    assert list(pt.load_model(tmp_path / "export").classes) == CLASSES
    assert command("learn", folder, str(photos / "tuesday"), "--method", "lae")[0] == 2


def move_class(folder: Path, label: str, target: Path) -> None:
    """Copies the training and test images of a class."""
    for part in ("train", "test"):
        shutil.copytree(folder / part / label, target / part / label)


@pytest.mark.parametrize("method", closed_forms())
def test_more_images_of_known_classes_equal_learning_all_at_once(method, photos, tmp_path):
    """In three sessions, the second with a known and a new class and the last with a known class alone."""
    settings = own_settings(method) | ({"shrinkage": 0.5} if method == "plda" else {})
    parts = [tmp_path / f"part{number}" for number in range(3)]
    for label in CLASSES[:2]:
        move_class(photos / "both", label, parts[0])
    move_class(photos / "both", CLASSES[2], parts[1])
    for target, label, stem in ((parts[1], CLASSES[0], "03.png"), (parts[2], CLASSES[1], "04.png")):
        for part, name in (("train", stem), ("test", "01.png")):
            (target / part / label).mkdir(parents=True, exist_ok=True)
            shutil.move(parts[0] / part / label / name, target / part / label / name)
    for part in parts:
        session = learn(tmp_path / "model", part, method=method, settings=items(**settings))
    assert session.train == {CLASSES[1]: 1} and pt.load_model(tmp_path / "model").record.num_tasks == 2
    learn(tmp_path / "once", photos / "monday", method=method, settings=items(**settings))
    model, once = (pt.load_model(tmp_path / name, device="cpu") for name in ("model", "once"))
    assert model.classes == once.classes and model.record.stream.train_counts == once.record.stream.train_counts
    files = sorted((photos / "plain").rglob("*.png"))
    x = torch.stack([model.transform(Image.open(file).convert("RGB")) for file in files])
    exact = method not in ("ranpac", "air")  # these choose their ridge session by session
    if exact:
        found, wanted = (one.learner.probabilities(one.scores(x)) for one in (model, once))
        assert torch.allclose(found, wanted, rtol=1e-3, atol=1e-5)
    run, other = (pt.load_runs(tmp_path / name).runs[0] for name in ("model", "once"))
    assert [len(true) for true, _ in run.labels] == [2, 6] and run.finished
    if exact:
        assert run.metrics["a_last"] == other.metrics["a_last"]


@pytest.mark.parametrize("method", closed_forms())
def test_forgetting_equals_never_having_learned(method, photos, tmp_path):
    settings = own_settings(method) | ({"shrinkage": 0.5} if method == "plda" else {})
    for name, days in (("model", ("monday", "wren", "tuesday")), ("never", ("monday", "tuesday"))):
        for day in days:
            folder = photos / day
            if day == "wren":
                folder = {"wren": [Image.effect_noise((40, 40), seed) for seed in (20, 40, 60)]}
            learn(tmp_path / name, folder, method=method, settings=items(**settings))
    model = pt.load_model(tmp_path / "model", device="cpu")
    model.forget("wren")
    never = pt.load_model(tmp_path / "never", device="cpu")
    assert model.classes == never.classes and model.record.stream == never.record.stream
    x = torch.rand(4, 3, *model.learner.backbone.img_size)
    if method not in ("ranpac", "air"):  # their ridge may have been chosen by the class
        found, wanted = (one.learner.probabilities(one.scores(x)) for one in (model, never))
        assert torch.allclose(found, wanted, rtol=1e-3, atol=1e-5)
        run, other = (pt.load_runs(tmp_path / name).runs[0] for name in ("model", "never"))
        for one, two in zip(run.labels, other.labels, strict=True):
            assert [part.tolist() for part in one] == [part.tolist() for part in two]
    left = b"".join(content for name, content in files_of(tmp_path / "model").items() if name != "sessions.json")
    assert b"wren" not in left and [one.forgot for one in model.history] == [None, None, None, "wren"]
    learn(tmp_path / "model", {"wren": [Image.effect_noise((40, 40), seed) for seed in (20, 40, 60)]})
    assert pt.load_model(tmp_path / "model").classes[-1] == "wren"


def test_only_closed_form_models_forget_and_only_known_classes(birds, photos, tmp_path):
    with pytest.raises(UserError, match="unknown class"):
        pt.load_model(birds).forget("wren")
    learn(tmp_path / "lae", photos / "monday", method="lae", settings=items(**own_settings("lae")))
    with pytest.raises(UserError, match=r"LAE cannot forget .*plda"):
        pt.load_model(tmp_path / "lae").forget(CLASSES[0])
    assert command("learn", str(birds), "--forget", CLASSES[0])[0] == 0
    assert command("learn", str(birds), "--forget", CLASSES[1])[0] == 0
    assert pt.load_model(birds).classes == (CLASSES[2],)
    status, printed = command("learn", str(birds), "--forget", CLASSES[2])
    assert status == 2 and "only class" in printed
    assert command("learn", str(birds))[0] == command("learn", str(tmp_path), "--forget", "x")[0] == 2


def test_model_keeps_one_checkpoint(birds, photos):
    learn(birds, photos / "tuesday")
    assert {file.name.split(".")[0] for file in (birds / "checkpoint").iterdir()} == {"task01"}
    assert not (birds / "held_out").exists()  # features are kept instead


def test_reject_marks_images_unlike_the_training_images(tmp_path):
    make_images(tmp_path / "photos", 3, 25)
    model = pt.Model.create("plda", backbone="demo_vit", device="cpu")
    model.learn(tmp_path / "photos")
    known = sorted((tmp_path / "photos").rglob("*.png"))
    other = [Image.new("RGB", (40, 40), grey) for grey in ((0, 0, 0), (255, 255, 255))]
    other.append(Image.linear_gradient("L").convert("RGB"))
    assert all(one.rejected is None for one in model.predict(other))
    assert all(one.rejected for one in model.predict(other, reject=0.05))
    assert sum(bool(one.rejected) for one in model.predict(known, reject=0.05)) < len(known) / 4
    folder = model.save(tmp_path / "model")
    other[0].save(tmp_path / "black.png")
    status, printed = command("predict", str(folder), str(tmp_path / "black.png"), str(known[0]), "--reject", "0.05")
    assert status == 0 and printed.count("none of these") == 1
    output = tmp_path / "labels.csv"
    assert command("predict", str(folder), str(tmp_path / "black.png"), "--reject", "0.05", "-o", str(output))[0] == 0
    assert "rejected" in output.read_text(encoding="utf-8")
    with pytest.raises(UserError, match="reject must be"):
        model.predict(other, reject=1.5)


def test_reject_needs_a_method_with_a_density(birds):
    with pytest.raises(UserError, match=r"SimpleCIL has no density .* plda"):
        pt.load_model(birds).predict([], reject=0.05)
