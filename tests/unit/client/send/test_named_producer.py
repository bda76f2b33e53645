"""Producers with a name: numbers of the caller's own, runs that are repeated, and takers-over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.errors import (
    MessageIllegal,
    MessagesLost,
    PredecessorFailed,
    ProducersFull,
    ProducerStale,
    SystemBusy,
    UsageError,
)
from inorder.model import Message, TopicQueue
from inorder.wire.codes import RequestCode, ResponseCode
from inorder.wire.extensions import ExtensionAnswer, ExtensionCode
from inorder.wire.properties import parse
from tests.unit.client.scripted import Scripted, over_the_wire, refuse
from tests.unit.client.send.numbering import Numbering, numbered

SEND = RequestCode.SEND_MESSAGE_V2
QUEUE = TopicQueue("t", "broker-a", 1)


def marks(server: Numbering) -> list[tuple[int, int]]:
    """Return number and predecessor of what is stored."""
    found = [parse(record.properties) for record in server.queues[QUEUE.index]]
    return [(int(one["INORDER_SEQ"]), int(one["INORDER_PREV"])) for one in found]


async def send_all(producer: Producer, *numbers: int) -> list[Any]:
    sends = [
        producer.send_nowait("t", b"%d" % number, queue=QUEUE, sequence=number)
        for number in numbers
    ]
    return await asyncio.gather(*sends, return_exceptions=True)


def test_each_send_names_its_predecessor():
    """Gaps are allowed; the first one has none."""

    async def scenario(server: Numbering, client: Session) -> None:
        await send_all(Producer(client, id="p"), 10, 20, 35)
        assert marks(server) == [(10, -1), (20, 10), (35, 20)]

    numbered(scenario)


def test_a_refused_one_is_not_passed():
    """A2: 10, 20, 30 pipelined, 20 refused: 30 waits, and both are stored in order."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client, id="p")
        server.answers[SEND] = [server.store, refuse(ResponseCode.SYSTEM_BUSY)]
        receipts = await send_all(producer, 10, 20, 30)
        assert [receipt.offset for receipt in receipts] == [0, 1, 2]
        assert marks(server) == [(10, -1), (20, 10), (30, 20)]

    numbered(scenario)


def test_behind_one_that_failed_nothing_is_stored():
    """A2: a run that comes again with 20 would find 30 stored, and be told that 20 is."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client, id="p")
        server.answers[SEND] = [server.store, refuse(ResponseCode.MESSAGE_ILLEGAL)]
        outcomes = await send_all(producer, 10, 20, 30, 40)
        assert isinstance(outcomes[1], MessageIllegal)
        assert [type(one) for one in outcomes[2:]] == [PredecessorFailed] * 2
        assert marks(server) == [(10, -1)]
        with pytest.raises(UsageError, match="only grow"):
            await producer.send("t", b"x", queue=QUEUE, sequence=15)
        receipts = await send_all(producer, 20, 30)
        assert [receipt.offset for receipt in receipts] == [1, 2]
        await send_all(producer, 60)
        assert marks(server) == [(10, -1), (20, 10), (30, 20), (60, 30)]

    numbered(scenario)


def test_behind_one_whose_time_is_up_nothing_is_stored():
    """It was never written; those behind it had time, and are told as well."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client, id="p")
        await producer.send("t", b"1", queue=QUEUE, sequence=1)
        server.answers[SEND] = [refuse(ResponseCode.SYSTEM_BUSY)] * 8
        hasty = producer.send_nowait("t", b"2", queue=QUEUE, sequence=2, timeout=0.1)
        patient = producer.send_nowait("t", b"3", queue=QUEUE, sequence=3, timeout=30)
        outcomes = await asyncio.gather(hasty, patient, return_exceptions=True)
        assert [type(one) for one in outcomes] == [SystemBusy, PredecessorFailed]
        server.answers[SEND].clear()
        async with Producer(client, id="p") as again:
            receipts = await send_all(again, 2, 3)
        assert [receipt.offset for receipt in receipts] == [1, 2]
        assert marks(server) == [(1, -1), (2, 1), (3, 2)]

    numbered(scenario)


def test_behind_one_that_got_lost_nothing_is_stored():
    """Its request never came, its caller gave up; what is in flight behind it is not sent again."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client, id="p")
        await producer.send("t", b"1", queue=QUEUE, sequence=1)
        server.answers[SEND] = [server.lose_request]
        hasty = producer.send_nowait("t", b"2", queue=QUEUE, sequence=2, timeout=0.05)
        patient = producer.send_nowait("t", b"3", queue=QUEUE, sequence=3, timeout=30)
        outcomes = await asyncio.gather(hasty, patient, return_exceptions=True)
        stored = [number for number, _ in marks(server)]
        assert stored in ([1], [1, 2, 3])
        assert isinstance(outcomes[1], PredecessorFailed) == (stored == [1])
        async with Producer(client, id="p") as again:
            await send_all(again, 2, 3)
        assert [number for number, _ in marks(server)] == [1, 2, 3]

    numbered(scenario)


def test_a_repeated_run_stores_nothing_twice():
    """The second producer of the name is told where the messages are; new ones follow."""

    async def scenario(server: Numbering, client: Session) -> None:
        async with Producer(client, id="p") as first:
            await send_all(first, 1, 2, 3)
        server.numbers[QUEUE.index][0] = ("p", 1, -1)  # an answer that is remembered no more
        async with Producer(client, id="p") as second:
            receipts = await send_all(second, 1, 2, 3, 4)
        assert [receipt.offset for receipt in receipts] == [-1, 1, 2, 3]
        assert marks(server) == [(1, -1), (2, 1), (3, 2), (4, 3)]

    numbered(scenario)


def test_a_lost_answer_of_a_name_leaves_no_second_copy():
    """As without a name."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client, id="p")
        server.answers[SEND] = [server.store, server.lose_answer, server.store, server.lose_request]
        receipts = await send_all(producer, *range(0, 80, 10))
        assert [receipt.offset for receipt in receipts] == list(range(8))
        assert [number for number, _ in marks(server)] == list(range(0, 80, 10))

    numbered(scenario)


def test_batches_of_a_name():
    """Each message has its number and its predecessor."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client, id="p")
        messages = [Message("t", b"x")] * 3
        await producer.send("t", b"x", queue=QUEUE, sequence=2)
        await producer.send_batch(messages, queue=QUEUE, sequences=[3, 5, 9])
        await producer.send("t", b"x", queue=QUEUE, sequence=10)
        assert marks(server) == [(2, -1), (3, 2), (5, 3), (9, 5), (10, 9)]
        with pytest.raises(UsageError, match="one for each"):
            await producer.send_batch(messages, queue=QUEUE, sequences=[11])

    numbered(scenario)


def test_the_last_one_to_start_wins():
    """The older producer of the name gets a final error, now and ever after."""

    async def scenario(server: Numbering, client: Session) -> None:
        old, new = Producer(client, id="p"), Producer(client, id="p")
        await send_all(old, 1)
        await send_all(new, 2)
        server.bound["p"] = (
            server.bound["p"][0],
            object(),
        )  # the new one, over a connection of its own
        (stale,) = await send_all(old, 3)
        assert isinstance(stale, ProducerStale)
        assert "another producer with the id 'p'" in str(stale)
        with pytest.raises(ProducerStale):
            await old.send("t", b"x", queue=QUEUE, sequence=4)
        assert [number for number, _ in marks(server)] == [1, 2]

    numbered(scenario)


def test_a_fresh_producer_takes_a_name_over_from_a_clock_that_was_ahead():
    """It is told the highest incarnation and tries once above it."""

    async def scenario(server: Numbering, client: Session) -> None:
        server.bound["p"] = (1 << 61, object())
        await send_all(Producer(client, id="p"), 1)
        assert server.bound["p"][0] > 1 << 61
        assert server.count(ExtensionCode.PRODUCER_HELLO) == 2

    numbered(scenario)


def test_what_a_name_and_a_number_need():
    """Each other, a queue that can be found again, and numbers that grow."""

    async def scenario(server: Numbering, client: Session) -> None:
        named, plain = Producer(client, id="p"), Producer(client)
        for producer, how, text in (
            (named, {"key": "k"}, "give every message its sequence"),
            (plain, {"key": "k", "sequence": 1}, "id="),
            (named, {"sequence": 1}, "needs key="),
            (named, {"key": "k", "sequence": -1}, "no sequence"),
            (named, {"key": "k", "sequence": True}, "no sequence"),
        ):
            with pytest.raises(UsageError, match=text):
                await producer.send("t", b"x", **how)
        await send_all(named, 5)
        await send_all(named, 6)
        with pytest.raises(UsageError, match="only grow"):
            named.send_nowait("t", b"x", queue=QUEUE, sequence=5)
        assert server.stored() == [b"5", b"6"]
        for wrong in ("", "x" * 129, "tab\t"):
            with pytest.raises(UsageError, match="no id"):
                Producer(client, id=wrong)

    numbered(scenario)


def test_a_number_may_come_again_if_its_caller_was_told_of_a_failure():
    """That is what numbers are for; a later one must not have been sent meanwhile."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client, id="p")
        await send_all(producer, 1)
        server.answers[SEND] = [refuse(ResponseCode.NO_PERMISSION)]
        (refused,) = await send_all(producer, 2)
        assert isinstance(refused, Exception)
        (receipt,) = await send_all(producer, 2)
        assert receipt.offset == 1

    numbered(scenario)


def test_numbers_that_a_broker_lost_are_reported():
    """The caller learns from where to send again, and may do so."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client, id="p")
        await send_all(producer, 1, 2, 3)
        del server.queues[QUEUE.index][1:], server.numbers[QUEUE.index][1:]
        (lost,) = await send_all(producer, 4)
        assert isinstance(lost, MessagesLost)
        assert "after 1" in str(lost)
        await send_all(producer, 2, 3, 4)
        assert [number for number, _ in marks(server)] == [1, 2, 3, 4]

    numbered(scenario)


def test_no_room_for_a_name():
    """A final error."""

    async def scenario(server: Numbering, client: Session) -> None:
        server.answers[ExtensionCode.PRODUCER_HELLO] = [refuse(ExtensionAnswer.PRODUCERS_FULL)]
        (full,) = await send_all(Producer(client, id="p"), 1)
        assert isinstance(full, ProducersFull)

    numbered(scenario)


def test_a_broker_without_numbers_has_no_named_producers():
    """There is nothing to fall back to."""

    async def scenario(server: Scripted, client: Session) -> None:
        with pytest.raises(UsageError, match="no broker of inorder"):
            await Producer(client, id="p").send("t", b"x", key="k", sequence=1)
        assert not server.count(SEND)

    over_the_wire(scenario)
