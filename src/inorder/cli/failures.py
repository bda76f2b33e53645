"""How a command fails: one line on stderr, an exit code, no traceback.

2: the command line or the settings are wrong, nothing was started. 1: it was right and failed.
130: Ctrl-C. 141: who read our output went away (`| head`); both without a word, as in any shell.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar

import typer

from inorder.cli.render import put_line
from inorder.errors import ConfigError, InorderError, UsageError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141

_ADVICE = {
    errno.EADDRINUSE: "stop what listens there or choose another port",
    errno.EADDRNOTAVAIL: "choose an address of this machine for --host",
    errno.EACCES: "check the permissions, or use a port above 1023",
    errno.ENOSPC: "make room or choose another --data",
    errno.EROFS: "choose another --data",
    errno.ENOTDIR: "choose another --data",
}


def fail(message: str, code: int = EXIT_FAILED) -> NoReturn:
    """Say what went wrong and leave."""
    put_line(f"inorder: {message}", err=True)
    raise typer.Exit(code)


def says_errors(command: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Turn the errors that users can act on into one line; others are bugs and stay loud."""

    @functools.wraps(command)
    def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            result = command(*args, **kwargs)
            sys.stdout.flush()  # here, where a closed pipe is still an error that we can take
            return result
        except (ConfigError, UsageError) as error:
            fail(str(error), EXIT_USAGE)
        except InorderError as error:
            fail(str(error))
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:
            # What is still in the buffer has nowhere to go, and Python would complain at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(EXIT_PIPE_CLOSED) from None
        except OSError as error:
            fail(_describe(error))

    return wrapper


def _describe(error: OSError) -> str:
    # asyncio puts the address into strerror and leaves filename empty.
    what = error.strerror or str(error)
    if error.filename is not None:
        what = f"{error.filename}: {what}"
    advice = _ADVICE.get(error.errno or 0)
    return f"{what}; {advice}" if advice else what
