"""SIGINT and SIGTERM as a way to end a call that waits.

Nothing is raised: an exception at an arbitrary line of the main thread could leave a lock held or a
wake-up unsent. The signal only asks for the end, and whoever waits returns when it comes.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

_NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_ask(end: Callable[[], None]) -> Iterator[None]:
    """Call `end` when the first one comes; not in other threads than the main one.

    The next one finds what was there before: it ends the program, or does what the program says.
    """
    before: dict[int, Any] = {}

    def restore() -> None:
        for number in list(before):
            signal.signal(number, before.pop(number))

    def received(number: int, frame: FrameType | None) -> None:
        restore()
        end()

    try:
        for number in _NUMBERS:
            before[number] = signal.signal(number, received)
    except ValueError:
        pass  # only the main thread gets signals; this is another one
    try:
        yield
    finally:
        restore()
