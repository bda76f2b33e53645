"""Message properties."""

from __future__ import annotations

import pytest

from inorder.errors import LocalProtocolError
from inorder.wire.properties import append, format_properties, get, parse

CASES = [
    ("", {}),
    ("a\x01b\x02", {"a": "b"}),
    ("a\x01b", {"a": "b"}),
    ("a\x01b\x02c\x01d", {"a": "b", "c": "d"}),
    ("a\x01b\x02a\x01c\x02", {"a": "c"}),
    ("a\x01b\x02a\x01\x02", {"a": "b"}),
    ("a\x01b\x01c\x02", {"a": "b\x01c"}),
    ("x\x01a\x01b\x02", {"x": "a\x01b"}),
    ("\x01b\x02", {}),
    ("a\x01\x02", {}),
    ("a\x02b\x02", {}),
    ("\x02\x02\x02a\x01b\x02\x02", {"a": "b"}),
    ("aa\x01x\x02a\x01y\x02", {"aa": "x", "a": "y"}),
    ("a\x01y\x02aa\x01x\x02", {"aa": "x", "a": "y"}),
    ("a\x01中文\x02", {"a": "中文"}),
]


@pytest.mark.parametrize(("raw", "expected"), CASES)
def test_rules(raw: str, expected: dict[str, str]) -> None:
    """Text and bytes are read alike, and one property like all of them."""
    assert parse(raw) == parse(raw.encode()) == parse(memoryview(raw.encode())) == expected
    for name in ("a", "aa", "b", "c", "x"):
        value = expected.get(name)
        assert get(raw.encode(), name.encode()) == (None if value is None else value.encode())


def test_format_ends_with_the_separator() -> None:
    """What we write can be appended to."""
    assert format_properties({"a": "b", "c": "d"}) == "a\x01b\x02c\x01d\x02"


@pytest.mark.parametrize(
    "mapping", [{"a\x01": "b"}, {"a": "b\x02"}, {"a": "\x01"}, {"": "b"}, {"a": ""}]
)
def test_what_would_not_come_back_is_refused(mapping: dict[str, str]) -> None:
    """A separator in a name or value would change the message."""
    with pytest.raises(LocalProtocolError):
        format_properties(mapping)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (b"a\x01b", b"c\x01d\x02", b"a\x01b\x02c\x01d\x02"),
        (b"a\x01b\x02", b"c\x01d\x02", b"a\x01b\x02c\x01d\x02"),
        (b"", b"c\x01d\x02", b"c\x01d\x02"),
        (b"a\x01b", b"", b"a\x01b"),
    ],
)
def test_append_adds_the_missing_separator(first: bytes, second: bytes, expected: bytes) -> None:
    """Values are never glued together."""
    assert append(first, second) == expected


def test_bytes_that_are_not_utf8_do_not_fail() -> None:
    """A stored message is always readable."""
    assert parse(b"a\x01\xff\x02") == {"a": "\ufffd"}
    assert get(b"a\x01\xff\x02", b"a") == b"\xff"
