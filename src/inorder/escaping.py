"""Text from others, made fit to print: on a terminal, in a table, in a log line.

A name, a key or a body may hold anything. Control characters move the cursor or colour the screen,
a newline forges a second line, and direction marks and zero-width characters make one name look
like another. All of them are shown as escapes (`\\x1b`, `\\u202e`). A long text is cut, and its
length is added. How text from peers is shown: decision 46.
"""

from __future__ import annotations

import re
from typing import Final

TEXT_MAX: Final = 500
BINARY_MAX: Final = 64

# Not printable by Python's rule, but harmless: spaces of other widths, as Chinese and French have.
_SPACES: Final = frozenset("\xa0\u2002\u2003\u2007\u2009\u202f\u3000")
# Printable by Python's rule, but nothing is seen.
_INVISIBLE: Final = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0]")
# Emoji and several scripts are written with these; between other characters they only hide.
_JOINED: Final = re.compile("(?<=[^\x00-\xff])[\u200c\u200d](?=[^\x00-\xff])")


def escaped(text: str, limit: int | None = TEXT_MAX, *, keep: str = "") -> str:
    """Return the text on one line, with nothing in it that a terminal obeys, or that hides.

    Cut at `limit` characters, and then followed by its length. Characters of `keep` stay.
    """
    shown = _escaped(text if limit is None else text[:limit], keep)
    if limit is None or (len(text) <= limit and len(shown) <= limit):
        return shown
    return f"{shown[:limit]}… ({len(text):,} characters)"


def escaped_body(body: bytes, limit: int | None = TEXT_MAX, *, keep: str = "") -> str:
    """Return a body as text fit for a terminal; cut with its length, also if it is binary."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        start = body if limit is None else body[:BINARY_MAX]
        shown = "".join(chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}" for byte in start)
        return f"{shown}{'' if len(start) == len(body) else '…'} ({len(body):,} bytes, not UTF-8)"
    cut = text if limit is None else text[:limit]
    at, parts = 0, []
    for joiner in _JOINED.finditer(cut):
        parts += [_escaped(cut[at : joiner.start()], keep), joiner[0]]
        at = joiner.end()
    shown = "".join([*parts, _escaped(cut[at:], keep)])
    return shown if len(cut) == len(text) else f"{shown}… ({len(body):,} bytes)"


def escaped_json(text: str) -> str:
    """Return JSON that means the same, with `\\u` for what a terminal obeys, or that hides.

    JSON itself escapes only what is below a space. Newlines stand between its values.
    """
    if text.isprintable() and not _INVISIBLE.search(text):
        return text
    return "".join(c if c == "\n" or _is_plain(c) else _json_escape(c) for c in text)


def _escaped(text: str, keep: str) -> str:
    if text.isprintable() and not _INVISIBLE.search(text):
        return text
    return "".join(c if c in keep or _is_plain(c) else _escape(c) for c in text)


def _is_plain(character: str) -> bool:
    if character.isprintable():
        return _INVISIBLE.match(character) is None
    return character in _SPACES


def _escape(character: str) -> str:
    escape = character.encode("unicode_escape").decode()
    return escape if escape != character else f"\\u{ord(character):04x}"


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
