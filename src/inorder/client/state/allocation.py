"""Which queues of a topic a consumer gets: RocketMQ's six strategies, each with Java's result.

Every member computes the allocation alone from the same two lists, so the results must agree, also
with members that run Java. The lists come sorted: queues by topic, broker and index, ids as strings
of UTF-16 (see `sort_ids`). Nothing is allocated to who is not on the list of ids.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from inorder.errors import UsageError
from inorder.model import TopicQueue

VIRTUAL_NODES: Final = 10


class Allocation(Protocol):
    """A strategy. All members of a group must use the same one; heartbeats do not tell."""

    @property
    def name(self) -> str:
        """Return RocketMQ's name of the strategy."""
        ...

    def allocate(
        self, group: str, client_id: str, queues: Sequence[TopicQueue], client_ids: Sequence[str]
    ) -> list[TopicQueue]:
        """Return the queues of `client_id`.

        Raises UsageError: a list or the id is empty.
        """
        ...


class Average:
    """Contiguous ranges; the first ones get one more. RocketMQ's default."""

    name = "AVG"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[TopicQueue], client_ids: Sequence[str]
    ) -> list[TopicQueue]:
        """Return the range of `client_id`."""
        if not _is_member(client_id, queues, client_ids):
            return []
        index = client_ids.index(client_id)
        each, more = divmod(len(queues), len(client_ids))
        start = index * each + min(index, more)
        return list(queues[start : start + each + (index < more)])


class AverageByCircle:
    """Dealt like cards."""

    name = "AVG_BY_CIRCLE"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[TopicQueue], client_ids: Sequence[str]
    ) -> list[TopicQueue]:
        """Return every n-th queue."""
        if not _is_member(client_id, queues, client_ids):
            return []
        return list(queues[client_ids.index(client_id) :: len(client_ids)])


class ConsistentHash:
    """A ring of points, some per consumer: few queues move when a member comes or goes."""

    name = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = VIRTUAL_NODES) -> None:
        if virtual_nodes < 0:
            raise UsageError(f"virtual_nodes={virtual_nodes}: give 0 or more")
        self._virtual_nodes = virtual_nodes

    def allocate(
        self, group: str, client_id: str, queues: Sequence[TopicQueue], client_ids: Sequence[str]
    ) -> list[TopicQueue]:
        """Return the queues whose next point on the ring is one of `client_id`."""
        if not _is_member(client_id, queues, client_ids):
            return []
        ring: dict[int, str] = {}
        for member in client_ids:
            # An id that is listed twice gets further points.
            first = sum(owner == member for owner in ring.values())
            for number in range(first, first + self._virtual_nodes):
                ring[_point(f"{member}-{number}")] = member
        order = sorted(ring)
        if not order:
            return []
        return [
            queue
            for queue in queues
            if ring[order[bisect_left(order, _point(_java_text(queue))) % len(order)]] == client_id
        ]


class ByConfig:
    """The queues that were configured, whoever else is there."""

    name = "CONFIG"

    def __init__(self, queues: Sequence[TopicQueue]) -> None:
        self._queues = list(queues)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[TopicQueue], client_ids: Sequence[str]
    ) -> list[TopicQueue]:
        """Return the configured queues."""
        return list(self._queues)


class ByMachineRoom:
    """Queues of brokers named `room@name`, of the given rooms only; others go to nobody."""

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Collection[str]) -> None:
        self._rooms = frozenset(rooms)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[TopicQueue], client_ids: Sequence[str]
    ) -> list[TopicQueue]:
        """Return a range of equal length for all, and one of those left over."""
        if not _is_member(client_id, queues, client_ids):
            return []
        near = [queue for queue in queues if _room_of(queue.broker) in self._rooms]
        index = client_ids.index(client_id)
        each, more = divmod(len(near), len(client_ids))
        found = near[index * each : (index + 1) * each]
        return [*found, near[each * len(client_ids) + index]] if index < more else found


class MachineRoomNearby:
    """Queues of a room go to the consumers in it, those of rooms without one to all; each time
    shared out by another strategy."""

    def __init__(
        self,
        inner: Allocation,
        *,
        room_of_queue: Callable[[TopicQueue], str],
        room_of_client: Callable[[str], str],
    ) -> None:
        self._inner = inner
        self._room_of_queue = room_of_queue
        self._room_of_client = room_of_client
        self.name = f"MACHINE_ROOM_NEARBY-{inner.name}"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[TopicQueue], client_ids: Sequence[str]
    ) -> list[TopicQueue]:
        """Return the queues of the own room, then those of empty rooms in the order of their names.

        Raises UsageError: somebody is in no room.
        """
        if not _is_member(client_id, queues, client_ids):
            return []
        queues_in: dict[str, list[TopicQueue]] = {}
        for queue in queues:
            queues_in.setdefault(_named(self._room_of_queue(queue), queue), []).append(queue)
        clients_in: dict[str, list[str]] = {}
        for member in client_ids:
            clients_in.setdefault(_named(self._room_of_client(member), member), []).append(member)
        own = self._room_of_client(client_id)
        found: list[TopicQueue] = []
        if own in queues_in:
            found += self._inner.allocate(group, client_id, queues_in[own], clients_in[own])
        for room in sorted(queues_in, key=_utf16):
            if room not in clients_in:
                found += self._inner.allocate(group, client_id, queues_in[room], client_ids)
        return found


def sort_ids(client_ids: Collection[str]) -> list[str]:
    """Return the ids in Java's order, each once."""
    return sorted(set(client_ids), key=_utf16)


def sort_queues(queues: Collection[TopicQueue]) -> list[TopicQueue]:
    """Return the queues in Java's order, each once."""
    return sorted(
        set(queues), key=lambda queue: (_utf16(queue.topic), _utf16(queue.broker), queue.index)
    )


def _is_member(client_id: str, queues: Sequence[TopicQueue], client_ids: Sequence[str]) -> bool:
    if not client_id or not queues or not client_ids:
        raise UsageError("an allocation needs a client id, queues and the ids of all members")
    return client_id in client_ids


def _room_of(broker: str) -> str | None:
    """Return the room of a name `room@name`; Java's split drops empty parts at the end."""
    parts = broker.split("@")
    while parts and not parts[-1]:
        parts.pop()
    return parts[0] if len(parts) == 2 else None


def _named(room: str, what: object) -> str:
    if not room:
        raise UsageError(f"{what} is in no machine room; the resolver must name one")
    return room


def _point(text: str) -> int:
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def _java_text(queue: TopicQueue) -> str:
    """Return what Java's MessageQueue.toString() gives: it is what is hashed."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.index}]"


def _utf16(text: str) -> bytes:
    """Return a key that sorts as Java sorts strings: by UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")
