"""A changed checkout is recognised by its source before anything runs."""

import shutil

import pytest
from upstream_helpers import edit, make_standin

from data_lt.errors import UserError
from pilot_tal.learners import LEARNERS
from pilot_tal.upstream.seams import MovedSeam, check_seams, find_toolbox, module_numbers
from pilot_tal.upstream.sites import LAMDA_PILOT, PYCIL, vit_module


def test_toolboxes_are_distinguished(pilot, pycil, tmp_path):
    assert find_toolbox(pilot) is LAMDA_PILOT
    assert find_toolbox(pycil) is PYCIL
    with pytest.raises(UserError, match="is not a checkout of LAMDA-PILOT or PyCIL"):
        find_toolbox(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        find_toolbox(tmp_path / "nowhere")


def test_sites_are_located_by_their_lines(pilot):
    located = check_seams(pilot, LAMDA_PILOT, LAMDA_PILOT.learners["mos"])
    lines = (pilot / "models/mos.py").read_text().splitlines()
    assert [site.swap for _, site in located] == [True, False, False, False]
    for span, _ in located:
        assert "cross_entropy(" in lines[span.start - 1]
    assert len(located[0][0]) == 4  # the call spans four lines there


L2P, REPLAY = "models/l2p.py", "models/replay.py"
CE = "F.cross_entropy(logits, targets.long())"
MOVES = {
    "renamed method": ("pilot", L2P, "_init_train", "_fit", r"\(logits, targets\) in Learner._init_train, found"),
    "other logits": ("pilot", L2P, "entropy(logits,", "entropy(outputs,", r"found F.cross_entropy\(outputs"),
    "more logits": ("pilot", L2P, "entropy(logits,", "entropy(logits + old,", r"found F.cross_entropy\(logits old,"),
    "exchanged": ("pilot", L2P, "(logits, targets.long())", "(targets.long(), logits)", r"entropy\(targets, logits"),
    "further argument": ("pilot", L2P, "targets.long())", "targets.long(), weight=None)", "weight="),
    "other loss": ("pilot", L2P, CE, "my_loss(logits, targets)", "found none"),
    "one more": ("pilot", L2P, "loss.backward()", "F.nll_loss(logits, targets)", "expected none, found F.nll_loss"),
    "two on a line": ("pilot", L2P, CE, f"{CE} + {CE}", "expected none, found F.cross"),
    "another F": ("pilot", L2P, "from torch.nn import functional as F", "import numpy as F", "as F' is not there"),
    "weights": ("pilot", "utils/inc_net.py", "timm.create_model", "load", r"has no timm.create_model\(\)"),
    "loader renamed": ("pilot", L2P, "self.train_loader", "self.batches", "has no self.train_loader"),
    "trainer": ("pilot", "trainer.py", "model.eval_task", "model.test", r"has no model.eval_task\(\)"),
    "signature": ("pilot", "models/base.py", "_eval_cnn(self, loader)", "_eval_cnn(self)", r"\(self\) instead of"),
    "idata": ("pilot", "utils/data_manager.py", "_get_idata", "get_source", r"_setup_data has no _get_idata\(\)"),
    "base": ("pilot", "models/base.py", "_eval_nme", "_nme", "BaseLearner._eval_nme is not there"),
    "topk": ("pilot", "models/base.py", "self.topk = 5", "pass", "has no self.topk"),
    "exemplars": ("pycil", "models/base.py", "_construct_exemplar(self, data_manager, m)",
                  "_construct_exemplar(self, data_manager)", "instead of"),
    "second phase": ("pycil", REPLAY, "loss_clf = F.cross_entropy(logits, targets)",
                     "loss_clf = F.cross_entropy(logits, labels)", "found F.cross_entropy"),
    "broken": ("pilot", L2P, "class Learner", "class", "not Python that can be read"),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_moved_seam_is_named(name, tmp_path):
    kind, file, old, new, message = MOVES[name]
    repo = make_standin(tmp_path, kind)
    edit(repo / file, old, new)
    toolbox = find_toolbox(repo)
    learner = toolbox.learners["l2p" if kind == "pilot" else "replay"]
    with pytest.raises(MovedSeam, match=message) as error:
        check_seams(repo, toolbox, learner)
    assert str(error.value).startswith(f"{file} of the {toolbox.title} checkout has moved")
    assert "nothing was trained" in str(error.value)


def test_known_cross_entropies_on_one_line_are_refused(tmp_path):
    """A call is known by its line while it runs."""
    repo = make_standin(tmp_path, "pilot")
    edit(repo / "models/mos.py", "_cur_task > 0:\n            return", "_cur_task > 0: return")
    edit(repo / "models/mos.py", "device=self._device))\n        return", "device=self._device)) or")
    with pytest.raises(MovedSeam, match="two cross-entropies share a line"):
        check_seams(repo, LAMDA_PILOT, LAMDA_PILOT.learners["mos"])


def test_missing_file_is_named(tmp_path):
    repo = make_standin(tmp_path, "pilot")
    (repo / L2P).unlink()
    with pytest.raises(MovedSeam, match=r"models/l2p\.py .* cannot be read"):
        check_seams(repo, LAMDA_PILOT, LAMDA_PILOT.learners["l2p"])


def test_unknown_learner_names_the_nearest():
    with pytest.raises(UserError, match=r"unknown learner of PyCIL .* did you mean 'icarl'"):
        PYCIL.learner("icarll")
    assert PYCIL.learner("iCaRL") is PYCIL.learners["icarl"]


def test_numbers_at_the_top_of_a_file_are_found(pycil):
    assert module_numbers(pycil, PYCIL.learners["replay"]) == {"init_epoch": 100, "epochs": 50}


def test_every_swapped_site_goes_through_the_name_that_is_swapped():
    for toolbox in (LAMDA_PILOT, PYCIL):
        for learner in toolbox.learners.values():
            assert learner.trains != (learner.title == "SimpleCIL")
            assert all(site.call.startswith("F.cross_entropy(") for site in learner.sites if site.swap)


def test_titles_are_those_of_our_own_learners():
    known = {name: learner for toolbox in (PYCIL, LAMDA_PILOT) for name, learner in toolbox.learners.items()}
    shared = LEARNERS.keys() & known.keys()
    assert {name: known[name].title for name in shared} == {name: LEARNERS[name].title for name in shared}


def test_vit_is_built_by_its_name():
    kinds = ("pretrained_vit_b16_224_in21k_adapter", "vit_base_patch16_224_coda_prompt", "pretrained_vit_b16_224_vpt")
    assert [vit_module(kind) for kind in kinds] == ["backbone.vit_adapter", "backbone.vit_coda_promtpt", "backbone.vpt"]
    assert vit_module("vit_base_patch16_224") == "timm.models.vision_transformer"


def test_standins_are_not_changed_by_a_check(pilot, tmp_path):
    copy = shutil.copytree(pilot, tmp_path / "copy")
    check_seams(copy, LAMDA_PILOT, LAMDA_PILOT.learners["l2p"])
    assert not list(copy.rglob("__pycache__"))
