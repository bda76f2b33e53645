"""JSON as fastjson writes and reads it, where that is not JSON.

    {0:"a"}                       a map with number keys           an `int` key in Python
    {{"brokerName":"b"}:5}        a map with object keys           a tuple of (name, value) pairs
    {"$ref":"$.path"}             an object that stands elsewhere  a copy of that object

Standard JSON takes the fast way through msgspec. A `$ref` may point only at a flat value, such as a
map of attributes or a list of names. RocketMQ's tables share no others, and so no reference can
make a loop or grow without bound. Why msgspec: decision 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from json.decoder import JSONDecodeError, scanstring  # type: ignore[attr-defined]
from typing import Any, Final

import msgspec
from msgspec.json import decode as _decode_standard
from msgspec.json import encode as _encode_standard

from inorder.errors import LocalProtocolError, RemoteProtocolError
from inorder.wire.shapes import INT_CHARS_MAX

_REFERENCE: Final = "$ref"
_PATH_CHARS_MAX: Final = 1024
_step = re.compile(r"\.((?:\\.|[^.\[\\])+)|\[([0-9]{1,9})\]").match
_escape: Final = re.compile(r"\\(.)")


def resolve(root: Any) -> Any:
    """Replace all references in a value, in place.

    Raises:
        RemoteProtocolError: a reference leads nowhere, or to something that is not flat.
    """
    flat: dict[int, bool] = {}
    waiting = [root] if isinstance(root, (dict, list)) else []
    while waiting:
        outer = waiting.pop()
        items = list(outer.items()) if isinstance(outer, dict) else list(enumerate(outer))
        for key, inner in items:
            if isinstance(inner, dict) and len(inner) == 1 and _REFERENCE in inner:
                target = _follow(root, inner[_REFERENCE])
                if id(target) not in flat:
                    flat[id(target)] = _is_flat(target)
                if not flat[id(target)]:
                    raise RemoteProtocolError(f"unusable JSON reference {inner[_REFERENCE]!r}")
                outer[key] = target
            elif isinstance(inner, (dict, list)):
                waiting.append(inner)
    return root


def _follow(root: Any, path: Any) -> Any:
    if not isinstance(path, str) or path[:1] != "$" or len(path) > _PATH_CHARS_MAX:
        raise RemoteProtocolError(f"unusable JSON reference {str(path)[:64]!r}")
    here, at = root, 1
    while at < len(path):
        step = _step(path, at)
        try:
            if step is None:
                raise KeyError(path)
            name, index = step.groups()
            here = here[int(index)] if name is None else here[_escape.sub(r"\1", name)]
        except (KeyError, IndexError, TypeError):
            raise RemoteProtocolError(f"JSON reference {path!r} leads nowhere") from None
        at = step.end()
    return here


def _is_flat(value: Any) -> bool:
    if isinstance(value, dict):
        return _REFERENCE not in value and not any(
            isinstance(item, (dict, list)) for item in value.values()
        )
    return isinstance(value, list) and not any(isinstance(item, (dict, list)) for item in value)


DEPTH_MAX: Final = 64
ITEMS_MAX: Final = 200_000
"""Commas and brackets of a text: bounds the objects made of it."""
REQUEST_ITEMS_MAX: Final = 50_000
"""The same for a request's body: a server reads it in one go, some milliseconds at most."""
TABLE_ITEMS_MAX: Final = 2_000_000
"""The same for a response with a whole table: 100,000 topics have 1.2 million."""
SLOW_ITEMS_MAX: Final = 5000
"""The same for a request's body that is not standard JSON: reading it takes 3 us an item."""

_NUMBER_CHARS_MAX: Final = 64

_space = re.compile(r"[ \t\r\n]*").match
_number = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?").match
_WORDS: Final = {"t": ("true", True), "f": ("false", False), "n": ("null", None)}


def loads(
    data: bytes | str | memoryview,
    *,
    depth_max: int = DEPTH_MAX,
    items_max: int = ITEMS_MAX,
    slow_items_max: int | None = None,
) -> Any:
    """Return the value of a text. Of a repeated key the last one counts.

    `slow_items_max` is the limit for a text that is not standard JSON; by default the same.

    Raises:
        RemoteProtocolError: it is not JSON, not even fastjson's, or too deep, or too large.
    """
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data)
    brackets = raw.count(b"{") + raw.count(b"[")
    items = brackets + raw.count(b",")
    if items > items_max:
        raise RemoteProtocolError(f"JSON text has more than {items_max} items")
    try:
        value = _decode_standard(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        if slow_items_max is not None and items > slow_items_max:
            raise RemoteProtocolError(
                f"text of more than {slow_items_max} items is not standard JSON"
            ) from None
        value = _Parser(raw, depth_max).parse()
    else:
        if brackets > depth_max:
            _check_depth(value, depth_max)
    return resolve(value) if b"$ref" in raw else value


def dumps(value: Any, *, pretty: bool = False, bare_int_keys: bool = True) -> bytes:
    """Return the text of a value: nulls of objects left out, keys in the order of the dict.

    `pretty` is the layout of RocketMQ's files: tabs, string keys on lines of their own, number keys
    not, lists of plain values on one line.

    Raises:
        LocalProtocolError: the value holds something that JSON cannot.
    """
    parts: list[str] = []
    try:
        _Writer(parts.append, pretty, bare_int_keys).value(value, 0)
        return "".join(parts).encode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise LocalProtocolError(f"value cannot be written as JSON: {error}") from None


def _check_depth(value: Any, depth_max: int) -> None:
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(depth_max):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return
    raise RemoteProtocolError(f"JSON text is nested deeper than {depth_max}")


class _Parser:
    """The slow reader, for JSON that msgspec refuses."""

    __slots__ = ("_depth_max", "_text")

    def __init__(self, raw: bytes, depth_max: int) -> None:
        try:
            self._text = raw.decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"JSON text is not UTF-8: {error}") from None
        self._depth_max = depth_max

    def parse(self) -> Any:
        value, at = self._value(self._skip(0), 0)
        if self._skip(at) != len(self._text):
            raise self._error(at)
        return value

    def _skip(self, at: int) -> int:
        found = _space(self._text, at)
        return found.end() if found else at

    def _error(self, at: int) -> RemoteProtocolError:
        return RemoteProtocolError(f"not JSON at {at}: {self._text[at : at + 20]!r}")

    def _value(self, at: int, depth: int) -> tuple[Any, int]:
        char = self._text[at : at + 1]
        if char == '"':
            return self._string(at)
        if char == "{":
            return self._object(at, depth + 1)
        if char == "[":
            return self._list(at, depth + 1)
        word = _WORDS.get(char)
        if word is not None:
            if not self._text.startswith(word[0], at):
                raise self._error(at)
            return word[1], at + len(word[0])
        return self._number(at)

    def _string(self, at: int) -> tuple[str, int]:
        try:
            text, end = scanstring(self._text, at + 1, False)
            if not text.isascii():
                text.encode()  # a lone surrogate could never be written again
        except (JSONDecodeError, UnicodeEncodeError):
            raise self._error(at) from None
        return text, end

    def _number(self, at: int) -> tuple[Any, int]:
        found = _number(self._text, at, at + _NUMBER_CHARS_MAX)
        if found is None or self._text[found.end() : found.end() + 1].isalnum():
            raise self._error(at)
        text = found.group()
        if found.group(1) is None and found.group(2) is None:
            if len(text) > INT_CHARS_MAX:
                raise self._error(at)
            return int(text), found.end()
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise self._error(at)
        return value, found.end()

    def _object(self, at: int, depth: int) -> tuple[dict[Any, Any], int]:
        self._check(depth)
        text, skip = self._text, self._skip
        found: dict[Any, Any] = {}
        at = skip(at + 1)
        if text[at : at + 1] == "}":
            return found, at + 1
        while True:
            key, at = self._key(at, depth)
            at = skip(at)
            if text[at : at + 1] != ":":
                raise self._error(at)
            found[key], at = self._value(skip(at + 1), depth)
            at = skip(at)
            char = text[at : at + 1]
            if char == "}":
                return found, at + 1
            if char != ",":
                raise self._error(at)
            at = skip(at + 1)

    def _key(self, at: int, depth: int) -> tuple[Any, int]:
        char = self._text[at : at + 1]
        if char == '"':
            return self._string(at)
        if char == "{":
            bean, end = self._object(at, depth + 1)
            if not all(isinstance(k, str) and _is_plain(v) for k, v in bean.items()):
                raise self._error(at)
            return tuple(sorted(bean.items())), end
        key, end = self._number(at)
        if not isinstance(key, int):
            raise self._error(at)
        return key, end

    def _list(self, at: int, depth: int) -> tuple[list[Any], int]:
        self._check(depth)
        text, skip = self._text, self._skip
        found: list[Any] = []
        at = skip(at + 1)
        if text[at : at + 1] == "]":
            return found, at + 1
        while True:
            value, at = self._value(at, depth)
            found.append(value)
            at = skip(at)
            char = text[at : at + 1]
            if char == "]":
                return found, at + 1
            if char != ",":
                raise self._error(at)
            at = skip(at + 1)

    def _check(self, depth: int) -> None:
        if depth > self._depth_max:
            raise RemoteProtocolError(f"JSON text is nested deeper than {self._depth_max}")


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float))


class _Writer:
    """Writes one value; `write` takes the pieces."""

    __slots__ = ("_bare", "_pretty", "_write")

    def __init__(self, write: Any, pretty: bool, bare: bool) -> None:
        self._write = write
        self._pretty = pretty
        self._bare = bare

    def value(self, value: Any, indent: int) -> None:
        if isinstance(value, dict):
            self._object(value.items(), indent)
        elif isinstance(value, str):
            self._write(_encode_standard(str(value)).decode())
        elif value is True or value is False:
            self._write("true" if value else "false")
        elif isinstance(value, int):
            self._write(str(int(value)))
        elif value is None:
            self._write("null")
        elif isinstance(value, float):
            if value in (float("inf"), float("-inf")) or value != value:  # noqa: PLR0124 - NaN
                raise LocalProtocolError(f"JSON has no {value}")
            self._write(repr(value))
        elif isinstance(value, (list, tuple, set, frozenset)):
            self._list(value, indent)
        else:
            raise LocalProtocolError(f"JSON has no {type(value).__name__}")

    def _object(self, items: Iterable[tuple[Any, Any]], indent: int) -> None:
        write = self._write
        write("{")
        empty = True
        for key, value in items:
            if value is None:
                continue
            if not empty:
                write(",")
            empty = False
            self._key(key, indent + 1)
            write(":")
            self.value(value, indent + 1)
        if not empty:
            self._line(indent)
        write("}")

    def _key(self, key: Any, indent: int) -> None:
        if isinstance(key, str):
            self._line(indent)
            self.value(key, indent)
        elif isinstance(key, tuple):
            self._object(key, indent)
        elif isinstance(key, int) and not isinstance(key, bool):
            self._write(str(int(key)) if self._bare else f'"{int(key)}"')
        else:
            raise LocalProtocolError(f"JSON has no key of type {type(key).__name__}")

    def _list(self, items: Iterable[Any], indent: int) -> None:
        values = list(items)
        spread = self._pretty and not all(map(_is_plain, values))
        self._write("[")
        for index, value in enumerate(values):
            if index:
                self._write(",")
            if spread:
                self._line(indent + 1)
            self.value(value, indent + 1)
        if spread:
            self._line(indent)
        self._write("]")

    def _line(self, indent: int) -> None:
        if self._pretty:
            self._write("\n" + "\t" * indent)
