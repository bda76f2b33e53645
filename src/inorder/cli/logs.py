"""Logs of the command line: readable lines on stderr; stdout belongs to the command's answer."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from inorder.escaping import escaped


class LogLevel(StrEnum):
    """The values of `--log-level`."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


def setup_logging(level: LogLevel) -> None:
    """Send log lines of this process to stderr."""
    handler = _handler()
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # asyncio's own debug lines repeat what ours say.
    logging.getLogger("asyncio").setLevel(logging.WARNING)


@contextlib.contextmanager
def logging_to_stderr(level: LogLevel) -> Iterator[None]:
    """Show log lines of inorder while a command works; its errors it tells by itself."""
    logger, handler = logging.getLogger("inorder"), _handler()
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


class _Formatter(logging.Formatter):
    """Shows a traceback with its lines, and with nothing else that a terminal obeys."""

    def formatException(self, ei: Any) -> str:
        return escaped(super().formatException(ei), None, keep="\n")


def _handler() -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _Formatter("%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s %(message)s", "%H:%M:%S")
    )
    return handler
