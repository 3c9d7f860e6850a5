"""A changed learner is recognised by its source before anything runs."""

import shutil

import pytest
from upstream_helpers import edit, make_standin

from data_lt.errors import UserError
from pilot_tal.learners import LEARNERS as OUR_LEARNERS
from pilot_tal.upstream.checkout import LEARNERS, known_learner, locate


def test_sites_are_located_by_their_lines(pilot):
    located = locate(pilot, LEARNERS["mos"])
    lines = (pilot / "models/mos.py").read_text().splitlines()
    assert [site.swap for _, site in located] == [True, False, False, False]
    for span, _ in located:
        assert "cross_entropy(" in lines[span.start - 1]
    assert len(located[0][0]) == 4  # the call spans four lines there


L2P = "models/l2p.py"
CE = "F.cross_entropy(logits, targets.long())"
CHANGES = {
    "renamed method": ("_init_train", "_fit", r"\(logits, targets\) in Learner._init_train, found"),
    "other logits": ("entropy(logits,", "entropy(outputs,", r"found F.cross_entropy\(outputs"),
    "more logits": ("entropy(logits,", "entropy(logits + old,", r"found F.cross_entropy\(logits old,"),
    "exchanged": ("(logits, targets.long())", "(targets.long(), logits)", r"entropy\(targets, logits"),
    "further argument": ("targets.long())", "targets.long(), weight=None)", "weight="),
    "other loss": (CE, "my_loss(logits, targets)", "found none"),
    "one more": ("loss.backward()", "F.nll_loss(logits, targets)", "expected none, found F.nll_loss"),
    "one above": (
        "class Learner",
        "CE = torch.nn.CrossEntropyLoss()\n\n\nclass Learner",
        "found torch.nn.CrossEntropy",
    ),
    "two on a line": (CE, f"{CE} + {CE}", "expected none, found F.cross"),
    "broken": ("class Learner", "class", "not Python that can be read"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_call_is_named(name, tmp_path):
    old, new, message = CHANGES[name]
    repo = make_standin(tmp_path)
    edit(repo / L2P, old, new)
    with pytest.raises(UserError, match=message) as error:
        locate(repo, LEARNERS["l2p"])
    assert str(error.value).startswith(f"{L2P} of the LAMDA-PILOT checkout has changed")
    assert "nothing was trained" in str(error.value)


def test_known_cross_entropies_on_one_line_are_refused(tmp_path):
    """A call is known by its line while it runs."""
    repo = make_standin(tmp_path)
    edit(repo / "models/mos.py", "_cur_task > 0:\n            return", "_cur_task > 0: return")
    edit(repo / "models/mos.py", "device=self._device))\n        return", "device=self._device)) or")
    with pytest.raises(UserError, match="two cross-entropies share a line"):
        locate(repo, LEARNERS["mos"])


def test_missing_file_is_named(tmp_path):
    repo = make_standin(tmp_path)
    (repo / L2P).unlink()
    with pytest.raises(UserError, match=r"models/l2p\.py .* cannot be read"):
        locate(repo, LEARNERS["l2p"])


def test_unknown_learner_names_the_nearest():
    with pytest.raises(UserError, match=r"unknown learner of LAMDA-PILOT without replay .* did you mean 'ranpac'"):
        known_learner("ranpacc")
    with pytest.raises(UserError, match=r"unknown learner of LAMDA-PILOT without replay .* 'icarl'"):
        known_learner("icarl")
    assert known_learner("SLCA") is LEARNERS["slca"]


def test_every_swapped_site_goes_through_the_name_that_is_swapped():
    for learner in LEARNERS.values():
        assert learner.trains != (learner.title == "SimpleCIL")
        assert all(site.call.startswith("F.cross_entropy(") for site in learner.sites if site.swap)
        assert {site.fate for site in learner.sites} <= {"swapped", "stays"}


def test_titles_are_those_of_our_own_learners():
    shared = OUR_LEARNERS.keys() & LEARNERS.keys()
    assert len(shared) > 8
    assert {name: LEARNERS[name].title for name in shared} == {name: OUR_LEARNERS[name].title for name in shared}


def test_standin_is_not_changed_by_a_check(pilot, tmp_path):
    copy = shutil.copytree(pilot, tmp_path / "copy")
    locate(copy, LEARNERS["l2p"])
    assert not list(copy.rglob("__pycache__"))
