"""Routes: which queues to write and to read, where their brokers are, which brokers are missing.

`Absences` knows brokers that a topic's route has lost, although perhaps no one has removed the
topic from them. A broker that restarts is out of the route for a moment, and so is a broker that a
name server has not heard of yet. Members assign only the queues that the route lists. A member that
holds a lock on a queue of the missing broker keeps the queue for `ABSENT_MS`: no other member is
assigned it, the broker grants it to nobody while the lock lasts, and the broker is usually back
before that. Who is told of changes: decision 20.

`to_ms` and `moment_ms` convert the durations and times of public calls.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from inorder.errors import UsageError
from inorder.model import MASTER_ID, PERM_READ, PERM_WRITE, TopicQueue
from inorder.ordering.keymap import KeyMap
from inorder.wire.requests.routes import BrokerData, ClusterInfo, QueueData, TopicRoute


def publish_queues(route: TopicRoute, topic: str) -> list[TopicQueue]:
    """Return the queues with write permission, sorted: those of brokers with a master.

    An ordered topic names its queues in the route (`broker-a:4;broker-b:4`), whether or not the
    brokers are up: so a key keeps its queue while a broker is down.
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


def subscribe_queues(
    route: TopicRoute, topic: str, key_map: KeyMap | None = None
) -> list[TopicQueue]:
    """Return the queues that may be read, sorted.

    A broker names its own number of queues. The number includes queues that a resize has removed
    and that are not read to their end. For a broker that no name server knows, the key map counts.
    """
    found = {
        TopicQueue(topic, data.broker_name, index)
        for data in route.queues
        if data.perm & PERM_READ
        for index in range(data.read_queues)
    }
    if key_map is not None:
        known = {data.broker_name for data in route.queues}
        found.update(
            TopicQueue(topic, broker, index)
            for broker, index in key_map.queues
            if broker not in known
        )
    return sorted(found)


def merged(routes: Sequence[TopicRoute], avoid: Collection[str] = ()) -> TopicRoute:
    """Merge the routes of several name servers; the first ones count more.

    `avoid` lists addresses that do not answer: another address of the same broker replaces them.
    """
    if len(routes) == 1:
        return routes[0]
    queues: dict[str, QueueData] = {}
    for route in routes:
        for data in route.queues:
            known = queues.setdefault(data.broker_name, data)
            if known.read_queues < data.read_queues:
                queues[data.broker_name] = replace(known, read_queues=data.read_queues)
    filters: dict[str, list[str]] = {}
    for route in reversed(routes):
        filters.update(route.filter_servers)
    return TopicRoute(
        merged_brokers([route.brokers for route in routes], avoid),
        tuple(queues[name] for name in sorted(queues)),
        next((route.order_conf for route in routes if route.order_conf), routes[0].order_conf),
        filters,
    )


def merged_brokers(
    lists: Sequence[Sequence[BrokerData]], avoid: Collection[str] = ()
) -> tuple[BrokerData, ...]:
    """Merge the addresses of brokers, sorted by name."""
    brokers: dict[str, BrokerData] = {}
    for one in lists:
        for data in one:
            known = brokers.get(data.name)
            if known is None:
                brokers[data.name] = replace(data, addresses=dict(data.addresses))
                continue
            for broker_id, address in data.addresses.items():
                before = known.addresses.setdefault(broker_id, address)
                if before in avoid and address not in avoid:
                    known.addresses[broker_id] = address
    return tuple(brokers[name] for name in sorted(brokers))


def merged_cluster(infos: Sequence[ClusterInfo]) -> ClusterInfo:
    """Merge the brokers that several name servers know."""
    if len(infos) == 1:
        return infos[0]
    brokers = merged_brokers([tuple(info.brokers.values()) for info in infos])
    clusters: dict[str, set[str]] = {}
    for info in infos:
        for cluster, names in info.clusters.items():
            clusters.setdefault(cluster, set()).update(names)
    return ClusterInfo(
        {data.name: data for data in brokers},
        {cluster: tuple(sorted(names)) for cluster, names in sorted(clusters.items())},
    )


def master_address(route: TopicRoute, broker: str) -> str | None:
    """Return the address of a broker's master."""
    return _addresses(route, broker).get(MASTER_ID)


def read_address(route: TopicRoute, broker: str, suggested_id: int = MASTER_ID) -> str | None:
    """Return the address to read from: the suggested one, else the master's, else any."""
    addresses = _addresses(route, broker)
    for broker_id in (suggested_id, MASTER_ID, *sorted(addresses)):
        if broker_id in addresses:
            return addresses[broker_id]
    return None


def broker_masters(route: TopicRoute) -> dict[str, str]:
    """Return the addresses of the masters, by broker name."""
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


ABSENT_MS: Final = 60_000
"""A broker that is missing for longer has left the topic."""
ASK_AGAIN_MS: Final = 1000
ASK_AGAIN_MAX_MS: Final = 5000
"""The first and the longest pause before a route that has lost a broker is refreshed."""


class Absences:
    """The missing brokers of all topics, and when each was lost."""

    def __init__(self) -> None:
        self._since_ms: dict[str, dict[str, int]] = {}

    def note(self, topic: str, before: TopicRoute | None, after: TopicRoute, now_ms: int) -> bool:
        """Compare two routes of a topic; return whether the second has lost a broker."""
        here = _serving(after)
        since_ms = self._since_ms.setdefault(topic, {})
        for broker in here & since_ms.keys():
            del since_ms[broker]
        gone = (frozenset() if before is None else _serving(before)) - here
        since_ms.update(dict.fromkeys(gone, now_ms))
        if not since_ms:
            del self._since_ms[topic]
        return bool(gone)

    def of(self, topic: str, now_ms: int) -> frozenset[str]:
        """Return the brokers of a topic that may come back."""
        return frozenset(
            broker
            for broker, since_ms in self._since_ms.get(topic, {}).items()
            if now_ms - since_ms < ABSENT_MS
        )

    def forget(self, topic: str) -> None:
        """Forget a topic that was deleted."""
        self._since_ms.pop(topic, None)


def _serving(route: TopicRoute) -> frozenset[str]:
    """Return the brokers with queues of the topic, readable or not."""
    return frozenset(data.broker_name for data in route.queues)


Duration = float | timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_ms(duration: Duration) -> int:
    """Return whole milliseconds, rounded up."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if not seconds >= 0 or math.isinf(seconds):
        raise UsageError(f"{duration!r} is no duration; give seconds, 0 or more, or a timedelta")
    return math.ceil(seconds * 1000)


def moment_ms(moment: datetime) -> int:
    """Return a time in ms since 1970; a time without a zone is local."""
    return (moment.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)
