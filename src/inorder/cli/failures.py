"""How a command fails: one line on stderr, an exit code, no traceback; and its log lines.

    2     the command line or the settings are wrong, nothing was started
    1     the command was valid and failed
    130   Ctrl-C
    141   the reader of the output went away (`| head`); this and 130 print nothing, as in any shell

Log lines go to stderr; stdout belongs to the command's result. How commands behave: decision 30.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, NoReturn, ParamSpec, TypeVar

import typer

from inorder.cli.output import put_line
from inorder.errors import ConfigError, InorderError, SubscriptionParseFailed, UsageError
from inorder.escaping import escaped
from inorder.logs import JsonLines, set_levels

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141

_OF_SOCKETS = {
    errno.EADDRINUSE: "stop what listens there or choose another port",
    errno.EADDRNOTAVAIL: "choose an address of this machine for --host",
    errno.EACCES: "a port below 1024 needs rights; choose one above 1023",
}
_OF_FILES = {
    errno.ENOSPC: "make room",
    errno.EACCES: "check its owner and permissions",
    errno.EPERM: "check its owner and permissions",
}
_OF_DATA = {
    errno.ENOSPC: "make room, or choose another --data",
    errno.EACCES: "this user may not write there; choose another --data, or change the owner or "
    "permissions of that directory",
    errno.EPERM: "this user may not write there; choose another --data, or change the owner or "
    "permissions of that directory",
    errno.EEXIST: "--data is a directory, and this is a file; choose another",
    errno.ENOTDIR: "--data is a directory, and a part of this path is a file; choose another",
    errno.ENOENT: "it cannot be made there; choose another --data",
    errno.EROFS: "that file system takes no writes; choose another --data",
    errno.EIO: "the disk failed; look at it, or choose another --data",
}
_OF_DISKS = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO))
"""No socket fails with these: without a file name, a write into the data directory did."""


def fail(message: str, code: int = EXIT_FAILED) -> NoReturn:
    """Print an error and exit."""
    put_line(f"inorder: {message}", err=True)
    raise typer.Exit(code)


def says_errors(command: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Print errors that users can act on as one line; other exceptions are bugs and propagate.

    An error in an expression is three lines: what is wrong, the text, and a mark below the place.
    """

    @functools.wraps(command)
    def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            result = command(*args, **kwargs)
            sys.stdout.flush()  # here a closed pipe is still an error that can be handled
            return result
        except (ConfigError, UsageError) as error:
            fail(str(error), EXIT_USAGE)
        except SubscriptionParseFailed as error:  # it may show a line, and a mark below it
            message, *shown = str(error).split("\n")
            put_line(f"inorder: {message}", err=True)
            for line in shown[:2]:
                put_line(line, err=True)
            raise typer.Exit(EXIT_USAGE) from None
        except InorderError as error:
            fail(str(error))
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:
            # The buffered rest has no reader, and Python would report that at its exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(EXIT_PIPE_CLOSED) from None
        except OSError as error:
            fail(_describe(error))

    return wrapper


@contextlib.contextmanager
def keeping_data(directory: str) -> Iterator[None]:
    """Add to file errors what they mean for the data directory of a server."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno not in _OF_DISKS:
            raise
        about = os.fspath(error.filename or directory)
        of = "" if str(about) == directory else f"data directory {directory}: "
        what = error.strerror or str(error)
        advice = _OF_DATA.get(error.errno or 0, "choose another --data")
        fail(f"{of}{about}: {what}; {advice}")


def _describe(error: OSError) -> str:
    # asyncio puts the address into strerror and leaves filename empty.
    what = error.strerror or str(error)
    advice = (_OF_SOCKETS if error.filename is None else _OF_FILES).get(error.errno or 0)
    if error.filename is not None:
        what = f"{error.filename}: {what}"
    return f"{what}; {advice}" if advice else what


class LogLevel(StrEnum):
    """The values of `--log-level`."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


def setup_logging(level: LogLevel, process: str = "") -> None:
    """Send log lines of this process to stderr; a name tells them from those of other processes."""
    handler = _handler(process)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # asyncio's own debug lines repeat inorder's.
    logging.getLogger("asyncio").setLevel(logging.WARNING)


@contextlib.contextmanager
def logging_to_stderr(level: LogLevel) -> Iterator[None]:
    """Show log lines of inorder while a command works; the command prints its own errors."""
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
    """Keeps the line breaks of a traceback and escapes all other control characters."""

    def formatException(self, ei: Any) -> str:
        return escaped(super().formatException(ei), None, keep="\n")


def shape_logs(log_format: str, log_levels: str, process: str = "") -> None:
    """Write log lines as the settings of a server say, once they are read."""
    if log_format == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonLines(process))
    set_levels(log_levels)


def _handler(process: str = "") -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    who = process.replace("%", "%%") + " " if process else ""
    handler.setFormatter(
        _Formatter(f"%(asctime)s.%(msecs)03d %(levelname)-7s {who}%(name)s %(message)s", "%H:%M:%S")
    )
    return handler
