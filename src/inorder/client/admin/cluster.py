"""Brokers, their statistics and their settings; pending transactions; named producers.

Only inorder brokers have named producers. A broker of Apache RocketMQ does not know the requests,
and `Producers` raises UsageError.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from inorder.client.access import Access
from inorder.client.api import BrokerApi
from inorder.errors import (
    CodeNotSupported,
    NotFound,
    ProducerUnknown,
    RemoteProtocolError,
    RouteError,
    UsageError,
)
from inorder.model import MASTER_ID, TopicQueue
from inorder.wire.ids import parse_message_id, show_address
from inorder.wire.requests.routes import ClusterInfo, TopicRoute
from inorder.wire.requests.statistics import CleanLog, CleanQueues, CleanTopics
from inorder.wire.requests.transactions import PendingTransaction

T = TypeVar("T")

CLEAN_TIMEOUT_MS: Final = 60_000


class NoBroker(RouteError):
    """No broker is registered where one is needed."""


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """One broker process."""

    cluster: str
    name: str
    broker_id: int
    address: str

    @property
    def is_master(self) -> bool:
        """Whether the broker takes writes."""
        return self.broker_id == MASTER_ID


@dataclass(frozen=True, slots=True)
class PendingTransactions:
    """Transactions of a broker without an outcome: the oldest ones, and how many there are."""

    oldest: list[PendingTransaction]
    total: int


class Cluster:
    """The brokers that the name servers know."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def info(self) -> ClusterInfo:
        """Return brokers by name, and broker names by cluster."""
        session = await self._access.open()
        return await session.cluster_info()

    async def brokers(self) -> list[BrokerNode]:
        """Return all brokers, masters and slaves, sorted by cluster and name."""
        info = await self.info()
        clusters = {name: cluster for cluster, names in info.clusters.items() for name in names}
        nodes = [
            BrokerNode(clusters.get(name, data.cluster), name, broker_id, address)
            for name, data in info.brokers.items()
            for broker_id, address in data.addresses.items()
        ]
        return sorted(nodes, key=lambda node: (node.cluster, node.name, node.broker_id))

    async def masters(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[BrokerNode]:
        """Return the brokers that take writes, of one cluster or name if given.

        Raises NoBroker if there is none.
        """
        nodes = await self.brokers()
        found = [
            node
            for node in nodes
            if node.is_master and cluster in (None, node.cluster) and broker in (None, node.name)
        ]
        if not found:
            wanted = f"broker {broker}" if broker else f"cluster {cluster}" if cluster else "broker"
            known = ", ".join(sorted({f"{node.cluster}/{node.name}" for node in nodes}))
            raise NoBroker(
                f"no master of {wanted} is registered; "
                + (f"the name server knows {known}" if known else "start a broker")
            )
        return found

    async def api(self, address: str) -> BrokerApi:
        """Return the requests to a broker."""
        return await (await self._access.open()).broker_at(address)

    async def each(
        self, call: Callable[[BrokerApi], Awaitable[T]], *, cluster: str | None = None
    ) -> dict[BrokerNode, T]:
        """Ask every master, one after the other."""
        found = {}
        for node in await self.masters(cluster=cluster):
            found[node] = await call(await self.api(node.address))
        return found

    async def find(self, name_or_address: str) -> BrokerNode:
        """Return the broker of an address, or the master of a name. Raises UsageError."""
        nodes = await self.brokers()
        for node in nodes:
            if node.address == name_or_address or (node.is_master and node.name == name_or_address):
                return node
        known = ", ".join(f"{node.name} ({node.address})" for node in nodes) or "none"
        raise UsageError(f"no broker {name_or_address} is registered; there is: {known}")

    async def runtime(self, name_or_address: str) -> dict[str, str]:
        """Return a broker's statistics under RocketMQ's names."""
        node = await self.find(name_or_address)
        return await (await self.api(node.address)).runtime_info()

    async def settings(self, name_or_address: str) -> dict[str, str]:
        """Return a broker's settings under RocketMQ's names."""
        node = await self.find(name_or_address)
        return await (await self.api(node.address)).settings()

    async def update_settings(self, name_or_address: str, settings: dict[str, str]) -> None:
        """Change settings of a broker that may change at run time."""
        node = await self.find(name_or_address)
        await (await self.api(node.address)).update_settings(settings)

    async def transactions(
        self, topic: str = "", *, count: int = 1000
    ) -> dict[BrokerNode, PendingTransactions]:
        """Return the transactions without an outcome of every broker, of a topic if given.

        At most `count` of each broker, and 1000; the total counts all of them.
        """
        try:
            answers = await self.each(lambda api: api.pending_transactions(topic, count=count))
        except CodeNotSupported as error:
            raise UsageError("Apache RocketMQ has no list of pending transactions") from error
        return {node: PendingTransactions(*answer) for node, answer in answers.items()}

    async def resume_transaction(self, message_id: str) -> None:
        """Let its broker ask again about a transaction that was given up.

        `message_id` is the id of its message in TRANS_CHECK_MAX_TIME_TOPIC that names the broker
        and a position.
        """
        try:
            host, port, _ = parse_message_id(message_id)
        except RemoteProtocolError as error:
            raise UsageError(
                f"{message_id!r} names no broker ({error}); give the id that begins with the "
                "address of the broker"
            ) from None
        node = await self.find(show_address(host, port))
        await (await self.api(node.address)).resume_transaction(message_id)

    async def clean(self, name_or_address: str) -> None:
        """Delete a broker's expired log files, expired queue files and forgotten queues now.

        Returns when that is done; what has not expired stays, and so do all offsets.
        """
        node = await self.find(name_or_address)
        api = await self.api(node.address)
        for request in (CleanLog(), CleanQueues(), CleanTopics()):
            await api.ask(request, timeout_ms=CLEAN_TIMEOUT_MS)

    async def route(self, topic: str) -> TopicRoute:
        """Return the present route of a topic. Raises TopicNotRouted."""
        return await (await self._access.open()).refresh_route(topic)


@dataclass(frozen=True, slots=True)
class ProducerView:
    """A named producer."""

    name: str
    connected: bool
    last: dict[TopicQueue, int]
    """The producer's last sequence number on each queue."""


class Producers:
    """The named producers of all brokers."""

    def __init__(self, access: Access, cluster: Cluster) -> None:
        self._access = access
        self._cluster = cluster

    async def list(self, prefix: str = "") -> list[ProducerView]:
        """Return the named producers with this prefix, sorted; at most 10,000 of each broker."""
        try:
            answers = await self._cluster.each(lambda api: api.named_producers(prefix))
        except CodeNotSupported as error:
            raise UsageError("Apache RocketMQ has no named producers") from error
        found: dict[str, ProducerView] = {}
        for node, producers in answers.items():
            for one in producers:
                known = found.setdefault(
                    one.producer_id, ProducerView(one.producer_id, one.connected, {})
                )
                known.last.update(
                    {
                        TopicQueue(topic, node.name, queue_id): number
                        for (topic, queue_id), number in one.last.items()
                    }
                )
                if one.connected and not known.connected:
                    found[one.producer_id] = ProducerView(one.producer_id, True, known.last)
        return [found[name] for name in sorted(found)]

    async def drop(self, name: str) -> int:
        """Forget a named producer on all brokers; return how many queues knew it.

        Its messages stay. A producer of that name that sends again begins anew: repeated sequence
        numbers are stored a second time. Raises NotFound if no broker knows the producer.
        """

        async def drop(api: BrokerApi) -> int:
            try:
                return await api.drop_producer(name)
            except ProducerUnknown:
                return 0  # another broker may know it

        try:
            queues = sum((await self._cluster.each(drop)).values())
        except CodeNotSupported as error:
            raise UsageError("Apache RocketMQ has no named producers") from error
        if not queues:
            raise NotFound(f"no broker knows a producer named {name}")
        return queues
