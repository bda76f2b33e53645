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
from inorder.diagnosis import access, rules
from inorder.diagnosis.access import UserFacts
from inorder.diagnosis.rules import (
    BrokerFacts,
    Finding,
    GroupFacts,
    OldestFacts,
    ParkedFacts,
    Severity,
    TopicFacts,
)
from inorder.errors import AccessDenied, InorderError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from inorder.client.admin import Admin, BrokerNode, QueueLag, TopicResize
    from inorder.clock import Clock
    from inorder.model import TopicConfig

GROUPS_MAX: Final = 500
"""Groups that one call looks at; the findings say if there are more."""
TOPICS_MAX: Final = 500
"""Topics with key maps that one call looks at."""
QUEUES_MAX: Final = 16
"""Queues of a group whose oldest message is read: those that stand longest."""
PATIENCE_S: Final = 5.0
"""How long a broker may take for its answer."""


@on_cluster
def doctor(
    target: Cluster,
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only brokers and users; no groups, no keys, no topics.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Look for what is wrong: brokers, users, certificates, groups, stuck keys, key maps, clients.

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
        *access.check_open(brokers),
        *access.check_certificates(brokers, clock.now_ms()),
        *rules.check_installation(slower_parts()),
        *await _users(admin, brokers),
    ]
    if not quick and brokers:
        findings += await _groups(admin, clock)
        if any(one.is_inorder for one in brokers):
            findings += await _parked(admin, clock)
            findings += await _topics(admin, brokers)
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
        host=numbers.get("inorderHost", ""),
        is_open=numbers.get("inorderOpen") == "true",
        access_level=numbers.get("accessLevel", ""),
        tls_problem=numbers.get("inorderTlsProblem", ""),
        tls_ends_ms=int(numbers.get("inorderTlsEndsMs") or 0),
    )


async def _users(admin: Admin, brokers: list[BrokerFacts]) -> list[Finding]:
    """Look at users and rules, where every broker has them and this caller may read them."""
    asked = [one for one in brokers if one.is_inorder]
    if not asked or len(asked) < len(brokers) or not all(one.access_level for one in asked):
        return []
    try:
        users, ruled = await admin.users.list(), await admin.acls.list()
    except AccessDenied as error:
        return [
            Finding(
                Severity.INFO, "users", f"they could not be looked at: {error}",
                "only a super user may list users and rules",
                "call doctor with the credentials of one",
            )
        ]  # fmt: skip
    except InorderError as error:
        return [_unasked("users", error)]
    facts = [UserFacts(one.name, one.is_super, one.enabled, one.brokers) for one in users]
    return list(access.check_users(facts, (one.user for one in ruled), (one.name for one in asked)))


async def _groups(admin: Admin, clock: Clock) -> list[Finding]:
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
        shared = view.members and view.message_model != "BROADCASTING"
        facts.append(
            GroupFacts(
                name,
                len({one.client_id for one in view.members}),
                view.lag,
                tuple(one.topic for one in view.differences),
                view.message_model == "BROADCASTING",
                tuple(sorted(clients)),
                oldest=await _oldest(admin, clock, view.queues) if shared else None,
            )
        )
    if len(names) > GROUPS_MAX:
        what = f"only {GROUPS_MAX} of {len(names)} were looked at"
        why, todo = "the others may have something", "`inorder group show GROUP` shows one"
        findings.append(Finding(Severity.INFO, "groups", what, why, todo))
    return [*findings, *rules.check_groups(facts), *rules.check_stuck(facts)]


async def _oldest(admin: Admin, clock: Clock, queues: tuple[QueueLag, ...]) -> OldestFacts | None:
    """Return the oldest message that a group has not done, of the queues that stand longest."""
    behind = sorted((one for one in queues if one.lag), key=lambda one: one.committed_at_ms)
    found: OldestFacts | None = None
    for one in behind[:QUEUES_MAX]:
        try:
            batch = await admin.messages.read(one.queue, one.committed_offset, count=1)
        except InorderError:
            continue  # the queue is gone, or its broker; that is a finding of its own
        for message in batch.messages:
            age_ms = max(0, clock.now_ms() - message.stored_at_ms)
            if found is None or age_ms > found.age_ms:
                place = f"{one.queue.broker}/{one.queue.index}"
                left = one.end_offset - message.offset
                found = OldestFacts(
                    one.queue.topic, place, message.offset, message.key, age_ms, left
                )
    return found


async def _topics(admin: Admin, brokers: list[BrokerFacts]) -> list[Finding]:
    """Look at the key maps of topics and at resizes; a broker that is down hides neither."""
    from inorder.ordering import keymap

    findings: list[Finding] = []
    facts: list[TopicFacts] = []
    table: dict[str, dict[str, TopicConfig]] = {}
    answering = {one.name: one.address for one in brokers if one.is_inorder}
    for broker, address in answering.items():
        try:
            topics = await (await admin.cluster.api(address)).topics()
        except InorderError as error:
            findings.append(_unasked(f"topics of broker {broker}", error))
            continue
        for name, config in topics.items():
            table.setdefault(name, {})[broker] = config
    mapped = [
        name
        for name, configs in sorted(table.items())
        if any(keymap.ATTRIBUTE in one.attributes for one in configs.values())
    ]
    for name in mapped[:TOPICS_MAX]:
        try:
            status = await admin.topics.resize_status(name)
        except InorderError as error:
            findings.append(_unasked(f"topic {name}", error))
            continue
        facts.append(_topic(name, table[name], status, set(answering)))
    if len(mapped) > TOPICS_MAX:
        what = f"only {TOPICS_MAX} of {len(mapped)} with key maps were looked at"
        why, todo = "the others may have something", "`inorder topic resize TOPIC --status`"
        findings.append(Finding(Severity.INFO, "topics", what, why, todo))
    return [*findings, *rules.check_key_maps(facts), *rules.check_resizes(facts)]


def _topic(
    name: str, configs: Mapping[str, TopicConfig], status: TopicResize, answering: set[str]
) -> TopicFacts:
    from inorder.client.rules.keymaps import newest
    from inorder.ordering import keymap

    texts = {broker: one.attributes.get(keymap.ATTRIBUTE, "") for broker, one in configs.items()}
    maps = newest(texts.values())
    brokers = {broker for one in maps for broker, _ in one.queues}
    shown = {
        one.encode(): f"version {one.version}, {len(one.queues)} queues, digest {one.digest}"
        for one in maps
    }
    planned = ""
    if status.plan is not None:
        done = status.opened or status.stopped
        planned = (
            f"a resize to {status.planned_queues} queues has not ended: "
            f"{'opened' if status.opened else 'stopped'} at {', '.join(done) or 'no broker yet'}"
        )
    return TopicFacts(
        name,
        {broker: shown[text] for broker, text in texts.items() if text in shown},
        tuple(sorted((brokers & answering) - set(configs))),
        planned,
        status.away,
        tuple((one.group, one.behind, one.online) for one in status.waiting),
    )


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
