"""The programs' own store: what they did, one unbuffered line each, judged when all is over.

b  a handler begins         e  its effect took place        f  it failed
t  a message is to be sent  r  it is stored                 u  its outcome is not known
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

_FILE = os.open(os.environ["JOURNEY_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
COUNT = int(os.environ.get("JOURNEY_COUNT", "1000"))


@contextmanager
def effect(message) -> Iterator[None]:
    """Write down that a message is handled, and whether that went well."""
    place = f"{message.queue.topic} {message.queue.broker} {message.queue.index} {message.offset}"
    words = f"{place} {message.body.decode()}"
    _write("b", words)
    try:
        yield
    except BaseException:
        _write("f", words)
        raise
    _write("e", words)


def tries(body: str) -> None:
    """Write down that a message is handed over."""
    _write("t", body)


def stored(body: str) -> None:
    """Write down that its receipt has come."""
    _write("r", body)


def unknown(body: str) -> None:
    """Write down that it may be stored or not."""
    _write("u", body)


def work() -> None:
    """Take a moment, as handlers do."""
    time.sleep(random.uniform(0, 0.002))


def _write(kind: str, words: str) -> None:
    os.write(_FILE, f"{kind} {os.getpid()} {time.monotonic_ns()} {words}\n".encode())
