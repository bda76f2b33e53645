"""What a route means to a client: which queues to write and read, and where they are."""

from __future__ import annotations

from dataclasses import replace

from inorder.model import MASTER_ID, PERM_READ, PERM_WRITE, TopicQueue
from inorder.wire.routedata import TopicRoute


def publish_queues(route: TopicRoute, topic: str) -> list[TopicQueue]:
    """Return the queues that may be written, sorted: those of brokers with a master.

    An ordered topic names its queues in the route (`broker-a:4;broker-b:4`), whether or not the
    brokers are there: so a key keeps its queue while a broker is down.
    """
    if route.order_conf:
        return sorted(
            TopicQueue(topic, broker, index)
            for broker, queues in _order_conf(route.order_conf)
            for index in range(queues)
        )
    masters = {broker.name for broker in route.brokers if MASTER_ID in broker.addresses}
    return sorted(
        TopicQueue(topic, data.broker_name, index)
        for data in route.queues
        if data.perm & PERM_WRITE and data.broker_name in masters
        for index in range(data.write_queues)
    )


def subscribe_queues(route: TopicRoute, topic: str) -> list[TopicQueue]:
    """Return the queues that may be read, sorted."""
    return sorted(
        TopicQueue(topic, data.broker_name, index)
        for data in route.queues
        if data.perm & PERM_READ
        for index in range(data.read_queues)
    )


def master_address(route: TopicRoute, broker: str) -> str | None:
    """Return where a broker takes writes."""
    return _addresses(route, broker).get(MASTER_ID)


def read_address(route: TopicRoute, broker: str, suggested_id: int = MASTER_ID) -> str | None:
    """Return where to read from: the suggested one, else the master, else any."""
    addresses = _addresses(route, broker)
    for broker_id in (suggested_id, MASTER_ID, *sorted(addresses)):
        if broker_id in addresses:
            return addresses[broker_id]
    return None


def broker_masters(route: TopicRoute) -> dict[str, str]:
    """Return the addresses that take writes, by broker name."""
    return {
        data.name: data.addresses[MASTER_ID]
        for data in route.brokers
        if MASTER_ID in data.addresses
    }


def broker_addresses(route: TopicRoute) -> list[str]:
    """Return all addresses of a route."""
    return [address for data in route.brokers for address in data.addresses.values()]


def template_route(template: TopicRoute, queues: int) -> TopicRoute:
    """Return the route of a topic that a send will make: the template's, with fewer queues."""
    cut = tuple(
        replace(data, read_queues=count, write_queues=count)
        for data in template.queues
        for count in (min(queues, data.read_queues),)
    )
    return replace(template, queues=cut)


def _addresses(route: TopicRoute, broker: str) -> dict[int, str]:
    return next((data.addresses for data in route.brokers if data.name == broker), {})


def _order_conf(text: str) -> list[tuple[str, int]]:
    found = []
    for part in text.split(";"):
        broker, _, queues = part.partition(":")
        if broker and queues.isdecimal():
            found.append((broker, int(queues)))
    return found
