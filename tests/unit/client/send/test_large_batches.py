"""Batches above the limit: in parts, in their place, and nothing of a key behind a failure."""

from __future__ import annotations

import asyncio

import pytest

from inorder.client.send import batches
from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.config import ClientConfig
from inorder.errors import BatchIncomplete, NoPermission, PredecessorFailed, TooManyOutstanding
from inorder.model import Message, SendReceipt
from inorder.wire.codes import RequestCode, ResponseCode
from tests.unit.client.scripted import refuse, silence
from tests.unit.client.send.numbering import Numbering, numbered

BATCH = RequestCode.SEND_BATCH_MESSAGE
SMALL = ClientConfig(sends_waiting_max=50, batch_bytes_max=1000)


@pytest.fixture(autouse=True)
def small_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few messages a turn, so that a batch of a test takes many."""
    monkeypatch.setattr(batches, "TURN_MESSAGES", 20)


def many(count: int, keys: int = 1) -> list[Message]:
    return [Message("t", b"%d" % n, key=f"k{n % keys}") for n in range(count)]


def test_a_batch_above_the_limit_goes_in_parts():
    """All of it is stored, in order; never more of it is under way than the limit allows."""

    async def scenario(server: Numbering, client: Session) -> None:
        async with Producer(client) as producer:
            receipts = await producer.send_batch(many(500, keys=5))
            assert len(receipts) == 500
            stored = [body for queue in server.bodies() for body in queue]
            assert sorted(map(int, stored)) == list(range(500))
            for queue in server.bodies():
                for key in range(5):
                    its = [int(body) for body in queue if int(body) % 5 == key]
                    assert its == sorted(its)
            statistics = producer.statistics()
            assert (statistics.sent, statistics.waiting, statistics.failed) == (500, 0, 0)

    numbered(scenario, config=SMALL)


def test_what_is_called_later_comes_behind_the_whole_batch():
    """Also while parts of it have no place yet."""

    async def scenario(server: Numbering, client: Session) -> None:
        async with Producer(client) as producer:
            await producer.send("t", b"first", key="k0")
            batch = asyncio.create_task(producer.send_batch(many(200)))
            await asyncio.sleep(0)
            while True:
                try:
                    later = producer.send_nowait("t", b"later", key="k0")
                    break
                except TooManyOutstanding:
                    await asyncio.sleep(0.001)
            await batch
            await later
            assert server.stored() == [b"first", *(b"%d" % n for n in range(200)), b"later"]

    numbered(scenario, config=ClientConfig(sends_waiting_max=300, batch_bytes_max=1000))


def test_a_failure_stops_the_later_messages_of_its_key():
    """Of parts that have no place yet, too; what was stored and what was not is told."""

    async def scenario(server: Numbering, client: Session) -> None:
        async with Producer(client) as producer:
            server.answers[BATCH] = [server.store_batch] * 9 + [refuse(ResponseCode.NO_PERMISSION)]
            with pytest.raises(BatchIncomplete) as caught:
                await producer.send_batch(many(400))
            kinds = [type(outcome) for outcome in caught.value.outcomes]
            stored = kinds.count(SendReceipt)
            refused = kinds.count(NoPermission)
            assert 0 < stored < 200
            assert refused > 0
            assert kinds == [
                *[SendReceipt] * stored, *[NoPermission] * refused,
                *[PredecessorFailed] * (400 - stored - refused),
            ]  # fmt: skip
            assert server.stored() == [b"%d" % n for n in range(stored)]
            statistics = producer.statistics()
            assert (statistics.sent, statistics.failed) == (stored, 400 - stored)
            assert statistics.waiting == 0
            await producer.send("t", b"next", key="k0")

    numbered(scenario, config=SMALL)


def test_a_batch_whose_time_is_up_says_what_was_sent():
    """Its last messages have no place by then: they are not stored, and there is room again."""

    async def scenario(server: Numbering, client: Session) -> None:
        async with Producer(client) as producer:
            await producer.send("t", b"first", key="k0")
            server.answers[BATCH] = [server.store_batch] * 3 + [silence] * 1000
            with pytest.raises(BatchIncomplete) as caught:
                await producer.send_batch(many(400), timeout=1)
            server.answers.clear()
            outcomes = caught.value.outcomes
            assert "before the last" in str(outcomes[-1])
            assert isinstance(outcomes[0], SendReceipt)
            assert producer.statistics().waiting == 0
            await producer.send("t", b"next", key="k0", timeout=30)

    numbered(scenario, config=SMALL)


def test_a_batch_that_is_given_up_goes_no_further():
    """What had no place is not sent; the producer goes on."""

    async def scenario(server: Numbering, client: Session) -> None:
        async with Producer(client) as producer:
            await producer.send("t", b"first", key="k0")
            batch = asyncio.create_task(producer.send_batch(many(4000)))
            while len(server.stored()) < 30:  # noqa: ASYNC110 - the server is a script
                await asyncio.sleep(0.001)
            batch.cancel()
            with pytest.raises(asyncio.CancelledError):
                await batch
            await producer.flush()
            stored = server.stored()
            assert 30 <= len(stored) < 2000
            assert stored[1:] == [b"%d" % n for n in range(len(stored) - 1)]
            await producer.send("t", b"next", key="k0")
            assert producer.statistics().waiting == 0

    numbered(scenario, config=SMALL)
