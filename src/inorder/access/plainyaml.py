"""The part of YAML that RocketMQ's ACL files are written in; everything else is refused.

    mappings and lists by indentation     lists and mappings in brackets, also over several lines
    plain words, 'single', "double"       comments, one `---` at the top

Refused, with line and column: tabs outside of quotes, anchors, aliases, tags, block text (`|`,
`>`), values that go on in the next line, keys that occur twice, a second document. So is a plain
word that YAML 1.1 reads as a number, a date or yes and no although it is meant as text, if its text
would change: RocketMQ 4 and 5 differ there, and a secret must not depend on that. Reading takes
time in proportion to the text, and nests no deeper than `DEPTH_MAX`.

Why this is no YAML library: decision 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NoReturn

from inorder.errors import ConfigError

CHARACTERS_MAX: Final = 1024 * 1024
DEPTH_MAX: Final = 8

_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?=:(?: |$))")
_CONTROL: Final = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]"
)
_TAB: Final = "a tab; write blanks, or put text with tabs into quotes"
_AFTER_COLON: Final = ("", " "), ("", " ", ",", "[", "]", "{", "}")
"""What makes a colon the end of a key: outside of brackets, and within."""
_NULL: Final = frozenset(("", "~", "null", "Null", "NULL"))
_TRUE: Final = frozenset(("true", "yes", "on"))
_FALSE: Final = frozenset(("false", "no", "off"))
_CANONICAL: Final = re.compile(r"0|-?[1-9][0-9]*")
_NOT_TEXT: Final = re.compile(
    r"[-+]?(?:[0-9][0-9_]*|0b[01_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?)"
    r"|[-+]?(?:\.[0-9]+|[0-9_]+(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt \t].*)?"
)
_ESCAPES: Final = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r",
    "e": "\x1b", " ": " ", '"': '"', "\\": "\\", "/": "/", "N": "\x85", "_": "\xa0",
    "L": "\u2028", "P": "\u2029",
}  # fmt: skip
_HEX_DIGITS: Final = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands in a file."""

    file: str
    line: int
    column: int

    def refuse(self, what: str) -> NoReturn:
        """Raise the error that something at this place deserves."""
        raise ConfigError(f"{self.file}, line {self.line}, column {self.column}: {what}")


@dataclass(frozen=True, slots=True)
class Scalar:
    """A word, quoted or not; an absent value is an empty plain word."""

    written: str
    plain: bool
    place: Place

    @property
    def is_null(self) -> bool:
        """Return whether YAML reads no value here."""
        return self.plain and self.written in _NULL

    def text(self) -> str:
        """Return the text; raises ConfigError if YAML would make another text of it."""
        written = self.written
        if not self.plain or _CANONICAL.fullmatch(written):
            return written
        if written.lower() in _TRUE | _FALSE or _NOT_TEXT.fullmatch(written):
            self.place.refuse(
                "YAML reads this as a number, a date or a truth value, and RocketMQ's releases "
                "differ in the text that they make of it; put the intended text into quotes"
            )
        return written

    def boolean(self) -> bool:
        """Return a truth value; raises ConfigError for anything else."""
        word = self.written.lower() if self.plain else self.written
        if word in _TRUE and (self.plain or word == "true"):
            return True
        if word in _FALSE and (self.plain or word == "false"):
            return False
        self.place.refuse("this must be true or false")


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    nodes: tuple[Node, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Pairs:
    """A mapping; no key occurs twice."""

    nodes: dict[str, Node]
    keys: dict[str, Place]
    place: Place


Node = Scalar | Items | Pairs


def read(text: str, file: str) -> Node:
    """Read a file; raises ConfigError that names the file, the line and the column."""
    if len(text) > CHARACTERS_MAX:
        raise ConfigError(f"{file} is longer than {CHARACTERS_MAX} characters")
    return _Reader(text, file).document()


class _Reader:
    """Reads lines; a dash that opens an item becomes a blank, and its content stands indented."""

    def __init__(self, text: str, file: str) -> None:
        self._file = file
        self._lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
        self._row = 0
        for row, line in enumerate(self._lines):
            found = _CONTROL.search(line)
            if found is not None:
                self._refuse("a control character", row, found.start())

    def document(self) -> Node:
        """Read the only document."""
        self._next_content()
        if self._row < len(self._lines) and self._lines[self._row].rstrip(" ") == "---":
            self._row += 1
        for row in range(self._row, len(self._lines)):
            if self._lines[row].startswith(("---", "...")):
                self._refuse("only one document is read here", row, 0)
        node = self._block(0, 0)
        if self._next_content():
            self._refuse("this belongs to nothing above it; look at the indentation")
        return node

    # -- lines -----------------------------------------------------------------------------------

    def _next_content(self) -> bool:
        """Go to the next line with content; return whether there is one."""
        while self._row < len(self._lines):
            line = self._lines[self._row]
            content = line.lstrip(" ")
            if content.startswith("\t"):
                self._refuse(_TAB, None, len(line) - len(content))
            if content and not content.startswith("#"):
                return True
            self._row += 1
        return False

    def _indent(self) -> int:
        line = self._lines[self._row]
        return len(line) - len(line.lstrip(" "))

    def _place(self, row: int | None = None, column: int | None = None) -> Place:
        at = self._row if row is None else row
        if column is None:
            column = self._indent() if at < len(self._lines) else 0
        return Place(self._file, at + 1, column + 1)

    def _refuse(self, what: str, row: int | None = None, column: int | None = None) -> NoReturn:
        self._place(row, column).refuse(what)

    # -- blocks ----------------------------------------------------------------------------------

    def _block(self, indent_min: int, depth: int) -> Node:
        if not self._next_content() or self._indent() < indent_min:
            return Scalar("", True, self._place(column=0))
        if depth > DEPTH_MAX:
            self._refuse("nested too deep")
        indent = self._indent()
        content = self._lines[self._row][indent:]
        if _is_item(content):
            return self._items(indent, depth)
        if _KEY.match(content) or content[0] in "\"'":
            return self._pairs_or_quoted(indent, depth)
        node, column = self._value(indent, depth)
        self._end_line(column)
        return node

    def _items(self, indent: int, depth: int) -> Items:
        place, nodes = self._place(), []
        while self._next_content() and self._indent() == indent:
            line = self._lines[self._row]
            if not _is_item(line[indent:]):
                break
            self._lines[self._row] = line[:indent] + " " + line[indent + 1 :]
            row = self._row
            if not self._content_of_line(indent + 1):
                self._row += 1
            node = self._block(indent + 1, depth + 1)
            if isinstance(node, Scalar) and node.written == "" and node.plain:
                node = Scalar("", True, Place(self._file, row + 1, indent + 1))
            nodes.append(node)
        self._check_dedent(indent)
        return Items(tuple(nodes), place)

    def _content_of_line(self, column: int) -> bool:
        rest = self._lines[self._row][column:].lstrip(" ")
        return bool(rest) and not rest.startswith("#")

    def _pairs_or_quoted(self, indent: int, depth: int) -> Node:
        line = self._lines[self._row]
        if line[indent] in "\"'":
            word, column = self._quoted(indent)
            if not _is_colon(line, column):
                self._end_line(column)
                return word
        return self._pairs(indent, depth)

    def _pairs(self, indent: int, depth: int) -> Pairs:
        place = self._place()
        nodes: dict[str, Node] = {}
        keys: dict[str, Place] = {}
        while self._next_content() and self._indent() == indent:
            line = self._lines[self._row]
            if _is_item(line[indent:]):
                break
            key, column = self._key(indent)
            if key.written in nodes:
                key.place.refuse(f"the key {key.written[:40]!r} occurs twice")
            keys[key.written] = key.place
            nodes[key.written] = self._value_of_key(indent, column, depth)
        self._check_dedent(indent)
        return Pairs(nodes, keys, place)

    def _check_dedent(self, indent: int) -> None:
        if self._next_content() and self._indent() > indent:
            self._refuse("indented deeper than the line that it belongs to")

    def _key(self, column: int) -> tuple[Scalar, int]:
        line = self._lines[self._row]
        if line[column] in "\"'":
            key, column = self._quoted(column)
            if not _is_colon(line, column):
                self._refuse("a colon and a blank must follow this key", None, column)
            return key, column + 1
        found = _KEY.match(line, column)
        if found is None:
            self._refuse("here must be a key, a colon and a blank", None, column)
        return Scalar(found[0], True, self._place(column=column)), found.end() + 1

    def _value_of_key(self, indent: int, column: int, depth: int) -> Node:
        if self._content_of_line(column):
            node, column = self._value(_skip_blanks(self._lines[self._row], column), depth)
            self._end_line(column)
            return node
        place = self._place(column=column)
        self._row += 1
        if self._next_content():
            below = self._indent()
            if below > indent:
                return self._block(below, depth + 1)
            if below == indent and _is_item(self._lines[self._row][indent:]):
                return self._items(indent, depth + 1)
        return Scalar("", True, place)

    def _end_line(self, column: int) -> None:
        """Nothing but a comment may follow a value on its line."""
        line = self._lines[self._row]
        column = _skip_blanks(line, column)
        if column < len(line) and not (line[column] == "#" and line[column - 1] == " "):
            self._refuse("nothing may follow this value", None, column)
        self._row += 1

    # -- values ----------------------------------------------------------------------------------

    def _value(self, column: int, depth: int) -> tuple[Node, int]:
        first = self._lines[self._row][column]
        if first in "[{":
            return self._flow(column, depth + 1)
        if first in "\"'":
            return self._quoted(column)
        return self._plain(column, within_flow=False)

    def _flow(self, column: int, depth: int) -> tuple[Node, int]:
        if depth > DEPTH_MAX:
            self._refuse("nested too deep", None, column)
        place = self._place(column=column)
        is_list = self._lines[self._row][column] == "["
        end = "]" if is_list else "}"
        items: list[Node] = []
        nodes: dict[str, Node] = {}
        keys: dict[str, Place] = {}
        column = self._skip_in_flow(column + 1, place)
        while self._lines[self._row][column] != end:
            if is_list:
                node, column = self._flow_value(column, depth)
                items.append(node)
            else:
                key, column = self._key(column)
                if key.written in nodes:
                    key.place.refuse(f"the key {key.written[:40]!r} occurs twice")
                column = self._skip_in_flow(column, place)
                keys[key.written] = key.place
                nodes[key.written], column = self._flow_value(column, depth)
            column = self._skip_in_flow(column, place)
            if self._lines[self._row][column] == ",":
                column = self._skip_in_flow(column + 1, place)
            elif self._lines[self._row][column] != end:
                self._refuse(f"here must be a comma or {end}", None, column)
        return (Items(tuple(items), place) if is_list else Pairs(nodes, keys, place)), column + 1

    def _flow_value(self, column: int, depth: int) -> tuple[Node, int]:
        first = self._lines[self._row][column]
        if first in "[{":
            return self._flow(column, depth + 1)
        if first in "\"'":
            return self._quoted(column)
        return self._plain(column, within_flow=True)

    def _skip_in_flow(self, column: int, opened: Place) -> int:
        """Return the column of the next character; goes to the next line where needed."""
        while True:
            line = self._lines[self._row]
            column = _skip_blanks(line, column)
            if column < len(line) and line[column] != "#":
                return column
            if column < len(line) and column > 0 and line[column - 1] != " ":
                return column  # no comment without a blank before it
            self._row += 1
            column = 0
            if self._row >= len(self._lines):
                opened.refuse("this bracket is not closed")

    def _plain(self, column: int, *, within_flow: bool) -> tuple[Scalar, int]:
        line = self._lines[self._row]
        first = line[column]
        alone = not line[column + 1 : column + 2].strip()
        if first in "&*!|>%@`,[]{}#?" or (first in "-:" and (alone or within_flow)):
            self._refuse(
                f"{first} has a meaning of its own in YAML, which is not read here; "
                "if text is meant, put it into quotes",
                None,
                column,
            )
        end = column
        while end < len(line):
            here = line[end]
            if here == "#" and line[end - 1] == " ":
                break
            if here == "\t":
                self._refuse(_TAB, None, end)
            if here == ":" and line[end + 1 : end + 2] in _AFTER_COLON[within_flow]:
                self._refuse("a colon and a blank within a value; put it into quotes", None, end)
            if within_flow:
                if here in ",]}":
                    break
                if here in "[{":
                    self._refuse("a bracket within a word; put it into quotes", None, end)
            end += 1
        return Scalar(line[column:end].rstrip(" "), True, self._place(column=column)), end

    def _quoted(self, column: int) -> tuple[Scalar, int]:
        line, place = self._lines[self._row], self._place(column=column)
        quote, at, parts = line[column], column + 1, list[str]()
        while at < len(line):
            here = line[at]
            if here == quote:
                if quote == "'" and line[at + 1 : at + 2] == "'":
                    at += 1
                else:
                    return Scalar("".join(parts), False, place), at + 1
            elif here == "\\" and quote == '"':
                here, at = self._escape(at + 1)
            parts.append(here)
            at += 1
        place.refuse("this quote is not closed on its line")

    def _escape(self, at: int) -> tuple[str, int]:
        """Return what an escape means, and its last column."""
        line = self._lines[self._row]
        code = line[at : at + 1]
        if code in _HEX_DIGITS:
            digits = line[at + 1 : at + 1 + _HEX_DIGITS[code]]
            if re.fullmatch(f"[0-9a-fA-F]{{{_HEX_DIGITS[code]}}}", digits):
                number = int(digits, 16)
                if number <= 0x10FFFF and not 0xD800 <= number <= 0xDFFF:
                    return chr(number), at + len(digits)
        elif code in _ESCAPES and code:
            return _ESCAPES[code], at
        self._refuse("an escape that YAML does not know", None, at - 1)


def _is_item(content: str) -> bool:
    return content == "-" or content.startswith("- ")


def _is_colon(line: str, column: int) -> bool:
    return line[column : column + 1] == ":" and not line[column + 1 : column + 2].strip()


def _skip_blanks(line: str, column: int) -> int:
    while column < len(line) and line[column] == " ":
        column += 1
    return column
