"""References between parts of a JSON text."""

from __future__ import annotations

from typing import Any

import pytest

from inorder.errors import RemoteProtocolError
from inorder.wire.fastjson import resolve


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": {"x": 1}, "b": {"$ref": "$.a"}}, {"a": {"x": 1}, "b": {"x": 1}}),
        ({"b": {"$ref": "$.a"}, "a": {"x": 1}}, {"a": {"x": 1}, "b": {"x": 1}}),
        ([["n"], {"c": {"$ref": "$[0]"}}], [["n"], {"c": ["n"]}]),
        (
            {"t": {"T": {"q": {}}, "U": {"q": {"$ref": "$.t.T.q"}}}},
            {"t": {"T": {"q": {}}, "U": {"q": {}}}},
        ),
        (5, 5),
        ({}, {}),
    ],
)
def test_flat_targets(value: Any, expected: Any) -> None:
    """A shared map or list is taken from where it stands."""
    assert resolve(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        {"a": {"$ref": "$"}},
        {"a": {"b": {"$ref": "$.a"}}},
        {"a": {"$ref": "$.a"}},
        {"a": {"$ref": "$.b"}, "b": {"$ref": "$.a"}},
        {"a": {"$ref": "$." + "x" * 2000}},
        {"a": 1, "b": {"$ref": "$.a"}},
        {"a": {"$ref": "$.b.c"}, "b": 1},
        {"a": {"$ref": None}},
    ],
    ids=range(8),
)
def test_loops_and_strays_are_refused(value: Any) -> None:
    """No loop, no growth, no guess."""
    with pytest.raises(RemoteProtocolError):
        resolve(value)
