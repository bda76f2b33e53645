"""The metrics of the producers and consumers of this process, for Prometheus.

    import inorder.metrics

    text = inorder.metrics.render()                    # for a page of your own web framework
    server = await inorder.metrics.serve(port=9464)    # or a small server, on your loop
    prometheus_client.REGISTRY.register(inorder.metrics.Collector())    # or with that library

The numbers are those of `producer.statistics()` and `consumer.statistics()`, added up: producers
together, consumers by group. What a client has counted stays when it is closed: no counter goes
down while the process runs. Nothing is counted for this page that is not counted anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from inorder.client.registry import Kind, look
from inorder.exposition import OPENMETRICS, TEXT, Family, Page

if TYPE_CHECKING:
    from inorder.net.http import HttpServer, Request, Response


_GROUP: Final = ("consumer_group",)
# fmt: off
_PRODUCER: Final = {
    "sent": Family("inorder_producer_sent_total", "counter", "Messages that brokers have acknowledged"),
    "failed": Family("inorder_producer_failed_total", "counter", "Messages whose send failed"),
    "retries": Family("inorder_producer_retries_total", "counter", "Sends that were tried again"),
    "lost": Family("inorder_producer_lost_total", "counter", "Messages acknowledged, then lost by a broker"),
    "refused": Family("inorder_producer_refused_total", "counter", "Messages not accepted: too many had no outcome"),
    "waiting": Family("inorder_producer_waiting_messages", "gauge", "Messages without an outcome yet"),
}
_CONSUMER: Final = {
    "handled": Family("inorder_consumer_handled_total", "counter", "Messages that handlers have finished", _GROUP),
    "failed": Family("inorder_consumer_failed_total", "counter", "Calls of handlers that failed", _GROUP),
    "parked": Family("inorder_consumer_parked_total", "counter", "Messages parked with their keys", _GROUP),
    "sent_back": Family("inorder_consumer_sent_back_total", "counter", "Messages given back to a broker, for a retry", _GROUP),
    "dead_lettered": Family("inorder_consumer_dead_lettered_total", "counter", "Messages in the dead letter topic", _GROUP),
    "dropped": Family("inorder_consumer_dropped_total", "counter", "Messages given up without a trace on a broker", _GROUP),
    "pulled": Family("inorder_consumer_pulled_total", "counter", "Messages that arrived", _GROUP),
    "outlived": Family("inorder_consumer_outlived_total", "counter", "Handlers that ran longer than the lease of their queue", _GROUP),
    "rebalances": Family("inorder_consumer_rebalances_total", "counter", "How often queues were shared out anew", _GROUP),
    "running": Family("inorder_consumer_running", "gauge", "Handlers that run", _GROUP),
    "cached_messages": Family("rocketmq_consumer_cached_messages", "gauge", "Messages that are here and not done", _GROUP),
    "cached_bytes": Family("rocketmq_consumer_cached_bytes", "gauge", "Their bytes", _GROUP),
}
_OTHERS: Final = (
    Family("inorder_consumer_queues", "gauge", "Assigned queues, also of pull consumers", _GROUP),
    Family("inorder_consumer_failing_queues", "gauge", "Queues of pull consumers whose last pull failed", _GROUP),
)
# fmt: on
CATALOGUE: Final = {
    family.name: family for family in (*_PRODUCER.values(), *_CONSUMER.values(), *_OTHERS)
}
_TRIES: Final = 5

Sums = dict[str, dict[tuple[str, ...], float]]


def _add(sums: Sums, family: Family, value: float, *labels: str) -> None:
    found = sums.setdefault(family.name, {})
    found[labels] = found.get(labels, 0) + value


def _statistics(client: Any) -> Any:
    """Return a snapshot; a client whose tables change in another thread is asked again."""
    for _ in range(_TRIES):
        try:
            return client.statistics()
        except RuntimeError:
            continue
    return None


def _sums() -> Sums:
    sums: Sums = {name: {} for name in CATALOGUE}
    present, gone = look()
    for (kind, group), counts in gone.items():
        _count(sums, kind, group, counts)
    for entry, client in present:
        found = _statistics(client)
        if found is not None:
            entry.note(found)
        _count(sums, entry.kind, entry.group, entry.counts)
        if found is None:
            continue
        if entry.kind == "producer":
            _add(sums, _PRODUCER["waiting"], found.waiting)
        elif entry.kind == "consumer":
            for name, family in _CONSUMER.items():
                if family.kind == "gauge":
                    _add(sums, family, getattr(found, name), entry.group)
            _add(sums, _OTHERS[0], len(found.queues), entry.group)
        else:
            _add(sums, _CONSUMER["cached_messages"], found.prefetched_messages, entry.group)
            _add(sums, _CONSUMER["cached_bytes"], found.prefetched_bytes, entry.group)
            _add(sums, _OTHERS[0], len(found.queues), entry.group)
            _add(sums, _OTHERS[1], len(found.failing), entry.group)
    return sums


def _count(sums: Sums, kind: Kind, group: str, counts: Mapping[str, int]) -> None:
    """Add the counters of a client, or of clients that are gone."""
    for name, value in counts.items():
        if kind == "producer":
            _add(sums, _PRODUCER[name], value)
        else:
            _add(sums, _CONSUMER[name], value, group)


def render(*, openmetrics: bool = False) -> bytes:
    """Return the metrics of all clients of this process as Prometheus reads them."""
    page = Page(openmetrics=openmetrics)
    for name, rows in _sums().items():
        page.begin(CATALOGUE[name])
        for labels, value in sorted(rows.items()):
            page.put(value, *labels)
    return page.end()


async def serve(port: int = 9464, host: str = "127.0.0.1") -> HttpServer:
    """Serve `/metrics` on the running loop; `await server.close()` ends it.

    Whoever reaches the address may read: it is loopback unless you say otherwise.
    """
    from inorder.net.http import HttpServer, Response

    async def metrics(request: Request) -> Response:
        openmetrics = "application/openmetrics-text" in request.headers.get("accept", "")
        body = render(openmetrics=openmetrics)
        return Response(body, content_type=OPENMETRICS if openmetrics else TEXT)

    server = HttpServer({("GET", "/metrics"): metrics}, name="client metrics")
    await server.start(host, port)
    return server


class Collector:
    """A collector for the registry of `prometheus_client`, which must be installed."""

    def collect(self) -> Iterator[Any]:
        """Give a family after the other."""
        from prometheus_client.core import (  # type: ignore[import-not-found,unused-ignore]
            CounterMetricFamily,
            GaugeMetricFamily,
        )

        for name, rows in _sums().items():
            family = CATALOGUE[name]
            kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            found = kind(name, family.doc, labels=family.labels)
            for labels, value in sorted(rows.items()):
                found.add_metric(labels, value)
            yield found
