"""`inorder check`: was order kept? The order checker over logs of your own, or a broker's files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inorder.cli.failures import EXIT_FAILED, says_errors
from inorder.cli.output import Output, as_json, put_page
from inorder.errors import UsageError

if TYPE_CHECKING:
    from inorder.checker import Event, Report
    from inorder.store.mending import Comparison, Mended


@says_errors
def check(
    files: Annotated[
        list[Path] | None, typer.Argument(help="JSON lines or CSV; - is stdin.", metavar="FILE...")
    ] = None,
    *,
    deep: Annotated[
        Path | None,
        typer.Option(
            "--deep",
            help="A broker's data directory: compare all queues with the log.",
            metavar="DATA",
        ),
    ] = None,
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

    With --deep nothing but files is read, also beside a running broker on the same machine; a
    broker corrects what differs when it meets it. Exit code 1 if anything is wrong, or if there was
    nothing to judge.
    """
    if deep is not None:
        _check_deep(deep, output)
        return
    from inorder import checker

    if not files:
        raise UsageError("give files to judge, or --deep and the data directory of a broker")

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


def _check_deep(root: Path, output: Output) -> None:
    from inorder.config import StoreConfig
    from inorder.disk import OsFiles
    from inorder.store.mending import compare
    from inorder.wire.names import parse_delay_levels

    found = compare(OsFiles(), root, parse_delay_levels(StoreConfig().delay_levels))
    if output is Output.JSON:
        shown = as_json(
            {
                "ok": found.ok,
                "queues": found.queues,
                "entries": found.entries,
                "problems": found.problems,
                "queues_that_differ": [
                    {
                        "topic": one.topic,
                        "queue": one.queue_id,
                        "wrong_entries": one.changed,
                        "lost": one.lost,
                    }
                    for one in found.differing
                ],
            }
        )
    else:
        shown = "\n".join([*found.problems, *map(_difference, found.differing), _summary(found)])
    put_page(shown)
    if not found.ok:
        raise typer.Exit(EXIT_FAILED)


def _difference(one: Mended) -> str:
    lost = ", ".join(f"{low} to {high - 1}" for low, high in one.lost)
    wrong = f"{one.topic}/{one.queue_id}: {one.changed} entries do not lead to their messages"
    return f"{wrong}; not in the log: offsets {lost}" if lost else wrong


def _summary(found: Comparison) -> str:
    counts = f"{found.queues} queues with {found.entries} entries compared"
    return f"{counts}, {len(found.differing)} differ"


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
