"""Every file of a run, a build and a model, damaged in every way: named with the way out, or harmless."""

import pytest
from damage import CHECKS, DAMAGES, FROM_ANOTHER, DamageCase, check_damage, draw_damage, files_of
from fuzz_world import make_world
from hypothesis import given, settings
from hypothesis import strategies as st

REPORT, AGAIN = 1, 6  # cases of a finished run that ask for a report, and for the same command again


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("what", [what for what in CHECKS if what != "finished"])
def test_each_damage(what, damage, world, tmp_path):
    """On a file of each kind, a different one for each damage."""
    files = files_of(what, world)
    file = files[list(DAMAGES).index(damage) % len(files)]
    case = DamageCase(what, file, damage, 0)
    problem = check_damage(case, world, tmp_path / "case")
    assert not problem, f"{case}: {problem}"


@pytest.mark.parametrize("file", ["run.json", "result.json"])
@pytest.mark.parametrize("what", ["finished", "half"])
def test_values_changed_with_their_checksum(what, file, world, tmp_path):
    for number in range(6):
        case = DamageCase(what, file, "resealed", number)
        problem = check_damage(case, world, tmp_path / "case")
        assert not problem, f"{case}, number {number}: {problem}"


@pytest.mark.parametrize("file", ["run.json", "result.json", "predictions/task01.csv", "states/task00.jsonl"])
def test_a_file_of_another_run(file, world, tmp_path):
    for number in (REPORT, AGAIN):
        problem = check_damage(DamageCase("finished", file, FROM_ANOTHER, number), world, tmp_path / "case")
        assert not problem, problem


@settings(max_examples=60)
@given(rng=st.randoms(use_true_random=False))
def test_any_file_in_any_way(rng, world, tmp_path_factory):
    case = draw_damage(rng, world)
    problem = check_damage(case, world, tmp_path_factory.mktemp("case"))
    assert not problem, f"{case}, number {case.number}: {problem}"


def test_the_fuzzer_notices_damage_that_nobody_sees(world, tmp_path, monkeypatch):
    """Without the checksums, other numbers would be reported without a word."""
    case = DamageCase("finished", "predictions/task01.csv", "last line removed", AGAIN)
    assert not check_damage(case, world, tmp_path / "case")
    monkeypatch.setattr("pilot_tal.record.run_dir._verified", lambda path, name, files: (path / name).read_text())
    assert "accepted, with other files than before" in check_damage(case, world, tmp_path / "case")
    case = DamageCase("half", "predictions/task00.csv", "last line removed", 0)
    assert "went on to another end" in check_damage(case, world, tmp_path / "case")
