"""Java's string hash."""

from __future__ import annotations

import pytest

from inorder.wire.ids import java_hash, java_hash_bytes


def slow(text: str) -> int:
    """Follow the definition."""
    result = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        result = (31 * result + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    return result - (1 << 32) if result >= 1 << 31 else result


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("中文", 646394),
        ("T#k1", 2539445),
        ("polygenelubricants", -(1 << 31)),
    ],
)
def test_known_hashes(text: str, expected: int) -> None:
    """These are known from Java."""
    assert java_hash(text) == expected
    assert java_hash_bytes(text.encode()) == expected


@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 128, 1000])
@pytest.mark.parametrize("letter", ["z", "é", "𝄞"])
def test_any_length_follows_the_definition(letter: str, length: int) -> None:
    """Blocks do not show."""
    text = letter * length + "x"
    assert java_hash(text) == slow(text)


def test_bytes_that_are_not_utf8_count_as_replacement() -> None:
    """Java decodes before it hashes."""
    assert java_hash_bytes(b"\xff") == java_hash("\ufffd")
