"""SQL92 filters beside Apache RocketMQ: the same expressions there and here, stock clients here."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import inorder
from bench.process import free_ports
from bench.systems import Ours
from inorder.broker.filters.records import bloom_places
from inorder.errors import SubscriptionParseFailed, SystemError_
from inorder.wire.requests.groups import ClientHeartbeat, ConsumerData
from inorder.wire.requests.pulls import parse_subscription
from tests.interop.rawclient import RawClient
from tests.interop.rocketmq import (
    SMALL_FILES,
    OurBroker,
    Running,
    ended,
    is_routed,
    real_broker,
    real_cluster,
)
from tests.interop.stock import KINDS, Client, Kind, running

pytestmark = [pytest.mark.interop, pytest.mark.slow]

VALUES = (
    None, "0", "5", "6", "-5", "+7", "007", " 7", "5.5", "5d", "1e3", "0x1p3", "-0.0", "NaN",
    "-Infinity", "3000000000", "9223372036854775808", "99999999999999999999", "\u0667",
    "\U0001d7d5", "1_0", "true", "TRUE", "false", "x", "abc", "a.b", "it's", "é", "5L", "0x10",
    "nan", "1e999",
)  # fmt: skip
EXPRESSIONS = (
    "a = 5", "a <> 5", "a > 5", "a >= 5", "a < 5", "a <= 5", "5 = a", "5 <> a", "5 < a", "5 >= a",
    "a = 5.0", "a <> 5.5", "a > 5.5", "a < 5.5", "5.5 < a", "a >= -5", "a = -5", "a > -0.5",
    "a = 3000000000", "a > 2147483648", "a < 3000000001", "a = 5L", "a > 1e2", "a = '5'",
    "a <> 'x'", "'x' = a", "'x' <> a", "a = 'it''s'", "a = 'é'", "a = TRUE", "a <> TRUE",
    "a = FALSE", "TRUE = a", "TRUE <> a", "a = (1 = 1)", "(1 = 1) = a", "a = b", "a <> b",
    "b = a", "a > b", "a <= b", "b < a", "a = c", "c = d", "c <> d", "a = a", "a > a",
    "a IS NULL", "a IS NOT NULL", "(a > 5) IS NULL", "(c > 5) IS NULL", "(a = c) IS NULL",
    "(c = a) IS NULL", "a IN ('5')", "a NOT IN ('5', 'x')",
    "a IN ('1', '2', '3', '4', '5', 'x')", "c NOT IN ('x')",
    "a BETWEEN 5 AND 7", "a NOT BETWEEN 5 AND 7", "a BETWEEN -5 AND 5.5", "5 BETWEEN 3 AND a",
    "a CONTAINS '5'", "a NOT CONTAINS '5'", "a STARTSWITH '5'", "a NOT STARTSWITH '5'",
    "a ENDSWITH '0'", "a NOT ENDSWITH '0'", "a CONTAINS ''", "a NOT CONTAINS ''",
    "c NOT CONTAINS 'x'", "'abc' CONTAINS 'b'", "5 CONTAINS '5'", "(a = 5) CONTAINS '5'",
    "a", "NOT a", "NOT a = 1", "NOT (a = 5)", "NOT a IS NULL", "NOT (a > 5)",
    "a > 5 OR a = 'x'", "a = 'x' OR a > 5", "a > 5 AND b = 'x'", "b = 'x' AND a > 5",
    "c > 5 OR b = 'x'", "c > 5 AND a > 5", "NOT (c > 5 AND a = 'x')", "NOT (c > 5 OR a = 'x')",
    "a = 'x' OR a = 'abc' AND b = 'y'", "(a = 'x' OR a = 'abc') AND b = 'y'",
    "-a = 5", "-a IS NULL", "- - 5 = a", "a > - - 5", "+a = 5", "+ 'x' = a", "-'x' IS NULL",
    "TRUE", "FALSE", "NULL", "NULL IS NULL", "TRUE AND NULL", "TRUE OR NULL", "NULL OR TRUE",
    "1 = 1", "1 = 1.0", "1 = 2", "'5' = 5", "5 = '5'", "'x' = 5", "1 = TRUE", "1.5 <> 1",
    "a = 5 = TRUE", "a = 5 = FALSE", "a = 5 <> b", "TAGS = 'A'", "KEYS IS NOT NULL",
    "a /* comment */ = -- line\n 5", "a=5", "a\n=\t5", "A = 5", "$x IS NULL AND _y IS NULL",
    # refused by both
    "", "a = ", "a == 5", "a != 5", "a > (", "(a = 5", "a = \"x\"", "a = 'x",
    "a > 'x'", "'x' < a", "a > TRUE", "a > NULL", "a = NULL", "NULL <> a", "TRUE = 5", "5", "'x'",
    "-a", "a AND 5", "a < b < c", "a BETWEEN 3 AND 1", "a BETWEEN 'x' AND 'y'", "'x' IN ('x')",
    "a IN (5)", "a IN ()", "a IS 5", "a CONTAINS 5", "a = 9223372036854775808", "a = 1e999",
    "a.b = 1", "a = %", "NOT 5", "a = 1e-999",
)  # fmt: skip
REFUSED_THERE = ("a > 0.0",)
REFUSED_HERE = ("a = 5 b = 6", "a LIKE 'x'", "a = 5 + 1")
"""RocketMQ ignores what follows a complete expression."""


@dataclass
class Place:
    """A broker, and what each expression finds in its topic."""

    namesrv: str
    topic: str = "sql-oracle"

    def fill(self) -> None:
        """Make the topic and send a message for each pair of values."""
        host, _, port = self.namesrv.partition(":")
        self._wait((host, int(port)), "TBW102")  # the broker is there
        with inorder.Admin(self.namesrv) as admin:
            admin.topics.create(self.topic, queues=1)
        self._wait((host, int(port)), self.topic)
        with inorder.Producer(self.namesrv) as producer:
            for number, (a, b) in enumerate((a, b) for a in VALUES for b in ("x", "y", "5", None)):
                given = {name: value for name, value in (("a", a), ("b", b)) if value is not None}
                producer.send(self.topic, b"%d" % number, tag="A", properties=given)

    @staticmethod
    def _wait(namesrv: tuple[str, int], topic: str) -> None:
        deadline = time.monotonic() + 60
        while not is_routed(namesrv, topic):
            assert time.monotonic() < deadline, f"no route of {topic}"
            time.sleep(0.05)

    def ask(self, sql: str) -> list[int] | str:
        """Return the numbers that an expression finds, or how it is refused."""
        with inorder.PullConsumer(self.namesrv, group="sql-oracle") as reader:
            (queue,) = reader.queues(self.topic)
            try:
                return sorted(int(m.body) for m in reader.pull_all(queue, sql=sql))
            except SubscriptionParseFailed:
                return "refused"


@pytest.fixture(scope="module")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Run Apache RocketMQ with its filters switched on."""
    settings = {"enablePropertyFilter": "true"}
    with real_cluster(tmp_path_factory.mktemp("rocketmq"), settings=settings) as (host, port):
        place = Place(f"{host}:{port}")
        place.fill()
        yield place


@pytest.fixture(scope="module")
def server() -> Iterator[Ours]:
    """Run one `inorder up`."""
    with Ours() as ours:
        yield ours


def test_every_expression_finds_the_same_messages_on_both_brokers(
    rocketmq: Place, server: Ours, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's types, truth with three values, and what is refused; RocketMQ is the judge."""
    ours = Place(f"127.0.0.1:{server.namesrv[1]}")
    ours.fill()
    # Each broker judges for itself: the client's own check would hide what RocketMQ takes.
    monkeypatch.setattr("inorder.client.consume.rules.pulls.parse", lambda _: None)
    different = {}
    for sql in EXPRESSIONS:
        here, there = ours.ask(sql), rocketmq.ask(sql)
        if here != there:
            different[sql] = here, there
    assert different == {}
    assert [ours.ask(sql) for sql in REFUSED_HERE] == ["refused"] * len(REFUSED_HERE)
    assert [rocketmq.ask(sql) for sql in REFUSED_THERE] == ["refused"] * len(REFUSED_THERE)
    for sql in (*REFUSED_HERE, *REFUSED_THERE):
        assert "refused" in (ours.ask(sql), rocketmq.ask(sql)) != ("refused", "refused")


def test_our_consumer_filters_on_rocketmq(rocketmq: Place) -> None:
    """Ordered, under its locks; the commit passes what does not match."""
    consumer = inorder.Consumer(rocketmq.namesrv, group="sql-ordered", consume_from="first")
    got: list[int] = []

    @consumer.on(rocketmq.topic, sql="a = 5 AND b IS NOT NULL")
    def handle(message: inorder.ReceivedMessage) -> None:
        got.append(int(message.body))

    wanted = rocketmq.ask("a = 5 AND b IS NOT NULL")
    with consumer:
        deadline = time.monotonic() + 60
        while len(got) < len(wanted) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
    assert got == wanted
    with inorder.PullConsumer(rocketmq.namesrv, group="sql-ordered") as reader:
        (queue,) = reader.queues(rocketmq.topic)
        assert (reader.committed(queue) or 0) > max(got)


def test_a_rocketmq_that_does_not_filter_says_so_at_the_start(tmp_path: Path) -> None:
    """`enablePropertyFilter` is off there by default."""
    with real_cluster(tmp_path) as (host, port):
        place = Place(f"{host}:{port}")
        place.fill()
        consumer = inorder.Consumer(place.namesrv, group="sql-off")

        @consumer.on(place.topic, sql="a = 5")
        def handle(_: inorder.ReceivedMessage) -> None:
            raise AssertionError("nothing is pulled")

        with pytest.raises(SystemError_, match="enablePropertyFilter=true"):
            consumer.start()
        consumer.close()


STOCK = [kind for kind in KINDS if kind.name.startswith(("java", "go")) and "tls" not in kind.name]


@pytest.fixture(scope="module", params=STOCK, ids=lambda kind: kind.name)
def client(
    request: pytest.FixtureRequest, server: Ours, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    """Run one process per client."""
    kind: Kind = request.param
    with running(kind, server, tmp_path_factory.mktemp(kind.name)) as client:
        yield client


@pytest.mark.parametrize("mode", ["concurrent", "orderly"])
def test_stock_clients_filter_on_our_broker(client: Client, server: Ours, mode: str) -> None:
    """Their heartbeats register the filter, their pulls rely on it."""
    topic = client.topic(f"sql-{mode}")
    namesrv = f"127.0.0.1:{server.namesrv[1]}"
    with inorder.Producer(namesrv) as producer:
        for number in range(200):
            properties = {"n": str(number), "parity": "odd" if number % 2 else "even"}
            producer.send(topic, b"%d" % number, key=f"k{number % 7}", properties=properties)
    name = f"reader-{mode}"
    client.push(
        name, topic, group=client.name(name), mode=mode, sql="n >= 100 AND parity IN ('odd')"
    )
    client.wait_got(name, 50)
    time.sleep(1)
    client.stop(name)
    assert sorted(client.got_numbers(name)) == [n for n in range(100, 200) if n % 2]
    for messages in by_queue_of(client, name).values():
        assert mode != "orderly" or messages == sorted(messages)


def by_queue_of(client: Client, name: str) -> dict[int, list[int]]:
    """Return the numbers that a consumer got, by queue."""
    found: dict[int, list[int]] = {}
    for message in client.driver.messages("got", name):
        found.setdefault(message.queue, []).append(message.number)
    return found


def test_a_stock_client_hears_of_a_bad_expression(client: Client) -> None:
    """Java asks before it starts, and shows the marked place."""
    if not client.kind.name.startswith("java"):
        pytest.skip("only Java asks")
    topic = client.topic("sql-bad")
    with pytest.raises(AssertionError, match=r"n > > 5"):
        client.push("bad", topic, group=client.name("bad"), sql="n > > 5")


def test_the_filters_of_groups_go_both_ways(tmp_path: Path) -> None:
    """RocketMQ opens our consumerFilter.json and keeps what is in it, and we open RocketMQ's."""
    store, file = tmp_path / "store", tmp_path / "store" / "config" / "consumerFilter.json"
    (port,) = free_ports(1, apart=(-2, 0, 1))
    settings: dict[str, object] = {**SMALL_FILES, "enablePropertyFilter": "true"}

    def play(server: Running, group: str) -> dict[str, tuple[str, int]]:
        """Register a filter of a group, stop the broker, return what its file has."""
        with ended(server):
            with RawClient(server.address) as raw:
                raw.create_topic("Filtered", 1)
                subscription = parse_subscription("Filtered", f"a = '{group}'", 7, "SQL92")
                data = ConsumerData(group, subscriptions=(subscription,))
                beat = ClientHeartbeat(f"client-{group}", (data,)).encode()
                assert raw.request(34, {}, beat).code == 0
                fields = {
                    "consumerGroup": group, "topic": "Filtered", "queueId": "0",
                    "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "0", "commitOffset": "0",
                    "suspendTimeoutMillis": "0", "subVersion": "7", "expressionType": "SQL92",
                }  # fmt: skip
                assert raw.request(11, fields).code == 19  # the filter is there, no message is
            server.child.stop()
        groups = json.loads(file.read_bytes())["filterDataByTopic"]["Filtered"]["groupFilterData"]
        for entry in groups.values():
            assert entry["bloomFilterData"]["bitNum"] == 112
            assert entry["topic"] == "Filtered"
            assert entry["dead"] is True, "its connection closed before the broker stopped"
        bits = {group: entry["bloomFilterData"]["bitPos"] for group, entry in groups.items()}
        assert bits == {group: bloom_places(f"{group}#Filtered") for group in groups}
        return {group: (one["expression"], one["clientVersion"]) for group, one in groups.items()}

    expected = {}
    for number, make in enumerate((OurBroker, real_broker, OurBroker)):
        group = f"Group{number}"
        expected[group] = f"a = '{group}'", 7
        directory = tmp_path / str(number)
        directory.mkdir()
        server = make(directory, store=store, port=port, settings=settings)
        assert play(server, group) == expected
