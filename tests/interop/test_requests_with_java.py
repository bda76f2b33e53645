"""Request and reply between Java's clients and ours, on our broker and on Apache RocketMQ."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import inorder
from bench.systems import Ours
from inorder.errors import RequestTimeout
from tests.interop.rawclient import RawClient, body_of
from tests.interop.stock import KINDS, PATIENCE_S, Client, Kind, running

pytestmark = [pytest.mark.interop, pytest.mark.slow]

JAVA = [kind for kind in KINDS if kind.name.startswith("java-") and not kind.name.endswith("-tls")]
REQUESTS = 20


@pytest.fixture(scope="module")
def server() -> Iterator[Ours]:
    """Run one `inorder up` for all clients."""
    with Ours() as ours:
        yield ours


@pytest.fixture(scope="module", params=JAVA, ids=lambda kind: kind.name)
def client(
    request: pytest.FixtureRequest, server: Ours, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    """Run one process per client."""
    kind: Kind = request.param
    directory: Path = tmp_path_factory.mktemp(kind.name)
    with running(kind, server, directory) as client:
        yield client


def namesrv_of(client: Client) -> str:
    return f"127.0.0.1:{client.server.namesrv[1]}"


def replied(client: Client, topic: str, count: int = REQUESTS) -> dict[int, str]:
    """Ask; return the replies, or fail with what the client says of what it did not get."""
    driver = client.driver
    before, failed = len(driver.said("replied")), len(driver.said("unreplied"))
    asked = {"topic": topic, "first": 0, "count": count, "timeout": int(PATIENCE_S * 1000)}
    driver.do("request", timeout_s=PATIENCE_S + 30, **asked)
    reasons = {b64decode(one["reason"]).decode() for one in driver.said("unreplied")[failed:]}
    unanswered = [b64decode(one["reason"]).decode() for one in driver.said("unanswered")]
    begun = sum(one["topic"] == topic for one in driver.said("begun"))
    assert not reasons, f"{reasons}; handled {begun}, not answered {unanswered}\n{driver.tail()}"
    return {int(one["number"]): one["body"] for one in driver.said("replied")[before:]}


def test_java_asks_java(client: Client) -> None:
    """Both ends are stock clients; each request gets its own reply."""
    topic = client.topic("javajava")
    client.push("answers", topic, group=client.name("answers"), replies=True)
    assert replied(client, topic) == {n: f"re-{n}" for n in range(REQUESTS)}
    client.stop("answers")


def test_java_asks_us(client: Client) -> None:
    """Our handlers return replies; the requester is a stock client."""
    topic = client.topic("javaours")
    consumer = inorder.Consumer(namesrv_of(client), group=client.name("ours"), consume_from="first")

    @consumer.on(topic, order="key")
    def handle(message: inorder.ReceivedMessage) -> inorder.Reply:
        return inorder.Reply(b"re-" + message.body)

    with consumer:
        assert replied(client, topic) == {n: f"re-{n}" for n in range(REQUESTS)}
    assert consumer.statistics().replied == REQUESTS


def test_we_ask_java(client: Client) -> None:
    """Our producer asks; a stock consumer replies in the way of Java's examples."""
    topic = client.topic("oursjava")
    client.push("answers", topic, group=client.name("javas"), replies=True)
    with inorder.Producer(namesrv_of(client)) as producer, ThreadPoolExecutor(5) as pool:

        def ask(number: int) -> bytes:
            body = str(number).encode()
            return producer.request(topic, body, key=f"k{number % 3}", timeout=PATIENCE_S).body

        assert list(pool.map(ask, range(REQUESTS))) == [b"re-%d" % n for n in range(REQUESTS)]
    client.stop("answers")
    with RawClient(client.server.address) as raw:
        stored = [body_of(one) for one in raw.read_queue("DefaultCluster_REPLY_TOPIC", 0)]
    assert {b"re-%d" % n for n in range(REQUESTS)} <= set(stored)


def test_nobody_answers_java(client: Client) -> None:
    """The requester of a message without a responder hears that the time is up."""
    topic = client.topic("nobody")
    before = len(client.driver.said("unreplied"))
    client.driver.do("request", topic=topic, first=0, count=1, timeout=1000)
    assert len(client.driver.said("unreplied")) == before + 1
    with inorder.Producer(namesrv_of(client)) as producer, pytest.raises(RequestTimeout):
        producer.request(topic, b"1", timeout=1)
