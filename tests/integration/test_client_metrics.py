"""The metrics of the clients of a process: rendered, served, and for prometheus_client."""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import inorder.metrics
from inorder.aio import Consumer, Producer, PullConsumer
from inorder.config import BrokerConfig, NameServerConfig
from inorder.embedded import Embedded
from tests.integration.test_admin_port import get, samples


def value(page: bytes, name: str, **labels: str) -> float:
    """Return the value of a metric, added up over other labels."""
    return sum(one for found, one in samples(page)[name] if labels.items() <= found.items())


def test_clients_of_a_process_are_added_up(tmp_path: Path) -> None:
    """Producers together, consumers by group, over HTTP; closed ones keep their counts."""

    async def work(address: str, before: float) -> None:
        async with Producer(address) as first, Producer(address) as second:
            await first.send("orders", b"1", key="a")
            await second.send("orders", b"2", key="a")
            done = asyncio.Event()

            async def handle(_: Any) -> None:
                if consumer.statistics().handled == 1:
                    done.set()

            consumer = Consumer(address, group="metered", consume_from="first")
            consumer.on("orders", order="key")(handle)
            async with consumer, PullConsumer(address, group="read") as reader:
                await reader.subscribe("orders")
                await asyncio.wait_for(done.wait(), 20)
                page = inorder.metrics.render()
                assert set(samples(page)) == set(inorder.metrics.CATALOGUE)
                assert value(page, "inorder_producer_sent_total") - before == 2
                assert value(page, "inorder_consumer_pulled_total", consumer_group="metered") == 2
                assert value(page, "inorder_consumer_queues", consumer_group="read") >= 1
                server = await inorder.metrics.serve(0)
                status, _, served = await get(server.address, "/metrics")
                assert (status, set(samples(served))) == (200, set(samples(page)))
                await server.close()

    async def scenario() -> None:
        config = BrokerConfig(port=0, data=str(tmp_path))
        namesrv = NameServerConfig(port=0, data=str(tmp_path / "n"))
        async with Embedded(namesrv, config) as pair:
            before = value(inorder.metrics.render(), "inorder_producer_sent_total")
            await work(pair.namesrv_address, before)
            gc.collect()
            page = inorder.metrics.render()
            assert value(page, "inorder_producer_sent_total") - before == 2, "counters went down"
            assert value(page, "inorder_consumer_pulled_total", consumer_group="metered") == 2

    asyncio.run(scenario())


def test_a_client_that_is_gone_is_not_kept() -> None:
    """Metrics keep no client alive."""
    producer = Producer("127.0.0.1:1")
    from inorder.client.registry import clients

    assert producer in clients()
    name = id(producer)
    del producer
    gc.collect()
    assert name not in {id(one) for one in clients()}


def test_a_collector_for_prometheus_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each family is given once, with its labels; the library is imported only then."""

    class Found:
        def __init__(self, name: str, doc: str, labels: tuple[str, ...]) -> None:
            self.name, self.labels = name, labels
            self.rows: list[tuple[tuple[str, ...], float]] = []

        def add_metric(self, labels: tuple[str, ...], value: float) -> None:
            assert len(labels) == len(self.labels)
            self.rows.append((labels, value))

    fake = ModuleType("prometheus_client.core")
    fake.CounterMetricFamily = fake.GaugeMetricFamily = Found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "prometheus_client", ModuleType("prometheus_client"))
    monkeypatch.setitem(sys.modules, "prometheus_client.core", fake)
    producer = Producer("127.0.0.1:1")
    found = list(inorder.metrics.Collector().collect())
    assert [one.name for one in found] == list(inorder.metrics.CATALOGUE)
    assert found[0].rows
    del producer
