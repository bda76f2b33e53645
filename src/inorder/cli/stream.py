"""Streams of messages for `inorder tail`.

Up to the present end, messages of all queues are sorted by store time. Later messages are shown as
they arrive. The messages of one queue are always in order.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from inorder.cli.output import parse_time, put_line
from inorder.client.admin import Admin
from inorder.client.rules.routes import moment_ms
from inorder.clock import SystemClock
from inorder.errors import TransportError, UsageError
from inorder.model import ReceivedMessage, TopicQueue

LAST: Final = 10
WAIT_SECONDS: Final = 10.0
PAUSE_SECONDS: Final = 1.0

Show = Callable[[ReceivedMessage], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages to show."""

    start: str | None
    tag: str
    key: str | None
    count: int | None
    queue: int | None
    until: str | None = None
    sql: str | None = None

    @property
    def filters(self) -> bool:
        """Return whether some messages are left out."""
        return self.key is not None or self.sql is not None or self.tag not in ("*", "")

    def matches(self, message: ReceivedMessage) -> bool:
        """Compare the ordering key and the words of the index keys."""
        words = message.properties.get("KEYS", "").split(" ")
        return self.key is None or self.key == message.key or self.key in words


async def tail_topic(admin: Admin, topic: str, wanted: Wanted, follow: bool, show: Show) -> None:
    """Show messages of a topic; with `follow`, go on until the count is reached."""
    until_ms = None
    if wanted.until is not None:
        until_ms = moment_ms(parse_time(wanted.until, SystemClock().now_ms()))
    view = await admin.topics.describe(topic)
    ends = {
        one.queue: one.max_offset for one in view.queues if wanted.queue in (None, one.queue.index)
    }
    if not ends:
        raise UsageError(f"topic {topic} has no queue {wanted.queue}; it has {len(view.queues)}")
    starts = {one.queue: one.min_offset for one in view.queues if one.queue in ends}
    left = wanted.count
    if wanted.start is None:
        for message in await _last(admin, starts, ends, wanted):
            show(message)
        left = None
    else:
        begin = await _begin(admin, starts, ends, wanted)
        async for message in _merged(admin, begin, ends, wanted):
            if until_ms is not None and message.stored_at_ms >= until_ms:
                return
            show(message)
            if left is not None:
                left -= 1
                if not left:
                    return
        ends = {queue: max(begin[queue], ends[queue]) for queue in ends}
    if follow:
        await _follow(admin, ends, wanted, left, show)


async def _begin(
    admin: Admin, starts: dict[TopicQueue, int], ends: dict[TopicQueue, int], wanted: Wanted
) -> dict[TopicQueue, int]:
    start = wanted.start or ""
    if start == "beginning":
        return starts
    if start in ("end", "now"):
        return ends
    if re.fullmatch(r"\d+", start):
        return {queue: max(starts[queue], int(start)) for queue in starts}
    moment = parse_time(start, SystemClock().now_ms())
    return {queue: await admin.offsets.at_time(queue, moment) for queue in starts}


async def _last(
    admin: Admin, starts: dict[TopicQueue, int], ends: dict[TopicQueue, int], wanted: Wanted
) -> list[ReceivedMessage]:
    """Read backwards, in growing steps, until enough messages match and none is missed."""
    count, step = wanted.count or LAST, wanted.count or LAST
    while True:
        begin = {queue: max(starts[queue], ends[queue] - step) for queue in starts}
        found = [one async for one in _merged(admin, begin, ends, wanted)][-count:]
        cut = [queue for queue in begin if begin[queue] > starts[queue]]
        if not cut or (
            len(found) == count
            and (not wanted.filters or await _newest_before(admin, begin, cut, found[0]))
        ):
            return found
        step *= 8


async def _newest_before(
    admin: Admin, begin: dict[TopicQueue, int], cut: list[TopicQueue], oldest: ReceivedMessage
) -> bool:
    """Return whether every unread message is older than the oldest message found."""
    for queue in cut:
        first = (await admin.messages.read(queue, begin[queue], count=1)).messages
        if first and first[0].stored_at_ms > oldest.stored_at_ms:
            return False
    return True


async def _merged(
    admin: Admin, begin: dict[TopicQueue, int], ends: dict[TopicQueue, int], wanted: Wanted
) -> AsyncIterator[ReceivedMessage]:
    """Give the messages of all queues up to `ends`, by store time."""
    readers = [_queue(admin, queue, begin[queue], ends[queue], wanted) for queue in begin]
    heads = {index: await anext(reader, None) for index, reader in enumerate(readers)}
    while True:
        there = {index: one for index, one in heads.items() if one is not None}
        if not there:
            return
        index = min(there, key=lambda at: (there[at].stored_at_ms, at))
        yield there[index]
        heads[index] = await anext(readers[index], None)


async def _queue(
    admin: Admin, queue: TopicQueue, offset: int, end: int, wanted: Wanted
) -> AsyncIterator[ReceivedMessage]:
    while offset < end:
        batch = await admin.messages.read(queue, offset, tag=wanted.tag, sql=wanted.sql)
        for message in batch.messages:
            if message.offset < end and wanted.matches(message):
                yield message
        if batch.next_offset <= offset:
            return
        offset = batch.next_offset


async def _follow(
    admin: Admin, ends: dict[TopicQueue, int], wanted: Wanted, left: int | None, show: Show
) -> None:
    """Show the messages after `ends`, `left` of them or for ever."""
    enough = asyncio.Event()
    shown = 0

    def take(message: ReceivedMessage) -> None:
        nonlocal shown
        if wanted.matches(message) and not enough.is_set():
            show(message)
            shown += 1
            if shown == left:
                enough.set()

    async def watch(queue: TopicQueue, offset: int) -> None:
        while True:
            try:
                batch = await admin.messages.read(
                    queue, offset, tag=wanted.tag, sql=wanted.sql, wait=WAIT_SECONDS
                )
            except TransportError as error:
                put_line(f"inorder: {error}; trying again", err=True)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            for message in batch.messages:
                take(message)
            offset = batch.next_offset

    watchers = [asyncio.create_task(watch(queue, ends[queue])) for queue in ends]
    await _first(enough.wait(), watchers)


async def _first(done: Coroutine[Any, Any, object], watchers: list[asyncio.Task[None]]) -> None:
    """Wait for the end, or for a watcher that failed; then cancel the watchers."""
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(done), *watchers]
    try:
        finished, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for one in finished:
            one.result()
    finally:
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
