"""POP without order on a running broker, by raw requests, with a clock that is moved by hand."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from inorder.broker.pops import service
from inorder.config import NetConfig
from inorder.net.connection import Connection
from inorder.testing.clock import FakeClock
from inorder.wire.header import Command
from inorder.wire.properties import parse
from inorder.wire.record import decode_all
from tests.integration.brokerkit import PATIENT_MS, SMALL, Rig, running, until
from tests.integration.popkit import (
    GROUP,
    INVISIBLE_MS,
    RETRY,
    TOPIC,
    Popped,
    ack,
    batch_ack,
    batch_body,
    bits,
    change,
    look,
    move,
    offset_of,
    pop,
    pop_fields,
    send,
)
from tests.kit.disk import FakeFiles, Fault

SYNC = replace(SMALL, sync_flush=True)
GONE = 208


def run(scenario: Callable[[], object]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


def test_popped_messages_are_nobody_s_until_their_time_ends() -> None:
    """With RocketMQ's header; the offset waits for the acknowledgements."""

    async def scenario() -> None:
        async with running(clock=FakeClock()) as rig:
            await send(rig, 3)
            await send(rig, 1, queue=2)
            found = await pop(rig)
            fields = found.answer.fields
            assert (found.code, found.answer.remark) == (0, "FOUND")
            assert sorted(found.places) == [(1, 0), (1, 1), (1, 2), (2, 0)]
            assert sorted(fields["startOffsetInfo"].split(";")) == ["0 1 0", "0 2 0"]
            assert sorted(fields["msgOffsetInfo"].split(";")) == ["0 1 0,1,2", "0 2 0"]
            assert (fields["restNum"], fields["invisibleTime"]) == ("0", str(INVISIBLE_MS))
            assert "orderCountInfo" not in fields
            again = await pop(rig)
            assert (again.code, again.answer.remark) == (210, "NO_MESSAGE_IN_QUEUE")
            assert again.answer.fields["msgOffsetInfo"] == ""
            assert offset_of(rig) == 0
            assert (await ack(rig, found, 1, 1)).code == 0
            assert offset_of(rig) == 0
            assert (await ack(rig, found, 1, 0)).code == 0
            assert offset_of(rig) == 2
            assert (await ack(rig, found, 1, 2)).code == 0
            assert (offset_of(rig), offset_of(rig, 2)) == (3, 0)
            assert (await ack(rig, found, 1, 2)).code == GONE, "nothing is known of it any more"

    run(scenario)


def test_what_is_not_acknowledged_comes_again_from_the_retry_topic() -> None:
    """Under its own topic, with a receipt, one redelivery more and the time of its first pop."""

    async def scenario() -> None:
        clock = FakeClock()
        async with running(clock=clock) as rig:
            await send(rig, 3)
            first = await pop(rig)
            await ack(rig, first, 1, 1)
            await move(rig, clock, INVISIBLE_MS - 1)
            assert offset_of(rig) == 0
            await move(rig, clock, 1)
            await until(lambda: offset_of(rig) == 3)
            (kept,) = [q for q in rig.broker.store.queues_of(RETRY) if q.visible_offset]
            assert (kept.queue_id, kept.visible_offset) == (0, 2)
            second = await pop(rig)
            assert sorted(second.bodies) == [b"m0", b"m2"]
            record = second.records[0]
            found = parse(record.properties)
            assert (record.topic, record.redeliveries) == (TOPIC, 1)
            assert found["1ST_POP_TIME"] == str(first.pop_ms)
            assert found["POP_CK"] == second.extra(0, record.queue_offset, "1")
            assert second.answer.fields["msgOffsetInfo"] == "1 0 0,1"
            for offset in (0, 1):
                answer = await ack(rig, second, 0, offset, topic=RETRY, retry="1")
                assert answer.code == 0
            assert offset_of(rig, 0, RETRY) == 2
            await move(rig, clock, 10 * INVISIBLE_MS)
            assert (await pop(rig)).code == 210

    run(scenario)


def stored(rig: Rig) -> int:
    return rig.broker.store.queue(RETRY, 0).visible_offset


def test_a_message_that_fails_again_stays_in_the_retry_topic() -> None:
    """The time of its first pop stays, its redeliveries grow."""

    async def scenario() -> None:
        clock = FakeClock()
        async with running(clock=clock) as rig:
            await send(rig, 1)
            first = await pop(rig)
            for redeliveries in (1, 2, 3):
                await move(rig, clock, INVISIBLE_MS)
                await until(lambda count=redeliveries: stored(rig) == count)  # type: ignore[misc]
                found = await pop(rig)
                assert found.records[0].redeliveries == redeliveries
                assert parse(found.records[0].properties)["1ST_POP_TIME"] == str(first.pop_ms)

    run(scenario)


def test_without_room_for_a_retry_topic_messages_wait() -> None:
    """They stay in flight, and others are not held up."""

    async def scenario() -> None:
        clock = FakeClock()
        async with running(clock=clock) as rig:
            await send(rig, 1)
            await rig.send(b"other", b="Other", e="0")
            topics = rig.broker.topics
            await pop(rig, topic="Other", consumerGroup="G2")
            await move(rig, clock, INVISIBLE_MS)
            await until(lambda: rig.broker.revival.revived == 1)
            await pop(rig, topic="Other", consumerGroup="G2")  # now of its retry topic
            topics.topics_max = len(topics)
            await pop(rig)
            await move(rig, clock, INVISIBLE_MS)
            await until(lambda: rig.broker.revival.revived == 2)
            assert (offset_of(rig), rig.broker.pop_table.messages) == (0, 1)
            topics.topics_max += 1
            await move(rig, clock, INVISIBLE_MS)
            await until(lambda: rig.broker.revival.revived == 3)
            assert offset_of(rig) == 1

    run(scenario)


def test_pops_with_long_expressions_wait_only_beside_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each keeps its expression."""

    async def scenario() -> None:
        async with running(clock=FakeClock()) as rig:
            await send(rig, 1)
            await ack(rig, await pop(rig), 1, 0)
            asyncio.create_task(pop(rig, pollTime="15000"))  # noqa: RUF006
            await until(lambda: len(rig.broker.pop_polls) == 1)
            monkeypatch.setattr(service, "LONG_EXPRESSIONS_MAX", 1)
            assert (await pop(rig, pollTime="15000", exp="a" * 300)).code == 209
            asyncio.create_task(pop(rig, pollTime="15000", exp="a" * 200))  # noqa: RUF006
            await until(lambda: len(rig.broker.pop_polls) == 2)

    run(scenario)


@pytest.mark.parametrize("order", ["false", "true"])
def test_on_a_full_disk_nothing_is_handed_out_and_nothing_acknowledged(order: str) -> None:
    """What the journal does not take has not happened; later it works as before."""

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files, clock=FakeClock()) as rig:
            await send(rig, 4)
            fields = {"order": order, "queueId": "1", "maxMsgNums": "2"}
            found = await pop(rig, attemptId="a", **fields)
            files.fail(Fault("write", 0, errno.ENOSPC, place="owners.*"))
            assert (await ack(rig, found, 1, 0)).code == 14
            assert (await change(rig, found, 1, 0, 5000)).code == 14
            assert (await pop(rig, attemptId="b", consumerGroup="G2", **fields)).code == 14
            files.heal()
            assert (await pop(rig, attemptId="b", consumerGroup="G2", **fields)).bodies == [
                b"m0", b"m1",
            ]  # fmt: skip
            assert offset_of(rig) == 0
            for offset in (0, 1):
                assert (await ack(rig, found, 1, offset)).code == 0
            assert offset_of(rig) == 2
            assert (await pop(rig, attemptId="c", **fields)).bodies == [b"m2", b"m3"]

    run(scenario)


def test_a_late_acknowledgement_ends_nothing() -> None:
    """Its message is in the retry topic already: success would say that it never comes again."""

    async def scenario() -> None:
        clock = FakeClock()
        async with running(clock=clock) as rig:
            await send(rig, 1)
            first = await pop(rig)
            await move(rig, clock, INVISIBLE_MS)
            await until(lambda: offset_of(rig) == 1)
            assert (await ack(rig, first, 1, 0)).code == GONE
            assert (await change(rig, first, 1, 0, 60_000)).code == GONE
            assert (await pop(rig)).bodies == [b"m0"]

    run(scenario)


def test_a_changed_time_counts_from_now_under_a_new_token() -> None:
    """The old token acknowledges nothing more; 0 makes the message visible at once."""

    async def scenario() -> None:
        clock = FakeClock()
        async with running(clock=clock) as rig:
            await send(rig, 2)
            first = await pop(rig)
            answer = await change(rig, first, 1, 0, 3 * INVISIBLE_MS)
            assert answer.code == 0
            assert answer.fields["invisibleTime"] == str(3 * INVISIBLE_MS)
            assert answer.fields["reviveQid"] == str(first.revive_queue)
            token = int(answer.fields["popTime"])
            assert token > first.pop_ms
            await ack(rig, first, 1, 0)
            await move(rig, clock, INVISIBLE_MS)
            await until(lambda: rig.broker.revival.revived == 1)
            assert offset_of(rig) == 0, "the changed one is still in flight"
            extra = f"0 {token} {3 * INVISIBLE_MS} {first.revive_queue} 0 broker-a 1 0"
            answer = await change(rig, first, 1, 0, 0, extra=extra)
            assert answer.code == 0
            await look(rig)
            await until(lambda: rig.broker.revival.revived == 2)
            assert offset_of(rig) == 2
            assert sorted((await pop(rig)).bodies) == [b"m0", b"m1"]

    run(scenario)


def test_a_batch_acknowledges_several_pops_at_once() -> None:
    """Also of the retry topic; unknown topics and offsets are passed over, as in RocketMQ."""

    async def scenario() -> None:
        clock = FakeClock()
        async with running(clock=clock) as rig:
            await send(rig, 4)
            await send(rig, 2, queue=3)
            found = await pop(rig)
            unknown = {**batch_ack(found, 1, 0), "t": "NoSuch"}
            body = batch_body(batch_ack(found, 1, 0, 1, 3, 700), batch_ack(found, 3, 1), unknown)
            assert (await rig.ask(200151, {}, body)).code == 0
            assert (offset_of(rig), offset_of(rig, 3)) == (2, 0)
            await move(rig, clock, INVISIBLE_MS)
            await until(lambda: rig.broker.revival.revived == 2)
            retried = await pop(rig)
            body = batch_body(batch_ack(retried, 0, 0, 1, retry="1"))
            assert (await rig.ask(200151, {}, body)).code == 0
            assert offset_of(rig, 0, RETRY) == 2

    run(scenario)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", GONE),
        (b"{}", GONE),
        (b'{"acks":[]}', GONE),
        (b"no json", 1),
        (b'{"acks":[{"c":"CG"}]}', 1),
        (b'{"acks":[{"c":"CG","t":"Orders","b":"?"}]}', 1),
        (b'{"acks":[{"c":"CG","t":"Orders","r":"7","b":""}]}', 1),
        (batch_body({"c": GROUP, "t": TOPIC, "b": bits(70_000)}), 1),
        (batch_body(*[{"c": GROUP, "t": TOPIC}] * 1025), 1),
    ],
    ids=str,
)
def test_batches_of_garbage_are_refused(body: bytes, code: int) -> None:
    """The broker goes on, and what is popped stays popped."""

    async def scenario() -> None:
        async with running(clock=FakeClock()) as rig:
            await send(rig, 1)
            await pop(rig)
            assert (await rig.ask(200151, {}, body)).code == code
            assert rig.broker.pop_table.messages == 1

    run(scenario)


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"maxMsgNums": "33"}, 29, "the broker[127.0.0.1] pop message's num is greater than 32"),
        ({"maxMsgNums": "0"}, 29, "maxMsgNums"),
        ({"invisibleTime": "0"}, 29, "an invisible time of 0 ms"),
        ({"invisibleTime": "-1"}, 29, "an invisible time of -1 ms"),
        ({"invisibleTime": str(10**18)}, 29, "an invisible time of"),
        ({"order": "true", "invisibleTime": "600001"}, 29, "popped in order it may be 1 to 600000"),
        ({"topic": "NoSuch"}, 17, "topic[NoSuch] not exist"),
        ({"queueId": "4"}, 29, "queueId[4] is illegal"),
        ({"exp": "a >", "expType": "SQL92"}, 23, ""),
        ({"exp": "||"}, 23, "parse the consumer's subscription failed"),
        ({"attemptId": "x" * 256}, 29, "an attemptId has at most 255"),
        ({"maxMsgNums": "x"}, 1, "maxMsgNums"),
    ],
)
def test_bad_pops_are_refused(changes: dict[str, str], code: int, text: str) -> None:
    """With RocketMQ's codes and the fields of its header; nothing is taken."""

    async def scenario() -> None:
        async with running(clock=FakeClock()) as rig:
            await send(rig, 1)
            answer = await rig.ask(200050, pop_fields(**changes))
            assert (answer.code, text in (answer.remark or "")) == (code, True), answer.remark
            if code != 1:
                assert answer.fields["popTime"] == "0"
            assert (await pop(rig)).bodies == [b"m0"]

    run(scenario)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"extraInfo": "x"}, 1),
        ({"extraInfo": "1 2 3 4 0 broker-a"}, 1),
        ({"extraInfo": "1 2 x 4 0 broker-a 1"}, 1),
        ({"extraInfo": "9" * 600}, 1),
        ({"topic": "NoSuch"}, 17),
        ({"queueId": "4"}, 13),
        ({"queueId": "-1"}, 13),
        ({"offset": "-1"}, GONE),
        ({"offset": "2"}, GONE),
        ({"offset": "0", "extraInfo": "0 1 2 3 0 broker-a 1 0"}, GONE),
    ],
)
def test_bad_acknowledgements_end_nothing(changes: dict[str, str], code: int) -> None:
    """With RocketMQ's codes."""

    async def scenario() -> None:
        async with running(clock=FakeClock()) as rig:
            await send(rig, 1)
            found = await pop(rig)
            fields = {
                "consumerGroup": GROUP, "topic": TOPIC, "queueId": "1", "offset": "0",
                "extraInfo": found.extra(1, 0), **changes,
            }  # fmt: skip
            assert (await rig.ask(200051, fields)).code == code
            assert rig.broker.pop_table.messages == 1
            answer = await rig.ask(200053, {**fields, "invisibleTime": "5"})
            assert answer.code == code
            assert rig.broker.pop_table.messages == 1

    run(scenario)


def test_filters_are_those_of_a_pull() -> None:
    """Tags and SQL; what matches nobody is passed by, and the offset follows."""

    async def scenario() -> None:
        async with running(clock=FakeClock()) as rig:
            for number, tag in enumerate("AABAB"):
                await rig.send(b"m%d" % number, i=f"TAGS\x01{tag}\x02n\x01{number}\x02")
            assert (await pop(rig, exp="C")).code == 210
            assert offset_of(rig) == 5
            fields = {"consumerGroup": "G2"}
            found = await pop(rig, exp="B", **fields)
            assert found.answer.fields["msgOffsetInfo"] == "0 1 2,4"
            found = await pop(rig, exp="n >= 2", expType="SQL92", consumerGroup="G3")
            assert found.bodies == [b"m2", b"m3", b"m4"]

    run(scenario)


@pytest.mark.parametrize(("mode", "bodies"), [("0", [b"m0", b"m1", b"m2"]), ("1", [b"m0"])])
def test_a_group_without_an_offset_begins_as_in_rocketmq(mode: str, bodies: list[bytes]) -> None:
    """At the first message; by initMode 1 too, while the first message is in memory."""

    async def scenario() -> None:
        async with running(clock=FakeClock()) as rig:
            await send(rig, 3)
            found = await pop(rig, initMode=mode)
            assert found.bodies[: len(bodies)] == bodies

    run(scenario)


def test_a_pop_waits_for_a_message() -> None:
    """It is answered in the turn in which the message is stored, or when its time is over."""

    async def scenario() -> None:
        clock = FakeClock()
        async with running(clock=clock) as rig:
            await send(rig, 1)
            await ack(rig, await pop(rig), 1, 0)
            waiting = asyncio.create_task(pop(rig, pollTime="15000"))
            await until(lambda: len(rig.broker.pop_polls) == 1)
            assert (await info(rig)).fields == {"pollingNum": "1"}
            await send(rig, 1, first=1)
            found = await waiting
            assert found.bodies == [b"m1"]
            await ack(rig, found, 1, 1)
            waiting = asyncio.create_task(pop(rig, pollTime="15000"))
            await until(lambda: len(rig.broker.pop_polls) == 1)
            await move(rig, clock, 14_999)
            assert len(rig.broker.pop_polls) == 1
            clock.advance(1)
            rig.broker.pops.expire()
            assert (await waiting).code == 210

    run(scenario)


async def info(rig: Rig, queue: str = "-1") -> Command:
    return await rig.ask(200055, {"consumerGroup": GROUP, "topic": TOPIC, "queueId": queue})


def test_a_waiting_pop_gets_what_comes_to_the_retry_topic() -> None:
    """In the turn in which it is stored there."""

    async def scenario() -> None:
        clock = FakeClock()
        async with running(clock=clock) as rig:
            await send(rig, 1)
            await pop(rig)
            waiting = asyncio.create_task(pop(rig, pollTime="15000"))
            await until(lambda: len(rig.broker.pop_polls) == 1)
            await move(rig, clock, INVISIBLE_MS)
            assert (await waiting).records[0].redeliveries == 1

    run(scenario)


def test_waiting_pops_are_bounded() -> None:
    """One too many is answered 209."""

    async def scenario() -> None:
        async with running(clock=FakeClock(), pop_polling_max=2) as rig:
            await send(rig, 1)
            await ack(rig, await pop(rig), 1, 0)
            for _ in range(2):
                asyncio.create_task(pop(rig, pollTime="15000"))  # noqa: RUF006
            await until(lambda: len(rig.broker.pop_polls) == 2)
            refused = await pop(rig, pollTime="15000")
            assert (refused.code, refused.answer.remark) == (209, "NO_MESSAGE_IN_QUEUE")

    run(scenario)


def test_a_pop_of_a_gone_connection_takes_nothing() -> None:
    """The message is for whoever asks next."""

    async def scenario() -> None:
        async with running(clock=FakeClock()) as rig:
            await send(rig, 1)
            await ack(rig, await pop(rig), 1, 0)
            other = await Connection.open(
                rig.broker.address, NetConfig(), connect_timeout_ms=PATIENT_MS
            )
            lost = asyncio.create_task(
                other.request(Command.request(200050, pop_fields(pollTime="15000")), PATIENT_MS)
            )
            await until(lambda: len(rig.broker.pop_polls) == 1)
            other.close()
            await until(lambda: len(rig.broker.pop_polls) == 0)
            lost.cancel()
            await send(rig, 1, first=1)
            assert (await pop(rig)).bodies == [b"m1"]

    run(scenario)


def test_messages_in_flight_are_bounded() -> None:
    """At the bound a pop finds nothing; one that waits gets some when acknowledgements come."""

    async def scenario() -> None:
        async with running(clock=FakeClock(), pop_inflight_max=3) as rig:
            await send(rig, 5)
            found = await pop(rig)
            assert (len(found.records), found.answer.fields["restNum"]) == (3, "2")
            full = await pop(rig)
            assert (full.code, full.answer.fields["restNum"]) == (210, "0")
            waiting = asyncio.create_task(pop(rig, pollTime="15000"))
            await until(lambda: len(rig.broker.pop_polls) == 1)
            await ack(rig, found, 1, 1)
            assert (await waiting).bodies == [b"m3"]

    run(scenario)


def test_notification_and_peek_take_nothing() -> None:
    """They see what a pop would find."""

    async def scenario() -> None:
        async with running(clock=FakeClock()) as rig:
            fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1"}
            await send(rig, 2)
            for _ in range(2):
                peeked = await rig.ask(200052, {**fields, "maxMsgNums": "1"})
                assert (peeked.code, peeked.fields["restNum"]) == (0, "2")
                assert [one.body for one in decode_all(peeked.body)] == [b"m0"]
            asked = await rig.ask(200054, {**fields, "pollTime": "0"})
            assert asked.fields == {"hasMsg": "true", "pollingFull": "false"}
            await pop(rig)
            asked = await rig.ask(200054, {**fields, "pollTime": "0"})
            assert asked.fields == {"hasMsg": "false", "pollingFull": "false"}
            assert (await rig.ask(200052, {**fields, "maxMsgNums": "1"})).code == 19
            waiting = asyncio.create_task(rig.ask(200054, {**fields, "pollTime": "9000"}))
            await until(lambda: len(rig.broker.ask_polls) == 1)
            await send(rig, 1, first=2)
            assert (await waiting).fields["hasMsg"] == "true"
            assert (await pop(rig)).bodies == [b"m2"]

    run(scenario)


@pytest.mark.parametrize("store", [SMALL, SYNC], ids=["async", "sync"])
def test_an_acknowledgement_survives_a_kill(store: object) -> None:
    """So does what is in flight: nobody else gets it before its time ends."""

    async def scenario() -> None:
        files, clock = FakeFiles(), FakeClock()
        async with running(files, clock=clock, stop=False, store=store) as rig:  # type: ignore[arg-type]
            await send(rig, 4)
            found = await pop(rig)
            await ack(rig, found, 1, 0)
            await ack(rig, found, 1, 2)
        async with running(files, clock=clock, store=store) as rig:  # type: ignore[arg-type]
            assert (offset_of(rig), rig.broker.pop_table.messages) == (1, 2)
            assert (await pop(rig)).code == 210
            assert (await ack(rig, found, 1, 1)).code == 0
            assert offset_of(rig) == 3
            await move(rig, clock, INVISIBLE_MS)
            await until(lambda: offset_of(rig) == 4)
            assert (await pop(rig)).bodies == [b"m3"]
        async with running(files, clock=clock) as rig:
            assert (offset_of(rig), offset_of(rig, 0, RETRY)) == (4, 0)
            await move(rig, clock, INVISIBLE_MS)
            await until(lambda: offset_of(rig, 0, RETRY) == 1)

    run(scenario)


def test_a_fold_keeps_what_is_in_flight() -> None:
    """The journal is shortened to the present state, twice, and read again."""

    async def scenario() -> None:
        files, clock = FakeFiles(), FakeClock()
        async with running(files, clock=clock, stop=False) as rig:
            await send(rig, 4)
            found = await pop(rig)
            await ack(rig, found, 1, 0)
            await rig.broker.lease_journal.fold()
            await ack(rig, found, 1, 3)
            await rig.broker.lease_journal.fold()
        async with running(files, clock=clock) as rig:
            assert (offset_of(rig), rig.broker.pop_table.messages) == (1, 2)
            assert rig.broker.pop_table.pop_ms([(GROUP, TOPIC, 1)], 0) == found.pop_ms + 1  # type: ignore[list-item]

    run(scenario)


def test_a_reset_forgets_what_is_in_flight() -> None:
    """The next pop begins at the new offset; late acknowledgements end nothing, also restarted."""

    async def scenario() -> None:
        files, clock = FakeFiles(), FakeClock()
        async with running(files, clock=clock, stop=False) as rig:
            await send(rig, 4)
            found = await pop(rig)
            await ack(rig, found, 1, 0)
            await ack(rig, found, 1, 1)
            answer = await rig.ask(222, {
                "topic": TOPIC, "group": GROUP, "queueId": "1", "offset": "1", "timestamp": "-1",
                "isForce": "true",
            })  # fmt: skip
            assert answer.code == 0, answer.remark
            await ack(rig, found, 1, 2)
            assert offset_of(rig) == 1
        async with running(files, clock=clock) as rig:
            assert offset_of(rig) == 1
            again = await pop(rig)
            assert again.bodies == [b"m1", b"m2", b"m3"]
            for offset in (1, 2, 3):
                await ack(rig, again, 1, offset)
            assert offset_of(rig) == 4

    run(scenario)


@pytest.mark.parametrize(
    ("code", "fields"),
    [(215, {"topic": TOPIC}), (207, {"groupName": GROUP, "cleanOffset": "true"}),
     (207, {"groupName": GROUP, "cleanOffset": "false"})],
)  # fmt: skip
def test_a_deleted_topic_or_group_has_nothing_in_flight(code: int, fields: dict[str, str]) -> None:
    """Nothing comes back of it, also after a kill."""

    async def scenario() -> None:
        files, clock = FakeFiles(), FakeClock()
        async with running(files, clock=clock, stop=False) as rig:
            await send(rig, 2)
            await pop(rig)
            assert (await rig.ask(code, fields)).code == 0
            assert rig.broker.pop_table.messages == 0
        async with running(files, clock=clock) as rig:
            assert rig.broker.pop_table.messages == 0
            await move(rig, clock, INVISIBLE_MS)
            assert rig.broker.store.queues_of(RETRY) == []

    run(scenario)


def test_a_deleted_topic_ends_pops_that_wait() -> None:
    """They learn that it is gone."""

    async def scenario() -> None:
        async with running(clock=FakeClock()) as rig:
            await send(rig, 1)
            await ack(rig, await pop(rig), 1, 0)
            waiting = asyncio.create_task(pop(rig, pollTime="15000"))
            await until(lambda: len(rig.broker.pop_polls) == 1)
            await rig.ask(215, {"topic": TOPIC})
            assert (await waiting).code == 17

    run(scenario)


def test_pops_of_one_queue_have_tokens_that_grow() -> None:
    """Whatever the wall clock does."""

    async def scenario() -> None:
        clock = FakeClock()
        async with running(clock=clock) as rig:
            await send(rig, 4)
            seen: list[Popped] = []
            for back_ms in (0, 0, 5000, 0):
                clock.set_wall_clock(clock.now_ms() - back_ms)
                seen.append(await pop(rig, maxMsgNums="1"))
            tokens = [one.pop_ms for one in seen]
            assert tokens == sorted(set(tokens))
            assert [one.bodies for one in seen] == [[b"m0"], [b"m1"], [b"m2"], [b"m3"]]

    run(scenario)
