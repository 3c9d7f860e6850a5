"""Seeds derived from the seed of a run."""

from pilot_tal.stream.seeds import derive_seed


def test_derived_seeds_are_fixed_for_ever():
    assert derive_seed("task", 1993, 0) == 35135034685338635
    assert derive_seed("task", 1993, 0) != derive_seed("task", 1993, 1)
