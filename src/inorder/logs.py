"""Loggers whose records are always single lines: arguments are escaped, cut, and free of reprs.

Half of the values that inorder logs come from a peer: names, addresses, remarks. Every module gets
its logger here (`tests/house/test_logs_escape.py` checks that), so no call has to think of
escaping. A topic name of 70,000 letters and a newline becomes one line of a few hundred characters.
How text from peers is shown: decision 46.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
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
