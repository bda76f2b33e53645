"""Reading values with fastjson's leniency."""

from __future__ import annotations

from typing import Any

import pytest

from inorder.errors import RemoteProtocolError, SystemError_
from inorder.wire import shapes


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, True),
        (False, False),
        (1, True),
        (0, False),
        ("true", True),
        ("TRUE", True),
        ("1", True),
        ("no", False),
        (None, True),
    ],
)
def test_booleans(value: Any, expected: bool) -> None:
    """Java, C++ and Node each have their own."""
    assert shapes.boolean({"k": value}, "k", True) is expected


@pytest.mark.parametrize(("value", "expected"), [(5, 5), ("5", 5), ("-5", -5), (None, 9)])
def test_integers(value: Any, expected: int) -> None:
    """Numbers come as text too."""
    assert shapes.integer({"k": value}, "k", 9) == expected


@pytest.mark.parametrize("value", [1.5, "x", True, [], 1 << 63, "9" * 30, 1 << 31])
def test_what_is_no_integer(value: Any) -> None:
    """Too large is as wrong as text."""
    with pytest.raises(RemoteProtocolError, match=r"^k is not"):
        shapes.integer({"k": value}, "k", 0, 32)


def test_texts() -> None:
    """Plain values become text, containers do not."""
    assert shapes.texts({"k": ["a", 1, True, 1.5]}, "k") == ["a", "1", "true", "1.5"]
    with pytest.raises(RemoteProtocolError, match="missing"):
        shapes.text({}, "k")
    with pytest.raises(RemoteProtocolError, match="not text"):
        shapes.text({"k": []}, "k")


def test_a_request_body_is_answered() -> None:
    """The wrapper turns a breach of protocol into code 1."""
    with pytest.raises(SystemError_, match="cannot be read: x is not a list"):
        shapes.request_body(shapes.as_list)(1, "x")
