"""Loggers whose records are always single lines: arguments are escaped, cut, and free of reprs.

Half of the values that inorder logs come from a peer: names, addresses, remarks. Every module gets
its logger here (`tests/house/test_logs_escape.py` checks that), so no call has to think of
escaping. A topic name of 70,000 letters and a newline becomes one line of a few hundred characters.
How text from peers is shown: decision 46.

`JsonLines` writes a record as one JSON object. Its fields come from the text of the call itself:
`topic=%s` is a field `topic`, so no call knows of JSON. `set_levels` changes the levels of single
loggers, also at run time.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from itertools import islice
from typing import Final

from inorder.escaping import TEXT_MAX, escaped

ITEMS_MAX: Final = 20


def get_logger(name: str) -> logging.Logger:
    """Return the logger of that name, which escapes the arguments of its calls."""
    logger = logging.getLogger(name)
    if _ESCAPING not in logger.filters:
        logger.addFilter(_ESCAPING)
    return logger


def in_words(value: object) -> str:
    """Return a value as people write it: `orders/broker-a/3`, `a=1, b=2`, not as a repr."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value[: TEXT_MAX + 1]).decode("utf-8", "backslashreplace")
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, BaseException):
        return str(value) or type(value).__name__
    if type(value).__str__ is not object.__str__:
        return str(value)
    if isinstance(value, Mapping):
        return _listed(f"{in_words(key)}={in_words(one)}" for key, one in value.items())
    if isinstance(value, AbstractSet):
        return _listed(sorted(map(in_words, value)))
    if isinstance(value, list | tuple):
        return _listed(map(in_words, value))
    names = _field_names(value)
    return _listed(f"{one}={in_words(getattr(value, one))}" for one in names) or str(value)


def _field_names(value: object) -> tuple[str, ...]:
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value))
    return getattr(value, "__struct_fields__", ())  # of msgspec


def _listed(words: Iterable[str]) -> str:
    there = iter(words)
    shown = list(islice(there, ITEMS_MAX))
    left = sum(1 for _ in there)
    return ", ".join([*shown, f"… ({left} more)"] if left else shown)


class _Escaping(logging.Filter):
    """Escapes the arguments of a log record before any handler sees it."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_fit, record.args))
        elif record.args:  # logging takes a lone mapping for the names of the text
            record.args = (_fit(record.args),)
        if isinstance(record.msg, str):
            record.msg = escaped(record.msg, None)
        return True


def _fit(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    return escaped(in_words(value))


_ESCAPING: Final = _Escaping()

_PLACEHOLDER: Final = re.compile(r"(?:([A-Za-z_]\w*)=)?%(?:%|[-0-9.]*([a-zA-Z]))")


class JsonLines(logging.Formatter):
    """One JSON object a line: ts, level, logger, event, and the fields of the text."""

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "ts": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if self._process:
            line["process"] = self._process
        event, fields = _split(record)
        line["event"] = event
        line.update((name, value) for name, value in fields.items() if name not in line)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _split(record: logging.LogRecord) -> tuple[str, dict[str, object]]:
    """Return what happened, in words, and the named values of a line.

    A value that the text does not name stays in the words.
    """
    args = record.args
    if not isinstance(args, tuple) or not isinstance(record.msg, str):
        return record.getMessage(), {}
    values, fields = iter(args), {}

    def fill(found: re.Match[str]) -> str:
        name, kind = found.groups()
        if kind is None:
            return f"{name}=%" if name else "%"
        value = next(values)
        if name is None:
            return found.group() % (value,)
        fields[name] = value
        return ""

    try:
        words = _PLACEHOLDER.sub(fill, record.msg)
    except (StopIteration, TypeError, ValueError):  # a text that does not fit its values
        return record.getMessage(), {}
    return " ".join(words.split()).strip(" :,;") or record.getMessage(), fields


LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def set_levels(text: str, before: str = "") -> None:
    """Set the levels of loggers, as in `inorder.broker=debug,inorder.net=warning`.

    Loggers that `before` named and `text` does not name have their parent's level again.
    """
    wanted = _levels(text)
    for name in _levels(before):
        if name not in wanted:
            logging.getLogger(name).setLevel(logging.NOTSET)
    for name, level in wanted.items():
        logging.getLogger(name).setLevel(level)


def _levels(text: str) -> dict[str, int]:
    pairs = (one.partition("=") for one in text.split(",") if one)
    return {name.strip(): LEVELS[level.strip()] for name, _, level in pairs}
