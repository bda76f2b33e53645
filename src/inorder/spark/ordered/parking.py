"""Parked keys of `process_in_order`: `Parker` asks the brokers, `Reports` tells them.

A query owns no queues. Its requests are those of a job, which a broker takes while no consumer of
the group owns the queue. `Parker` asks which keys are parked, and for their lists, when a batch
begins. `Reports` tells the brokers what the batch did with parked keys, after the batch is decided,
and again if the batch is repeated. A broker knows a parked message by its queue and offset until
the group has committed the batch, and redriving or dropping a message twice changes nothing.

The rules are in `spark/ordered/rules.py`. Who parks and who releases a key: decision 22. How a
query survives kills: decision 35.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, TypeVar

import msgspec

from inorder.client.consume.messages import receive
from inorder.client.consume.rules.parking import MILLI, RedrivePace, restore
from inorder.errors import CodeNotSupported, GroupNotFound, InorderError, LeaseLost, UsageError
from inorder.logs import get_logger
from inorder.model import ReceivedMessage, TopicQueue
from inorder.spark.cluster import Cluster
from inorder.spark.ordered.maps import Maps
from inorder.spark.ordered.records import Version
from inorder.spark.ordered.rules import Letter, OrderedMessage, ParkedList, ParkedMessage, Redone
from inorder.wire import properties
from inorder.wire.replies import Request
from inorder.wire.requests import parking as requests
from inorder.wire.requests.parking import (
    ITEMS_MAX,
    KeyList,
    NamedKey,
    OwnedKey,
    ParkAnswer,
    ParkBody,
    ParkedPage,
    ParkItem,
    QueueParking,
    QueuePlace,
    RedrivenBody,
)

log = get_logger(__name__)

R = TypeVar("R")

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


_paces: dict[tuple[str, TopicQueue], RedrivePace] = {}


class Parker:
    """Asks brokers about the parked keys of a group."""

    def __init__(
        self, cluster: Cluster, maps: Maps, columns: Collection[str], *, required: bool
    ) -> None:
        """`required`: refuse brokers without parked keys. `columns`: those of the stream."""
        self._cluster = cluster
        self._maps = maps
        self._columns = frozenset(columns)
        self._required = required
        self._group = cluster.group

    def begin(
        self, queue: TopicQueue, first: int, before: Version | None, map_version: int
    ) -> QueueParking:
        """Return the parked keys of a queue whose batch begins at an offset.

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
        """Return whether the group has parked keys in any queue of a topic."""
        for queue in {queue.broker: queue for queue in self._cluster.queues(topic)}.values():
            page = ParkedPage([], next=_LIST_BEGIN)
            while page.next:
                try:
                    request = requests.ParkedList(self._group, page.next)
                    page = self._cluster.ask(queue, request)
                except CodeNotSupported:
                    break
                if any(one.topic == topic for one in page.entries):
                    return True
        return False

    def _settle(self, queue: TopicQueue, first: int, before: Version | None) -> None:
        """Set the group's offset to the progress of the query, for the broker."""
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
        """Return why a queue can park no more messages; empty if it can."""
        page = self._cluster.ask(queue, requests.ParkedList(self._group, _LIST_END))
        return page.full.get(self._group, "")

    def lists(self, queue: TopicQueue, one: OwnedKey) -> list[ParkedList]:
        """Return the lists of a parked key, the oldest first; the last may not be whole."""
        found: list[ParkedList] = []
        self._collect(queue, one.key, one.older, successor=None, found=found)
        return found

    def _collect(
        self,
        queue: TopicQueue,
        key: str,
        older: Iterable[QueuePlace],
        *,
        successor: TopicQueue | None,
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
                before, key, its.older, successor=queue, found=found, depth=depth + 1
            ):
                return False
        messages, whole = self._read(queue, key)
        end = None if successor is None else (successor.broker, successor.index)
        found.append(ParkedList(here, end, messages, whole))
        return whole

    def _read(self, queue: TopicQueue, key: str) -> tuple[list[OrderedMessage], bool]:
        found: list[OrderedMessage] = []
        size = 0
        while len(found) < REDRIVE_MESSAGES and size < REDRIVE_BYTES:
            after = found[-1].offset if found else -1
            request = requests.ParkedRead(self._group, queue.topic, queue.index, key, after, _READ)
            parked = self._cluster.ask(queue, request)
            size += parked.size
            for record in parked.records:
                received = restore(receive(queue.broker, record, _BODY_BYTES_MAX), None)
                found.append(self._message(received, key))
            whole = len(found) >= parked.messages
            if whole or not parked.records:
                return found, whole  # some may wait for what comes again
        return found, False

    def _message(self, one: ReceivedMessage, key: str) -> OrderedMessage:
        """Return a parked message as the stream gave it, with the columns that the stream has."""
        values: dict[str, Any] = {
            "body": one.body, "tag": one.tag, "keys": one.properties.get(properties.KEYS),
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
            return self._cluster.ask(
                queue, requests.ParkedKeys(self._group, queue.topic, queue.index)
            )
        except CodeNotSupported:
            if not self._required:
                return _NOTHING
            raise UsageError(
                f"broker {queue.broker} keeps no parked keys, as Apache RocketMQ does not; use "
                "DeadLetter(attempts=…), or Block(), which lets only the key wait"
            ) from None


def paced(group: str, queue: TopicQueue, rate: int, until_s: float) -> Callable[[], bool]:
    """Return a function that waits before a message of a redrive; False: no time is left."""
    pace = _paces.setdefault((group, queue), RedrivePace())

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


FULL_TRIES: Final = 5
FULL_PAUSE_S: Final = 1.0
_JOB: Final = ("job", "")
_NO_MORE: Final = "its key was unparked while the message was on its way"


class ParkingFull(InorderError):
    """The broker has no room for messages that a batch parks; a restarted query tries again."""


class Reports:
    """Tells the brokers of a group."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._group = cluster.group

    def carry_out(self, queue: TopicQueue, version: Version) -> list[tuple[int, Letter]]:
        """Report a batch's decisions; return messages that the broker cannot park, by number."""
        for redone in version.redone:
            self._tell(queue, redone)
        gone = self._park(queue, version.asides, version.last + 1)
        for redone in version.redone:
            if redone.live:
                self._unpark(queue, redone.key, redone.end)
                log.info(
                    "key is live again group=%s queue=%s key=%s", self._group, queue, redone.key
                )
        return gone

    def _tell(self, queue: TopicQueue, redone: Redone) -> None:
        """Say which messages were handled again, of each list, and whether the next one failed."""
        for drained in redone.lists:
            at = TopicQueue(queue.topic, *drained.home)
            self._redriven(at, redone.key, drained.done, successor=drained.successor is not None)
            if drained.successor is not None and drained.closed:
                successor = TopicQueue(queue.topic, *drained.successor)
                if not drained.stale:
                    self._unpark(at, redone.key, 1 << 62, successor=True)
                body = RedrivenBody(older=QueuePlace(*drained.home))
                self._redriven_by(successor, redone.key, body, successor=successor != queue)
        if redone.error is not None:
            self._redriven_by(queue, redone.key, RedrivenBody(error=redone.error))
            log.warning(
                "redrive ended, the key stays parked group=%s queue=%s key=%s: %s",
                self._group, queue, redone.key, redone.error,
            )  # fmt: skip

    def _redriven(
        self, queue: TopicQueue, key: str, done: list[int], *, successor: bool = False
    ) -> None:
        for at in range(0, len(done), ITEMS_MAX):
            self._redriven_by(
                queue, key, RedrivenBody(done[at : at + ITEMS_MAX]), successor=successor
            )

    def _redriven_by(
        self, queue: TopicQueue, key: str, body: RedrivenBody, *, successor: bool = False
    ) -> None:
        request = requests.Redriven(self._group, *_JOB, queue.topic, queue.index, 0, key, successor)
        self._order(queue, request, body.encode())

    def _unpark(self, queue: TopicQueue, key: str, end: int, *, successor: bool = False) -> None:
        request = requests.Unpark(
            self._group, *_JOB, queue.topic, queue.index, 0, key, end, successor
        )
        reply = self._order(queue, request)
        if not reply.live:
            raise InorderError(
                f"parked key {key} of group {self._group} cannot go live: {reply.why}; somebody "
                "else parks messages of its queue"
            )

    def _park(
        self, queue: TopicQueue, parked: list[ParkedMessage], until: int
    ) -> list[tuple[int, Letter]]:
        """Park messages in their order; those without room are tried again for a while."""
        gone: list[tuple[int, Letter]] = []
        waiting = list(enumerate(parked))
        for tried in range(1, FULL_TRIES + 1):
            waiting, why = self._park_all(queue, waiting, until, gone)
            if not waiting:
                return gone
            if tried < FULL_TRIES:
                time.sleep(FULL_PAUSE_S)
        raise ParkingFull(
            f"{len(waiting)} messages of queue {queue.broker}/{queue.index} of topic {queue.topic} "
            f"cannot be parked: {why}. Redrive or drop some (`inorder parked {self._group}`), and "
            "start the query again: it goes on where it was"
        )

    def _park_all(
        self,
        queue: TopicQueue,
        items: list[tuple[int, ParkedMessage]],
        until: int,
        gone: list[tuple[int, Letter]],
    ) -> tuple[list[tuple[int, ParkedMessage]], str]:
        """Return messages without room, with the later ones of their keys, and why."""
        left: list[tuple[int, ParkedMessage]] = []
        full: set[str] = set()
        why = ""
        for at in range(0, len(items), ITEMS_MAX):
            some = items[at : at + ITEMS_MAX]
            answer = self._ask_park(queue, [one for _, one in some], until)
            why = answer.remark or why
            for (number, one), outcome in zip(some, answer.outcomes, strict=True):
                if outcome == "full" or one.key in full:
                    full.add(one.key)
                    left.append((number, one))
                elif outcome == "live":
                    self._park_again(queue, one, until)
                elif outcome == "gone":
                    gone.append((number, self._letter(queue, one)))
                elif one.error is not None:
                    log.warning(
                        "key is parked group=%s queue=%s key=%s offset=%d tried=%d: %s; see "
                        "`inorder parked %s`", self._group, queue, one.key, one.offset, one.tries,
                        one.error, self._group,
                    )  # fmt: skip
        return left, why

    def _ask_park(self, queue: TopicQueue, parked: list[ParkedMessage], until: int) -> ParkAnswer:
        items = [ParkItem(one.offset, one.key, one.tries, one.error, None, until) for one in parked]
        request = requests.Park(self._group, *_JOB, queue.topic, queue.index, 0)
        return self._order(queue, request, ParkBody(items).encode())

    def _park_again(self, queue: TopicQueue, one: ParkedMessage, until: int) -> None:
        """Park a message whose key an operator dropped meanwhile, and ask for it: it comes next."""
        self._ask_park(queue, [ParkedMessage(one.offset, one.key, 0, _NO_MORE)], until)
        named = KeyList([NamedKey(queue.topic, queue.index, one.key)])
        self._order(queue, requests.Redrive(self._group), named.encode())

    def _letter(self, queue: TopicQueue, one: ParkedMessage) -> Letter:
        if one.message is None:
            raise InorderError(
                f"message {one.offset} of queue {queue.broker}/{queue.index} of topic "
                f"{queue.topic} is to be parked, and its broker does not have it any more"
            )
        cause = one.error or "its key is parked"
        return Letter(one.message, f"{cause}; it was not parked: its broker had removed it")

    def _order(self, queue: TopicQueue, request: Request[R], body: bytes = b"") -> R:
        try:
            return self._cluster.ask(queue, request, body)
        except LeaseLost as error:
            raise UsageError(
                f"consumer {error.holder} of group {self._group} has queue {queue.broker}/"
                f"{queue.index} of topic {queue.topic}: a query parks and redrives keys only where "
                "no consumer does; give it a group of its own"
            ) from error
