"""Lone blocking sends go by the caller's own thread: in order, once, whatever happens to them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import inorder
import inorder.testing
from inorder.config import BrokerConfig, ClientConfig, StoreConfig
from inorder.errors import MessageIllegal, TransportError
from inorder.sync.direct import LONE_SENDS
from inorder.testing import RunningBroker

QUICK = ClientConfig(retry_first_ms=5, retry_max_ms=20, send_timeout_ms=10_000)
"""Faults here end connections: nothing is found out by its time, which a busy machine may need."""


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    """A broker whose clients try again soon."""
    with inorder.testing.broker(client=QUICK) as running:
        yield running


def bodies(broker: RunningBroker) -> list[bytes]:
    return [message.body for message in broker.messages("orders")]


def warm(producer: inorder.Producer) -> list[bytes]:
    """Send until the producer sends by itself; return what was sent."""
    sent = [b"w%d" % n for n in range(LONE_SENDS + 3)]
    for body in sent:
        producer.send("orders", body, key="k")
    assert alone(producer) > 0
    return sent


def alone(producer: inorder.Producer) -> int:
    assert producer._direct is not None
    return producer._direct.sent


def test_lone_sends_go_by_themselves_and_count(broker: RunningBroker):
    """Offsets follow, receipts name the stored message, statistics know all."""
    with broker.producer() as producer:
        sent = warm(producer)
        receipts = [producer.send("orders", b"%d" % n, key="k", tag="t") for n in range(20)]
        assert alone(producer) >= 20
        assert [receipt.offset for receipt in receipts] == list(range(len(sent), len(sent) + 20))
        assert producer.statistics().sent == len(sent) + 20
        stored = broker.messages("orders")
        assert [message.body for message in stored] == [*sent, *(b"%d" % n for n in range(20))]
        assert stored[-1].message_id == receipts[-1].message_id
        assert (stored[-1].key, stored[-1].tag) == ("k", "t")
    assert producer._direct is not None
    assert not producer._direct._producers


def test_futures_and_lone_sends_keep_their_order(broker: RunningBroker):
    """What was handed over before is in the lane; the lone send goes behind it."""
    with broker.producer() as producer:
        sent = warm(producer)
        for n in range(60):
            body = b"%d" % n
            sent.append(body)
            if n % 7 == 3:
                producer.send_nowait("orders", body, key="k")
            elif n % 7 == 5:
                producer.send_oneway("orders", body, key="k")
            elif n % 7 == 6:
                producer.send_batch([inorder.Message("orders", body, key="k")])
            else:
                producer.send("orders", body, key="k")
        producer.flush()
    assert bodies(broker) == sent


@pytest.mark.slow
def test_a_lost_answer_of_a_lone_send_leaves_no_second_copy(broker: RunningBroker):
    """The portal finds out; the message has its place and its offset."""
    with broker.producer() as producer:
        sent = warm(producer)
        for n in range(5):
            broker.lose_answers()
            receipt = producer.send("orders", b"lost %d" % n, key="k")
            sent.append(b"lost %d" % n)
            assert receipt.offset == len(sent) - 1
            sent += warm(producer)
    assert bodies(broker) == sent


@pytest.mark.slow
def test_lone_sends_over_restarts_and_kills(broker: RunningBroker):
    """In order, once."""
    with broker.producer() as producer:
        sent = warm(producer)
        for end in (
            broker.restart,
            broker.close_connections,
            broker.kill,
            broker.close_connections,
        ):
            if end == broker.kill:
                broker.kill()
                broker.restart()
            else:
                end()
            producer.send("orders", b"after", key="k")
            sent += [b"after", *warm(producer)]
    assert bodies(broker) == sent


@pytest.mark.slow
def test_a_lone_send_that_timed_out_comes_not_later_than_the_next(broker: RunningBroker):
    """The broker wakes up with the first copy in its hands; it is shut out before the next goes."""
    config = ClientConfig(request_timeout_ms=700, send_timeout_ms=1400, retry_first_ms=5)
    with inorder.Producer(broker.namesrv, config=config) as producer:
        sent = warm(producer)
        broker.freeze()
        with pytest.raises(TransportError):
            producer.send("orders", b"maybe", key="k")
        later = producer.send_nowait("orders", b"later", key="k", timeout=10)
        broker.thaw()
        later.result(10)
        producer.send("orders", b"last", key="k", timeout=10)
    stored = bodies(broker)
    assert [body for body in stored if body != b"maybe"] == [*sent, b"later", b"last"]
    assert stored.count(b"maybe") <= 1
    if b"maybe" in stored:
        assert stored.index(b"maybe") == len(sent)


def test_a_refused_lone_send_gets_its_error():
    """A definite refusal is tried again by the portal, which says what is wrong."""
    config = BrokerConfig(store=StoreConfig(message_bytes_max=1000))
    with inorder.testing.broker(config=config) as broker, broker.producer() as producer:
        sent = warm(producer)
        with pytest.raises(MessageIllegal):
            producer.send("orders", b"x" * 2000, key="k")
        producer.send("orders", b"y", key="k")
        assert bodies(broker) == [*sent, b"y"]


def test_threads_share_it_or_take_the_portal(broker: RunningBroker):
    """Each thread's sends are stored in its order."""
    with broker.producer() as producer, ThreadPoolExecutor(4) as pool:
        warm(producer)

        def work(name: int) -> None:
            for n in range(40):
                producer.send("orders", b"%d %d" % (name, n), key=f"key-{name}")

        list(pool.map(work, range(4)))
    stored = [body.split() for body in bodies(broker) if not body.startswith(b"w")]
    for name in range(4):
        assert [int(n) for owner, n in stored if int(owner) == name] == list(range(40))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # it is what we look at
def test_a_fork_does_not_use_the_parents_connection(broker: RunningBroker):
    """The child's copy says so; the parent's goes on."""
    with broker.producer() as producer:
        sent = warm(producer)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                producer.send("orders", b"child", key="k")
            except inorder.InorderError as error:
                code = 0 if "before the fork" in str(error) else 2
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        producer.send("orders", b"parent", key="k")
    assert bodies(broker) == [*sent, b"parent"]


def test_what_somebody_looks_at_goes_by_the_portal(broker: RunningBroker):
    """Hooks see every message; names and wishes are not for the short way."""
    seen = []
    hooked = inorder.Producer(broker.namesrv, after_send=lambda *what: seen.append(what))
    with hooked:
        for n in range(LONE_SENDS * 2):
            hooked.send("orders", b"%d" % n, key="k")
    assert len(seen) == LONE_SENDS * 2
    with broker.producer() as producer:
        for n in range(LONE_SENDS * 2):
            producer.send("orders", b"%d" % n, key="k", timeout=5)
        assert alone(producer) == 0


def test_lone_sends_without_a_key_take_turns(broker: RunningBroker):
    """All queues get their share, each message is stored once."""
    with broker.producer() as producer:
        receipts = [producer.send("orders", b"%d" % n) for n in range(120)]
        assert alone(producer) > 60
    counts = dict.fromkeys(range(4), 0)
    for receipt in receipts:
        counts[receipt.queue.index] += 1
    assert min(counts.values()) > 20
    assert sorted(bodies(broker), key=int) == [b"%d" % n for n in range(120)]
