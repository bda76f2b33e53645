"""Parked keys: list, show, redrive, drop. Jobs also park and unpark keys with it.

Only inorder brokers park keys; with a broker of Apache RocketMQ every method raises UsageError. How
parked keys are stored: decision 21. Who parks and who releases a key: decision 22.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from inorder.client.access import Access
from inorder.client.admin.cluster import BrokerNode, Cluster
from inorder.client.api import ParkingApi
from inorder.client.consume.messages import receive
from inorder.client.consume.rules.parking import rate_of, restore
from inorder.errors import CodeNotSupported, NotFound, UsageError
from inorder.model import ReceivedMessage, TopicQueue
from inorder.wire.requests.parking import (
    NamedKey,
    Park,
    ParkBody,
    ParkedEntry,
    ParkedRead,
    ParkItem,
    QueuePlace,
    Redriven,
    RedrivenBody,
    Unpark,
)

T = TypeVar("T")

COUNT: Final = 64
_NOT_THERE: Final = "Apache RocketMQ keeps no parked keys"
_JOB: Final = ("job", "", 0)
"""Client id, instance and epoch of a job, which asks without a lease."""


@dataclass(frozen=True, slots=True)
class ParkedKey:
    """A key that a group has parked."""

    group: str
    queue: TopicQueue
    key: str
    messages: int
    size_bytes: int
    since_ms: int
    first_offset: int
    """The offset of the first parked message; -1 if there is none."""
    tries: int
    first_error: str
    last_error: str
    """The error of the last redrive; empty if none failed."""
    redriving: bool
    """A redrive is ordered or runs, in the owner of the queue."""
    older: tuple[TopicQueue, ...]
    """Queues with lists of this key from before a resize, which are redriven first."""
    moved_to: TopicQueue | None
    """The queue of this key since a resize; this list is an older one."""

    @property
    def topic(self) -> str:
        """Return the topic."""
        return self.queue.topic


Keys = list[ParkedKey]
Messages = list[ReceivedMessage]
Names = list[NamedKey]


class Parked:
    """The parked keys of all brokers."""

    def __init__(self, access: Access, cluster: Cluster) -> None:
        self._access = access
        self._cluster = cluster

    async def list(self, group: str | None = None, *, topic: str | None = None) -> Keys:
        """Return the parked keys, of one group or topic if given, longest parked first."""
        found = []
        for node, (entries, _) in (await self._each(lambda api: api.entries(group or ""))).items():
            found += [_view(node.name, entry) for entry in entries if topic in (None, entry.topic)]
        return sorted(found, key=lambda one: (one.since_ms, one.queue, one.key))

    async def full(self, group: str | None = None) -> dict[tuple[str, str], str]:
        """Return each (group, broker) that cannot park more, and why; failing keys block there."""
        answers = await self._each(lambda api: api.entries(group or ""))
        return {
            (name, node.name): why
            for node, (_, full) in answers.items()
            for name, why in full.items()
        }

    async def show(
        self, group: str, key: str, *, topic: str | None = None, count: int = COUNT
    ) -> Messages:
        """Return the first messages of a parked key, as they were when they were parked.

        Raises NotFound if no such key is parked.
        """
        found: Messages = []
        for one in self._in_order(await self._keys(group, [key], topic)):
            if len(found) < count:
                found += await self._messages(one, count - len(found))
        return found

    async def redrive(
        self,
        group: str,
        keys: Iterable[str] = (),
        *,
        topic: str | None = None,
        rate: float | None = None,
        dry_run: bool = False,
    ) -> Keys:
        """Let parked keys (none given: all of the group) be handled again, in order.

        It is done by the consumers of the group, at most `rate` messages a second in all. A key
        goes live when its list is empty; one that fails again stays parked. Returns the keys; with
        `dry_run` nothing happens to them. Raises NotFound if one of them is not parked.
        """
        if rate is not None and rate <= 0:
            raise UsageError(f"rate={rate}: give more than 0 messages a second, or none")
        chosen = [one for one in await self._keys(group, keys, topic) if one.moved_to is None]
        if not dry_run and chosen:
            share = rate_of(rate or 0.0, len({one.queue for one in chosen}))
            await self._tell(chosen, lambda api, names: api.redrive(group, names), share)
        return chosen

    async def cancel(
        self, group: str, keys: Iterable[str] = (), *, topic: str | None = None
    ) -> Keys:
        """Cancel redrives (none given: all of the group); handled messages stay handled."""
        chosen = [one for one in await self._keys(group, keys, topic) if one.redriving]
        if chosen:
            await self._tell(chosen, lambda api, names: api.redrive(group, names, cancel=True))
        return chosen

    async def drop(
        self,
        group: str,
        keys: Iterable[str],
        *,
        reason: str,
        topic: str | None = None,
        first: bool = False,
    ) -> int:
        """Drop the messages of keys for good, or only the `first` one of each.

        Returns how many those were. A key whose messages are all dropped goes live. The reason is
        kept in %PARK%group. Raises NotFound if one of the keys is not parked.
        """
        names = list(keys)
        if not names or not reason.strip():
            raise UsageError("name the keys whose messages are to be dropped, and give a reason")
        chosen = await self._keys(group, names, topic)
        if first:
            oldest: dict[str, ParkedKey] = {}
            for one in self._in_order(chosen):
                if one.messages:
                    oldest.setdefault(one.key, one)
            chosen = list(oldest.values())
        return await self._tell(
            chosen, lambda api, named: api.drop(group, named, reason=reason, first=first)
        )

    # Jobs that handle queues without being their consumers.

    async def park(
        self,
        group: str,
        queue: TopicQueue,
        offset: int,
        key: str,
        *,
        tries: int = 1,
        error: str | None = None,
        fence: int | None = None,
        until: int | None = None,
    ) -> str:
        """Park a message of a queue that no consumer of the group owns; return the outcome.

        With `error` it parks its key; without, it joins a key that is parked. The answer is
        "parked", also if it was before; "live": the key is not parked (any more), handle it;
        "full": there is no room; "gone": the broker does not have the message. Raises LeaseLost if
        a consumer of the group has the queue. A message below the group's offset counts as done; a
        job that commits by batches says with `until` what the offset is once its batch is done.
        """
        request = Park(group, *_JOB[:2], queue.topic, queue.index, _JOB[2])
        item = ParkItem(offset, key, tries, error, fence, until)
        answer = await (await self._at(queue.broker)).park(request, ParkBody([item]))
        return answer.outcomes[0]

    async def keys(self, group: str, queue: TopicQueue) -> frozenset[str]:
        """Return the parked keys of a queue, whose messages must not be handled."""
        api = await self._at(queue.broker)
        found = await api.keys(group, queue.topic, queue.index)
        return frozenset(one.key for one in found.keys)

    async def redriven(
        self, group: str, queue: TopicQueue, key: str, offsets: Iterable[int]
    ) -> None:
        """Report that messages of a parked key were handled: they leave its list."""
        request = Redriven(group, *_JOB[:2], queue.topic, queue.index, _JOB[2], key)
        await (await self._at(queue.broker)).redriven(request, RedrivenBody(list(offsets)))

    async def unpark(self, group: str, queue: TopicQueue, key: str, end: int) -> bool:
        """Unpark a key whose list is empty and ends at an offset; False if the list grew."""
        request = Unpark(group, *_JOB[:2], queue.topic, queue.index, _JOB[2], key, end)
        return (await (await self._at(queue.broker)).unpark(request)).live

    # Internals.

    async def _each(self, call: Callable[[ParkingApi], Awaitable[T]]) -> dict[BrokerNode, T]:
        try:
            return await self._cluster.each(lambda api: call(ParkingApi(api)))
        except CodeNotSupported as error:
            raise UsageError(_NOT_THERE) from error

    async def _at(self, broker: str) -> ParkingApi:
        node = await self._cluster.find(broker)
        return ParkingApi(await self._cluster.api(node.address))

    async def _keys(
        self, group: str, keys: Iterable[str], topic: str | None
    ) -> Keys:  # fmt: skip
        found, names = await self.list(group, topic=topic), set(keys)
        missing = names - {one.key for one in found}
        if missing:
            raise NotFound(
                f"group {group} has not parked {', '.join(sorted(missing))}; `inorder parked "
                f"{group}` shows what there is"
            )
        return [one for one in found if not names or one.key in names]

    async def _tell(
        self,
        chosen: Iterable[ParkedKey],
        tell: Callable[[ParkingApi, Names], Awaitable[int]],
        rate: int = 0,
    ) -> int:
        by_broker: defaultdict[str, Names] = defaultdict(list)
        for one in chosen:
            by_broker[one.queue.broker].append(NamedKey(one.topic, one.queue.index, one.key, rate))
        return sum(
            [await tell(await self._at(name), named) for name, named in sorted(by_broker.items())]
        )

    @staticmethod
    def _in_order(chosen: Iterable[ParkedKey]) -> Keys:
        """Sort the lists of a key from before a resize in front of the later ones."""
        left = list(chosen)
        sorted_: Keys = []
        while left:
            waits = {(one.group, one.key, one.queue) for one in left}
            ready = [
                one
                for one in left
                if not any((one.group, one.key, queue) in waits for queue in one.older)
            ] or left[:1]
            sorted_ += ready
            left = [one for one in left if one not in ready]
        return sorted_

    async def _messages(self, one: ParkedKey, count: int) -> Messages:
        api, queue = await self._at(one.queue.broker), one.queue
        session = await self._access.open()
        limit = session.config.message_bytes_max
        found: Messages = []
        while len(found) < count:
            after = found[-1].offset if found else -1
            request = ParkedRead(
                one.group, queue.topic, queue.index, one.key, after, count - len(found)
            )
            records = await api.read(request)
            if not records:
                break
            found += [restore(receive(queue.broker, each, limit), None) for each in records]
        return found


def _view(broker: str, entry: ParkedEntry) -> ParkedKey:
    def queue(place: QueuePlace) -> TopicQueue:
        return TopicQueue(entry.topic, place.broker, place.queue_id)

    return ParkedKey(
        entry.group, TopicQueue(entry.topic, broker, entry.queue), entry.key, entry.messages,
        entry.size_bytes, entry.since_ms, entry.first_offset, entry.tries, entry.first_error,
        entry.last_error, entry.redrive > 0, tuple(map(queue, entry.older)),
        None if entry.moved_to is None else queue(entry.moved_to),
    )  # fmt: skip
