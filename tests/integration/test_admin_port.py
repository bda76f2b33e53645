"""The admin port of a broker and of a name server: metrics, health, and what they cost."""

from __future__ import annotations

import asyncio
import gzip
import logging
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from inorder.aio import Consumer, Producer
from inorder.broker.broker import Broker
from inorder.broker.metrics.rules import CATALOGUE
from inorder.clock import SystemClock
from inorder.config import BrokerConfig, NameServerConfig
from inorder.embedded import Embedded
from inorder.model import GroupQueue, TopicConfig
from inorder.nameserver.server import CATALOGUE as NAMESRV_CATALOGUE
from inorder.net.admin import PROCESS, STEPS
from inorder.store.store import Store
from tests.integration.brokerkit import SMALL, running, until
from tests.kit.disk import FakeFiles

LINE = re.compile(r'(\w+?)(?:_bucket|_sum|_count)?(?:\{((?:\w+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')


async def get(
    address: tuple[str, int] | None, path: str, *headers: str
) -> tuple[int, bytes, bytes]:
    """Return status, head and body of a page; the body as it came, without its chunks."""
    assert address is not None
    reader, writer = await asyncio.open_connection(*address)
    lines = "".join(f"{one}\r\n" for one in ("Connection: close", *headers))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
    async with asyncio.timeout(20):
        whole = await reader.read()
    writer.close()
    head, _, body = whole.partition(b"\r\n\r\n")
    if b"Transfer-Encoding: chunked" in head:
        parts = []
        while body:
            size, _, rest = body.partition(b"\r\n")
            parts.append(rest[: int(size, 16)])
            body = rest[int(size, 16) + 2 :]
        body = b"".join(parts)
    return int(head.split()[1]), head, body


def samples(page: bytes) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Read a page strictly: each line is a comment or a sample of the family before it."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in page.decode().splitlines():
        if line.startswith("# TYPE "):
            found[line.split()[2]] = []
        elif not line.startswith("#"):
            matched = LINE.fullmatch(line)
            assert matched, line
            name, labels, value = matched.groups()
            family = line.split("{")[0].split(" ")[0] if name not in found else name
            assert family in found, line
            pairs = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or ""))
            found[family].append((pairs, float(value)))
    return found


def test_a_broker_shows_its_whole_catalogue(tmp_path: Path) -> None:
    """Each family is there with its own labels, in both formats, also compressed."""

    async def scenario() -> None:
        config = BrokerConfig(port=0, data=str(tmp_path), admin_port=0)
        async with Embedded(NameServerConfig(port=0, data=str(tmp_path / "n")), config) as pair:
            monitoring = pair.broker.monitoring
            assert monitoring is not None
            done = asyncio.Event()
            async with Producer(namesrv=pair.namesrv_address) as producer:
                for number in range(20):
                    await producer.send("orders", b"x" * 10, key=str(number % 3))
                seen = []

                async def handle(message: Any) -> None:
                    seen.append(message)
                    if len(seen) == 20:
                        done.set()

                consumer = Consumer(pair.namesrv_address, group="billing", consume_from="first")
                consumer.on("orders", order="key")(handle)
                async with consumer:
                    await asyncio.wait_for(done.wait(), 20)
                    await monitoring.collector.ages.sample()
                    status, head, page = await get(monitoring.address, "/metrics")
                assert status == 200
                assert b"version=0.0.4" in head
                found = samples(page)
                process = {family.name for family in PROCESS} | {"inorder_build_info"}
                assert set(found) == set(CATALOGUE) | process
                for name, family in CATALOGUE.items():
                    for labels, _ in found[name]:
                        wanted = {*family.labels, "cluster", "node_type", "node_id"}
                        assert set(labels) - {"le"} == wanted, name

                def value(name: str, **labels: str) -> float:
                    return sum(one for pairs, one in found[name] if labels.items() <= pairs.items())

                assert value("rocketmq_messages_in_total", topic="orders") == 20
                assert value("rocketmq_messages_out_total", consumer_group="billing") == 20
                stored = pair.broker.store.log.end_position
                assert 20 * 100 < value("rocketmq_throughput_in_total", topic="orders") <= stored
                assert value("rocketmq_throughput_out_total", consumer_group="billing") == value(
                    "rocketmq_throughput_in_total", topic="orders"
                ), "each record was given out once, whole"
                assert value("inorder_group_members", consumer_group="billing") == 1
                assert value("inorder_lease_grants_total", kind="fresh") >= 1
                assert value("inorder_leases", state="held", consumer_group="billing") >= 1
                assert value("rocketmq_producer_connections", language="python") >= 1
                assert value("inorder_tick_messages", le="+Inf") >= 1
                _, head, page = await get(
                    monitoring.address, "/metrics",
                    "Accept: application/openmetrics-text;version=1.0.0", "Accept-Encoding: gzip",
                )  # fmt: skip
                assert b"application/openmetrics-text" in head
                assert gzip.decompress(page).endswith(b"# EOF\n")
                _, _, page = await get(monitoring.address, "/metrics?families=inorder_writable")
                assert set(samples(page)) == {"inorder_writable"}

    asyncio.run(scenario())


def test_lag_of_a_group_without_members_is_shown() -> None:
    """A dead group keeps its lag and the age of its oldest message."""

    async def scenario() -> None:
        async with running(admin_port=0) as rig:
            for number in range(5):
                await rig.send(b"x", i=f"UNIQ_KEY\x01A{number}\x02")
            await rig.pull()  # makes the group
            fields = {"consumerGroup": "CG", "topic": "Orders", "queueId": "1", "commitOffset": "2"}
            answer = await rig.ask(15, fields)
            assert answer.code == 0, answer
            monitoring = rig.broker.monitoring
            assert monitoring is not None
            await monitoring.collector.ages.sample()
            found = samples((await get(monitoring.address, "/metrics"))[2])
            for name, value in (
                ("rocketmq_consumer_lag_messages", 3),
                ("inorder_group_unfinished_messages", 3),
                ("inorder_group_done_total", 2),
            ):
                assert [one for labels, one in found[name] if labels["topic"] == "Orders"] == [
                    value
                ], name
            ages = monitoring.collector.ages
            assert ages.oldest_ms["CG", "Orders"] > 0
            assert ("CG", "Orders") not in ages.unpulled_ms, "all five are pulled"
            await rig.send(b"x", i="UNIQ_KEY\x01B\x02")
            await ages.sample()
            assert ages.unpulled_ms["CG", "Orders"] >= ages.oldest_ms["CG", "Orders"]

    asyncio.run(scenario())


def test_readiness_says_why_not() -> None:
    """/healthz is 200 from the first moment; /readyz tells recovery, full disks and the end."""

    async def scenario() -> None:
        async with running(admin_port=0) as rig:
            monitoring = rig.broker.monitoring
            assert monitoring is not None
            assert (await get(monitoring.address, "/readyz"))[0] == 200
            rig.broker.store_writable = False
            assert (await get(monitoring.address, "/readyz"))[0] == 200
            status, _, body = await get(monitoring.address, "/readyz?writes=1")
            assert (status, b"takes no messages" in body) == (503, True)
            rig.broker.store_writable = True
            for state in ("recovering", "stopping"):
                monitoring.state = state
                status, _, body = await get(monitoring.address, "/readyz")
                assert (status, state.encode() in body) == (503, True)
                assert (await get(monitoring.address, "/healthz"))[0] == 200
                assert (await get(monitoring.address, "/metrics"))[0] == 200
            monitoring.state = ""

    asyncio.run(scenario())


def test_a_broker_that_is_not_registered_is_not_ready() -> None:
    """With name servers set, of which none knows it, no client would find the broker."""

    async def scenario() -> None:
        async with running(admin_port=0, namesrv="127.0.0.1:1") as rig:
            assert rig.broker.monitoring is not None
            status, _, body = await get(rig.broker.monitoring.address, "/readyz")
            assert (status, b"127.0.0.1:1" in body) == (503, True)

    asyncio.run(scenario())


def test_slow_operations_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A write, a sync and a stall above the limit leave a line, shorter ones none."""

    async def scenario() -> None:
        async with running(slow_ms=100) as rig:
            watch = rig.broker.monitoring
            assert watch is not None
            assert watch.address is None
            await rig.send(b"x")
            watch.wrote([], 5, 0.05)
            assert "slow=" not in caplog.text
            watch.wrote([], 5, 0.2)
            watch.synced(0.3)
            time.sleep(0.4)  # noqa: ASYNC251 - the loop stands still, and everybody waits
            await asyncio.sleep(0.3)

    with caplog.at_level(logging.WARNING, "inorder.slow"):
        asyncio.run(scenario())
    said = [one.getMessage() for one in caplog.records if one.name == "inorder.slow"]
    assert [one.split()[0] for one in said[:2]] == ["slow=write", "slow=sync"]
    assert any(one.startswith("slow=loop") for one in said), said


def test_levels_change_at_run_time() -> None:
    """UPDATE_BROKER_CONFIG takes log_levels, and refuses what is none."""

    async def scenario() -> None:
        async with running(remote_config=True) as rig:
            name = "inorder.of_this_test"
            answer = await rig.ask(25, body=f"log_levels={name}=debug\n".encode())
            assert answer.code == 0, answer.remark
            assert logging.getLogger(name).level == logging.DEBUG
            answer = await rig.ask(25, body=b"log_levels=inorder.x=loud\n")
            assert answer.code != 0
            assert (await rig.ask(25, body=b"log_levels=\n")).code == 0
            assert logging.getLogger(name).level == logging.NOTSET

    asyncio.run(scenario())


def test_probes_are_answered_during_a_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that recovers is alive and not ready; one that is stopped then frees its data."""
    gate, real = threading.Event(), Store.open
    files = FakeFiles()

    def slow(*args: Any, **named: Any) -> Store:
        assert gate.wait(20)
        return real(*args, **named)

    async def scenario() -> None:
        monkeypatch.setattr(Store, "open", slow)
        config = BrokerConfig(port=0, data="/data", store=SMALL, admin_port=0)
        broker = Broker(config, SystemClock(), files)
        starting = asyncio.create_task(broker.start())
        assert broker.monitoring is not None
        await until(lambda: broker.monitoring is not None and broker.monitoring.address is not None)
        address = broker.monitoring.address
        assert (await get(address, "/healthz"))[0] == 200
        status, _, body = await get(address, "/readyz")
        assert (status, b"recovering" in body) == (503, True)
        assert (await get(address, "/metrics"))[0] == 200
        starting.cancel()
        await asyncio.sleep(0)
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await starting
        async with running(files, admin_port=0) as rig:
            assert rig.broker.monitoring is not None
            assert (await get(rig.broker.monitoring.address, "/readyz"))[0] == 200

    asyncio.run(scenario())


def test_nothing_is_measured_unless_asked_for() -> None:
    """Off is the default: no port, no meters, no timers."""

    async def scenario() -> None:
        async with running() as rig:
            assert rig.broker.monitoring is None
            assert rig.broker.meters is None

    asyncio.run(scenario())


def many_queues(broker: Broker, *, topics: int, queues: int) -> None:
    """Give a broker topics with queues, and a group with an offset on each."""
    for number in range(topics):
        name = f"topic-{number}"
        broker.topics.put(TopicConfig(name, queues, queues), 0)
        for queue_id in range(queues):
            broker.store.queue(name, queue_id)
            broker.offsets.put(f"group-{number}", name, queue_id, 0, 0)


@pytest.mark.slow
def test_a_scrape_of_many_queues_is_cut_into_slices() -> None:
    """10,000 queues: after at most STEPS steps the loop serves others, and steps are small."""

    async def scenario() -> None:
        async with running(admin_port=0) as rig:
            broker = rig.broker
            many_queues(broker, topics=500, queues=20)
            monitoring = broker.monitoring
            assert monitoring is not None
            page = monitoring.page(openmetrics=False, only=frozenset())
            steps = most = before = 0
            for _ in monitoring.fill(page):
                steps += 1
                most, before = max(most, page.series - before), page.series
            assert steps > 20_000
            assert most <= 150  # the histograms, which are of the whole broker
            slices = monitoring.port.slices
            status, _, body = await get(monitoring.address, "/metrics")
            assert status == 200
            assert body.count(b"\ninorder_group_done_total{") == 500
            assert monitoring.port.slices - slices >= steps // STEPS

    asyncio.run(scenario())


def test_series_are_bounded() -> None:
    """A page never has more lines than the setting, and says how many it left out."""

    async def scenario() -> None:
        async with running(admin_port=0, metrics_series_max=300) as rig:
            many_queues(rig.broker, topics=100, queues=1)
            assert rig.broker.monitoring is not None
            page = rig.broker.monitoring.page(openmetrics=False, only=frozenset())
            for _ in rig.broker.monitoring.fill(page):
                pass
            assert page.series <= 300
            assert page.left_out > 0
            left_out = samples(page.end())["inorder_metrics_left_out_series"]
            assert left_out[0][1] > 0

    asyncio.run(scenario())


def test_a_stale_commit_is_counted_as_fenced() -> None:
    """A request under an old epoch shows in the metric that must be 0 in peace."""

    async def scenario() -> None:
        async with running() as rig:
            error = rig.broker.lease_service.refusal(GroupQueue("g", "t", 0), "pull")
            assert "begin anew" in str(error)
            counted = dict(rig.broker.counts.items("inorder_fenced_requests_total"))
            assert counted == {("g", "pull"): 1}

    asyncio.run(scenario())


def test_a_name_server_shows_its_catalogue(tmp_path: Path) -> None:
    """The name server has the same paths, and its own families."""

    async def scenario() -> None:
        namesrv = NameServerConfig(port=0, data=str(tmp_path / "n"), admin_port=0)
        async with Embedded(namesrv, BrokerConfig(port=0, data=str(tmp_path))) as pair:
            address = pair.namesrv.admin_address
            assert (await get(address, "/readyz"))[0] == 200
            found = samples((await get(address, "/metrics"))[2])
            assert set(NAMESRV_CATALOGUE) <= set(found)
            assert found["inorder_namesrv_brokers"][0][1] == 1

    asyncio.run(scenario())
