"""Options and arguments of every command: refused in one sentence, or taken where they make sense."""

import pytest
from bad_options import TEMPLATES, OptionCase, check_option
from bad_settings import NASTY
from fuzz_world import make_world

TEXTS = [text for text in NASTY if "\0" not in text]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("template", TEMPLATES, ids=" ".join)
def test_every_place_with_bad_texts(template, world, tmp_path, monkeypatch):
    """Each place with a few of them; together the places see all."""
    monkeypatch.chdir(tmp_path)  # where a relative path may be made
    for text in TEXTS[TEMPLATES.index(template) :: len(TEMPLATES)]:
        case = OptionCase(template, text)
        problem = check_option(case, world)
        assert not problem, f"{case}: {problem}"
