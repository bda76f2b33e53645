"""Every request of a client with credentials is signed, whatever sends it; else none is.

The servers are real; `tests/kit/signedrequests.py` computes each signature again from the bytes
that came. They give sessions, as servers with access control do, and have no users otherwise.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

import pytest

import inorder
import inorder.aio
import inorder.testing
from inorder import Credentials, Message
from inorder.spark.cluster import Cluster, Servers, close_all
from inorder.spark.cluster import _connections as spark_connections
from inorder.wire.codes import RequestCode as R
from inorder.wire.extensions import ExtensionCode as X
from tests.kit.signedrequests import GIVES_SESSION, inspected

ALICE = Credentials("alice", "the-sécret-of-alice")

pytestmark = pytest.mark.slow


def wait(condition: Callable[[], bool], what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.01)


def test_a_blocking_producer_signs() -> None:
    """Lone sends on a connection of their own, automatic batches, one way, delays, transactions."""
    with (
        inspected(ALICE) as seen,
        inorder.testing.broker(credentials=ALICE) as broker,
        broker.producer(group="g") as producer,
    ):
        for number in range(40):
            producer.send("orders", f"ä {number}".encode(), key=f"k{number % 3}", tag='"')
        for number in range(1, 301):
            producer.send_nowait("orders", b"x" * number, key=f"k{number % 3}")
        producer.flush()
        producer.send_batch([Message("orders", b"1"), Message("orders", b"2")])
        producer.send_oneway("orders", b"x")
        producer.send("orders", b"later", delay=1)
        with producer.transaction("orders", b"half", key="k"):
            pass
        wait(lambda: len(broker.messages("orders")) == 345, "all is stored")
    assert seen.wrong == []
    assert {R.SEND_MESSAGE_V2, R.SEND_BATCH_MESSAGE, R.END_TRANSACTION} <= seen.codes.keys()
    assert all(one.in_session[R.SEND_MESSAGE_V2] == one.codes[R.SEND_MESSAGE_V2]
               for one in seen.of_clients)  # fmt: skip
    assert sum(1 for one in seen.of_clients if one.codes[R.SEND_MESSAGE_V2]) >= 2, "also its own"


def test_retries_are_signed_anew() -> None:
    """A send whose answer is lost goes again over another connection, in another session."""
    with inspected(ALICE) as seen, inorder.testing.broker(credentials=ALICE) as broker:
        with broker.producer() as producer:
            producer.send("orders", b"first", key="k")
            for number in range(5):
                broker.lose_answers()
                producer.send("orders", f"{number}".encode(), key="k")
        stored = broker.messages("orders")
    assert [message.body for message in stored] == [b"first", *(b"%d" % n for n in range(5))]
    assert seen.wrong == []
    sessions = {one.session for one in seen.of_clients if one.codes[R.SEND_MESSAGE_V2]}
    assert len(sessions) > 4


def test_an_async_client_signs() -> None:
    """Consumers of every order, retries, parked keys, pulls, requests with replies, admin work."""

    async def main() -> None:
        async with inorder.testing.broker(credentials=ALICE) as broker:
            await _consume(broker)
            await _administer(broker.namesrv)

    with inspected(ALICE) as seen:
        asyncio.run(main())
    assert seen.wrong == []
    expected = {
        R.PULL_MESSAGE, R.HEART_BEAT, R.UNREGISTER_CLIENT, R.CONSUMER_SEND_MSG_BACK,
        R.UPDATE_CONSUMER_OFFSET, R.QUERY_CONSUMER_OFFSET, R.GET_CONSUMER_LIST_BY_GROUP,
        R.GET_MIN_OFFSET, R.GET_ROUTEINFO_BY_TOPIC,
        R.GET_BROKER_CLUSTER_INFO, R.SEND_REPLY_MESSAGE_V2, X.LEASE, X.RELEASE, X.COMMIT, X.PARK,
        X.PARKED_LIST,
    }  # fmt: skip
    assert expected <= seen.codes.keys(), sorted(expected - seen.codes.keys())
    assert seen.oneways.total() > 0
    # What came before the answer that gave the session asks for one.
    without = {code for code, count in seen.codes.items() if seen.in_sessions[code] < count}
    assert without <= GIVES_SESSION


async def _consume(broker: inorder.testing.AsyncRunningBroker) -> None:
    handled: list[bytes] = []
    failed: set[bytes] = set()

    async def handle(message: inorder.ReceivedMessage) -> None:
        if message.body not in failed and message.body.endswith(b"3"):
            failed.add(message.body)
            raise ValueError("not yet")
        if message.key == "bad":
            raise ValueError("never")
        handled.append(message.body)

    async def answer(message: inorder.ReceivedMessage) -> inorder.Reply:
        return inorder.Reply(message.body + b"!")

    async with broker.producer(group="askers") as producer:
        for topic in ("queue", "key", "none"):
            for number in range(6):
                await producer.send(topic, f"{topic} {number}".encode(), key=f"k{number % 2}")
        await producer.send("key", b"never", key="bad")
        await producer.send("ask", b"first")
        consumer = inorder.aio.Consumer(
            broker.namesrv, group="g", consume_from="first", credentials=ALICE
        )
        consumer.on("queue")(handle)
        consumer.on("key", order="key", on_failure=inorder.Park(attempts=1))(handle)
        consumer.on("none", order=None)(handle)
        consumer.on("ask", order=None)(answer)
        async with consumer:
            async with asyncio.timeout(30):
                while len(handled) < 17:  # noqa: ASYNC110 - one comes back later
                    await asyncio.sleep(0.05)
                reply = await producer.request("ask", b"how", timeout=10)
                assert reply.body == b"how!"


async def _administer(namesrv: str) -> None:
    async with inorder.aio.Admin(namesrv, credentials=ALICE) as admin:
        await admin.topics.create("made", queues=2)
        assert "made" in await admin.topics.names()
        await admin.cluster.brokers()
        await admin.groups.lag("g")
        await admin.parked.list("g")
    async with inorder.aio.PullConsumer(
        namesrv, group="p", consume_from="first", credentials=ALICE
    ) as consumer:
        await consumer.subscribe("queue")
        assert await consumer.poll(timeout=5) is not None
        await consumer.commit()


def test_a_greeting_without_an_answer_is_repeated() -> None:
    """No other request goes over a connection whose session is not known."""
    config = inorder.ClientConfig(request_timeout_ms=300)
    with (
        inspected(ALICE) as seen,
        inorder.testing.broker(credentials=ALICE, client=config) as broker,
        broker.producer() as producer,
    ):
        broker.drop(code=R.HEART_BEAT)
        producer.send("orders", b"x")
        assert [message.body for message in broker.messages("orders")] == [b"x"]
    assert seen.wrong == []
    assert seen.in_sessions[R.SEND_MESSAGE_V2] == 1


def test_the_environment_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an argument would; also a session that was made by hand."""
    monkeypatch.setenv("INORDER_ACCESS_KEY", ALICE.access_key)
    monkeypatch.setenv("INORDER_SECRET_KEY", ALICE.secret_key)
    with (
        inspected(ALICE) as seen,
        inorder.testing.broker() as broker,
        inorder.Producer(broker.namesrv) as producer,
    ):
        producer.send("orders", b"x")
    assert seen.codes[R.SEND_MESSAGE_V2] == 1
    assert seen.wrong == []


def test_spark_signs() -> None:
    """The blocking connections of Spark's processes, with pulls sent ahead."""
    with inspected(ALICE) as seen, inorder.testing.broker(credentials=ALICE) as broker:
        with broker.producer() as producer:
            for _ in range(50):
                producer.send("orders", b"x")
        before = len(seen.connections)
        os.environ |= {
            "INORDER_ACCESS_KEY": ALICE.access_key, "INORDER_SECRET_KEY": ALICE.secret_key
        }  # fmt: skip
        try:
            cluster = Cluster(Servers.of(broker.namesrv), group="spark")
            cluster.make_group()
            queues = cluster.queues("orders")
            ends = cluster.ends(queues)
            for queue in queues:
                assert list(cluster.read(queue, 0, ends[queue])) or not ends[queue]
                cluster.commit(queue, ends[queue])
        finally:
            del os.environ["INORDER_ACCESS_KEY"], os.environ["INORDER_SECRET_KEY"]
            close_all()
    assert seen.wrong == []
    assert spark_connections == {}
    mine = seen.connections[before:]
    assert sum(one.in_session[R.PULL_MESSAGE] for one in mine) > 0
    assert all(one.in_session[R.PULL_MESSAGE] == one.codes[R.PULL_MESSAGE] for one in mine)


def test_without_credentials_nothing_is_signed() -> None:
    """No field of access control is in any request, and no connection is greeted."""
    with inspected(ALICE) as seen, inorder.testing.broker() as broker:
        with broker.producer() as producer:
            for _ in range(20):
                producer.send("orders", b"x")
        assert len(broker.messages("orders")) == 20
    assert len(seen.wrong) == seen.codes.total()
    for line in seen.wrong:
        assert "AccessKey" not in line.split(":", 1)[1]
        assert "inorder" not in line.split(":", 1)[1].replace("inorderIdentity", "")
    assert seen.codes[R.HEART_BEAT] == 0


def test_servers_without_sessions_get_plain_signatures() -> None:
    """As Apache RocketMQ: no session, no counter, no mark."""
    with (
        inspected(ALICE, sessions=False) as seen,
        inorder.testing.broker(credentials=ALICE) as broker,
        broker.producer() as producer,
    ):
        for _ in range(20):
            producer.send("orders", b"x")
    assert seen.wrong == []
    assert seen.codes[R.SEND_MESSAGE_V2] == 20
    assert seen.in_sessions.total() == 0


def test_a_session_has_its_credentials_already() -> None:
    """An argument beside a session is refused."""
    session = inorder.aio.Session("127.0.0.1:1", credentials=ALICE)
    with pytest.raises(inorder.InorderError, match="credentials="):
        inorder.aio.Producer(session, credentials=ALICE)
    assert session.credentials == ALICE
