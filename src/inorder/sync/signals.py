"""SIGINT and SIGTERM as a way to end a call that waits."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)


class SignalReceived(BaseException):
    """Raised in the main thread; like KeyboardInterrupt it is no error of a program."""


@contextmanager
def signals_raise() -> Iterator[None]:
    """Raise SignalReceived when one of them comes; not in other threads than the main one."""
    before = {}
    try:
        for number in _NUMBERS:
            before[number] = signal.signal(number, _raise)
    except ValueError:
        pass  # only the main thread gets signals; this is another one
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise(number: int, frame: FrameType | None) -> None:
    raise SignalReceived(signal.Signals(number).name)
