"""What others wrote, as it is printed."""

from __future__ import annotations

import json

import pytest

from inorder.escaping import escaped, escaped_body, escaped_json


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("a\r\nFAKE line", "a\\r\\nFAKE line"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x9b31mred", "\\x9b31mred"),  # C1: the same in one character
        ("nul\x00\x7f", "nul\\x00\\x7f"),
        ("schlüssel 键　宽", "schlüssel 键　宽"),
        ("\u202eright to left", "\\u202eright to left"),
        ("or\u200bders", "or\\u200bders"),
        ("or\u200dders", "or\\u200dders"),
        ("\ufefforders", "\\ufefforders"),
        ("or\u3164ders", "or\\u3164ders"),
        ("\u2028line", "\\u2028line"),
        ("\ud800", "\\ud800"),
        ("x" * 600, "x" * 500 + "… (600 characters)"),
        ("\n" * 300, "\\n" * 250 + "… (300 characters)"),
    ],
)
def test_nothing_that_a_terminal_obeys_or_that_hides_is_left(text: str, shown: str) -> None:
    """No name can start a line, colour a terminal, or look like another; a long one is cut."""
    assert escaped(text) == shown


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"paid", "paid"),
        (b"", ""),
        (b"two\nlines", "two\\nlines"),
        ("👨\u200d👩 क\u200cष".encode(), "👨\u200d👩 क\u200cष"),
        ("pay\u200cpal".encode(), "pay\\u200cpal"),
        (b"\x00\xffab", "\\x00\\xffab (4 bytes, not UTF-8)"),
        (b"\xff" * 1000, "\\xff" * 64 + "… (1,000 bytes, not UTF-8)"),
        ("ü".encode() * 2000, "ü" * 500 + "… (4,000 bytes)"),
    ],
)
def test_a_body_is_one_line_cut_with_its_length(body: bytes, shown: str) -> None:
    """Text is cut with its length, binary earlier; joiners stay where scripts need them."""
    assert escaped_body(body) == shown


def test_kept_characters_stay_and_no_limit_gives_all() -> None:
    """A page may keep its newlines, and a body may be shown whole."""
    assert escaped_body(b"a\n\x1bb", None, keep="\n") == "a\n\\x1bb"
    assert escaped_body(b"x" * 9000, None) == "x" * 9000


def test_json_stays_the_same_value() -> None:
    """What JSON leaves raw is escaped by its own means."""
    value = {"k\x1b\x9b\u202e": ["\u200b\x7f", "\U000e0041", "键"]}
    text = escaped_json(json.dumps(value, indent=2, ensure_ascii=False))
    assert json.loads(text) == value
    assert all(c == "\n" or c.isprintable() for c in text)
    assert "键" in text
