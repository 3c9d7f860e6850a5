"""Settings drawn from the schema are refused in one sentence, or planned as they were written."""

import math

import pytest
from fuzz_helpers import LONGEST_SENTENCE, cases
from hypothesis import given
from hypothesis import strategies as st

from data_lt.errors import UserError, printable
from pilot_tal.config.grid import known_settings, run_config
from pilot_tal.learners import LEARNERS
from pilot_tal.schema import Option

ODD = [
    "", " ", "nan", "inf", "-inf", "1e999", "-1", "0", "1e-320", "9" * 400, "1_0", "0x10", "١", "true", "null", "None",
    "[", "]", "[]", "[1,2]", "[[1]]", "{}", "a=b", "x" * 5000, "\x1b[2J", "a\nb", "a\0b", "\udcff", "../..",
    "~no_such_user", "−1",
]  # fmt: skip


def outside(option: Option) -> list[float]:
    """Numbers just outside of an option's range."""
    rule = option.rule
    step = 1 if option.kind is int else 1e-9
    numbers = [
        bound + sign * step * max(1, abs(bound))
        for bound, sign in ((rule.low, -1), (rule.high, 1))
        if bound is not None
    ]
    return [*numbers, *(bound for bound in (rule.above, rule.below) if bound is not None)]


def values(option: Option) -> st.SearchStrategy[str]:
    """Texts for an option: sensible, at its bounds, beyond them, and of any other kind."""
    texts = [st.sampled_from(ODD), st.text(max_size=20)]
    if option.kind in (int, float):
        texts += [st.sampled_from([str(option.kind(number)) for number in outside(option)] or ["1"])] * 2
        texts += [st.integers(-10, 10**6).map(str), st.floats().map(repr)]
    if option.rule.choices:
        texts += [st.sampled_from(option.rule.choices)] * 2
    return st.one_of(texts)


@st.composite
def settings_of_a_run(draw) -> tuple[str, dict[str, str]]:
    method = draw(st.sampled_from(list(LEARNERS)))
    known = known_settings(method)
    keys = draw(st.lists(st.sampled_from(sorted(known)), min_size=1, max_size=3, unique=True))
    return method, {key: draw(values(known[key])) for key in keys}


@cases(250)
@given(case=settings_of_a_run())
def test_settings_are_refused_in_one_sentence_or_in_range(case):
    method, given_values = case
    try:
        run_config(method, "folder_lt", [f"{key}={text}" for key, text in given_values.items()])
    except UserError as error:
        assert len(printable(str(error))) <= LONGEST_SENTENCE, str(error)
        return
    known = known_settings(method)
    for key, text in given_values.items():
        option = known[key]
        if option.kind in (int, float) and not option.many and text not in option.rule.words:
            if option.optional and text.lower() in ("null", "none"):
                continue
            value = float(text)
            assert math.isfinite(value) and value not in map(float, outside(option)), (key, text)


@pytest.mark.parametrize("method", LEARNERS)
def test_every_number_has_a_range(method):
    for key, option in known_settings(method).items():
        if option.kind in (int, float):
            assert (option.rule.low, option.rule.above) != (None, None) != (option.rule.high, option.rule.below), key
