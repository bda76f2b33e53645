"""What the pages ask the cluster for: bounded reads with the visitor's own credentials.

A read that a broker cannot answer says so in words; what Apache RocketMQ does not know is None, and
the page tells the reason. Scans have a maximum of messages and of time, and say where they ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from inorder.broker.parking import records as parking
from inorder.client.admin import (
    Admin,
    GroupView,
    ParkedKey,
    QueueLag,
    QueueLock,
    QueueView,
    TopicResize,
    TopicView,
)
from inorder.client.rules.routes import broker_masters, subscribe_queues
from inorder.client.rules.traces import TraceView
from inorder.clock import Clock
from inorder.console.letters import Letter, letter_of
from inorder.console.rules import Facts, ResetRow
from inorder.console.story import Copy, Evidence, ParkEvent, Progress, Version
from inorder.console.watch import ask_each
from inorder.errors import (
    BrokerError,
    CodeNotSupported,
    InorderError,
    NotFound,
    RemoteProtocolError,
    TopicNotRouted,
    UsageError,
)
from inorder.model import ReceivedMessage, TopicConfig, TopicQueue
from inorder.ordering.keymap import KeyMap
from inorder.wire import extensions, properties
from inorder.wire.extensions import SOURCE
from inorder.wire.names import DEAD_LETTER_PREFIX, PARK_PREFIX, RETRY_PREFIX, dead_letter_topic
from inorder.wire.requests.resizing import ResizeStatus, ResizeView

AT_ONCE: Final = 8
NEWEST_QUEUES: Final = 32
SCAN_MESSAGES_MAX: Final = 200_000
SCAN_FILTERED_MAX: Final = 2_000_000
"""Messages that a broker looks at for a scan; without its filter each of them comes here."""
SCAN_S: Final = 8.0
FOUND_MAX: Final = 500
BATCH: Final = 32
STORY_GROUPS_MAX: Final = 20
SQL_KEY_CHARS_MAX: Final = 200
LETTERS_MAX: Final = 500
"""Dead letters of a group that a page is made of."""
CLOCKS_DIFFER_MS: Final = 600_000
NO_RESIZE: Final = "Apache RocketMQ keeps no versions of a topic's queues"


async def topics(admin: Admin) -> tuple[dict[str, dict[str, TopicConfig]], list[str]]:
    """Return the topics' settings by name and broker, and what did not answer."""
    names = await admin.topics.names()
    found: dict[str, dict[str, TopicConfig]] = {name: {} for name in names}
    silent = []
    for node, answer in (await ask_each(admin, lambda api: api.topics())).items():
        if isinstance(answer, InorderError):
            silent.append(f"{node.name}: {answer}")
            continue
        for name, config in answer.items():
            if name in found:
                found[name][node.name] = config
    return found, silent


async def topic_views(admin: Admin, names: Iterable[str]) -> dict[str, TopicView | str]:
    """Describe some topics at once; a text says why one cannot be described."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def describe(name: str) -> tuple[str, TopicView | str]:
        async with limit:
            try:
                return name, await admin.topics.describe(name)
            except InorderError as error:
                return name, str(error)

    return dict(await asyncio.gather(*map(describe, names)))


async def resize_state(admin: Admin, topic: str) -> TopicResize | None:
    """Return the versions of a topic; None: the broker keeps none."""
    try:
        state = await admin.topics.resize_status(topic)
    except (UsageError, CodeNotSupported):
        return None
    return state


@dataclass(frozen=True, slots=True)
class GroupPage:
    """What the page of a group shows."""

    view: GroupView
    lags: Sequence[QueueLag]
    facts: Facts
    head: ReceivedMessage | None
    """The oldest message that the group has not committed."""


async def group(admin: Admin, name: str) -> GroupPage:
    """Read all that tells why a group stands or runs. Raises GroupNotFound."""
    view = await admin.groups.describe(name)
    lags = await admin.groups.lag(name, ages=len(view.queues) <= 256)
    locks: list[QueueLock] | None
    parked: list[ParkedKey] | None
    full: dict[tuple[str, str], str] = {}
    try:
        locks = await admin.locks.list(name)
    except UsageError:
        locks = None
    try:
        parked, full = await admin.parked.list(name), await admin.parked.full(name)
    except UsageError:
        parked = None
    waits = []
    for topic in sorted({one.queue.topic for one in lags})[:AT_ONCE]:
        if topic.startswith(RETRY_PREFIX):
            continue
        try:
            state = await resize_state(admin, topic)
        except InorderError:
            continue
        if state is not None and any(one.group == name for one in state.waiting):
            waits.append(topic)
    answers = await ask_each(admin, lambda api: api.system_topics())
    silent = [node.name for node, one in answers.items() if isinstance(one, InorderError)]
    facts = Facts(
        len(view.members), len(view.differences),
        all(one.consume_enable for one in view.configs.values()),
        lags, locks, parked, full, waits, silent,
    )  # fmt: skip
    return GroupPage(view, lags, facts, await _oldest(admin, lags))


async def _oldest(admin: Admin, lags: Sequence[QueueLag]) -> ReceivedMessage | None:
    waiting = [one for one in lags if one.waiting_since_ms]
    if not waiting:
        return None
    first = min(waiting, key=lambda one: one.waiting_since_ms)
    try:
        batch = await admin.messages.read(first.queue, first.committed_offset, count=1)
    except InorderError:
        return None
    return batch.messages[0] if batch.messages else None


# Messages.


@dataclass(frozen=True, slots=True)
class Found:
    """Messages, and how much was looked at."""

    messages: Sequence[ReceivedMessage]
    scanned: int = 0
    cut: str = ""
    """Why the scan ended before its end; empty: it did not."""
    how: str = ""
    next_offset: int | None = None


async def newest(admin: Admin, topic: str, count: int, queue: TopicQueue | None = None) -> Found:
    """Return the newest messages of a topic or a queue, newest first.

    Of a topic with many queues, those are read that got a message last.
    """
    views = (await admin.topics.describe(topic)).queues
    if queue is not None:
        views = tuple(one for one in views if one.queue == queue)
    chosen = sorted(views, key=lambda one: one.updated_at_ms, reverse=True)[:NEWEST_QUEUES]
    limit = asyncio.Semaphore(AT_ONCE)

    async def tail(one: QueueView) -> list[ReceivedMessage]:
        async with limit:
            at = max(one.min_offset, one.max_offset - count)
            taken: list[ReceivedMessage] = []
            while at < one.max_offset:
                wanted = min(BATCH, one.max_offset - at)
                batch = await admin.messages.read(one.queue, at, count=wanted)
                taken += batch.messages
                if batch.next_offset <= at:
                    break
                at = batch.next_offset
            return taken

    read = [one for each in await asyncio.gather(*map(tail, chosen)) for one in each]
    read.sort(key=lambda one: (one.stored_at_ms, one.queue, one.offset), reverse=True)
    many = f"{len(chosen)} of {len(views)}" if len(chosen) < len(views) else str(len(views))
    return Found(read[:count], len(read), how=f"the newest of {many} queues")


async def from_offset(admin: Admin, queue: TopicQueue, offset: int, count: int) -> Found:
    """Return messages of a queue from an offset on."""
    found: list[ReceivedMessage] = []
    at = offset
    while len(found) < count:
        batch = await admin.messages.read(queue, at, count=min(BATCH, count - len(found)))
        found += batch.messages
        if batch.next_offset <= at or batch.next_offset >= batch.end_offset:
            at = batch.next_offset
            break
        at = batch.next_offset
    return Found(found, len(found), how=f"from offset {offset}", next_offset=at)


async def bounds(admin: Admin, queue: TopicQueue) -> tuple[int, int]:
    """Return the first offset of a queue and its end."""
    batch = await admin.messages.read(queue, 0, count=1)
    return (batch.messages[0].offset if batch.messages else batch.next_offset), batch.end_offset


def sql_for(name: str, value: str) -> str | None:
    """Return the filter for messages with a property; None: it cannot be written."""
    if len(value) > SQL_KEY_CHARS_MAX or not value.isprintable():
        return None
    return f"{name} = '{value.replace(chr(39), chr(39) * 2)}'"


class Scan:
    """Reads queues for messages with a property, within a maximum of messages and time.

    A broker that filters by SQL looks through its queues itself; else every message comes here.
    """

    def __init__(self, admin: Admin, clock: Clock) -> None:
        self._admin = admin
        self._until_ms = clock.monotonic_ms() + int(SCAN_S * 1000)
        self._clock = clock
        self.scanned = 0
        self.cut = ""
        self.filtered = True

    async def find(
        self, queues: Iterable[TopicQueue], name: str, value: str, *, since: datetime | None = None
    ) -> list[ReceivedMessage]:
        """Return the messages whose property has a value, oldest first."""
        found: list[ReceivedMessage] = []
        sql = sql_for(name, value)
        for queue in queues:
            first, end = await bounds(self._admin, queue)
            start = first
            if since is not None:
                start = max(first, await self._admin.offsets.at_time(queue, since))
            async for message in self._read(queue, start, end, sql):
                if message.properties.get(name) == value:
                    found.append(message)
                    if len(found) >= FOUND_MAX:
                        self.cut = f"the first {FOUND_MAX} messages were taken"
                        return found
            if self.cut:
                break
        return found

    async def values(self, queues: Iterable[TopicQueue], name: str, since: datetime) -> set[str]:
        """Return the values that messages stored since a time have of a property."""
        found: set[str] = set()
        for queue in queues:
            _, end = await bounds(self._admin, queue)
            start = await self._admin.offsets.at_time(queue, since)
            async for message in self._read(queue, start, end, f"{name} IS NOT NULL"):
                if name in message.properties:
                    found.add(message.properties[name])
            if self.cut:
                break
        return found

    async def whole(self, queue: TopicQueue) -> AsyncIterator[ReceivedMessage]:
        """Return all messages of a queue, as far as the scan may go."""
        first, end = await bounds(self._admin, queue)
        async for message in self._read(queue, first, end, None):
            yield message

    async def _read(
        self, queue: TopicQueue, start: int, end: int, sql: str | None
    ) -> AsyncIterator[ReceivedMessage]:
        at = start
        while at < end:
            if self._over(queue, at, end):
                return
            wanted = sql if self.filtered else None
            try:
                batch = await self._admin.messages.read(queue, at, sql=wanted, count=BATCH)
            except BrokerError:
                if wanted is None:
                    raise
                self.filtered = False  # this broker filters by tags only
                continue
            if batch.next_offset <= at:
                return
            self.scanned += batch.next_offset - at
            at = batch.next_offset
            for message in batch.messages:
                yield message

    def _over(self, queue: TopicQueue, at: int, end: int) -> bool:
        where = f"in queue {queue.broker}/{queue.index} at {at:,} of {end:,}"
        if self.scanned >= (SCAN_FILTERED_MAX if self.filtered else SCAN_MESSAGES_MAX):
            self.cut = f"ended {where} after {self.scanned:,} messages; narrow the time"
        elif self._clock.monotonic_ms() >= self._until_ms:
            self.cut = f"ended {where} after {SCAN_S:.0f} s; narrow the time"
        return bool(self.cut)


async def with_key(
    admin: Admin, clock: Clock, topic: str, key: str, since: datetime | None = None
) -> Found:
    """Return the messages of an ordering key or an index key, oldest first."""
    versions, _ = await _versions(admin, topic)
    scan = Scan(admin, clock)
    found = await scan.find(
        await _queues_of(admin, topic, key, versions), properties.SHARDING_KEY, key, since=since
    )
    indexed = await admin.messages.by_key(topic, key, since=since)
    merged = {(one.queue, one.offset): one for one in [*found, *indexed]}
    rows = sorted(merged.values(), key=lambda one: (one.stored_at_ms, one.queue, one.offset))
    how = "by the broker's filter and its key index" if scan.filtered else "by reading all of it"
    return Found(rows, scan.scanned, scan.cut, how)


# The story of a key.


async def _versions(admin: Admin, topic: str) -> tuple[list[Version], str]:
    """Return the key map's versions, oldest first, and why there are none."""
    masters = broker_masters(await admin.cluster.route(topic))
    views: dict[str, ResizeView] = {}
    for broker, address in masters.items():
        try:
            api = await admin.cluster.api(address)
            views[broker] = await api.resize(ResizeStatus(topic))
        except CodeNotSupported:
            return [], NO_RESIZE
        except InorderError as error:
            return [], f"broker {broker} did not tell its versions: {error}"
    maps: dict[int, KeyMap] = {}
    ends: dict[int, dict[TopicQueue, int]] = {}
    for broker, view in views.items():
        known = [(one.version, one.map, one.ends) for one in view.past]
        if view.map:
            known.append((view.version, view.map, {}))
        for number, text, ended in known:
            try:
                maps[number] = KeyMap.decode(text)
            except RemoteProtocolError:
                continue
            ends.setdefault(number, {}).update(
                {TopicQueue(topic, broker, index): end for index, end in ended.items()}
            )
    if not maps:
        return [], "the topic has no key map"
    return [Version(number, maps[number], ends[number]) for number in sorted(maps)], ""


async def _queues_of(
    admin: Admin, topic: str, key: str, versions: Sequence[Version]
) -> list[TopicQueue]:
    """Return the queues in which messages of a key may lie, those of older versions first."""
    routed = subscribe_queues(await admin.cluster.route(topic), topic)
    if not versions:
        return routed
    chosen = [TopicQueue(topic, *one.map.queue(key)) for one in versions]
    return [one for one in dict.fromkeys(chosen) if one in routed] or routed


@dataclass(slots=True)
class _Gathered:
    traces: dict[str, Sequence[TraceView]] = field(default_factory=dict)
    parked: list[ParkEvent] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    not_known: list[str] = field(default_factory=list)


async def evidence(
    admin: Admin, clock: Clock, topic: str, key: str, since: datetime | None = None
) -> Evidence:
    """Gather all that the cluster keeps about a key. Raises TopicNotRouted."""
    versions, no_versions = await _versions(admin, topic)
    scan = Scan(admin, clock)
    queues = await _queues_of(admin, topic, key, versions)
    found = await scan.find(queues, properties.SHARDING_KEY, key, since=since)
    if not found:  # a producer may give it as an index key only
        found = await admin.messages.by_key(topic, key, since=since)
    got = _Gathered()
    if no_versions:
        got.not_known.append(f"moves between queues: {no_versions}")
    groups = await _groups_of(admin, topic)
    if len(groups) > STORY_GROUPS_MAX:
        got.not_known.append(f"only {STORY_GROUPS_MAX} of {len(groups)} groups are asked")
    for name in groups[:STORY_GROUPS_MAX]:
        await _of_group(admin, clock, name, topic, key, found, got)
    await _traces(admin, found, got)
    got.not_known.append(
        "times of commits, and which messages are finished above a group's offset: brokers keep "
        "the present offset only"
    )
    return Evidence(
        topic, key, found, versions, got.traces, got.parked, got.copies, got.progress,
        got.not_known, scan.scanned, scan.cut,
    )  # fmt: skip


async def _groups_of(admin: Admin, topic: str) -> list[str]:
    answers = await ask_each(admin, lambda api: api.groups_of(topic))
    found = {name for one in answers.values() if not isinstance(one, InorderError) for name in one}
    found.discard(topic)
    return sorted(found)


async def _of_group(
    admin: Admin, clock: Clock, name: str, topic: str, key: str,
    messages: Sequence[ReceivedMessage], got: _Gathered,
) -> None:  # fmt: skip
    try:
        for one in await admin.groups.lag(name, topic):
            got.progress.append(Progress(name, one.queue, one.committed_offset))
    except InorderError as error:
        got.not_known.append(f"offsets of group {name}: {error}")
    try:
        got.parked += await _park_events(admin, clock, name, topic, key)
    except (NotFound, TopicNotRouted):
        pass  # the group has never parked a key
    except InorderError as error:
        got.not_known.append(f"parked messages of group {name}: {error}")
    for prefix, dead in ((RETRY_PREFIX, False), (DEAD_LETTER_PREFIX, True)):
        try:
            await admin.cluster.route(prefix + name)
        except InorderError:
            continue  # nothing was ever given back
        for message in messages[:FOUND_MAX]:
            try:
                copies = await admin.messages.by_id(prefix + name, message.message_id)
            except InorderError:
                continue
            got.copies += [Copy(name, dead, one) for one in copies]


async def _park_events(
    admin: Admin, clock: Clock, name: str, topic: str, key: str
) -> list[ParkEvent]:
    park = PARK_PREFIX + name
    brokers = broker_masters(await admin.cluster.route(park))
    scan, found = Scan(admin, clock), []
    for broker in sorted(brokers):
        queue = TopicQueue(park, broker, parking.MESSAGES)
        for one in await scan.find([queue], extensions.PARK_KEY, parking.escape(key)):
            if one.properties.get(extensions.PARK_TOPIC) != topic:
                continue
            event = parking.parked_event(
                properties.join(one.properties).encode(), len(one.body), one.stored_at_ms
            )
            found.append(ParkEvent(name, broker, event.at_ms, event, one.message_id))
        async for one in scan.whole(TopicQueue(park, broker, parking.NOTES)):
            note = parking.read_note(one.body)
            if note is None or note.topic != topic or getattr(note, "key", key) != key:
                continue
            found.append(ParkEvent(name, broker, one.stored_at_ms, note))
    return sorted(found, key=lambda one: one.at_ms)


async def _traces(admin: Admin, messages: Sequence[ReceivedMessage], got: _Gathered) -> None:
    limit = asyncio.Semaphore(AT_ONCE)

    async def ask(message: ReceivedMessage) -> None:
        async with limit:
            got.traces[message.message_id] = await admin.messages.traces(message.message_id)

    why = "sends, deliveries and handlers"
    try:
        await asyncio.gather(*(ask(one) for one in messages if one.message_id))
    except TopicNotRouted:
        got.not_known.append(
            f"{why}: there is no trace topic; brokers make one with traceTopicEnable=true, and "
            "clients write to it with trace=True"
        )
    except InorderError as error:
        got.not_known.append(f"{why}: {error}")
    else:
        if messages and not any(got.traces.values()):
            got.not_known.append(f"{why}: no client of this key has trace=True")


# Dead letters.


async def dead_letters(admin: Admin, group: str) -> tuple[list[Letter], int]:
    """Return the newest dead letters of a group, newest first, and how many there are in all."""
    try:
        views = (await admin.topics.describe(dead_letter_topic(group))).queues
    except (NotFound, TopicNotRouted):
        return [], 0  # the group has never given a message up
    found: list[Letter] = []
    for one in views:
        at = max(one.min_offset, one.max_offset - LETTERS_MAX)
        while at < one.max_offset:
            batch = await admin.messages.read(one.queue, at, count=min(BATCH, one.max_offset - at))
            found += map(letter_of, batch.messages)
            if batch.next_offset <= at:
                break
            at = batch.next_offset
    found.sort(key=lambda one: (one.stored_at_ms, one.queue, one.offset), reverse=True)
    return found[:LETTERS_MAX], sum(one.max_offset - one.min_offset for one in views)


async def sent_again(admin: Admin, clock: Clock, letters: Sequence[Letter]) -> set[str]:
    """Return the places of those letters that are in their topics again. Raises UsageError."""
    found: set[str] = set()
    for topic in sorted({one.origin for one in letters}):
        since_ms = min(one.stored_at_ms for one in letters if one.origin == topic)
        try:
            queues = subscribe_queues(await admin.cluster.route(topic), topic)
        except TopicNotRouted:
            continue
        scan = Scan(admin, clock)
        found |= await scan.values(queues, SOURCE, moment(max(0, since_ms - CLOCKS_DIFFER_MS)))
        if scan.cut:
            raise UsageError(
                f"which of them topic {topic} has again is not known: the look at it {scan.cut}. "
                "The job inorder pipeline dead-letters --redrive takes as many as there are"
            )
    return found & {one.place for one in letters}


# Offsets.


async def reset_preview(admin: Admin, name: str, topic: str, to: datetime | str) -> list[ResetRow]:
    """Return what a reset would do, queue by queue; nothing is changed."""
    rows = []
    for one in await admin.offsets.get(name, topic):
        if isinstance(to, datetime):
            target = await admin.offsets.at_time(one.queue, to)
        else:
            target = one.min_offset if to == "beginning" else one.max_offset
        now = one.min_offset if one.committed_offset is None else one.committed_offset
        rows.append(ResetRow(one.queue, now, target, one.max_offset))
    return rows


def moment(at_ms: int) -> datetime:
    """Return a time from milliseconds."""
    return datetime.fromtimestamp(at_ms / 1000, UTC)
