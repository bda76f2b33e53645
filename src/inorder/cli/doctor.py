"""`inorder doctor`: gathers facts about a cluster and this machine, and prints what is wrong.

The checks are pure and stand in `diagnosis/rules.py`. A question that fails is a finding itself, so
that one broker that is down hides nothing about the others.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Final

import typer

from inorder.accelerated import slower_parts
from inorder.cli.oncluster import Cluster, OutputOption, on_cluster
from inorder.cli.output import Output, as_json, put_line, put_page
from inorder.diagnosis import rules
from inorder.diagnosis.rules import BrokerFacts, Finding, GroupFacts, ParkedFacts, Severity
from inorder.errors import InorderError

if TYPE_CHECKING:
    from inorder.client.admin import Admin, BrokerNode
    from inorder.clock import Clock

GROUPS_MAX: Final = 500
"""Groups that one call looks at; the findings say if there are more."""
PATIENCE_S: Final = 5.0
"""How long a broker may take for its answer."""


@on_cluster
def doctor(
    target: Cluster,
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only brokers; no groups, no parked keys.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Look for what is wrong: addresses, clocks, disks, limits, groups, parked keys, clients.

    Exit code 0: fine; 1: something should be looked at; 2: something is broken.
    """
    from inorder.clock import SystemClock
    from inorder.disk import OsFiles

    namesrv = target.target().name_servers
    clock = SystemClock()
    files_here = OsFiles().descriptors_max()

    async def work(admin: Admin) -> list[Finding]:
        return await _examine(admin, namesrv, clock, files_here, quick=quick)

    findings = sorted(target.run(work), key=lambda one: -rules.EXIT_CODES[one.severity])
    _print(findings, output)
    raise typer.Exit(rules.worst(findings))


async def _examine(
    admin: Admin, namesrv: str, clock: Clock, files_here: int, *, quick: bool
) -> list[Finding]:
    """Ask the brokers, and judge what they say."""
    import asyncio

    from inorder.wire.codes import RequestCode

    nodes = await admin.cluster.brokers()
    brokers = list(await asyncio.gather(*(_broker(admin, node, clock) for node in nodes)))
    names = {int(code): code.name for code in RequestCode}
    findings = [
        *rules.check_presence(brokers),
        *rules.check_addresses(namesrv, brokers),
        *rules.check_names(brokers),
        *rules.check_clocks(brokers),
        *rules.check_disks(brokers),
        *rules.check_limits(brokers, files_here),
        *rules.check_unsupported(brokers, names),
        *rules.check_installation(slower_parts()),
    ]
    if not quick and brokers:
        findings += await _groups(admin)
        if any(one.is_inorder for one in brokers):
            findings += await _parked(admin, clock)
    return findings


async def _broker(admin: Admin, node: BrokerNode, clock: Clock) -> BrokerFacts:
    import asyncio

    asked_ms = clock.now_ms()
    known = BrokerFacts(node.name, node.cluster, node.address)
    try:
        async with asyncio.timeout(PATIENCE_S):
            numbers = await (await admin.cluster.api(node.address)).runtime_info()
    except (InorderError, OSError, TimeoutError) as error:
        return dataclasses.replace(known, error=str(error) or "no answer in time")
    here_ms = (asked_ms + clock.now_ms()) // 2
    there = numbers.get("inorderNowMs")
    files = numbers.get("inorderFilesMax")
    ratio = numbers.get("commitLogDiskRatio")
    pairs = (one.split(":") for one in numbers.get("inorderUnsupported", "").split(",") if one)
    return dataclasses.replace(
        known,
        is_inorder=there is not None,
        skew_ms=None if there is None else int(there) - here_ms,
        disk_ratio=float(ratio) if ratio else None,
        files_max=None if files is None else int(files),
        writable=numbers.get("inorderWritable", "true") == "true",
        losses=int(numbers.get("inorderLosses") or 0),
        unsupported={int(code): int(count) for code, count in pairs},
    )


async def _groups(admin: Admin) -> list[Finding]:
    names = await admin.groups.names()
    findings: list[Finding] = []
    facts: list[GroupFacts] = []
    for name in names[:GROUPS_MAX]:
        try:
            view = await admin.groups.describe(name)
        except InorderError as error:
            findings.append(_unasked(f"group {name}", error))
            continue
        clients = {f"{one.language} {one.version}" for one in view.members}
        facts.append(
            GroupFacts(
                name,
                len({one.client_id for one in view.members}),
                view.lag,
                tuple(one.topic for one in view.differences),
                view.message_model == "BROADCASTING",
                tuple(sorted(clients)),
            )
        )
    if len(names) > GROUPS_MAX:
        what = f"only {GROUPS_MAX} of {len(names)} were looked at"
        why, todo = "the others may have something", "`inorder group show GROUP` shows one"
        findings.append(Finding(Severity.INFO, "groups", what, why, todo))
    return [*findings, *rules.check_groups(facts)]


async def _parked(admin: Admin, clock: Clock) -> list[Finding]:
    try:
        keys, full = await admin.parked.list(), await admin.parked.full()
    except InorderError as error:
        return [_unasked("parked keys", error)]
    now_ms = clock.now_ms()
    facts = [
        ParkedFacts(
            one.group, one.queue.topic, one.queue.index, one.key, one.messages,
            max(0, now_ms - one.since_ms), one.redriving, one.last_error,
        )
        for one in keys
    ]  # fmt: skip
    return list(rules.check_parked(facts, full))


def _unasked(about: str, error: InorderError) -> Finding:
    return Finding(
        Severity.WARNING, about, f"it could not be asked: {error}",
        "nothing is known of it", "mend what is broken above, then call doctor again",
    )  # fmt: skip


def _print(findings: list[Finding], output: Output) -> None:
    if output is Output.JSON:
        put_page(as_json([dataclasses.asdict(one) for one in findings]))
        return
    for one in findings:
        put_line(f"{one.severity.upper():8} {one.about}: {one.what}")
        put_line(f"         why   {one.why}")
        put_line(f"         do    {one.todo}")
    if not findings:
        put_line("nothing found")
