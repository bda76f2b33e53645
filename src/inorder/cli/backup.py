"""`inorder backup` and `inorder restore`: a copy of a running broker, and a broker made from it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from inorder.cli.failures import says_errors
from inorder.cli.oncluster import OutputOption
from inorder.cli.output import Output, progress, put_line, say
from inorder.cli.settings import ConfigOption, SetOption, parse_sets, read_settings
from inorder.errors import UsageError


@says_errors
def backup(
    data: Annotated[Path, typer.Argument(help="Data directory of a broker.", metavar="DATA")],
    target: Annotated[
        Path, typer.Argument(help="Directory of backups; made if missing.", metavar="TARGET")
    ],
    *,
    output: OutputOption = Output.TABLE,
) -> None:
    """Back up a broker's data directory, also while the broker runs, which is not disturbed.

    Holds every message acknowledged before it began. A further backup into the same TARGET copies
    only what is new. Run it on the broker's machine, as its user. Of `inorder up --brokers 3`, each
    broker has a directory, and each gets a TARGET of its own.
    """
    import inorder
    from inorder.backups.taking import Taking
    from inorder.clock import SystemClock
    from inorder.disk import OsFiles

    if not data.is_dir():
        raise UsageError(f"{data} is no directory: give the --data of a broker on this machine")
    for other in sorted(data.glob("*/commitlog")):
        put_line(
            f"inorder: {other.parent} is the directory of another broker: back it up, too, into a "
            "target of its own", err=True,
        )  # fmt: skip
    with progress("bytes") as advance:
        taken = Taking(
            OsFiles(), SystemClock(), data, target, made_by=inorder.__version__,
            advance=advance,
        ).run()  # fmt: skip
    manifest = taken.manifest
    say(
        output,
        f"{taken.path}: the log from {manifest.begin} to {manifest.end}, {manifest.size:,} bytes, "
        f"of which {taken.copied_bytes:,} were copied now",
        path=str(taken.path),
        begin=manifest.begin,
        end=manifest.end,
        bytes=manifest.size,
        copied_bytes=taken.copied_bytes,
        made_at_ms=manifest.made_at_ms,
        generation=manifest.generation,
        key_maps=manifest.maps,
    )


@says_errors
def restore(
    source: Annotated[
        Path, typer.Argument(help="A backup, or a directory of backups: its last.",
                             metavar="BACKUP")
    ],
    data: Annotated[
        Path, typer.Argument(help="New data directory: empty or missing.", metavar="DATA")
    ],
    *,
    above_version: Annotated[
        int | None,
        typer.Option(
            "--above-version", metavar="N",
            help="All brokers are restored: key maps get a version above the highest ever, N.",
        ),
    ] = None,
    keep_versions: Annotated[
        bool,
        typer.Option(
            "--keep-versions",
            help="Other brokers still run, and no topic was resized since the backup.",
        ),
    ] = False,
    above_generation: Annotated[
        int | None,
        typer.Option(
            "--above-generation", metavar="N",
            help="The log generation to begin is above N.  [default: that of the backup + 16]",
        ),
    ] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    output: OutputOption = Output.TABLE,
) -> None:  # fmt: skip
    """Make a data directory from a backup; a broker then starts on it as usual.

    Epochs and fences of the restored broker are above those that the old one gave out. Nobody
    resumes a lease. The old broker must not run any more. Give the settings that the broker has.
    """
    from inorder.backups.restoring import Restoring, Wanted
    from inorder.clock import SystemClock
    from inorder.config import BrokerConfig
    from inorder.disk import OsFiles

    loaded = read_settings(BrokerConfig, config, parse_sets(set_))
    with progress("bytes") as advance:
        restored = Restoring(
            OsFiles(), SystemClock(), source, data, loaded.config.store,
            wanted=Wanted(above_version, keep_versions, above_generation),
            advance=advance, rebuilding=_say_rebuilding,
        ).run()  # fmt: skip
    for problem in restored.problems:
        put_line(f"inorder: {problem}", err=True)
    say(
        output,
        f"{data}: {restored.messages:,} messages restored, the log ends at "
        f"{restored.manifest.end}. Check it with `inorder check --deep {data}`, then start a "
        f"broker on it; fences continue with generation {restored.generation}",
        path=str(restored.path),
        messages=restored.messages,
        end=restored.manifest.end,
        start=restored.start,
        generation=restored.generation,
        key_maps=restored.versions,
        problems=restored.problems,
    )


def _say_rebuilding() -> None:
    if sys.stderr.isatty():
        put_line("making queues and the key index from the log", err=True)
