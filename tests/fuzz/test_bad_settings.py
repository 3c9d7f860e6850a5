"""Settings drawn from the schema: refused in one sentence before anything starts, or good for a run."""

import pytest
from bad_settings import NASTY, SettingsCase, affordable, check_plan, check_run, draw_settings
from fuzz_world import make_world
from hypothesis import given, settings
from hypothesis import strategies as st

from pilot_tal.config.grid import known_settings
from pilot_tal.learners import LEARNERS
from pilot_tal.losses import LOSSES


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where a relative path may be made


@pytest.mark.parametrize("method", LEARNERS)
def test_every_number_has_a_range(method):
    for key, setting in known_settings(method).items():
        rule = setting.rule
        if setting.kind in (int, float):
            assert (rule.low, rule.above) != (None, None) != (rule.high, rule.below), key


@pytest.mark.parametrize("method", LEARNERS)
def test_every_setting_with_bad_values(method, world):
    """Each key of the method with a few of them; together the methods see all."""
    keys = [key for key in known_settings(method) if "." not in key]
    if method == next(iter(LEARNERS)):
        keys += [key for key in known_settings(method) if "." in key]
    number = list(LEARNERS).index(method)
    for key in keys:
        for text in NASTY[number :: len(LEARNERS)]:
            problem, _ = check_plan(SettingsCase(method, ((key, text),)), world)
            assert not problem, f"{key}={text!r}: {problem}"
            number += 1


@settings(max_examples=150)
@given(rng=st.randoms(use_true_random=False))
def test_one_to_three_settings(rng, world):
    case = draw_settings(rng)
    problem, accepted = check_plan(case, world)
    if accepted and not problem and affordable(case):
        problem = check_run(case, world)
    assert not problem, f"{case}: {problem}"


def test_the_fuzzer_notices_what_is_accepted_wrongly(world, monkeypatch):
    """Were a range left out, this room would see it."""
    from pilot_tal.schema import Option

    assert check_plan(SettingsCase("l2p", (("init_lr", "1e300"),)), world) == ("", False)
    monkeypatch.setattr(Option, "_fits", lambda *_: True)
    for key, text in (("init_lr", "1e300"), ("init_lr", "nan"), ("batch_size", "-1"), ("focal.gamma", "-1")):
        problem, accepted = check_plan(SettingsCase("l2p", ((key, text),)), world)
        assert accepted and problem.startswith(f"accepted {key}=")
    monkeypatch.undo()
    scalar = Option._scalar
    wrong = ("batch_size", "init_lr", "seeds", "tasks")
    monkeypatch.setattr(Option, "_scalar", lambda own, text: scalar(own, text + "0" * (own.name in wrong)))
    for key in wrong:
        assert check_plan(SettingsCase("l2p", ((key, "1"),)), world)[0].startswith(f"{key}='1' is planned as [10")
    assert LOSSES  # the losses' options are among the settings
