"""Progress of long work: on a terminal only, on stderr, gone when the work is done."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Protocol


class Advance(Protocol):
    """Takes how many more are done; and how many there are, where that is learnt on the way."""

    def __call__(self, more: int, total: int | None = None, /) -> None: ...


@contextlib.contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Advance]:
    """Give a function that takes how many more are done; elsewhere it does nothing."""
    if not sys.stderr.isatty():
        yield lambda _, __=None: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    count = "{task.completed:,.0f}" + ("" if total is None else " of {task.total:,.0f}")
    middle = [] if total is None else [BarColumn()]
    columns = [SpinnerColumn(), *middle, TextColumn(f"{count} {what}"), TimeElapsedColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)

        def advance(more: int, total: int | None = None, /) -> None:
            bar.update(task, advance=more, total=total)

        yield advance
