"""Settings with a type and a range: what is taken, what is refused, and in which words."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_lt.errors import UserError
from pilot_tal.schema import REQUIRED, Rule, build, defaults_of, settings_of


@dataclass(frozen=True)
class Inner:
    word: str


@dataclass(frozen=True)
class Example:
    whole: Annotated[int, Rule("a count", 1, 9)]
    share: Annotated[float, Rule(above=0, below=1)] = 0.5
    plain: Annotated[float, Rule("any number")] = 1.0
    flag: bool = False
    kind: Annotated[str, Rule(choices=("a", "b"))] = "a"
    device: Annotated[str, Rule("cpu or cuda:N", pattern=r"cpu|cuda:\d")] = "cpu"
    maybe: Annotated[int | None, Rule(low=0)] = None
    blocks: Annotated[tuple[int, ...], Rule("blocks", 0, 5, unique=True, shortest=1)] = (0, 1)
    memory: Annotated[float | str, Rule(above=0, words=("auto",))] = 2.0
    inner: Inner = field(default_factory=lambda: Inner("x"))
    table: dict[str, Any] = field(default_factory=dict)


SETTINGS = settings_of(Example)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("whole", "9", 9), ("whole", "1", 1), ("share", "1e-3", 1e-3), ("plain", "-3", -3.0), ("flag", "True", True),
        ("flag", "false", False), ("kind", "b", "b"), ("device", "cuda:3", "cuda:3"), ("maybe", "null", None),
        ("maybe", "None", None), ("maybe", "0", 0), ("blocks", "[0, 5]", (0, 5)), ("memory", "auto", "auto"),
        ("memory", "3", 3.0),
    ],
)  # fmt: skip
def test_texts_of_the_command_line(name, text, value):
    found = SETTINGS[name].parse(text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("whole", "0", "whole must be a whole number from 1 to 9, got 0"),
        ("whole", "10", "from 1 to 9, got 10"),
        ("whole", "2.0", "must be a whole number from 1 to 9, got '2.0'"),
        ("whole", "1_0", "got '1_0'"),
        ("whole", "true", "got 'true'"),
        ("whole", "", "whole has no value; write whole=VALUE or leave it out"),
        ("whole", "9" * 5000, "got '999"),
        ("whole", "٣", "got '٣'"),
        ("share", "0", "share must be a number above 0 and below 1, got 0.0"),
        ("share", "1", "got 1.0"),
        ("share", "nan", "got NaN"),
        ("plain", "inf", "plain must be a number, got Infinity"),
        ("plain", "1e300", "got 1e.300"),
        ("flag", "1", "flag must be true or false, got '1'"),
        ("kind", "c", "kind must be one of a, b, got 'c'"),
        ("device", "cuda:", "device must be cpu or cuda:N, got 'cuda:'"),
        ("device", "cpu\n", "device must be"),
        ("maybe", "-1", "maybe must be a whole number of at least 0, or null, got -1"),
        ("blocks", "[0,1", r"blocks must be a list such as \[1,2\] of whole number from 0 to 5, at least 1 long"),
        ("blocks", "[]", "at least 1 long"),
        ("blocks", "[0,0]", "blocks must not name a value twice"),
        ("blocks", "[0,6]", r"from 0 to 5, at least 1 long, got 6"),
        ("memory", "car", "memory must be a number above 0, or auto, got 'car'"),
    ],
)
def test_command_line_rejects_bad_values(name, text, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        SETTINGS[name].parse(text)
    assert len(str(caught.value)) < 200 and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("whole", True), ("whole", 2.0), ("whole", "2"), ("whole", None), ("plain", True), ("plain", math.nan),
        ("plain", 10**400), ("flag", 1), ("flag", "true"), ("kind", 1), ("blocks", 3), ("blocks", "01"),
        ("blocks", [[0]]), ("inner", "x"), ("table", []), ("table", {1: 2}),
    ],
)  # fmt: skip
def test_values_of_another_type_are_refused(name, value):
    with pytest.raises(UserError, match=f"{name} must be"):
        SETTINGS[name].check(value)


def test_values_that_fit_come_back_in_their_type():
    assert SETTINGS["plain"].check(3) == 3.0 and isinstance(SETTINGS["plain"].check(3), float)
    assert SETTINGS["blocks"].check([2, 1]) == (2, 1)
    assert SETTINGS["inner"].check({"word": "y"}) == Inner("y")


def test_object_is_built_from_plain_values():
    made = build(Example, {"whole": 3, "inner": {"word": "z"}, "blocks": [1]})
    assert (made.whole, made.inner, made.blocks, made.share) == (3, Inner("z"), (1,), 0.5)
    with pytest.raises(UserError, match="unknown setting of it 'wole': did you mean 'whole'"):
        build(Example, {"wole": 3}, "it")
    with pytest.raises(UserError, match="whole is missing from it"):
        build(Example, {}, "it")
    with pytest.raises(UserError, match="word is missing"):
        build(Example, {"whole": 3, "inner": {}})


class Loss:
    def __init__(self, gamma: Annotated[float, Rule("x", 0, 2)] = 1.0, hidden: int = 3):
        self.gamma = gamma


def test_only_parameters_with_a_rule_are_settings():
    assert list(settings_of(Loss)) == ["gamma"] and defaults_of(Loss) == {"gamma": 1.0}
    assert settings_of(Example)["whole"].default is REQUIRED and "whole" not in defaults_of(Example)
    with pytest.raises(UserError, match="unknown setting 'hidden'"):
        build(Loss, {"hidden": 1})


@given(st.text(max_size=20))
def test_any_text_is_taken_or_refused_with_one_sentence(text):
    for setting in SETTINGS.values():
        try:
            value = setting.parse(text)
        except UserError as error:
            assert "\n" not in str(error)
        else:
            assert setting.check(value) == value


@given(st.integers(1, 9), st.floats(-1e9, 1e9), st.booleans())
def test_written_values_are_read_back(whole, plain, flag):
    for name, value in (("whole", whole), ("plain", plain), ("flag", flag)):
        assert SETTINGS[name].parse(str(value)) == value
