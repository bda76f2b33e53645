"""Owners of queues: who holds which, since when, who waits, and taking one away.

Only brokers of ours tell; a stock one answers that it does not know the request.
"""

from __future__ import annotations

from dataclasses import dataclass

from inorder.client.access import Access
from inorder.client.admin.cluster import Cluster
from inorder.client.api import BrokerApi
from inorder.client.leaseapi import LeaseApi
from inorder.errors import CodeNotSupported, NotFound, UsageError
from inorder.model import TopicQueue
from inorder.wire.requests.leases import HeldLease

_NOT_THERE = "Apache RocketMQ does not tell who holds its locks"


@dataclass(frozen=True, slots=True)
class QueueLock:
    """A queue that a member of a group owns."""

    group: str
    queue: TopicQueue
    holder: str
    """The client id of the owner; empty: nobody's, and not to be had yet."""
    instance: str
    """Which consumer object of that client; empty for a client of Apache RocketMQ."""
    epoch: int
    age_ms: int
    remaining_ms: int
    """How long it lasts if it is not renewed."""
    lease_ms: int
    grace_ms: int
    stock: bool
    """A client of Apache RocketMQ has it, by its rules."""
    connected: bool
    """The connection that renewed it last is open."""
    waiting: tuple[str, ...]
    """The client ids that were refused it."""
    recalled: bool = False
    """The owner finishes what it handles, and gives it back: the group was set back."""


class Locks:
    """The owners of queues at all brokers."""

    def __init__(self, access: Access, cluster: Cluster) -> None:
        self._access = access
        self._cluster = cluster

    async def list(self, group: str | None = None, *, topic: str | None = None) -> list[QueueLock]:
        """Return who owns which queues, of one group or topic if given, in order."""

        async def ask(api: BrokerApi) -> list[HeldLease]:
            return await LeaseApi(api).list(group or "")

        try:
            answers = await self._cluster.each(ask)
        except CodeNotSupported as error:
            raise UsageError(_NOT_THERE) from error
        found = [
            _lock(one, node.name)
            for node, held in answers.items()
            for one in held
            if topic in (None, one.topic)
        ]
        return sorted(found, key=lambda one: (one.group, one.queue))

    async def release(self, group: str, queue: TopicQueue) -> str:
        """Take a queue from its owner; return the owner's client id.

        Whatever the owner does under its epoch is refused from now on. Another member gets the
        queue when the owner has ceased by itself to start handlers: at most its grace after its
        last renewal, 30 s for a client of Apache RocketMQ. Raises NotFound if nobody owns it.
        """
        node = await self._cluster.find(queue.broker)
        try:
            api = await self._cluster.api(node.address)
            holder = await LeaseApi(api).free(group, queue.topic, queue.index)
        except CodeNotSupported as error:
            raise UsageError(_NOT_THERE) from error
        if not holder:
            raise NotFound(f"nobody in group {group} owns queue {queue.index} of {queue.topic}")
        return holder


def _lock(held: HeldLease, broker: str) -> QueueLock:
    return QueueLock(
        held.group, TopicQueue(held.topic, broker, held.queue), held.holder, held.instance,
        held.epoch, held.age_ms, held.remaining_ms, held.lease_ms, held.grace_ms, held.stock,
        held.connected, tuple(held.waiting), held.recalled,
    )  # fmt: skip
