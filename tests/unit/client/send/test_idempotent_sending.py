"""Numbered sends against a scripted broker: pipelines, lost answers, refusals, fences, losses."""

from __future__ import annotations

import asyncio
import logging

import pytest

from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.config import ClientConfig
from inorder.errors import (
    BatchIncomplete,
    ConfigError,
    NoPermission,
    OutcomeUnknown,
    PredecessorFailed,
    RequestTimeout,
)
from inorder.model import Message, SendReceipt
from inorder.wire.codes import RequestCode, ResponseCode
from inorder.wire.extensions import ExtensionAnswer, ExtensionCode
from inorder.wire.header import Command
from inorder.wire.properties import parse
from tests.kit.simloop import SimLoop, run
from tests.unit.client.scripted import Scripted, over_the_wire, refuse, session, silence
from tests.unit.client.send.numbering import Numbering, numbered, until

SEND = RequestCode.SEND_MESSAGE_V2


def body(number: int) -> bytes:
    return b"%d" % number


def bodies(*numbers: int) -> list[bytes]:
    return list(map(body, numbers))


def numbers_of(server: Numbering, queue_id: int) -> list[int]:
    return [int(parse(record.properties)["INORDER_SEQ"]) for record in server.queues[queue_id]]


def test_many_sends_of_a_key_are_on_their_way_at_a_time():
    """All leave before the first answer; stored in the order of the calls, numbered from 0."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        server.hold = True
        futures = [producer.send_nowait("t", body(n), key="k") for n in range(20)]
        await until(lambda: len(server.held) == 20)
        server.let_go()
        receipts = await asyncio.gather(*futures)
        assert [receipt.offset for receipt in receipts] == list(range(20))
        assert server.stored() == bodies(*range(20))
        assert numbers_of(server, receipts[0].queue.index) == list(range(20))

    numbered(scenario)


def test_hello_goes_first_and_alone():
    """No send is written before its answer."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        server.answers[ExtensionCode.PRODUCER_HELLO] = [silence]
        futures = [producer.send_nowait("t", body(n)) for n in range(4)]
        await until(lambda: server.count(ExtensionCode.PRODUCER_HELLO))
        await asyncio.sleep(0.3)
        assert not server.count(SEND)
        await asyncio.gather(*futures)
        codes = [request.code for request in server.requests]
        assert codes.index(SEND) > codes.index(ExtensionCode.PRODUCER_HELLO)

    numbered(scenario)


def test_the_window_bounds_what_is_unanswered():
    """sends_in_flight_max, per queue."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        server.hold = True
        futures = [producer.send_nowait("t", body(n), key="k") for n in range(10)]
        for _ in range(10):
            await until(lambda: server.held)
            await asyncio.sleep(0.05)
            server.let_go(1)
        await asyncio.gather(*futures)
        assert server.most_unanswered == 3
        assert server.stored() == bodies(*range(10))

    numbered(scenario, config=ClientConfig(sends_in_flight_max=3))
    with pytest.raises(ConfigError, match="sends_in_flight_max"):
        Producer("h:1", config=ClientConfig(sends_in_flight_max=1025))


def test_a_lost_answer_leaves_no_second_copy():
    """The broker is asked what it has; the send gets its first answer."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        await producer.send("t", body(0), key="k")
        server.answers[SEND] = [server.store, server.lose_answer]
        futures = [producer.send_nowait("t", body(n), key="k") for n in range(1, 8)]
        receipts = await asyncio.gather(*futures)
        assert [receipt.offset for receipt in receipts] == list(range(1, 8))
        assert server.stored() == bodies(*range(8))
        assert server.count(ExtensionCode.PRODUCER_STATE) == 1

    numbered(scenario)


def test_a_lost_request_is_sent_again_in_its_place():
    """What the broker does not have is stored now, in order."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        server.answers[SEND] = [server.store, server.lose_request]
        futures = [producer.send_nowait("t", body(n), key="k") for n in range(8)]
        await asyncio.gather(*futures)
        assert server.stored() == bodies(*range(8))

    numbered(scenario)


def test_a_busy_broker_is_tried_again_and_nothing_overtakes():
    """Behind the refused one everything is refused; all go again, in order."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        server.answers[SEND] = [server.store, refuse(ResponseCode.SYSTEM_BUSY)]
        futures = [producer.send_nowait("t", body(n), key="k") for n in range(6)]
        await asyncio.gather(*futures)
        assert server.stored() == bodies(*range(6))
        assert producer.statistics().retries >= 5

    numbered(scenario)


def test_a_refused_message_frees_its_number():
    """Its caller gets the error, the others are stored without a gap."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        server.answers[SEND] = [server.store, refuse(ResponseCode.NO_PERMISSION)]
        futures = [producer.send_nowait("t", body(n), key="k") for n in range(5)]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert isinstance(outcomes[1], NoPermission)
        assert server.stored() == bodies(0, 2, 3, 4)
        assert numbers_of(server, outcomes[0].queue.index) == [0, 1, 2, 3]

    numbered(scenario)


def test_a_late_copy_of_an_older_connection_is_shut_out():
    """A3: m6 hangs in a connection, is sent again and refused, its number goes to m7."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        for n in range(6):
            await producer.send("t", body(n), key="k")
        server.hold = True
        sixth = producer.send_nowait("t", body(6), key="k")
        await until(lambda: server.held)
        late = server.held[0]
        await until(lambda: len(server.held) == 2)  # it timed out and came over a new connection
        assert server.held[1][0] is not late[0]
        server.answers[SEND] = [refuse(ResponseCode.NO_PERMISSION)]
        server.held, server.hold = server.held[1:], False
        server.let_go()
        with pytest.raises(NoPermission):
            await sixth
        seventh = producer.send_nowait("t", body(7), key="k")
        server.serve(*late)  # only now does the broker read the first copy
        await seventh
        assert server.stored() == bodies(0, 1, 2, 3, 4, 5, 7)

    numbered(scenario)


def test_a_caller_that_gives_up_does_not_free_the_number():
    """RequestTimeout: nobody knows. Later sends wait until the broker has told."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        await producer.send("t", body(0), key="k")
        server.hold = True
        given_up = producer.send_nowait("t", body(1), key="k", timeout=0.2)
        later = producer.send_nowait("t", body(2), key="k")
        with pytest.raises(RequestTimeout, match="may or may not be stored"):
            await given_up
        await until(lambda: server.count(ExtensionCode.PRODUCER_STATE))
        server.held, server.hold = [], False  # the broker never saw either
        await later
        assert server.stored() == bodies(0, 2)
        assert numbers_of(server, later.result().queue.index) == [0, 1]

    numbered(scenario)


def test_a_message_that_is_stored_after_its_caller_gave_up_stays_in_its_place():
    """The answer comes late; the next one is numbered behind it."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        server.hold = True
        given_up = producer.send_nowait("t", body(0), key="k", timeout=0.2)
        await until(lambda: server.held)
        with pytest.raises(RequestTimeout):
            await given_up
        cancelled = producer.send_nowait("t", body(1), key="k")
        await until(lambda: len(server.held) == 2)
        cancelled.cancel()
        server.hold = False
        server.let_go()
        await producer.send("t", body(2), key="k")
        assert server.stored() == bodies(0, 1, 2)
        assert producer.statistics().waiting == 0

    numbered(scenario)


def test_an_answer_that_does_not_tell_is_asked_after():
    """SYSTEM_ERROR: the caller is told, the queue asks how far the broker is."""

    async def scenario(server: Numbering, client: Session) -> None:
        def store_and_fail(command: Command) -> Command:
            server.store(command)
            return command.reply(ResponseCode.SYSTEM_ERROR, "the outcome is unknown")

        producer = Producer(client)
        server.answers[SEND] = [server.store, store_and_fail]
        futures = [producer.send_nowait("t", body(n), key="k") for n in range(5)]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert isinstance(outcomes[1], OutcomeUnknown)
        await producer.send("t", body(5), key="k")
        assert server.stored() == bodies(*range(6))

    numbered(scenario)


def test_a_forgotten_producer_goes_on_under_a_new_id():
    """Evicted: the broker says so, nothing is accepted silently, nothing is doubled."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        first = await producer.send("t", body(0), key="k")
        index = first.queue.index
        server.numbers[index] = []
        futures = [producer.send_nowait("t", body(n), key="k") for n in range(1, 5)]
        await asyncio.gather(*futures)
        assert server.stored() == bodies(*range(5))
        ids = [parse(record.properties)["INORDER_PID"] for record in server.queues[index]]
        assert len(set(ids)) == 2
        assert producer.statistics().lost == 0

    numbered(scenario)


def test_acknowledged_messages_that_are_lost_are_reported(caplog: pytest.LogCaptureFixture):
    """A power cut under async flush: the range is logged and counted, the next sends go on."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        for n in range(4):
            receipt = await producer.send("t", body(n), key="k")
        index = receipt.queue.index
        del server.queues[index][2:], server.numbers[index][2:]
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            await asyncio.gather(*(producer.send("t", body(n), key="k") for n in range(4, 7)))
        assert server.stored() == bodies(0, 1, 4, 5, 6)
        assert producer.statistics().lost == 2
        assert "numbers=2..3" in caplog.text

    numbered(scenario)


def test_one_way_sends_have_numbers_and_are_repeated():
    """Their callers do not wait; a refusal is tried again all the same."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        server.answers[SEND] = [server.store, refuse(ResponseCode.SYSTEM_BUSY)]
        for n in range(4):
            await producer.send_oneway("t", body(n), key="k")
        await producer.send("t", body(4), key="k")
        assert server.stored() == bodies(*range(5))

    numbered(scenario)


def test_each_message_of_a_batch_has_its_own_number():
    """Between single sends, in the order of the calls; a lost answer leaves no second copy."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        single = producer.send_nowait("t", body(0), key="k")
        server.answers[RequestCode.SEND_BATCH_MESSAGE] = [server.lose_answer]
        batch = asyncio.create_task(
            producer.send_batch([Message("t", body(n), key="k") for n in range(1, 4)])
        )
        await asyncio.sleep(0)
        last = producer.send_nowait("t", body(4), key="k")
        receipts = [await single, *(await batch), await last]
        assert [receipt.offset for receipt in receipts] == list(range(5))
        assert server.stored() == bodies(*range(5))
        assert numbers_of(server, receipts[0].queue.index) == list(range(5))

    numbered(scenario)


def test_a_batch_that_is_stored_in_part_is_completed():
    """Sent again it appends only what is missing; the receipts tell where each message is."""

    async def scenario(server: Numbering, client: Session) -> None:
        def store_two(command: Command) -> None:
            server.store_batch(command)
            index = int(command.fields["e"])
            del server.queues[index][2:], server.numbers[index][2:]
            server.speaker.abort("killed in the middle of a write")

        producer = Producer(client)
        server.answers[RequestCode.SEND_BATCH_MESSAGE] = [store_two]
        receipts = await producer.send_batch([Message("t", body(n), key="k") for n in range(5)])
        assert [receipt.offset for receipt in receipts] == list(range(5))
        assert server.stored() == bodies(*range(5))

    numbered(scenario)


def test_a_batch_stops_at_the_part_that_was_refused():
    """Parts behind it were under way already: they are refused too, and not sent again."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        batches = RequestCode.SEND_BATCH_MESSAGE
        server.answers[batches] = [server.store_batch, refuse(ResponseCode.NO_PERMISSION)]
        messages = [Message("t", b"%d" % n * 150, key="k") for n in range(6)]
        with pytest.raises(BatchIncomplete) as caught:
            await producer.send_batch(messages)
        outcomes = caught.value.outcomes
        kinds = [type(outcome) for outcome in outcomes]
        assert kinds == [SendReceipt, NoPermission] + [PredecessorFailed] * 4
        await producer.send("t", body(7), key="k")
        assert server.stored() == [messages[0].body, body(7)]

    numbered(scenario, config=ClientConfig(batch_bytes_max=300))


def test_sends_without_a_key_move_only_if_they_are_not_stored():
    """A refusal is definite: elsewhere. A lost answer is not: the broker is asked."""

    async def main(loop: SimLoop) -> None:
        server, other = Numbering(loop), Numbering(loop, "10.0.0.2", "broker-b")
        server.others.append(other)
        await server.start()
        await other.start()
        async with session(loop) as client:
            producer = Producer(client)
            busy = refuse(ResponseCode.SYSTEM_BUSY)
            other.answers[SEND] = [other.lose_answer, other.store, *[busy] * 50]
            receipts = [await producer.send("t", body(n)) for n in range(12)]
            stored = [one for s in (server, other) for queue in s.bodies() for one in queue]
            assert sorted(stored, key=int) == bodies(*range(12))
            assert all(receipt.offset >= 0 for receipt in receipts)

    for seed in range(5):
        run(main, seed)


def test_a_broker_without_numbers_gets_one_send_at_a_time_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
):
    """The fallback, for any number of producers and connections."""

    async def scenario(server: Scripted, client: Session) -> None:
        caplog.clear()
        for _ in range(2):
            producer = Producer(client)
            await asyncio.gather(*(producer.send("t", body(n), key="k") for n in range(5)))
            for connection in server.loop.network.connections(server.host):
                connection.drop()
            await producer.send("t", body(5), key="k")
        assert caplog.text.count("knows no numbered sends") == 1
        stored = max(server.bodies(), key=len)
        assert stored == bodies(*range(6)) * 2
        assert all(
            b"INORDER" not in record.properties for q in server.queues.values() for record in q
        )

    over_the_wire(scenario)


def test_a_mismatch_is_not_taken_for_an_answer():
    """Another message has the number: not stored, and sent again under a new id."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        server.answers[SEND] = [refuse(ExtensionAnswer.PRODUCER_MISMATCH)]
        await asyncio.gather(*(producer.send("t", body(n), key="k") for n in range(3)))
        assert server.stored() == bodies(*range(3))

    numbered(scenario)


def test_a_stored_message_whose_receipt_cannot_be_had_is_not_an_error():
    """The broker said that it has it, and then only that it is busy: the offset is -1."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        busy = refuse(ResponseCode.SYSTEM_BUSY)
        server.answers[SEND] = [server.lose_answer, *[busy] * 100]
        receipt = await producer.send("t", body(0), key="k", timeout=2)
        assert receipt.offset == -1
        assert server.stored() == bodies(0)

    numbered(scenario)
