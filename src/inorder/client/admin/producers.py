"""Named producers: which there are, how far each is, and forgetting one for good.

Only brokers of ours have them; a stock one answers that it does not know the request.
"""

from __future__ import annotations

from dataclasses import dataclass

from inorder.client.access import Access
from inorder.client.admin.cluster import Cluster
from inorder.client.api import BrokerApi
from inorder.errors import CodeNotSupported, NotFound, ProducerUnknown, UsageError
from inorder.model import TopicQueue


@dataclass(frozen=True, slots=True)
class ProducerView:
    """A named producer."""

    name: str
    connected: bool
    last: dict[TopicQueue, int]
    """Its last number on each queue."""


class Producers:
    """The named producers of all brokers."""

    def __init__(self, access: Access, cluster: Cluster) -> None:
        self._access = access
        self._cluster = cluster

    async def list(self, prefix: str = "") -> list[ProducerView]:
        """Return the named producers whose names begin so, sorted; of a broker at most 10,000."""
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
        """Forget a named producer on all brokers; return on how many queues it was known.

        What it sent stays. A producer of that name that sends again begins anew: numbers that it
        repeats are stored a second time. Raises NotFound if no broker knows it.
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
