"""Transactions on a running broker, by raw requests, with a clock that can be moved."""

from __future__ import annotations

import asyncio
import errno
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inorder.broker.transactions import storage
from inorder.errors import StoreBusy
from inorder.testing.clock import MovableClock
from inorder.wire.header import Command
from inorder.wire.ids import parse_message_id
from inorder.wire.properties import parse
from inorder.wire.record import Record, decode, decode_all
from tests.integration.brokerkit import SMALL, Rig, running, until
from tests.kit.disk import FakeFiles, Fault

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
COMMIT, ROLLBACK, UNKNOWN = "8", "12", "0"


def marked(unique: str = "U1", more: str = "") -> str:
    return f"UNIQ_KEY\x01{unique}\x02TRAN_MSG\x01true\x02PGROUP\x01shop\x02{more}"


async def half(rig: Rig, body: bytes = b"paid", unique: str = "U1", more: str = "") -> Command:
    now_ms = str(rig.broker.clock.now_ms())
    answer = await rig.send(body, i=marked(unique, more), f="4", g=now_ms)
    assert answer.code == 0, answer.remark
    return answer


def position_of(answer: Command) -> int:
    return parse_message_id(answer.fields["msgId"])[2]


def end_fields(answer: Command, outcome: str, **changes: str) -> dict[str, str]:
    return {
        "producerGroup": "shop", "tranStateTableOffset": answer.fields["queueOffset"],
        "commitLogOffset": str(position_of(answer)), "commitOrRollback": outcome,
        "fromTransactionCheck": "false", "msgId": "U1", **changes,
    }  # fmt: skip


async def end(rig: Rig, answer: Command, outcome: str, **changes: str) -> Command:
    return await rig.ask(37, end_fields(answer, outcome, **changes))


async def stored(rig: Rig, topic: str = "Orders", queue: str = "1") -> list[Record]:
    return decode_all((await rig.pull(topic=topic, queueId=queue)).body)


async def heart_beat(rig: Rig, group: str = "shop") -> list[Command]:
    """Make the connection a producer of a group; return the list of its questions to come."""
    body = (
        b'{"clientID":"c1","producerDataSet":[{"groupName":"%s"}],"consumerDataSet":[]}'
        % group.encode()
    )
    assert (await rig.ask(34, {}, body)).code == 0
    return rig.notices


def ask_now(rig: Rig, clock: MovableClock, seconds: float = 7) -> None:
    """Let time jump, and begin the round of questions that follows."""
    clock.advance(int(seconds * 1000))
    rig.broker.transaction_service.begin_round()


def test_a_half_is_seen_by_nobody_until_it_is_committed() -> None:
    """Then it is in its queue, once, with RocketMQ's properties and the mark of its half."""

    async def scenario() -> None:
        async with running() as rig:
            answer = await half(rig)
            assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("1", "0")
            assert answer.fields["transactionId"] == "U1"
            assert await stored(rig) == []
            (waiting,) = await stored(rig, HALF, "0")
            found = parse(waiting.properties)
            assert (found["REAL_TOPIC"], found["REAL_QID"]) == ("Orders", "1")
            assert (found["__transactionId__"], waiting.sys_flag & 0xC) == ("U1", 0)
            assert (await end(rig, answer, COMMIT)).code == 0
            (came,) = await stored(rig)
            assert (came.body, came.sys_flag & 0xC, came.queue_offset) == (b"paid", 8, 0)
            assert came.prepared_position == waiting.position
            found = parse(came.properties)
            assert found["INORDER_HALF"] == str(waiting.position)
            assert (found["TRAN_MSG"], found["PGROUP"]) == ("true", "shop"), "as RocketMQ's"

    asyncio.run(scenario())


def test_a_rolled_back_half_is_never_seen() -> None:
    """The record of its end is there when the answer comes."""

    async def scenario() -> None:
        async with running() as rig:
            answer = await half(rig)
            assert (await end(rig, answer, ROLLBACK)).code == 0
            (record,) = await stored(rig, OP, "0")
            assert (record.body, parse(record.properties)["TAGS"]) == (b"0,", "d")
            assert parse(record.properties)["INORDER_ENDED"] == str(record.position)
            assert await stored(rig) == []
            again = await end(rig, answer, COMMIT)
            assert (again.code, "rolled back before" in (again.remark or "")) == (1, True)

    asyncio.run(scenario())


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
def test_an_end_that_comes_again_has_its_effect_once(outcome: str) -> None:
    """Also when both requests come at once."""

    async def scenario() -> None:
        async with running() as rig:
            answer = await half(rig)
            ends = await asyncio.gather(*(end(rig, answer, outcome) for _ in range(3)))
            assert [one.code for one in ends] == [0, 0, 0]
            assert (await end(rig, answer, outcome)).code == 0
            assert len(await stored(rig)) == (1 if outcome == COMMIT else 0)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"producerGroup": "other"}, "producer group wrong"),
        ({"tranStateTableOffset": "7"}, "state table offset wrong"),
        ({"commitLogOffset": "999999"}, "Find prepared"),
    ],
)
def test_an_end_that_does_not_name_its_half_is_refused(changes: dict[str, str], text: str) -> None:
    """With RocketMQ's code and remark; the transaction goes on."""

    async def scenario() -> None:
        async with running() as rig:
            answer = await half(rig)
            refused = await end(rig, answer, COMMIT, **changes)
            assert (refused.code, text in (refused.remark or "")) == (1, True)
            plain = await rig.send(b"no half")
            refused = await end(rig, plain, COMMIT)
            assert (refused.code, "Find prepared" in (refused.remark or "")) == (1, True)
            assert len(rig.broker.transactions) == 1
            assert (await end(rig, answer, COMMIT)).code == 0

    asyncio.run(scenario())


def test_a_late_end_is_refused_if_the_message_names_its_time() -> None:
    """604, unless it answers a question of the broker."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig:
            answer = await half(rig, more="CHECK_IMMUNITY_TIME_IN_SECONDS\x0110\x02")
            clock.advance(11_000)
            assert (await end(rig, answer, COMMIT)).code == 604
            assert (await end(rig, answer, COMMIT, fromTransactionCheck="true")).code == 0

    asyncio.run(scenario())


def test_the_producer_is_asked_and_its_answer_counts_once() -> None:
    """The half is put back first; the question names the copy; the older half counts as well."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig:
            questions = await heart_beat(rig)
            answer = await half(rig)
            ask_now(rig, clock, 5)
            await asyncio.sleep(0.01)
            assert questions == [], "it is too young"
            ask_now(rig, clock, 2)
            await until(lambda: len(questions) == 1)
            fields = questions[0].fields
            assert (fields["tranStateTableOffset"], fields["topic"]) == ("1", HALF)
            asked = decode(questions[0].body)
            assert (asked.topic, asked.queue_id, asked.body) == ("Orders", 1, b"paid")
            assert asked.position == int(fields["commitLogOffset"])
            assert parse(asked.properties)["TRANSACTION_CHECK_TIMES"] == "1"
            by_old = await end(rig, answer, COMMIT)
            by_copy = await rig.ask(
                37,
                {
                    **end_fields(answer, COMMIT, fromTransactionCheck="true"),
                    "tranStateTableOffset": fields["tranStateTableOffset"],
                    "commitLogOffset": fields["commitLogOffset"],
                },
            )
            assert (by_old.code, by_copy.code) == (0, 0)
            assert len(await stored(rig)) == 1
            rig.broker.transaction_service.note_ended()
            await until(lambda: rig.broker.store.queue(OP, 0).visible_offset > 0)
            bodies = b"".join(one.body for one in await stored(rig, OP, "0"))
            assert sorted(bodies.strip(b",").split(b",")) == [b"0", b"1"]
            assert rig.broker.offsets.query("CID_RMQ_SYS_TRANS", HALF, 0) == 2

    asyncio.run(scenario())


def test_a_half_that_is_being_stored_is_not_asked_about_yet() -> None:
    """A round may begin before its tick ends; a slow client sent it long after it was born."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig:
            questions = await heart_beat(rig)
            service = rig.broker.transaction_service
            rounds: list[int] = []
            count = service.stored

            def counted(*args: Any, **named: Any) -> None:
                count(*args, **named)
                ask_now(rig, clock)
                rounds.append(len(service.table))

            service.stored = counted  # type: ignore[method-assign]
            answer = await half(rig)
            assert (rounds, questions) == ([1], [])
            assert len(service.table) == 1, "it is not given up: its record was not in the log yet"
            ask_now(rig, clock)
            await until(lambda: questions)
            assert (await end(rig, answer, COMMIT)).code == 0
            assert len(await stored(rig)) == 1

    asyncio.run(scenario())


def test_a_half_that_cannot_be_put_back_does_not_hold_up_those_before_it() -> None:
    """The round ends there; what it has put back counts, and the next round asks about the rest."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig:
            questions = await heart_beat(rig)
            for number in range(4):
                await half(rig, b"%d" % number, f"U{number}")
            packer, tried = rig.broker.sends.packer, []
            put = packer.put_record

            def busy_once(*args: Any) -> int:
                tried.append(args)
                if len(tried) == 2:
                    raise StoreBusy("many bytes wait to be written")
                return put(*args)

            packer.put_record = busy_once  # type: ignore[method-assign]
            ask_now(rig, clock)
            await until(lambda: bool(questions))
            assert [one.fields["msgId"] for one in questions] == ["U0"]
            ask_now(rig, clock, seconds=30)
            await until(lambda: len(questions) == 5)
            asked = [one.fields["msgId"] for one in questions]
            assert asked == ["U0", "U1", "U2", "U3", "U0"]
            assert rig.broker.transaction_service.table.first_offset(9) == 5, "no copy is awaited"

    asyncio.run(scenario())


def test_a_transaction_that_nobody_ends_is_given_up_and_can_be_resumed() -> None:
    """After `transactionCheckMax` questions it lies in the topic for it; 323 takes it back."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock, transaction_checks_max=2) as rig:
            questions = await heart_beat(rig)
            await half(rig)
            for count in (1, 2):
                ask_now(rig, clock)
                await until(lambda count=count: len(questions) == count)
            ask_now(rig, clock)
            await until(lambda: not len(rig.broker.transactions))
            (kept,) = await stored(rig, GIVEN_UP, "0")
            found = parse(kept.properties)
            assert (found["REAL_TOPIC"], found["TRANSACTION_CHECK_TIMES"]) == ("Orders", "2")
            prefix = rig.broker.store_host.hex().upper()
            message_id = f"{prefix}{kept.position:016X}"
            for _ in range(2):
                resumed = await rig.ask(323, {"msgId": message_id, "topic": GIVEN_UP})
                assert resumed.code == 0
            assert len(rig.broker.transactions) == 1
            ask_now(rig, clock)
            await until(lambda: len(questions) == 3)
            fields = questions[2].fields
            answer = await rig.ask(
                37,
                {
                    "producerGroup": "shop", "commitOrRollback": COMMIT, "msgId": "U1",
                    "tranStateTableOffset": fields["tranStateTableOffset"],
                    "commitLogOffset": fields["commitLogOffset"], "fromTransactionCheck": "true",
                },
            )  # fmt: skip
            assert (answer.code, len(await stored(rig))) == (0, 1)
            again = await rig.ask(323, {"msgId": message_id, "topic": GIVEN_UP})
            assert (again.code, "committed before" in (again.remark or "")) == (1, True)

    asyncio.run(scenario())


def test_what_rocketmq_gave_up_is_resumed_once() -> None:
    """Its copy names no first half; a request that comes again makes no second transaction."""

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files) as rig:
            broker = rig.broker
            broker.ensure_topic(GIVEN_UP, queues=1)
            properties = marked(more="REAL_TOPIC\x01Orders\x02REAL_QID\x011\x02").encode()
            position = broker.sends.packer.put_record(
                broker.sends.target(GIVEN_UP, 0),
                Record(
                    GIVEN_UP, 0, 0, 0, b"paid", properties,
                    born_at_ms=broker.clock.now_ms(), store_host=broker.store_host,
                ),
            )  # fmt: skip
            assert (await rig.send(b"x", b="Other", e="0")).code == 0
            fields = {"msgId": f"{broker.store_host.hex().upper()}{position:016X}"}
            for _ in range(2):
                assert (await rig.ask(323, fields)).code == 0
            assert len(broker.transactions) == 1
        async with running(files) as rig:
            assert (await rig.ask(323, fields)).code == 0
            (resumed,) = rig.broker.transactions
            answer = await rig.ask(
                37,
                {
                    "producerGroup": "shop", "commitOrRollback": COMMIT, "msgId": "U1",
                    "tranStateTableOffset": str(resumed.offset),
                    "commitLogOffset": str(resumed.position),
                },
            )  # fmt: skip
            assert (answer.code, [one.body for one in await stored(rig)]) == (0, [b"paid"])
        async with running(files) as rig:
            again = await rig.ask(323, fields)
            assert (again.code, "committed before" in (again.remark or "")) == (1, True)

    asyncio.run(scenario())


def test_an_unknown_outcome_gets_no_answer_and_changes_nothing() -> None:
    """As in RocketMQ: the next answer on the connection is that of the next request."""

    async def scenario() -> None:
        async with running() as rig:
            answer = await half(rig)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(end(rig, answer, UNKNOWN), 0.05)
            assert len(rig.broker.transactions) == 1

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_restart_knows_what_is_pending_and_what_has_ended() -> None:
    """After a clean stop, and after a kill that lost the records of ended halves."""

    async def scenario() -> None:
        for kill in (False, True):
            files, clock = FakeFiles(), MovableClock()
            async with running(files, clock=clock, stop=not kill) as rig:
                await heart_beat(rig)
                first = await half(rig, b"committed", "U1")
                second = await half(rig, b"asked", "U2")
                third = await half(rig, b"rolled back", "U3")
                assert (await end(rig, first, COMMIT)).code == 0
                assert (await end(rig, third, ROLLBACK)).code == 0
                ask_now(rig, clock)
                await until(lambda: rig.broker.store.queue(HALF, 0).visible_offset == 4)
            async with running(files, clock=clock) as rig:
                pending = list(rig.broker.transactions)
                assert [(one.offset, one.checks) for one in pending] == [(3, 1)], kill
                assert (await end(rig, first, COMMIT)).code == 0, "it is known by its record"
                assert (await end(rig, third, COMMIT)).code == 1
                assert (await end(rig, second, COMMIT)).code == 0
                assert [one.body for one in await stored(rig)] == [b"committed", b"asked"]
                assert (await end(rig, second, ROLLBACK)).code == 1

    asyncio.run(scenario())


def test_a_start_looks_for_ends_in_the_last_records_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ 4.9 leaves a record for each transaction, for days, and none says how it ended."""

    async def scenario() -> None:
        files, records = FakeFiles(), 6000
        async with running(files) as rig:
            answer = await half(rig)
            broker = rig.broker
            target = broker.sends.target(OP, 0)
            for number in range(1, records):
                body = b"%d," % number
                broker.sends.packer.put_record(
                    target,
                    Record(OP, 0, 0, 0, body, b"TAGS\x01d\x02", store_host=broker.store_host),
                )
            assert (await end(rig, answer, ROLLBACK)).code == 0
            assert broker.offsets.query("CID_RMQ_SYS_TRANS", OP, 0) == records
        read, count = storage.read, 0

        def counted(*args: Any) -> Record | None:
            nonlocal count
            count += 1
            return read(*args)

        monkeypatch.setattr(storage, "read", counted)
        async with running(files) as rig:
            again = await end(rig, answer, COMMIT)
            assert "rolled back before" in (again.remark or "")
            assert count < 1.1 * storage.REMEMBERED_AT_START

    asyncio.run(scenario())


def test_a_commit_whose_record_is_lost_is_found_in_the_log() -> None:
    """The committed message names its half: a start neither asks again nor stores it twice."""

    async def scenario() -> None:
        files, clock = FakeFiles(), MovableClock()
        async with running(files, clock=clock, stop=False) as rig:
            first = await half(rig, b"committed", "U1")
            second = await half(rig, b"open", "U2")
            assert (await end(rig, first, COMMIT)).code == 0
        async with running(files, clock=clock) as rig:
            assert [one.offset for one in rig.broker.transactions] == [1]
            await end(rig, first, COMMIT)
            assert (await end(rig, second, COMMIT)).code == 0
            assert [one.body for one in await stored(rig)] == [b"committed", b"open"]

    asyncio.run(scenario())


@pytest.mark.parametrize("topic", [HALF, OP])
@pytest.mark.parametrize("how", ["zeroed", "astray", "removed"])
def test_a_damaged_queue_of_halves_or_ends_loses_and_repeats_no_transaction(
    topic: str, how: str
) -> None:
    """A start compares it with the log before it believes it (A14)."""

    async def scenario() -> None:
        files, path = FakeFiles(), Path("/data/consumequeue") / topic / "0" / f"{0:020d}"
        async with running(files) as rig:
            open_, paid, dropped = [await half(rig, b"%d" % n, f"U{n}") for n in range(3)]
            assert (await end(rig, paid, COMMIT)).code == 0
            rig.broker.transaction_service.note_ended()
            assert (await end(rig, dropped, ROLLBACK)).code == 0
            store = rig.broker.store
            assert store.queue(OP, 0).visible_offset == 2, "the second says that none is missing"
            await until(lambda: store.queues.written_position == store.log.end_position)
        if how == "removed":
            files.remove(path)
        else:
            data = bytearray(files.read(path))
            data[:20] = bytes(20) if how == "zeroed" else bytes([data[0] ^ 1, *data[1:20]])
            files.write(path, bytes(data), 0)
        async with running(files) as rig:
            assert rig.broker.transactions.offsets() == [0]
            assert (await end(rig, open_, COMMIT)).code == 0
            assert [one.body for one in await stored(rig)] == [b"1", b"0"]

    asyncio.run(scenario())


def test_a_record_of_ended_halves_covers_no_end_that_is_being_stored() -> None:
    """Under sync flush a commit may wait for the disk while such a record is written."""

    async def scenario() -> None:
        files = FakeFiles()
        sync = replace(SMALL, sync_flush=True)
        async with running(files, store=sync, stop=False) as rig:
            first, second = await half(rig, b"1", "U1"), await half(rig, b"2", "U2")
            assert (await end(rig, first, COMMIT)).code == 0
            gate, sync_log = threading.Event(), rig.broker.store.sync

            def held() -> int:
                gate.wait(10)
                return sync_log()

            rig.broker.store.sync = held  # type: ignore[method-assign]
            waiting = asyncio.create_task(end(rig, second, COMMIT))
            service = rig.broker.transaction_service
            await until(lambda: bool(service._open))
            await asyncio.sleep(0.01)
            service.note_ended()
            await asyncio.sleep(0.01)
            left = files.kill()
            gate.set()
            await waiting
        async with running(left) as rig:
            assert len(rig.broker.transactions) == 0
            assert [one.body for one in await stored(rig)] == [b"1", b"2"]

    asyncio.run(scenario())


async def clean_by_force(rig: Rig, files: FakeFiles) -> int:
    """Run retention on a disk so full that age does not matter; return where the log begins."""
    store = rig.broker.store
    await until(lambda: store.queues.written_position == store.log.end_position)
    await rig.broker.housekeeping.flush_now()
    files.capacity = int(files.used_bytes / 0.87)
    try:
        rig.broker.housekeeping.clean_now()
    finally:
        files.capacity = None
    return rig.broker.store.log.min_position


async def fill(rig: Rig, segments: int) -> None:
    """Store plain messages, so that the log goes on by some segments."""
    end = rig.broker.store.log.end_position + segments * SEGMENT_BYTES
    while rig.broker.store.log.end_position < end:
        assert (await rig.send(b"x" * 3000, b="Fill", e="0")).code == 0


SEGMENT_BYTES = 64 * 1024
SEGMENTS = replace(SMALL, segment_bytes=SEGMENT_BYTES, delete_when="")


@pytest.mark.parametrize("kill", [False, True])
def test_retention_keeps_a_half_that_is_pending(kill: bool) -> None:
    """However full the disk is: a commit finds its half, also after a kill."""

    async def scenario() -> None:
        files, clock = FakeFiles(), MovableClock()
        async with running(files, store=SEGMENTS, clock=clock, stop=not kill) as rig:
            await fill(rig, 2)
            answer = await half(rig)
            await fill(rig, 4)
            begins = await clean_by_force(rig, files)
            assert 0 < begins <= position_of(answer), "what lies before the half goes"
            if not kill:
                assert (await end(rig, answer, COMMIT)).code == 0
                assert await clean_by_force(rig, files) > position_of(answer)
        async with running(files.kill() if kill else files, store=SEGMENTS, clock=clock) as rig:
            assert len(rig.broker.transactions) == kill
            if kill:
                assert (await end(rig, answer, COMMIT)).code == 0
            assert [one.body for one in await stored(rig)] == [b"paid"]

    asyncio.run(scenario())


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
def test_an_end_may_name_a_first_half_that_is_deleted(outcome: str) -> None:
    """A half that was put back holds its copy; its producer knows only where the first one was."""

    async def scenario() -> None:
        files, clock = FakeFiles(), MovableClock()
        async with running(files, store=SEGMENTS, clock=clock) as rig:
            answer = await half(rig)
            await fill(rig, 3)
            ask_now(rig, clock)
            await until(lambda: rig.broker.store.queue(HALF, 0).visible_offset == 2)
            assert await clean_by_force(rig, files) > position_of(answer)
            wrong = await end(rig, answer, outcome, producerGroup="other")
            assert (wrong.code, len(rig.broker.transactions)) == (1, 1)
            assert (await end(rig, answer, outcome)).code == 0
            assert [one.body for one in await stored(rig)] == [b"paid"] * (outcome == COMMIT)
            assert len(rig.broker.transactions) == 0

    asyncio.run(scenario())


def test_a_delay_counts_from_the_commit_on() -> None:
    """The half is not delayed; the committed message waits in the queue of its level."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig:
            answer = await half(rig, more="DELAY\x015\x02")
            clock.advance(3_000)
            assert (await end(rig, answer, COMMIT)).code == 0
            assert await stored(rig) == []
            (waiting,) = await stored(rig, "SCHEDULE_TOPIC_XXXX", "4")
            entry = rig.broker.store.queue("SCHEDULE_TOPIC_XXXX", 4).entry(0)
            assert entry is not None
            assert entry[2] == waiting.stored_at_ms + 60_000
            clock.advance(60_000)
            rig.broker.delayed.check_clock()
            await until(lambda: rig.broker.store.queue("Orders", 1).visible_offset == 1)
            (came,) = await stored(rig)
            assert came.body == b"paid"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("gone", "more"),
    [("queue", ""), ("queue", "DELAY\x011\x02"), ("topic", "DELAY\x011\x02")],
    ids=["queue", "queue, delayed", "topic, delayed"],
)
def test_a_late_commit_opens_no_queue_to_sends_that_was_removed(gone: str, more: str) -> None:
    """A client with an old route is refused afterwards as it was before."""

    async def scenario() -> None:
        async with running(auto_create_topics=gone == "queue") as rig:
            changed = {
                "topic": "Orders", "defaultTopic": "TBW102", "readQueueNums": "4",
                "writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0", "order": "false",
            }  # fmt: skip
            assert (await rig.ask(17, changed)).code == 0
            born = str(rig.broker.clock.now_ms())
            answer = await rig.send(b"late", e="3", i=marked(more=more), f="4", g=born)
            assert answer.code == 0
            if gone == "topic":
                assert (await rig.ask(215, {"topic": "Orders"})).code == 0
            else:
                changed.update(readQueueNums="2", writeQueueNums="2")
                assert (await rig.ask(17, changed)).code == 0
            before = await rig.send(b"old route", e="3")
            assert (await end(rig, answer, COMMIT)).code == 0
            after = await rig.send(b"old route", e="3")
            code = 17 if gone == "topic" else 29
            assert (before.code, after.code) == (code, code)

    asyncio.run(scenario())


def test_limits_are_refused_with_their_names() -> None:
    """Too many pending ones, the switch of the settings, batches, and too long properties."""

    async def scenario() -> None:
        async with running(transactions_max=1) as rig:
            await half(rig)
            full = await rig.send(b"x", i=marked("U2"), f="4")
            assert (full.code, "transactions_max" in (full.remark or "")) == (2, True)
            batch = await rig.send(b"x", i=marked("U2"), m="true")
            assert (batch.code, "batch" in (batch.remark or "")) == (13, True)
            lone = await rig.send(b"x", i="UNIQ_KEY\x01U3\x02TRAN_MSG\x01true\x02")
            assert (lone.code, "transactions_max" in (lone.remark or "")) == (2, True)
            bits = await rig.send(b"x", f="4")
            assert (bits.code, "TRAN_MSG" in (bits.remark or "")) == (13, True)
        async with running(reject_transactions=True) as rig:
            assert (await rig.send(b"x", i=marked("U2"), f="4")).code == 16
        async with running() as rig:
            lone = await rig.send(b"x", i="UNIQ_KEY\x01U3\x02TRAN_MSG\x01true\x02")
            assert (lone.code, "PGROUP" in (lone.remark or "")) == (13, True)
            long = "x\x01" + "y" * 32_300 + "\x02"
            assert (await rig.send(b"x", i=marked("U2", long))).code == 13
            assert len(rig.broker.transactions) == 0

    asyncio.run(scenario())


def test_a_refused_write_changes_nothing_and_the_next_one_counts() -> None:
    """A half, an end, records of ended halves and halves that are put back: all are tried again."""

    async def scenario() -> None:
        files, clock = FakeFiles(), MovableClock()
        async with running(files, clock=clock) as rig:
            questions = await heart_beat(rig)
            table, service = rig.broker.transactions, rig.broker.transaction_service

            def full() -> None:
                files.fail(Fault("write", 1, errno.ENOSPC, place="*/commitlog/*"))

            full()
            born = str(clock.now_ms())
            refused = await rig.send(b"no", i=marked("U0"), f="4", g=born)
            assert (refused.code, len(table)) == (14, 0)
            files.heal()
            first, second = await half(rig, b"1", "U1"), await half(rig, b"2", "U2")
            for outcome in (COMMIT, ROLLBACK):
                full()
                assert (await end(rig, first, outcome)).code == 14
                assert len(table) == 2
                files.heal()
            assert (await end(rig, first, COMMIT)).code == 0
            full()
            service.note_ended()
            ask_now(rig, clock)
            await asyncio.sleep(0.02)
            assert (table.offsets(), questions) == ([1], [])
            files.heal()
            clock.advance(1000)
            service.note_ended()
            ask_now(rig, clock)
            await until(lambda: len(questions) == 1)
            assert table.offsets() == [2]
            assert (await end(rig, second, ROLLBACK)).code == 0
            bodies = b"".join(one.body for one in await stored(rig, OP, "0"))
            assert sorted(bodies.strip(b",").split(b",")) == [b"0", b"1", b"2"]
            assert [one.body for one in await stored(rig)] == [b"1"]
            assert (await rig.send(b"later", e="1")).code == 0

    asyncio.run(scenario())


def test_a_numbered_half_is_stored_once_over_a_kill() -> None:
    """The broker finds its sequence number in the queue of halves; the copies of it have none."""

    async def scenario() -> None:
        files, clock = FakeFiles(), MovableClock()
        numbered = marked("U1", "INORDER_PID\x01p1\x02INORDER_SEQ\x010\x02")
        answers = []
        for incarnation in ("1", "2"):
            async with running(files, clock=clock, stop=False) as rig:
                hello = {"producerId": "p1", "incarnation": incarnation}
                assert (await rig.ask(7100, hello)).code == 0
                born = str(clock.now_ms())
                answers.append(await rig.send(b"paid", i=numbered, f="4", g=born))
                await heart_beat(rig)
                ask_now(rig, clock)
                await asyncio.sleep(0.02)
        assert [one.code for one in answers] == [0, 0]
        assert [one.fields["queueOffset"] for one in answers] == ["0", "0"]
        assert answers[0].fields["msgId"][-16:] == answers[1].fields["msgId"][-16:]
        async with running(files, clock=clock) as rig:
            assert len(rig.broker.transactions) == 1
            assert (await end(rig, answers[0], COMMIT)).code == 0
            (came,) = await stored(rig)
            assert b"INORDER_SEQ" not in came.properties

    asyncio.run(scenario())


def test_a_message_that_is_given_back_is_no_transaction() -> None:
    """A copy for the retry topic may still have the mark of the message that was committed."""

    async def scenario() -> None:
        async with running() as rig:
            assert (await rig.send(b"again", b="%RETRY%g", i=marked("U1"), j="1", e="0")).code == 0
            dead = await rig.send(b"dead", b="%RETRY%g", i=marked("U2"), j="17", e="0")
            assert dead.code == 0, dead.remark
            assert len(rig.broker.transactions) == 0

    asyncio.run(scenario())


def test_nobody_else_changes_how_far_the_broker_is_with_its_halves() -> None:
    """A commit beyond a pending half, taken by the next start, would lose the half."""

    async def scenario() -> None:
        async with running() as rig:
            await half(rig)
            await half(rig)
            group = "CID_RMQ_SYS_TRANS"
            offsets = rig.broker.offsets
            before = offsets.query(group, HALF, 0)
            fields = {"consumerGroup": group, "topic": HALF, "queueId": "0", "commitOffset": "2"}
            answer = await rig.ask(15, fields)
            assert (answer.code, "broker itself" in (answer.remark or "")) == (0, True)
            reset = {"topic": HALF, "group": group, "timestamp": "-1", "isForce": "true"}
            assert (await rig.ask(222, reset)).code == 16
            clone = {"srcGroup": "TOOLS_CONSUMER", "destGroup": group, "topic": HALF,
                     "offline": "true"}  # fmt: skip
            assert (await rig.ask(314, clone)).code == 16
            assert offsets.query(group, HALF, 0) == before

    asyncio.run(scenario())
