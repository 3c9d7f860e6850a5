"""Things by name; what plugins may not do is tested with the plugins."""

import pytest

from data_lt import CARDS
from data_lt.errors import UserError


def test_registry_returns_entry_or_default():
    assert CARDS.get("cub_lt") is CARDS["cub_lt"]
    assert CARDS.get("cub_tl") is None and CARDS.get("cub_tl", 5) == 5
    with pytest.raises(UserError, match="did you mean 'cub_lt'"):
        CARDS["cub_tl"]
