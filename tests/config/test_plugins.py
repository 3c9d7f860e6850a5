"""Names from outside reach the command line, and a name is taken once."""

import os
import textwrap

import pytest
from helpers.cli import ROOT, process
from helpers.images import make_images

from data_lt import CARDS, DatasetCard
from data_lt.errors import UserError
from pilot_tal.config.parse import absolute, load_plugins
from pilot_tal.learners import LEARNERS
from pilot_tal.losses import LOSSES

BIRDS = """
from data_lt import DatasetCard, register
from pilot_tal.losses import LOSSES, TaskLoss
import torch.nn.functional as F

register(DatasetCard(name="birds_lt", title="Birds-LT", classes=None, images=None, n_max=6, n_min=2,
                     test_per_class=2, defaults={"backbone": "vit_tiny_patch16_224", "weights": "random",
                     "img_size": 32, "epochs": 1}))

@LOSSES.register
class Half(TaskLoss):
    name, title = "half", "Half of CE"

    def batch_loss(self, logits, targets, values):
        return F.cross_entropy(logits, targets) / 2
"""


def test_dataset_and_loss_of_a_plugin_file_work_on_the_command_line(tmp_path):
    (tmp_path / "birds.py").write_text(BIRDS)
    images = make_images(tmp_path / "images")
    wanted = ["loss=half", f"data_root={images}", "plugins=birds", "tasks=2", "batch_size=16", "output=runs"]
    done = process("run", "lae", "birds_lt", *wanted, cwd=tmp_path)
    printed = done.communicate()[0]
    assert done.returncode == 0 and "Birds-LT" in printed and "Half of CE" in printed, printed


def test_installed_package_is_found_by_its_entry_point(tmp_path):
    (tmp_path / "birds.py").write_text(BIRDS)
    info = tmp_path / "birds-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: birds\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pilot_tal.plugins]\nbirds = birds:Half\n")
    for command in (["list"], ["build", "birds_lt", "--data-root", make_images(tmp_path / "images"), "-o", "out"]):
        done = process(*command, env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}, cwd=tmp_path)
        printed = done.communicate()[0]
        assert done.returncode == 0 and "birds_lt" in printed, printed
        assert command != ["list"] or "Half of CE" in printed


PROBE = """
from pilot_tal.learners import LEARNERS
from pilot_tal.learners.simplecil import SimpleCIL

@LEARNERS.register
class Probe(SimpleCIL):
    name, title = "probe", "Probe"
"""


def test_model_of_a_plugin_method_names_its_plugin(tmp_path):
    (tmp_path / "birds.py").write_text(BIRDS)
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / "probe.yaml").write_text((ROOT / "configs" / "methods" / "simplecil.yaml").read_text())
    images = make_images(tmp_path / "images")

    def call(*words: str) -> tuple[int, str]:
        done = process(*words, cwd=tmp_path)
        printed = done.communicate()[0]
        return done.returncode, " ".join(printed.split())

    wanted = [f"data_root={images}", "plugins=birds,probe", "tasks=2", "output=runs"]
    status, printed = call("run", "probe", "birds_lt", *wanted)
    assert status == 0, printed
    (run,) = (tmp_path / "runs").glob("birds_lt-probe-*")
    status, printed = call("export", str(run), "-o", "model", "--plugins", "probe", "--with-backbone")
    assert status == 0 and "predict model PHOTO --plugins probe" in printed, printed
    card = (tmp_path / "model" / "README.md").read_text()
    assert "pilot-tal predict . photo.jpg --plugins FILE" in card and "`probe` comes from a plugin" in card
    assert "Licence:" in card
    photo = str(next(images.glob("*/*.png")))
    assert call("predict", "model", photo, "--plugins", "probe")[0] == 0
    status, printed = call("predict", "model", photo)
    assert status == 2 and "--plugins" in printed


@pytest.mark.parametrize("kind", ["dataset", "loss", "method"])
def test_name_taken_twice_is_refused(kind):
    registry, entry = {
        "dataset": (CARDS, CARDS["cub_lt"]),
        "loss": (LOSSES, LOSSES["tal"]),
        "method": (LEARNERS, LEARNERS["l2p"]),
    }[kind]
    with pytest.raises(UserError, match=f"a {kind} named '{entry.name}' is registered already"):
        registry.register(entry)


@pytest.mark.parametrize("name", ["", "Cub", "a-b", "x" * 41, None])
def test_bad_name_is_refused(name):
    card = DatasetCard(name, "T", None, None, None, 2, 2)
    with pytest.raises(UserError, match="the name of a dataset must be lower-case letters"):
        CARDS.register(card)
    with pytest.raises(UserError, match="needs a title"):
        CARDS.register(DatasetCard("fine_name", "", None, None, None, 2, 2))


def test_plugin_in_a_home_directory_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "at_home.py").write_text("1 / 0")
    for name in ("~/at_home.py", "~/at_home"):
        with pytest.raises(UserError, match="cannot be loaded: ZeroDivisionError"):
            load_plugins((name,))
    assert absolute(("~/at_home",)) == (str(tmp_path / "at_home.py"),)


def test_plugin_that_is_missing_or_broken_raises_user_error(tmp_path):
    with pytest.raises(UserError, match=r"the plugin .no_such_thing. cannot be loaded: ModuleNotFoundError"):
        load_plugins(("no_such_thing",))
    broken = tmp_path / "broken.py"
    broken.write_text(textwrap.dedent("1 / 0"))
    with pytest.raises(UserError, match="cannot be loaded: ZeroDivisionError"):
        load_plugins((str(broken),))
