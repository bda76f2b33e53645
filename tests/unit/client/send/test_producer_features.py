"""The producer against scripted servers: choices, futures, batches, hooks, failing brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.config import ClientConfig
from inorder.errors import (
    AlreadyClosed,
    BatchIncomplete,
    NoPermission,
    OutcomeUnknown,
    PredecessorFailed,
    RequestTimeout,
    TooManyOutstanding,
    UsageError,
)
from inorder.model import Message, SendReceipt, SendStatus, TopicQueue
from inorder.wire.codes import RequestCode, ResponseCode
from inorder.wire.header import Command
from tests.kit.simloop import SimLoop, run
from tests.unit.client.scripted import QUEUES, Scripted, over_the_wire, refuse, session, silence


def by_number(queues: Sequence[TopicQueue], _: Message, order_id: Any) -> TopicQueue:
    """The selector of RocketMQ's own examples."""
    return queues[order_id % len(queues)]


def test_a_selector_or_a_queue_chooses():
    """Instead of key and turn; what they choose must be there."""

    async def scenario(server: Scripted, client: Session) -> None:
        producer = Producer(client)
        for order_id in range(6):
            body = b"%d" % order_id
            receipt = await producer.send("t", body, selector=by_number, arg=order_id)
            assert receipt.queue.index == order_id % QUEUES
        assert server.bodies() == [[b"0", b"2", b"4"], [b"1", b"3", b"5"]]
        chosen = TopicQueue("t", "broker-a", 1)
        assert (await producer.send("t", b"x", key="k", queue=chosen)).queue == chosen
        for wrong in (
            {"queue": TopicQueue("other", "broker-a", 0)},
            {"queue": chosen, "selector": by_number},
            {"selector": lambda queues, message, arg: TopicQueue("t", "broker-z", 9)},
        ):
            with pytest.raises(UsageError):
                await producer.send("t", b"x", **wrong)

    over_the_wire(scenario)


def test_send_nowait_takes_its_place_when_it_is_called():
    """Futures and awaited sends of a key are stored in the order of the calls."""

    async def scenario(server: Scripted, client: Session) -> None:
        producer = Producer(client)
        for round_ in range(3):  # the first one waits for the route
            futures = [producer.send_nowait("t", b"%d-%d" % (round_, n), key="k") for n in range(5)]
            last = await producer.send("t", b"%d-5" % round_, key="k")
            offsets = [(await future).offset for future in futures]
            assert [*offsets, last.offset] == list(range(round_ * 6, round_ * 6 + 6))
        stored = max(server.bodies(), key=len)
        assert stored == [b"%d-%d" % (r, n) for r in range(3) for n in range(6)]

    over_the_wire(scenario)


def test_a_cancelled_future_does_not_hold_up_the_line():
    """Cancelled before it began, or while it waits: the others go on in order."""

    async def scenario(server: Scripted, client: Session) -> None:
        producer = Producer(client)
        await producer.send("t", b"first", key="k")
        futures = [producer.send_nowait("t", b"%d" % n, key="k") for n in range(6)]
        futures[0].cancel()
        await asyncio.sleep(0)
        futures[3].cancel()
        await producer.flush()
        stored = max(server.bodies(), key=len)
        assert [body for body in stored if body in (b"1", b"2", b"4", b"5")] == [
            b"1", b"2", b"4", b"5",
        ]  # fmt: skip
        assert producer.statistics().waiting == 0
        assert b"3" not in stored

    over_the_wire(scenario)


def test_oneway_sends_keep_their_place():
    """They are written in order, between sends that wait for an answer."""

    async def scenario(server: Scripted, client: Session) -> None:
        producer = Producer(client)
        for n in range(6):
            if n % 2:
                await producer.send("t", b"%d" % n, key="k")
            else:
                await producer.send_oneway("t", b"%d" % n, key="k")
        assert max(server.bodies(), key=len) == [b"%d" % n for n in range(6)]

    over_the_wire(scenario)


def test_a_batch_is_one_request_per_queue():
    """Receipts come in the order of the messages, offsets count on within a queue."""

    async def scenario(server: Scripted, client: Session) -> None:
        producer = Producer(client)
        messages = [Message("t", b"%d" % n, key=f"key-{n % 5}") for n in range(40)]
        receipts = await producer.send_batch(messages)
        assert server.count(RequestCode.SEND_BATCH_MESSAGE) == QUEUES
        for message, receipt in zip(messages, receipts, strict=True):
            record = server.queues[receipt.queue.index][receipt.offset]
            assert record.body == message.body
        for stored in server.bodies():
            assert stored == sorted(stored, key=int)
        await producer.send_batch([Message("t", b"x"), Message("t", b"y")])
        assert server.count(RequestCode.SEND_BATCH_MESSAGE) == QUEUES + 1
        assert await producer.send_batch([]) == []
        with pytest.raises(UsageError, match="one topic"):
            await producer.send_batch([Message("t", b"x"), Message("u", b"x")])

    over_the_wire(scenario)


def test_a_large_batch_is_split_and_stops_at_the_first_failure():
    """What is behind a part that failed is not sent: it would overtake."""

    async def scenario(server: Scripted, client: Session) -> None:
        producer = Producer(client)
        messages = [Message("t", b"%d" % n * 50, key="k") for n in range(10)]
        await producer.send_batch(messages)
        requests = server.count(RequestCode.SEND_BATCH_MESSAGE)
        assert requests > 2
        server.answers[RequestCode.SEND_BATCH_MESSAGE] = [
            server.store_batch,
            refuse(ResponseCode.NO_PERMISSION),
        ]
        with pytest.raises(BatchIncomplete, match="of 10 messages are stored") as caught:
            await producer.send_batch(messages)
        outcomes = caught.value.outcomes
        stored = [isinstance(outcome, SendReceipt) for outcome in outcomes]
        assert stored == sorted(stored, reverse=True)
        assert 0 < sum(stored) < 10
        assert isinstance(outcomes[sum(stored)], NoPermission)
        assert isinstance(outcomes[-1], PredecessorFailed)  # so it is known not to be stored
        assert server.count(RequestCode.SEND_BATCH_MESSAGE) == requests + 2
        assert producer.statistics().waiting == 0

    over_the_wire(scenario, config=ClientConfig(batch_bytes_max=400))


def test_a_batch_of_one_request_raises_its_error():
    """There is nothing to tell apart."""

    async def scenario(server: Scripted, client: Session) -> None:
        server.answers[RequestCode.SEND_BATCH_MESSAGE] = [refuse(ResponseCode.NO_PERMISSION)]
        with pytest.raises(NoPermission):
            await Producer(client).send_batch([Message("t", b"x", key="k")])

    over_the_wire(scenario)


def test_hooks_see_every_message():
    """Before: it may be replaced or refused. After: with its receipt or its error."""

    async def scenario(server: Scripted, client: Session) -> None:
        seen: list[tuple[bytes, bool, str]] = []

        def before(message: Message) -> Message | None:
            if message.body == b"no":
                raise ValueError("not this one")
            return None if message.tag else Message("t", message.body + b"!", tag="made")

        def after(message: Message, receipt: SendReceipt | None, error: object) -> None:
            seen.append((message.body, receipt is not None, type(error).__name__))
            raise RuntimeError("logged, no more")

        producer = Producer(client, before_send=before, after_send=after)
        await producer.send("t", b"a", key="k")
        server.answers[RequestCode.SEND_MESSAGE_V2] = [refuse(ResponseCode.NO_PERMISSION)]
        with pytest.raises(NoPermission):
            await producer.send("t", b"b", tag="tagged")
        with pytest.raises(ValueError, match="not this one"):
            await producer.send("t", b"no")
        await producer.send_batch([Message("t", b"c", key="k"), Message("t", b"d", key="k")])
        assert seen == [
            (b"a!", True, "NoneType"), (b"b", False, "NoPermission"),
            (b"c!", True, "NoneType"), (b"d!", True, "NoneType"),
        ]  # fmt: skip
        assert producer.statistics().waiting == 0

    over_the_wire(scenario)


def test_sends_without_a_key_go_past_a_broker_that_fails():
    """They move to the other one; those with a key wait for theirs."""

    async def main(loop: SimLoop) -> None:
        server, other = Scripted(loop), Scripted(loop, "10.0.0.2", "broker-b")
        server.others.append(other)
        await server.start()
        await other.start()
        async with session(loop) as client:
            producer = Producer(client)
            other.answers[RequestCode.SEND_MESSAGE_V2] = [silence] * 100
            receipts = [await producer.send("t", b"%d" % n) for n in range(12)]
            assert {receipt.queue.broker for receipt in receipts} == {"broker-a"}
            # Found out by one send, or by none if the turn never came: then avoided.
            assert len(other.requests) <= 2
            other.answers.clear()
            await asyncio.sleep(10)
            receipts = [await producer.send("t", b"%d" % n) for n in range(8)]
            assert {receipt.queue.broker for receipt in receipts} == {"broker-a", "broker-b"}

    for seed in range(5):
        run(main, seed)


def test_wrong_times_and_handles_and_marks_by_hand_are_refused():
    """Nothing of it is ever sent as a plain message."""

    async def scenario(server: Scripted, client: Session) -> None:
        producer = Producer(client)
        with pytest.raises(UsageError, match="no delay level"):
            await producer.send("t", b"x", delay_level=-1)
        with pytest.raises(UsageError, match="begun by producer"):
            producer.send_nowait("t", b"x", properties={"TRAN_MSG": "true"})
        with pytest.raises(UsageError, match="is no handle"):
            await producer.recall("t", "abc")
        assert not server.requests

    over_the_wire(scenario)


def test_too_many_sends_at_a_time_are_refused():
    """The limit has a name; when some are done there is room again; statistics count them."""

    async def scenario(_: Scripted, client: Session) -> None:
        producer = Producer(client)
        futures = [producer.send_nowait("t", b"x", key="k") for _ in range(5)]
        with pytest.raises(TooManyOutstanding, match="sends_waiting_max"):
            producer.send_nowait("t", b"x", key="k")
        assert producer.statistics().refused == 1
        await asyncio.gather(*futures)
        await producer.send("t", b"x", key="k")

    over_the_wire(scenario, config=ClientConfig(sends_waiting_max=5))


def test_too_many_bytes_at_a_time_are_refused():
    """Bodies count too; one that is larger than the limit goes while there is any room."""

    async def scenario(_: Scripted, client: Session) -> None:
        producer = Producer(client)
        futures = [producer.send_nowait("t", b"x" * 600, key="k") for _ in range(2)]
        with pytest.raises(TooManyOutstanding, match="sends_waiting_bytes_max"):
            producer.send_nowait("t", b"x", key="k")
        await asyncio.gather(*futures)
        await producer.send("t", b"x" * 3000, key="k")

    over_the_wire(scenario, config=ClientConfig(sends_waiting_bytes_max=1000))


def test_a_short_send_behind_a_stuck_one_gives_up_in_time():
    """And says that it was not sent."""

    async def scenario(server: Scripted, client: Session) -> None:
        producer = Producer(client)
        server.answers[RequestCode.SEND_MESSAGE_V2] = [silence] * 100
        stuck = producer.send_nowait("t", b"stuck", key="k", timeout=4)
        start = server.loop.time()
        with pytest.raises(RequestTimeout, match="was not sent"):
            await producer.send("t", b"short", key="k", timeout=1)
        assert server.loop.time() - start < 1.1
        with pytest.raises(RequestTimeout):
            await stuck

    over_the_wire(scenario)


def test_close_waits_for_what_was_handed_over():
    """Everything has its outcome; nothing more is taken."""

    async def scenario(server: Scripted, client: Session) -> None:
        producer = Producer(client)
        futures = [producer.send_nowait("t", b"%d" % n, key="k") for n in range(10)]
        await producer.close()
        assert all(future.done() and future.result() for future in futures)
        with pytest.raises(AlreadyClosed):
            await producer.send("t", b"x")

    over_the_wire(scenario)


@pytest.mark.parametrize("status", [one for one in SendStatus if one is not SendStatus.OK])
def test_what_is_stored_less_safely_has_a_receipt(status: SendStatus):
    """RocketMQ's codes 10 to 12, of a message and of a batch: stored, so no error."""

    async def scenario(server: Scripted, client: Session) -> None:
        producer = Producer(client)

        def less_safely(command: Command) -> Command:
            batch = command.code == RequestCode.SEND_BATCH_MESSAGE
            reply = server.store_batch(command) if batch else server.store(command)
            reply.code = ResponseCode[status.name]
            return reply

        server.answers[RequestCode.SEND_MESSAGE_V2] = [less_safely]
        server.answers[RequestCode.SEND_BATCH_MESSAGE] = [less_safely]
        receipt = await producer.send("t", b"0", key="k")
        assert (receipt.status, receipt.offset) == (status, 0)
        receipts = await producer.send_batch([Message("t", b"%d" % n, key="k") for n in (1, 2)])
        assert [(one.status, one.offset) for one in receipts] == [(status, 1), (status, 2)]
        assert (await producer.send("t", b"3", key="k")).status is SendStatus.OK
        assert producer.statistics().failed == 0

    over_the_wire(scenario)


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_ERROR, ResponseCode.GO_AWAY, 4711])
def test_an_answer_that_does_not_exclude_storing_leaves_it_open(code: int):
    """Of Apache RocketMQ, too: not sent again, not called refused; the next send goes on."""

    async def scenario(server: Scripted, client: Session) -> None:
        producer = Producer(client)
        server.answers[RequestCode.SEND_MESSAGE_V2] = [refuse(code)]
        with pytest.raises(OutcomeUnknown, match="may or may not be stored") as caught:
            await producer.send("t", b"x", key="k")
        assert caught.value.code == code
        assert server.count(RequestCode.SEND_MESSAGE_V2) == 1
        await producer.send("t", b"next", key="k")

    over_the_wire(scenario)
