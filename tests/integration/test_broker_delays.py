"""Delayed messages and retries on a running broker, with a clock that can be moved."""

from __future__ import annotations

import asyncio
import errno
import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from inorder.broker.delays.service import TURN_RECORDS
from inorder.disk import OsFiles
from inorder.model import TopicQueue
from inorder.testing.clock import FakeClock, MovableClock
from inorder.wire.codes import ResponseCode
from inorder.wire.header import Command
from inorder.wire.properties import parse
from inorder.wire.record import Record, decode_all
from inorder.wire.requests.leases import LockBatchBody
from tests.integration.brokerkit import SMALL, Rig, running, until
from tests.kit.disk import FakeFiles, Fault

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
GOLDEN = Path(__file__).parents[1] / "golden" / "store"


def delay(level: int | str, unique: str = "U1") -> str:
    return f"TAGS\x01TagA\x02UNIQ_KEY\x01{unique}\x02DELAY\x01{level}\x02"


def move(rig: Rig, clock: MovableClock, seconds: float) -> None:
    """Let time jump, and the broker look at its clock, as it does every second."""
    clock.advance(int(seconds * 1000))
    rig.broker.delayed.check_clock()


async def held(rig: Rig, topic: str, queue_id: int, offset: int = 0) -> asyncio.Task[Command]:
    """Begin a pull that waits."""
    count = len(rig.broker.waits)
    task = asyncio.create_task(
        rig.pull(
            topic=topic, queueId=str(queue_id), queueOffset=str(offset), sysFlag="6",
            suspendTimeoutMillis="20000",
        )
    )  # fmt: skip
    await until(lambda: len(rig.broker.waits) > count)
    return task


def only(answer: Command) -> Record:
    (record,) = decode_all(answer.body)
    return record


def test_a_delayed_message_comes_when_it_is_due_and_not_before() -> None:
    """Meanwhile it lies in the queue of its level; then the held pull has it, with its place."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig:
            answer = await rig.send(b"later", i=delay(5), e="2")
            assert answer.code == 0
            assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("2", "0")
            waiting = only(await rig.pull(topic=SCHEDULE, queueId="4"))
            assert parse(waiting.properties)["REAL_TOPIC"] == "Orders"
            assert answer.fields["msgId"].endswith(f"{waiting.position:016X}")
            entry = rig.broker.store.queue(SCHEDULE, 4).entry(0)
            assert entry is not None
            assert entry[2] == waiting.stored_at_ms + 60_000, "its tag code is when it is due"
            pull = await held(rig, "Orders", 2)
            move(rig, clock, 40)
            await asyncio.sleep(0.02)
            assert not pull.done()
            move(rig, clock, 20)
            came = only(await pull)
            assert (came.topic, came.queue_id, came.queue_offset, came.body) == (
                "Orders", 2, 0, b"later",
            )  # fmt: skip
            assert (came.born_at_ms, came.stored_at_ms >= entry[2]) == (1_700_000_000_000, True)
            found = parse(came.properties)
            assert (found["DELAY"], found["REAL_QID"]) == ("5", "2"), "as RocketMQ leaves them"
            assert found["INORDER_SCHED"] == "5:0"
            assert len(decode_all((await rig.pull(queueId="2", subscription="TagA")).body)) == 1

    asyncio.run(scenario())


def test_a_level_above_the_highest_is_the_highest() -> None:
    """And says so in its property, as RocketMQ's does."""

    async def scenario() -> None:
        async with running(store=replace(SMALL, delay_levels="1s 2m")) as rig:
            assert (await rig.send(b"x", i=delay(99))).code == 0
            waiting = only(await rig.pull(topic=SCHEDULE, queueId="1"))
            assert parse(waiting.properties)["DELAY"] == "2"
            entry = rig.broker.store.queue(SCHEDULE, 1).entry(0)
            assert entry is not None
            assert entry[2] == waiting.stored_at_ms + 120_000

    asyncio.run(scenario())


@pytest.mark.parametrize("level", ["0", "-1"])
def test_no_level_means_at_once(level: str) -> None:
    """The property stays."""

    async def scenario() -> None:
        async with running() as rig:
            assert (await rig.send(b"x", i=delay(level))).code == 0
            assert parse(only(await rig.pull()).properties)["DELAY"] == level

    asyncio.run(scenario())


def test_a_message_is_found_by_its_id_while_it_waits_and_after() -> None:
    """Under the topic where it lies: as RocketMQ indexes it."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig:

            async def found(topic: str) -> int:
                fields = {
                    "topic": topic, "key": "U1", "maxNum": "32", "beginTimestamp": "0",
                    "endTimestamp": "9223372036854775807", "_UNIQUE_KEY_QUERY": "true",
                }  # fmt: skip
                return len(decode_all((await rig.ask(12, fields)).body))

            await rig.send(b"x", i=delay(5))
            assert (await found(SCHEDULE), await found("Orders")) == (1, 0)
            pull = await held(rig, "Orders", 1)
            move(rig, clock, 60)
            await pull
            assert (await found(SCHEDULE), await found("Orders")) == (1, 1)

    asyncio.run(scenario())


def test_what_waits_survives_a_restart_and_comes_once() -> None:
    """Clean or killed, at its time, or at once if that has passed."""

    async def scenario(*, stop: bool) -> None:
        files, clock = FakeFiles(), MovableClock()
        async with running(files, clock=clock, stop=stop) as rig:
            for number in range(3):
                assert (await rig.send(b"x", i=delay(number + 5, f"U{number}"))).code == 0
            pull = await held(rig, "Orders", 1)
            move(rig, clock, 60)
            await pull
        await rig.broker.offload.drain()
        files = files if stop else files.kill()
        clock.advance(60_000)
        async with running(files, clock=clock, stop=stop) as rig:
            late = await rig.pull(queueOffset="1", sysFlag="6", suspendTimeoutMillis="20000")
            assert parse(only(late).properties)["UNIQ_KEY"] == "U1"
            pull = await held(rig, "Orders", 1, 2)
            move(rig, clock, 60)
            assert parse(only(await pull).properties)["UNIQ_KEY"] == "U2"
        await rig.broker.offload.drain()
        files = files if stop else files.kill()
        async with running(files, clock=clock) as rig:
            await asyncio.sleep(0.05)
            assert rig.broker.delayed.delivered == 0
            assert rig.broker.store.queue("Orders", 1).visible_offset == 3

    asyncio.run(scenario(stop=True))
    asyncio.run(scenario(stop=False))


def test_a_mark_that_somebody_made_up_skips_nobodys_message() -> None:
    """A start after a kill believes only the delivery of the very message that waited."""

    async def scenario() -> None:
        files, clock = FakeFiles(), MovableClock()
        async with running(files, clock=clock, stop=False) as rig:
            for number in range(3):
                await rig.send(b"x", i=delay(5, f"U{number}"))
            forged = [f"UNIQ_KEY\x01U{number}\x02INORDER_SCHED\x015:2\x02" for number in (0, 2)]
            for properties in forged:  # the second is the message itself, but not the next one
                assert (await rig.send(b"x", i=properties)).code == 0
        await rig.broker.offload.drain()
        async with running(files.kill(), clock=clock) as rig:
            assert rig.broker.delays.settled() == {}
            move(rig, clock, 60)
            await until(lambda: rig.broker.delayed.delivered == 3)

    asyncio.run(scenario())


def test_many_that_are_due_at_once_come_in_turns_and_in_order() -> None:
    """No turn of the loop delivers more than its share."""

    async def scenario() -> None:
        clock, count = MovableClock(), TURN_RECORDS * 2 + 7
        async with running(clock=clock) as rig:
            for number in range(count):
                rig.connection.notify(
                    Command.request(
                        310,
                        {
                            "a": "PG", "b": "Orders", "c": "TBW102", "d": "4", "e": "1", "f": "0",
                            "g": "1", "h": "0", "i": delay(5, f"U{number}"), "m": "false",
                        },
                        b"%d" % number,
                        oneway=True,
                    )
                )  # fmt: skip
            schedule = rig.broker.store.queue(SCHEDULE, 4)
            await until(lambda: schedule.visible_offset == count)
            ticks = rig.broker.ticks.ticks
            move(rig, clock, 61)
            queue = rig.broker.store.queue("Orders", 1)
            await until(lambda: queue.visible_offset == count)
            assert rig.broker.ticks.ticks - ticks >= 3
            bodies: list[bytes] = []
            while len(bodies) < count:
                answer = await rig.pull(queueOffset=str(len(bodies)))
                bodies += [record.body for record in decode_all(answer.body)]
            assert bodies == [b"%d" % number for number in range(count)]

    asyncio.run(scenario())


def test_a_full_disk_delays_and_loses_nothing() -> None:
    """What could not be stored is taken again when there is room."""

    async def scenario() -> None:
        files, clock = FakeFiles(), MovableClock()
        async with running(files, clock=clock) as rig:
            for number in range(3):
                await rig.send(b"x" * 100, i=delay(5, f"U{number}"))
            files.fail(Fault("write", 1, errno.ENOSPC, forever=True))
            move(rig, clock, 61)
            await until(lambda: not rig.broker.writable)
            assert rig.broker.store.queue("Orders", 1).visible_offset == 0
            files.heal()
            await until(lambda: rig.broker.store.queue("Orders", 1).visible_offset == 3)
            assert rig.broker.delays.settled() == {5: 3}

    asyncio.run(scenario())


@pytest.mark.parametrize("sync", [False, True])
def test_old_messages_are_read_in_a_thread(sync: bool) -> None:
    """What may have to come from the disk does not hold up the loop; nothing else changes."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock, store=replace(SMALL, sync_flush=sync)) as rig:
            rig.broker.store.reader.hot_bytes = -1
            for number in range(250):
                await rig.send(b"%d" % number, i=delay(5 + number % 2, f"U{number}"))
            move(rig, clock, 121)
            queue = rig.broker.store.queue("Orders", 1)
            await until(lambda: queue.visible_offset == 250)
            rig.broker.store.reader.hot_bytes = 1 << 40
            bodies: list[bytes] = []
            while len(bodies) < 250:
                answer = await rig.pull(queueOffset=str(len(bodies)))
                bodies += [record.body for record in decode_all(answer.body)]
            numbers = [int(body) for body in bodies]
            for rest in (0, 1):
                assert [n for n in numbers if n % 2 == rest] == list(range(rest, 250, 2))

    asyncio.run(scenario())


def test_a_slow_sync_does_not_make_a_delivery_forgotten() -> None:
    """It counts when it is on disk, however long that takes, and is not delivered again."""

    async def scenario() -> None:
        clock = MovableClock()
        slow = replace(SMALL, sync_flush=True, sync_flush_timeout_ms=50)
        async with running(clock=clock, store=slow) as rig:
            await rig.send(b"x", i=delay(5))
            gate, sync = threading.Event(), rig.broker.store.sync

            def held() -> int:
                gate.wait(10)
                return sync()

            rig.broker.store.sync = held  # type: ignore[method-assign]
            move(rig, clock, 60)
            await until(lambda: rig.broker.ticks.unsettled_bytes > 0)
            assert rig.broker.delayed.settled_position < rig.broker.store.log.end_position
            clock.advance(1000)
            rig.broker.ticks.expire(clock.monotonic_ms())
            assert rig.broker.delays.settled() == {}
            gate.set()
            await until(lambda: rig.broker.delays.settled() == {5: 1})
            assert rig.broker.delayed.settled_position == rig.broker.store.log.end_position
            assert rig.broker.store.queue("Orders", 1).visible_offset == 1

    asyncio.run(scenario())


def test_nothing_that_waits_means_no_timer() -> None:
    """An idle broker is not woken by this."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig:
            assert rig.broker.delayed._timer is None
            await rig.send(b"x", i=delay(5))
            timer = rig.broker.delayed._timer
            assert timer is not None
            assert timer.when() - asyncio.get_running_loop().time() > 30
            pull = await held(rig, "Orders", 1)
            move(rig, clock, 60)
            await pull
            await until(lambda: rig.broker.delayed._timer is None)

    asyncio.run(scenario())


def test_a_deleted_topic_is_made_again_for_what_was_acknowledged() -> None:
    """Better there than thrown away."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig:
            await rig.send(b"x", i=delay(5), e="2")
            rig.broker.topics.delete("Orders", clock.now_ms())
            move(rig, clock, 60)
            await until(lambda: "Orders" in rig.broker.topics)
            assert only(await rig.pull(queueId="2")).body == b"x"

    asyncio.run(scenario())


def test_a_message_sent_back_comes_to_the_retry_topic_and_ends_in_the_dead_letters() -> None:
    """With its attempts counted and its first place kept."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig:
            await rig.send(b"bad")
            first = only(await rig.pull())
            record = first
            for attempt, seconds in ((1, 10), (2, 30)):
                answer = await give_back(rig, record, "2")
                assert (answer.code, answer.remark, answer.has_fields) == (0, None, False)
                pull = await held(rig, "%RETRY%CG", 0, attempt - 1)
                move(rig, clock, seconds)
                record = only(await pull)
                assert (record.redeliveries, record.body) == (attempt, b"bad")
            assert (await give_back(rig, record, "2")).code == 0
            dead = only(await rig.pull(topic="%DLQ%CG", queueId="0"))
            found = parse(dead.properties)
            assert dead.redeliveries == 3
            assert (found["RETRY_TOPIC"], found["UNIQ_KEY"]) == ("Orders", "AB12")
            assert found["ORIGIN_MESSAGE_ID"].endswith(f"{first.position:016X}")
            assert dead.born_at_ms == first.born_at_ms
            config = rig.broker.topics.get("%DLQ%CG")
            assert config is not None
            assert (config.read_queues, config.write_queues, config.perm) == (1, 1, 6)

    async def give_back(rig: Rig, record: Record, most: str) -> Command:
        fields = {"offset": str(record.position), "group": "CG", "delayLevel": "0"}
        return await rig.ask(36, fields | {"maxReconsumeTimes": most})

    asyncio.run(scenario())


def test_a_send_to_the_retry_topic_of_an_ordered_group_is_a_dead_letter() -> None:
    """That is how ordered consumers give up a message; without locks it is tried again."""

    async def scenario() -> None:
        async with running() as rig:
            await rig.pull(topic="Orders")
            retry = {"b": "%RETRY%CG", "e": "0", "j": "1", "l": "1", "i": delay(4)}
            assert (await rig.send(b"again", **retry)).code == 0
            assert rig.broker.store.queue(SCHEDULE, 3).visible_offset == 1
            lock = LockBatchBody("a", "CG", (TopicQueue("Orders", "broker-a", 0),))
            await rig.ask(41, body=lock.encode())
            assert (await rig.send(b"given up", **retry)).code == 0
            dead = only(await rig.pull(topic="%DLQ%CG", queueId="0"))
            assert (dead.body, parse(dead.properties)["DELAY"]) == (b"given up", "-1")

    asyncio.run(scenario())


def test_a_directory_of_rocketmq_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Its delay offsets are taken over; what waits comes at its time, and only that."""
    with tarfile.open(GOLDEN / "clean.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")

    async def scenario() -> None:
        clock = FakeClock(now_ms=1_794_717_069_000)  # when the sample was made
        async with running(OsFiles(), clock=clock, data=str(tmp_path)) as rig:
            broker = rig.broker
            assert broker.delays.settled() == {1: 4, 2: 2, 14: 0, 17: 0, 18: 0}
            waiting = {q.queue_id + 1: q.visible_offset for q in broker.store.queues_of(SCHEDULE)}
            assert {level for level in waiting if waiting[level] > 0} == {1, 2, 14, 17, 18}
            saved = (tmp_path / "config" / "delayOffset.json").read_text()
            assert "inorderPosition" in saved, "or a kill would not find what is delivered now"
            clock.advance(2 * 3600 * 1000)
            broker.delayed.check_clock()
            await until(lambda: broker.delays.settled() == waiting)
            assert broker.delayed.delivered == sum(waiting.values()) - 6
            assert broker.delayed.dropped == 0

    asyncio.run(scenario())


def test_delay_offsets_and_runtime_numbers_are_answered() -> None:
    """Code 45 in RocketMQ's form, and a line per level in the runtime information."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig:
            await rig.send(b"x", i=delay(2))
            pull = await held(rig, "Orders", 1)
            move(rig, clock, 5)
            await pull
            answer = await rig.ask(45)
            assert answer.code == ResponseCode.SUCCESS
            assert bytes(answer.body).endswith(b'"offsetTable":{2:1}}')
            assert b'"scheduleMessageOffset_2":"1,1"' in bytes((await rig.ask(28)).body)

    asyncio.run(scenario())
