"""Consumer groups: list, create, delete, members, progress; and the owners of queues.

`Locks` shows the leases and locks on queues and can force their release. Only inorder brokers tell
them; with a broker of Apache RocketMQ it raises UsageError.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Final

from inorder.client.access import Access
from inorder.client.admin.cluster import BrokerNode, Cluster
from inorder.client.admin.messages import Messages
from inorder.client.api import BrokerApi, LeaseApi
from inorder.errors import (
    CodeNotSupported,
    ConsumerNotOnline,
    GroupNotFound,
    InorderError,
    NotFound,
    SystemError_,
    TopicNotRouted,
    UsageError,
)
from inorder.model import GroupConfig, Subscription, TopicQueue
from inorder.wire.names import DEAD_LETTER_PREFIX, PARK_PREFIX, RETRY_PREFIX
from inorder.wire.requests.connections import ClientConnection, ConsumerConnections, Difference
from inorder.wire.requests.leases import HeldLease
from inorder.wire.requests.offsets import QueueProgress

SYSTEM_GROUPS: Final = frozenset(
    {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "SELF_TEST_CONSUMER_GROUP",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_PULL",
        "CID_ONS-HTTP-PROXY",
        "__MONITOR_CONSUMER",
    }
)
READS_AT_ONCE: Final = 16
SYSTEM_GROUP_PREFIXES: Final = ("CID_RMQ_SYS_", "CID_RMQ_TRANS")


@dataclass(frozen=True, slots=True)
class QueueLag:
    """The progress of a group on one queue."""

    group: str
    queue: TopicQueue
    committed_offset: int
    end_offset: int
    pulled_offset: int
    committed_at_ms: int
    """When the last committed message was stored; 0 if unknown."""
    waiting_since_ms: int = 0
    """When the oldest uncommitted message was stored; 0 if there is none, or without `ages`."""

    @property
    def lag(self) -> int:
        """Return how many messages the group has yet to do."""
        return max(0, self.end_offset - self.committed_offset)


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One client of a group, connected to a broker."""

    client_id: str
    address: str
    language: str
    version: int


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group: its settings on each broker, its members and subscriptions, its progress."""

    name: str
    configs: dict[str, GroupConfig]
    members: tuple[GroupMember, ...]
    message_model: str
    subscriptions: dict[str, Subscription]
    queues: tuple[QueueLag, ...]
    differences: tuple[Difference, ...] = ()
    """Topics that members subscribe differently; only inorder brokers tell them."""

    @property
    def lag(self) -> int:
        """Return how many messages the group has yet to do."""
        return sum(queue.lag for queue in self.queues)


class Groups:
    """The consumer groups of a cluster."""

    def __init__(self, access: Access, cluster: Cluster) -> None:
        self._access = access
        self._cluster = cluster

    async def names(self, *, system: bool = False) -> list[str]:
        """Return the groups that any master knows; system groups only with `system`."""
        return list(await self.table(system=system))

    async def table(self, *, system: bool = False) -> dict[str, dict[str, GroupConfig]]:
        """Return the settings of all groups, by name and broker."""
        found: dict[str, dict[str, GroupConfig]] = {}
        for node, groups in (await self._cluster.each(lambda api: api.groups())).items():
            for name, config in groups.items():
                if system or not _is_system(name):
                    found.setdefault(name, {})[node.name] = config
        return dict(sorted(found.items()))

    async def create(self, config: GroupConfig, *, cluster: str | None = None) -> None:
        """Create or change a group on every master."""
        await self._cluster.each(lambda api: api.update_group(config), cluster=cluster)

    async def delete(self, name: str, *, offsets: bool = True) -> None:
        """Delete a group, its offsets unless they are to be kept, and its own topics:
        retries, dead letters, parked messages.

        Raises GroupNotFound.
        """
        await self.configs(name)
        session = await self._access.open()
        await self._cluster.each(lambda api: api.delete_group(name, clean_offset=offsets))
        for topic in (RETRY_PREFIX + name, DEAD_LETTER_PREFIX + name, PARK_PREFIX + name):
            try:
                await session.refresh_route(topic)
            except TopicNotRouted:
                continue
            await self._cluster.each(lambda api, topic=topic: api.delete_topic(topic))  # type: ignore[misc]
            await session.tell_name_servers(
                lambda api, topic=topic: api.delete_topic(topic)  # type: ignore[misc]
            )
            session.forget_route(topic)

    async def configs(self, name: str) -> dict[str, GroupConfig]:
        """Return the settings of a group by broker. Raises GroupNotFound."""
        tables = await self._cluster.each(lambda api: api.groups())
        found = {node.name: table[name] for node, table in tables.items() if name in table}
        if not found:
            raise GroupNotFound(f"no broker knows group {name}; create it, or start a consumer")
        return found

    async def describe(self, name: str) -> GroupView:
        """Return settings, members and progress of a group. Raises GroupNotFound."""
        configs = await self.configs(name)
        online = await self.consumers(name)
        members = {
            one.client_id: GroupMember(one.client_id, one.address, one.language, one.version)
            for connections in online.values()
            for one in connections.connections
        }
        return GroupView(
            name,
            configs,
            tuple(members[client_id] for client_id in sorted(members)),
            next((one.message_model for one in online.values()), ""),
            {topic: item for one in online.values() for topic, item in one.subscriptions.items()},
            tuple(await self.lag(name)),
            tuple(dict.fromkeys(one for each in online.values() for one in each.differences)),
        )

    async def lag(
        self, name: str, topic: str | None = None, *, ages: bool = False
    ) -> list[QueueLag]:
        """Return the progress of a group on all queues with its offsets or its members.

        With `ages` also the time of the oldest uncommitted message, which takes a read per queue.
        """
        stats = [*(await self._cluster.each(lambda api: api.consume_stats(name, topic))).values()]
        if topic is None:
            known = {queue.topic for answer in stats for queue in answer.queues}
            for one in sorted(await self._subscribed(name) - known):
                wanted = await self._cluster.each(lambda api, one=one: api.consume_stats(name, one))  # type: ignore[misc]
                stats += wanted.values()
        found: dict[TopicQueue, QueueProgress] = {}
        for answer in stats:
            found.update(answer.queues)
        lags = [
            QueueLag(
                name,
                queue,
                found[queue].committed_offset,
                found[queue].end_offset,
                found[queue].pulled_offset,
                found[queue].committed_at_ms,
            )
            for queue in sorted(found)
        ]
        return await self._aged(lags) if ages else lags

    async def _subscribed(self, name: str) -> set[str]:
        """Return the topics that online members subscribe to, without the retry topic."""
        online = await self.consumers(name)
        wanted = {topic for one in online.values() for topic in one.subscriptions}
        return wanted - {RETRY_PREFIX + name}

    async def _aged(self, lags: list[QueueLag]) -> list[QueueLag]:
        messages = Messages(self._access, self._cluster)
        at_once = asyncio.Semaphore(READS_AT_ONCE)

        async def aged(one: QueueLag) -> QueueLag:
            if not one.lag:
                return one
            async with at_once:
                try:
                    first = await messages.read(one.queue, one.committed_offset, count=1)
                    if (
                        not first.messages
                    ):  # the message is deleted; the answer names the next offset
                        first = await messages.read(one.queue, first.next_offset, count=1)
                except InorderError:
                    return one  # without its age; the progress counts more
            since_ms = first.messages[0].stored_at_ms if first.messages else 0
            return replace(one, waiting_since_ms=since_ms)

        return list(await asyncio.gather(*map(aged, lags)))

    async def consumers(self, name: str) -> dict[BrokerNode, ConsumerConnections]:
        """Return the connected consumers of a group, by broker; empty if there are none."""
        found = {}
        for node in await self._cluster.masters():
            try:
                found[node] = await (await self._cluster.api(node.address)).consumer_connections(
                    name
                )
            except ConsumerNotOnline:
                continue
        return found

    async def producers(self, name: str) -> dict[BrokerNode, list[ClientConnection]]:
        """Return the connected producers of a group, by broker; empty if there are none."""
        found = {}
        for node in await self._cluster.masters():
            try:
                found[node] = await (await self._cluster.api(node.address)).producer_connections(
                    name
                )
            except SystemError_:  # RocketMQ's answer for a group without producers
                continue
        return found


def _is_system(name: str) -> bool:
    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIXES)


_NOT_THERE = "Apache RocketMQ does not tell who holds its locks"


@dataclass(frozen=True, slots=True)
class QueueLock:
    """A queue that a member of a group owns."""

    group: str
    queue: TopicQueue
    holder: str
    """The client id of the owner; empty: no owner, and not yet to be granted."""
    instance: str
    """Which consumer object of that client; empty for a client of Apache RocketMQ."""
    epoch: int
    age_ms: int
    remaining_ms: int
    """How long the lease lasts without a renewal."""
    lease_ms: int
    grace_ms: int
    stock: bool
    """The owner is a client of Apache RocketMQ, which holds a lock by RocketMQ's rules."""
    connected: bool
    """The connection of the last renewal is open."""
    waiting: tuple[str, ...]
    """The client ids of members that were refused the queue."""
    recalled: bool = False
    """The owner is to finish and hand back the queue, because the group was rewound."""


class Locks:
    """The owners of queues at all brokers."""

    def __init__(self, access: Access, cluster: Cluster) -> None:
        self._access = access
        self._cluster = cluster

    async def list(self, group: str | None = None, *, topic: str | None = None) -> list[QueueLock]:
        """Return the owners of queues, of one group or topic if given, in order."""

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
        """Force the release of a queue; return the owner's client id.

        The broker refuses every request under the owner's epoch from now on. Another member gets
        the queue when the owner has stopped starting handlers by itself: at most its grace after
        its last renewal, 30 s for a client of Apache RocketMQ. Raises NotFound if no member owns
        the queue.
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
