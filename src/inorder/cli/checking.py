"""`inorder check`: was order kept? The order checker over logs of your own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inorder.cli.failures import EXIT_FAILED, says_errors
from inorder.cli.render import Output, as_json, put_page
from inorder.errors import UsageError

if TYPE_CHECKING:
    from inorder.checker import Event, Report


@says_errors
def check(
    files: Annotated[
        list[Path], typer.Argument(help="JSON lines or CSV; - is stdin.", metavar="FILE...")
    ],
    *,
    handling: Annotated[
        str, typer.Option("--handling", help="What waits for what: queue, key or concurrent.")
    ] = "queue",
    at_least_once: Annotated[
        bool, typer.Option("--at-least-once", help="Copies are fine; order is judged on the first.")
    ] = False,
    filtered: Annotated[
        bool, typer.Option("--filtered", help="Not all was read: holes are fine.")
    ] = False,
    resized: Annotated[
        bool, typer.Option("--resized", help="A key may have moved to another queue.")
    ] = False,
    output: Annotated[Output, typer.Option("-o", "--output", help="Form.")] = Output.TABLE,
) -> None:
    """Judge logs: was order kept? Names what is lost, doubled, inverted or overlaps.

    Exit code 1 if anything is wrong, or if there was nothing to judge.
    """
    from inorder import checker

    if handling not in list(checker.Handling):
        raise UsageError(f"--handling {handling}: give queue, key or concurrent")
    rules = checker.Rules(
        stored_once=not at_least_once,
        handled_once=not at_least_once,
        dense=not filtered,
        one_queue_per_key=not resized,
        handling=checker.Handling(handling),
        acknowledged_min=0,
    )
    report = checker.check(_events(files), rules=rules)
    if not any(report.counts.values()):
        raise UsageError("the files hold no event; see the page about testing for their form")
    put_page(as_json(_object(report)) if output is Output.JSON else str(report))
    if not report.ok:
        raise typer.Exit(EXIT_FAILED)


def _events(files: list[Path]) -> Iterator[Event]:
    from inorder.checker import read_csv_history, read_history

    for path in files:
        try:
            if str(path) == "-":
                yield from read_history(sys.stdin)
                continue
            read = read_csv_history if path.suffix.lower() == ".csv" else read_history
            with path.open(encoding="utf-8", newline="") as lines:
                yield from read(lines)
        except (UsageError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: {error}") from None


def _object(report: Report) -> dict[str, object]:
    return {
        "in_order": report.ok,
        "counts": dict(report.counts),
        "by_kind": dict(report.by_kind),
        "findings": [
            {"kind": one.kind, "queue": one.queue, "key": one.key, "message": one.message}
            for one in report.findings
        ],
    }
