"""Which queues of a topic a member gets, and what a new share means for the queues that it has.

**Sharing.** RocketMQ's six strategies, each with Java's result. Every member computes its share
alone from the same two lists, so the results must agree, also with members that run Java. The lists
are sorted: queues by topic, broker and index, client ids as strings of UTF-16 (`sort_ids`). A
client that is not in the list of ids gets nothing.

**Rounds.** `plan` compares the owned queues with the allocated ones. The shell drops, locks and
adds queues, and then asks `release_steps` for each queue that it gives up, until the queue is gone:

    drop      no pull, no further handler
    wait      for the handlers that run, however long they run (O8). A moved queue without order
              does not wait, and the results of its handlers are thrown away
    commit    and wait for the answer
    unlock    and wait for the answer: never before the commit (O9, O10)
    forget    from now on the queue may be taken again

An ordered queue of a cluster is added only with a lock or a lease, and is then pulled at once. The
lock of a queue is renewed while its handlers run, dropped or not (O8). It is not renewed while the
queue waits for its unlock: a renewal that overtook the unlock would lock the queue for nobody.

Who is a member, and who is told of changes: decision 20.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from inorder.client.consume.rules.leases import LeaseState, Phase, RevokeReason
from inorder.errors import UsageError
from inorder.model import TopicQueue

VIRTUAL_NODES: Final = 10
REBALANCE_INTERVAL_MS: Final = 20_000
REBALANCE_UNBALANCED_MS: Final = 1000
"""The pause after a round in which a broker did not answer or a queue was not added."""
LOCK_REFUSED_RETRY_MS: Final = 500
"""The pause after a refused lock; a broker that refuses a lease says how long to wait."""


class Allocation(Protocol):
    """A strategy. All members of a group must use the same one; heartbeats do not carry it."""

    @property
    def name(self) -> str:
        """Return RocketMQ's name of the strategy."""
        ...

    def allocate(
        self, group: str, client_id: str, queues: Sequence[TopicQueue], client_ids: Sequence[str]
    ) -> list[TopicQueue]:
        """Return the queues of `client_id`.

        Raises UsageError if a list or the id is empty.
        """
        ...


class Average:
    """Contiguous ranges; the first members get one more. RocketMQ's default."""

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
    """Round-robin over the sorted members."""

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
    """The configured queues, whatever other members there are."""

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
    """Shares queues of a room among its consumers; all share those of rooms without consumers.

    Another strategy does the sharing within each room.
    """

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
        """Return queues of the client's own room, then those of empty rooms, by name of the room.

        Raises UsageError if a client or a queue is in no room.
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
    """Return Java's MessageQueue.toString(), which RocketMQ hashes."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.index}]"


def _utf16(text: str) -> bytes:
    """Return a key that sorts as Java sorts strings: by UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """The changes of one round: first `drop`, then `lock` and `add`."""

    drop: tuple[tuple[TopicQueue, RevokeReason], ...]
    lock: tuple[TopicQueue, ...]
    """Queues to add once their lock or lease is granted."""
    add: tuple[TopicQueue, ...]
    """Queues to add at once, without a lock."""
    waiting: tuple[TopicQueue, ...]
    """Allocated queues whose release is still under way: a later round adds them."""


def plan(
    owned: Mapping[TopicQueue, LeaseState],
    allocated: Iterable[TopicQueue],
    *,
    needs_lock: bool,
    now_ms: int,
    absent: Collection[str] = (),
) -> RoundPlan:
    """Compare the owned queues of one topic, those being released included, with the allocated.

    `needs_lock`: the handler is ordered and the group does not broadcast. `absent`: brokers that
    may come back. A locked queue of such a broker stays: it is in no member's share, and no member
    could take it over.
    """
    wanted = sorted(set(allocated))
    drop = []
    for queue, lease in sorted(owned.items()):
        if lease.dropped is None:
            if queue not in wanted:
                if needs_lock and lease.locked and queue.broker in absent:
                    continue
                drop.append((queue, RevokeReason.MOVED))
            elif lease.pull_expired(now_ms):
                drop.append((queue, RevokeReason.PULL_EXPIRED))
    leaving = {queue for queue, _ in drop}
    leaving |= {queue for queue, lease in owned.items() if lease.dropped is not None}
    missing = tuple(queue for queue in wanted if queue not in owned)
    return RoundPlan(
        drop=tuple(drop),
        lock=missing if needs_lock else (),
        add=() if needs_lock else missing,
        waiting=tuple(queue for queue in wanted if queue in leaving),
    )


def plan_unsubscribed(
    owned: Mapping[TopicQueue, LeaseState], subscribed: Collection[str]
) -> tuple[TopicQueue, ...]:
    """Return the queues of topics without a subscription; the caller drops them."""
    return tuple(
        sorted(
            queue
            for queue, lease in owned.items()
            if queue.topic not in subscribed and lease.dropped is None
        )
    )


class Release(Enum):
    """The next step in the release of a queue."""

    WAIT = "a handler still runs"
    COMMIT = "commit, wait for the answer"
    UNLOCK = "unlock, wait for the answer"
    FORGET = "take it out of the table"


def release_steps(lease: LeaseState, *, commit: bool, ordered: bool = True) -> tuple[Release, ...]:
    """Return the steps that are left for a dropped queue, in this order.

    `commit`: the broker has not confirmed the queue's offset yet. WAIT is returned alone: ask again
    when a handler has ended.
    """
    assert lease.dropped is not None, f"{lease!r} was not dropped"
    if lease.is_waited_for(ordered=ordered):
        return (Release.WAIT,)
    steps = []
    if commit and lease.dropped.may_commit:
        steps.append(Release.COMMIT)
    if lease.locked:
        steps.append(Release.UNLOCK)
    steps.append(Release.FORGET)
    return tuple(steps)


def to_renew(owned: Mapping[TopicQueue, LeaseState]) -> dict[str, tuple[TopicQueue, ...]]:
    """Return, by broker, the queues whose RocketMQ lock should be renewed.

    Ask again before each request. `rules/leases.py` decides how leases are renewed.
    """
    return by_broker(
        queue
        for queue, lease in owned.items()
        if lease.locked and not lease.epoch and lease.phase in (Phase.LIVE, Phase.LEAVING)
    )


def apply_renewal(
    owned: Mapping[TopicQueue, LeaseState],
    asked: Iterable[TopicQueue],
    granted: Collection[TopicQueue],
    *,
    sent_ms: int,
    now_ms: int,
) -> tuple[TopicQueue, ...]:
    """Note the answer to a renewal sent at `sent_ms`; return the queues that were dropped."""
    lost = []
    for queue in asked:
        lease = owned.get(queue)
        if lease is None or not lease.locked:
            continue
        if queue in granted:
            if not lease.renewed(sent_ms, now_ms):
                lost.append(queue)
        elif lease.lock_sent_ms <= sent_ms:  # else the lock is newer than the request
            lease.lose()
            lost.append(queue)
    return tuple(lost)


def by_broker(queues: Iterable[TopicQueue]) -> dict[str, tuple[TopicQueue, ...]]:
    """Return the queues grouped by their broker."""
    found: dict[str, list[TopicQueue]] = {}
    for queue in sorted(queues):
        found.setdefault(queue.broker, []).append(queue)
    return {broker: tuple(of_broker) for broker, of_broker in found.items()}


def next_round_ms(*, balanced: bool) -> int:
    """Return the longest pause before the next round."""
    return REBALANCE_INTERVAL_MS if balanced else REBALANCE_UNBALANCED_MS
