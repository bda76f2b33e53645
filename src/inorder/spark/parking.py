"""Parked keys of `process_in_order`, asked of the brokers: which there are, and their lists.

Rules: `state/parking.py`. A query owns no queues: its requests are those of a job, taken as long as
no consumer of the group has the queue. What a batch made of them is told by `parkreports.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

import msgspec

from inorder.client.consume.messages import receive
from inorder.client.consume.rules.parking import MILLI, Pace, restore
from inorder.errors import (
    CodeNotSupported,
    GroupNotFound,
    InorderError,
    UsageError,
)
from inorder.logs import get_logger
from inorder.model import ReceivedMessage, TopicQueue
from inorder.spark.cluster import Cluster
from inorder.spark.maps import Maps
from inorder.spark.state.messages import OrderedMessage
from inorder.spark.state.parking import ParkedList
from inorder.spark.state.versions import Version
from inorder.wire import properties as names
from inorder.wire.fields import decode_fields
from inorder.wire.record import decode_all
from inorder.wire.requests import parking as requests
from inorder.wire.requests.parking import OwnedKey, ParkedPage, QueueParking, QueuePlace

log = get_logger(__name__)

REDRIVE_MESSAGES: Final = 10_000
"""Messages of a key that one batch handles again at most."""
REDRIVE_BYTES: Final = 64 * 1024 * 1024
REDRIVE_S: Final = 5.0
"""How long one batch takes for the redrives of a queue that have a rate."""
OLDER_MAX: Final = 64

_READ: Final = 1000
_BODY_BYTES_MAX: Final = 64 * 1024 * 1024
_LIST_BEGIN: Final = msgspec.json.encode(["", "", -1, ""]).decode()
_LIST_END: Final = msgspec.json.encode(["\U0010ffff", "", 0, ""]).decode()
_NOTHING: Final = QueueParking(0, [], [])


_paces: dict[tuple[str, TopicQueue], Pace] = {}


class Parker:
    """Asks brokers about the parked keys of a group."""

    def __init__(
        self, cluster: Cluster, maps: Maps, columns: Collection[str], *, required: bool
    ) -> None:
        """`required`: brokers that keep no parked keys will not do. `columns`: of the stream."""
        self._cluster = cluster
        self._maps = maps
        self._columns = frozenset(columns)
        self._required = required
        self._group = cluster.group

    def begin(
        self, queue: TopicQueue, first: int, before: Version | None, map_version: int
    ) -> QueueParking:
        """Return what is parked of a queue whose batch begins at an offset.

        Raises:
            UsageError: the broker keeps no parked keys, or those of the group are not this query's.
        """
        found = self._keys(queue)
        changed = before is None or before.map_version < map_version
        if not self._required and not found.keys and not (changed and self._any(queue.topic)):
            return found
        if changed:
            self._maps.follow(queue.topic, map_version, self._commit)
            found = self._keys(queue)
        if before is None and any(end > first for _, end in found.done):
            raise UsageError(
                f"group {self._group} has parked messages of queue {queue.broker}/{queue.index} of "
                f"topic {queue.topic} that this query would read again, from {first} on: give it a "
                "group of its own, or let it begin at the group's offset"
            )
        self._settle(queue, first, before)
        return found

    def _any(self, topic: str) -> bool:
        """Tell whether the group has parked something of a topic, in whatever queue."""
        for queue in {queue.broker: queue for queue in self._cluster.queues(topic)}.values():
            page = ParkedPage([], next=_LIST_BEGIN)
            while page.next:
                try:
                    request = requests.ParkedList(self._group, page.next)
                    page = ParkedPage.decode(self._cluster.ask(queue, request).body)
                except CodeNotSupported:
                    break
                if any(one.topic == topic for one in page.entries):
                    return True
        return False

    def _settle(self, queue: TopicQueue, first: int, before: Version | None) -> None:
        """Let the group's offset say how far the query is: by it the broker knows what is done."""
        committed = self._cluster.committed(queue)
        if committed is not None and committed > first:
            log.warning(
                "the group's offset is set back to where the query is group=%s queue=%s from=%d "
                "to=%d", self._group, queue, committed, first,
            )  # fmt: skip
            self._commit(queue, first)
        elif before is not None and (committed is None or committed < before.next_offset):
            self._commit(queue, before.next_offset)

    def _commit(self, queue: TopicQueue, offset: int) -> None:
        try:
            self._cluster.commit(queue, offset)
        except GroupNotFound:
            self._cluster.make_group()
            self._cluster.commit(queue, offset)

    def room(self, queue: TopicQueue) -> str:
        """Return why nothing more can be parked of a queue; empty if there is room."""
        answer = self._cluster.ask(queue, requests.ParkedList(self._group, _LIST_END))
        return ParkedPage.decode(answer.body).full.get(self._group, "")

    def lists(self, queue: TopicQueue, one: OwnedKey) -> list[ParkedList]:
        """Return the lists of a parked key, the oldest first; the last may not be whole."""
        found: list[ParkedList] = []
        self._collect(queue, one.key, one.older, heir=None, found=found)
        return found

    def _collect(
        self,
        queue: TopicQueue,
        key: str,
        older: Iterable[QueuePlace],
        *,
        heir: TopicQueue | None,
        found: list[ParkedList],
        depth: int = 0,
    ) -> bool:
        """Read the lists of a key in order; tell whether there was time for all of them."""
        if depth > OLDER_MAX:
            raise InorderError(f"the older lists of parked key {key} point at each other")
        here = (queue.broker, queue.index)
        for place in older:
            before = TopicQueue(queue.topic, place.broker, place.queue_id)
            its = next((one for one in self._keys(before).keys if one.key == key), None)
            if its is None or not its.moved:  # closed before, by an owner that died then
                found.append(ParkedList((place.broker, place.queue_id), here, [], stale=True))
            elif not self._collect(
                before, key, its.older, heir=queue, found=found, depth=depth + 1
            ):
                return False
        messages, whole = self._read(queue, key)
        end = None if heir is None else (heir.broker, heir.index)
        found.append(ParkedList(here, end, messages, whole))
        return whole

    def _read(self, queue: TopicQueue, key: str) -> tuple[list[OrderedMessage], bool]:
        found: list[OrderedMessage] = []
        size = 0
        while len(found) < REDRIVE_MESSAGES and size < REDRIVE_BYTES:
            after = found[-1].offset if found else -1
            request = requests.ParkedRead(self._group, queue.topic, queue.index, key, after, _READ)
            answer = self._cluster.ask(queue, request)
            records = decode_all(answer.body)
            size += len(answer.body)
            for record in records:
                received = restore(receive(queue.broker, record, _BODY_BYTES_MAX), None)
                found.append(self._message(received, key))
            count = decode_fields(requests.ParkedReadReply, answer.fields).messages
            if not records or len(found) >= count:
                return found, len(found) >= count  # some may wait for what comes again
        return found, False

    def _message(self, one: ReceivedMessage, key: str) -> OrderedMessage:
        """Return a parked message as the stream gave it, with the columns that the stream has."""
        values: dict[str, Any] = {
            "body": one.body, "tag": one.tag, "keys": one.properties.get(names.KEYS),
            "properties": dict(one.properties), "message_id": one.message_id,
            "born_at": one.born_at_ms, "stored_at": one.stored_at_ms,
        }  # fmt: skip
        given = {name: value for name, value in values.items() if name in self._columns}
        times = {
            f"{name}_ms": given.pop(name) for name in ("born_at", "stored_at") if name in given
        }
        return OrderedMessage(
            one.topic, one.queue.broker, one.queue.index, one.offset, key,
            redeliveries=one.redeliveries, **given, **times,
        )  # fmt: skip

    def _keys(self, queue: TopicQueue) -> QueueParking:
        try:
            request = requests.ParkedKeys(self._group, queue.topic, queue.index)
            answer = self._cluster.ask(queue, request)
        except CodeNotSupported:
            if not self._required:
                return _NOTHING
            raise UsageError(
                f"broker {queue.broker} keeps no parked keys, as Apache RocketMQ does not; use "
                "DeadLetter(attempts=…), or Block(), which lets only the key wait"
            ) from None
        return QueueParking.decode(answer.body)


def paced(group: str, queue: TopicQueue, rate: int, until_s: float) -> Callable[[], bool]:
    """Return what waits before a message of a redrive; False: there is no time left for it."""
    pace = _paces.setdefault((group, queue), Pace())

    def wait() -> bool:
        if rate <= 0:
            return True
        now_s = time.monotonic()
        if now_s >= until_s:
            return False
        # The time of the next one is kept: what there is no time for now comes first then.
        pause_s = pace.wait_ms(rate, int(now_s * MILLI)) / MILLI
        time.sleep(pause_s)
        return True

    return wait
