"""What the record of a run is as text."""

from pilot_tal.record.run_record import canonical, flat, short_hash


def test_nested_values_become_one_line_each():
    value = {"a": {"b": 1, "c": "x", "d": {}}, "e": [1, 2.5], "f": None, "g": True}
    assert dict(flat(value)) == {"a.b": "1", "a.c": "x", "e": "[1, 2.5]", "f": "null", "g": "true"}


def test_hash_depends_on_values_not_on_order():
    assert canonical({"b": 1, "a": "é"}) == b'{"a": "\\u00e9", "b": 1}'
    assert short_hash({"b": 1, "a": 2}) == short_hash({"a": 2, "b": 1}) == "21501dba"
    assert short_hash({"a": 2, "b": 2}) != short_hash({"a": 2, "b": 1})
