"""Sends whose outcome nobody knows, or that are stored less safely, by every way to send."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import inorder
import inorder.aio
import inorder.testing
from inorder.config import BrokerConfig, ClientConfig, StoreConfig
from inorder.errors import BrokerError, OutcomeUnknown, SystemError_
from inorder.model import SendStatus
from inorder.sync.direct import LONE_SENDS
from inorder.testing import RunningBroker
from inorder.wire.codes import RequestCode, ResponseCode
from inorder.wire.header import Command

WAIT_S = 60
QUICK = ClientConfig(retry_first_ms=5, retry_max_ms=20, send_timeout_ms=60_000)
SYNC = BrokerConfig(store=StoreConfig(sync_flush=True, sync_flush_timeout_ms=100))


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    """A broker that acknowledges only what is on disk."""
    with inorder.testing.broker(config=SYNC, client=QUICK) as running:
        store = running._async._running().store
        yield running
        vars(store).pop("sync", None)  # its end saves tables


def fail_syncs(broker: RunningBroker) -> None:
    def sync() -> int:
        raise OSError(errno.EIO, "the disk failed, as told")

    broker._async._running().store.sync = sync  # type: ignore[method-assign]


def hold_syncs(broker: RunningBroker) -> threading.Event:
    store, gate = broker._async._running().store, threading.Event()
    real = store.sync

    def sync() -> int:
        gate.wait(WAIT_S)
        return real()

    store.sync = sync  # type: ignore[method-assign]
    return gate


def by_send(producer: inorder.Producer) -> Any:
    return producer.send("orders", b"x", key="k", timeout=WAIT_S)


def by_itself(producer: inorder.Producer) -> Any:
    assert producer._direct is not None
    assert producer._direct.sent > 0
    return producer.send("orders", b"x", key="k")


def by_future(producer: inorder.Producer) -> Any:
    return producer.send_nowait("orders", b"x", key="k").result(WAIT_S)


def by_batch(producer: inorder.Producer) -> Any:
    return producer.send_batch([inorder.Message("orders", b"x", key="k")])[0]


WAYS = [by_send, by_itself, by_future, by_batch]


def warm(producer: inorder.Producer) -> None:
    for _ in range(LONE_SENDS + 3):
        producer.send("orders", b"warm", key="k")


@pytest.mark.parametrize("way", WAYS)
def test_a_failed_sync_leaves_the_outcome_open(
    broker: RunningBroker, way: Callable[[inorder.Producer], Any]
) -> None:
    """The message is written and may be there after a restart: no BrokerError, its own error."""
    with broker.producer() as producer:
        warm(producer)
        fail_syncs(broker)
        with pytest.raises(OutcomeUnknown, match="may or may not be stored") as caught:
            way(producer)
        assert caught.value.code == ResponseCode.SYSTEM_ERROR
        assert not isinstance(caught.value, BrokerError)
        assert not caught.value.retriable


def test_the_async_producer_leaves_it_open_too(broker: RunningBroker) -> None:
    """Awaited and as a future."""

    async def main() -> None:
        async with inorder.aio.Producer(broker.namesrv, config=QUICK) as producer:
            await producer.send("orders", b"first", key="k")
            fail_syncs(broker)
            future = producer.send_nowait("orders", b"1", key="k")
            outcomes = await asyncio.gather(
                producer.send("orders", b"0", key="a"), future, return_exceptions=True
            )
            assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown] * 2

    asyncio.run(main())


@pytest.mark.parametrize("way", WAYS)
def test_a_slow_sync_gives_a_receipt(
    broker: RunningBroker, way: Callable[[inorder.Producer], Any]
) -> None:
    """Stored, not yet known to be on disk: the receipt says so, and the next one is fine again."""
    with broker.producer() as producer:
        warm(producer)
        gate = hold_syncs(broker)
        receipt = way(producer)
        assert receipt.status is SendStatus.FLUSH_DISK_TIMEOUT
        assert receipt.offset == LONE_SENDS + 3
        gate.set()
        # The one before may still wait in the same sync.
        later = producer.send_nowait("orders", b"later", key="k").result(WAIT_S)
        assert later.offset == LONE_SENDS + 4
        assert producer.statistics().failed == 0
    assert [message.body for message in broker.messages("orders")][-2:] == [b"x", b"later"]


def test_a_refusal_by_a_rule_is_known_not_to_be_stored(broker: RunningBroker) -> None:
    """Our broker says so beside RocketMQ's code 1, so that the client need not doubt."""

    async def main() -> None:
        async with inorder.aio.Producer(broker.namesrv, config=QUICK) as producer:
            await producer.send("orders", b"first", key="k")
            sender = next(iter(producer._router.senders.values()))  # type: ignore[union-attr]
            connection = sender.connection
            assert connection is not None
            fields = {"a": "g", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0",
                      "g": "0", "h": "0", "i": "", "j": "0", "k": "false", "m": "true"}  # fmt: skip
            answer = await connection.request(
                Command.request(RequestCode.SEND_BATCH_MESSAGE, fields, b""), 10_000
            )
            assert (answer.code, answer.fields) == (ResponseCode.SYSTEM_ERROR, {"stored": "no"})

    asyncio.run(main())


def test_a_topic_above_the_limit_is_refused_and_its_outcome_is_known() -> None:
    """The broker's table of topics is full: code 1, and SystemError_, for nothing was stored."""
    config = BrokerConfig(topics_max=1)
    with (
        inorder.testing.broker(config=config, client=QUICK) as broker,
        broker.producer() as producer,
        pytest.raises(SystemError_, match="topics_max"),
    ):
        producer.send("orders", b"x", key="k")
