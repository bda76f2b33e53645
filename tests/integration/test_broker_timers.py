"""Messages for a time of day on a running broker, with a clock that can be moved."""

from __future__ import annotations

import asyncio
import errno
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from inorder.broker.sends.packing import Target
from inorder.broker.timers.records import CHECKPOINT, UNIT
from inorder.broker.timers.service import TURN_RECORDS
from inorder.config import StoreConfig
from inorder.disk import OsFiles
from inorder.errors import StoreBusy, StoreError
from inorder.testing.clock import FakeClock, MovableClock
from inorder.wire import fastjson
from inorder.wire.codes import RequestCode, ResponseCode
from inorder.wire.header import Command
from inorder.wire.names import TIMER_TOPIC
from inorder.wire.properties import parse
from inorder.wire.record import Record, decode_all
from inorder.wire.timers import Handle, code_of, decode_handle
from tests.integration.brokerkit import SMALL, Rig, running, send_fields, until
from tests.kit.disk import FakeFiles, Fault

GOLDEN = Path(__file__).parents[1] / "golden" / "store"
CONFIG = (
    "mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum",
)  # fmt: skip
ILLEGAL = ResponseCode.ILLEGAL_OPERATION
SYNC = replace(SMALL, sync_flush=True)


def timer(name: str, value: object, unique: str = "U1", more: str = "") -> str:
    return f"UNIQ_KEY\x01{unique}\x02{name}\x01{value}\x02{more}"


def move(rig: Rig, clock: MovableClock, ms: int) -> None:
    """Let time jump, and the broker look at its clock, as it does every second."""
    clock.advance(ms)
    rig.broker.timers.check_clock()


def only(answer: Command) -> Record:
    (record,) = decode_all(answer.body)
    return record


async def bodies(rig: Rig, count: int, queue_id: int = 1) -> list[bytes]:
    """Wait for messages in a queue of the topic and return their bodies."""
    queue = rig.broker.store.queue("Orders", queue_id)
    await until(lambda: queue.visible_offset >= count)
    found: list[bytes] = []
    while len(found) < count:
        answer = await rig.pull(queueId=str(queue_id), queueOffset=str(len(found)))
        found += [record.body for record in decode_all(answer.body)]
    return found


def run(scenario: Callable[[], object]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


def test_a_timer_waits_as_in_rocketmq_and_comes_at_its_millisecond() -> None:
    """With RocketMQ's properties in its topic meanwhile, and those of the delivery after it."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig:
            due = clock.now_ms() + 40_123
            answer = await rig.send(b"later", i=timer("TIMER_DELIVER_MS", due), e="2")
            assert answer.code == 0
            assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("2", "0")
            handle = decode_handle(answer.fields["recallHandle"])
            assert handle == ("Orders", "broker-a", due, "U1")
            waiting = only(await rig.pull(topic=TIMER_TOPIC, queueId="0"))
            found = parse(waiting.properties)
            assert (found["TIMER_OUT_MS"], found["REAL_TOPIC"], found["REAL_QID"]) == (
                str(due - 1), "Orders", "2",
            )  # fmt: skip
            entry = rig.broker.store.queue(TIMER_TOPIC, 0).entry(0)
            assert entry is not None
            assert entry[2] == code_of(due)
            move(rig, clock, due - 20 - clock.now_ms())
            assert rig.broker.store.queue("Orders", 2).visible_offset == 0
            await bodies(rig, 1, 2)
            came = only(await rig.pull(queueId="2"))
            found = parse(came.properties)
            assert came.body == b"later"
            assert came.stored_at_ms >= due
            assert (found["TIMER_DELIVER_MS"], found["INORDER_TIMER"]) == (str(due), "0")
            assert found["TIMER_ENQUEUE_MS"] == str(waiting.stored_at_ms)
            assert found["TIMER_DEQUEUE_MS"] == str(came.stored_at_ms)
            assert rig.broker.timer_table.total == 0

    run(scenario)


@pytest.mark.parametrize(
    ("properties", "ms"),
    [
        ("TIMER_DELAY_SEC\x017\x02", 7000),
        ("TIMER_DELAY_MS\x0117\x02", 17),
        ("TIMER_DELIVER_MS\x0199\x02TIMER_DELAY_MS\x0150\x02TIMER_DELAY_SEC\x012\x02", 2000),
        ("TIMER_DELIVER_MS\x0199\x02TIMER_DELAY_MS\x0150\x02", 50),
    ],
)
def test_relative_times_count_from_the_broker_s_clock(properties: str, ms: int) -> None:
    """The first of RocketMQ's three properties that is there counts."""

    async def scenario() -> None:
        async with running(clock=FakeClock()) as rig:
            await rig.send(b"x", i=f"UNIQ_KEY\x01U\x02{properties}")
            waiting = only(await rig.pull(topic=TIMER_TOPIC, queueId="0"))
            assert parse(waiting.properties)["TIMER_OUT_MS"] == str(waiting.stored_at_ms + ms - 1)

    run(scenario)


@pytest.mark.parametrize(
    "properties",
    ["TIMER_DELIVER_MS\x011000\x02", "TIMER_DELAY_MS\x010\x02", "TIMER_DELAY_SEC\x01-5\x02"],
)
def test_a_time_that_has_passed_means_at_once(properties: str) -> None:
    """As in RocketMQ, the message goes straight to its queue, without a handle."""

    async def scenario() -> None:
        async with running() as rig:
            answer = await rig.send(b"x", i=f"UNIQ_KEY\x01U\x02{properties}")
            assert "recallHandle" not in answer.fields
            assert await bodies(rig, 1) == [b"x"]

    run(scenario)


def test_a_level_beside_a_time_wins_and_erases_it() -> None:
    """As in RocketMQ."""

    async def scenario() -> None:
        async with running() as rig:
            await rig.send(b"x", i=timer("TIMER_DELAY_MS", 5, more="DELAY\x013\x02"))
            waiting = only(await rig.pull(topic="SCHEDULE_TOPIC_XXXX", queueId="2"))
            assert "TIMER_DELAY_MS" not in parse(waiting.properties)

    run(scenario)


def test_what_rocketmq_refuses_is_refused_with_its_codes() -> None:
    """Too far away, no number, switched off, too many; and nothing is stored."""

    async def scenario() -> None:
        limits = replace(SMALL, timer_max_delay_sec=60, timers_max=2)
        async with running(store=limits) as rig:
            for value in ("61", "x", "", "9" * 30):
                answer = await rig.send(b"x", i=f"UNIQ_KEY\x01U\x02TIMER_DELAY_SEC\x01{value}\x02")
                refused = answer.code == ResponseCode.MESSAGE_ILLEGAL
                assert refused is (value != ""), "an empty property is none"
            assert "60000ms" in answer.remark
            for number in range(2):
                answer = await rig.send(b"x", i=timer("TIMER_DELAY_SEC", 60, f"U{number}"))
                assert answer.code == 0
            answer = await rig.send(b"x", i=timer("TIMER_DELAY_SEC", 60, "U3"))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "flow control" in answer.remark
            assert rig.broker.store.queue(TIMER_TOPIC, 0).visible_offset == 2
        async with running(store=replace(SMALL, timer_enable=False)) as rig:
            answer = await rig.send(b"x", i=timer("TIMER_DELAY_SEC", 60))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark == (
                "accurate timer message is not enabled, timerWheelEnable is false"
            )

    run(scenario)


def test_batches_and_transactions_hold_no_timers() -> None:
    """They are refused, with a text that says what to do."""

    async def scenario() -> None:
        async with running() as rig:
            half = timer("TIMER_DELAY_SEC", 60, more="TRAN_MSG\x01true\x02")
            answer = await rig.send(b"x", i=half)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            fields = send_fields(i=timer("TIMER_DELAY_SEC", 60), m="true")
            answer = await rig.ask(RequestCode.SEND_BATCH_MESSAGE, fields, b"x")
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert "one by one" in answer.remark
            assert rig.broker.store.queue(TIMER_TOPIC, 0).visible_offset == 0

    run(scenario)


def test_nobody_sends_to_the_topic_of_timers() -> None:
    """What lies there is the broker's own; a forged timer would wait for ever or come at once."""

    async def scenario() -> None:
        async with running() as rig:
            for _ in range(2):
                answer = await rig.send(b"x", b=TIMER_TOPIC, e="0")
                assert answer.code == ResponseCode.NO_PERMISSION

    run(scenario)


def test_timers_come_in_the_order_of_their_times_and_then_of_their_sends() -> None:
    """However they were sent."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig:
            base = clock.now_ms() + 30_000
            for number, ms in enumerate((500, 100, 500, 300, 100)):
                await rig.send(b"%d" % number, i=timer("TIMER_DELIVER_MS", base + ms, f"{number}"))
            move(rig, clock, 40_000)
            assert await bodies(rig, 5) == [b"1", b"4", b"3", b"0", b"2"]

    run(scenario)


@pytest.mark.parametrize("stop", [True, False])
def test_what_waits_survives_a_restart_and_comes_once(stop: bool) -> None:
    """Clean or killed; what is overdue comes at once, in the order of its times."""

    async def scenario() -> None:
        files, clock = FakeFiles(), MovableClock()
        base = clock.now_ms()
        async with running(files, clock=clock, stop=stop) as rig:
            for number, ms in enumerate((60_000, 1000, 90_000, 80_000, 200_000)):
                await rig.send(b"%d" % number, i=timer("TIMER_DELIVER_MS", base + ms, f"{number}"))
            move(rig, clock, 2000)
            assert await bodies(rig, 1) == [b"1"]
        await rig.broker.offload.drain()
        files = files if stop else files.kill()
        clock.advance(100_000)
        async with running(files, clock=clock, stop=stop) as rig:
            assert await bodies(rig, 4) == [b"1", b"0", b"3", b"2"]
            assert rig.broker.timer_table.total == 1
        await rig.broker.offload.drain()
        files = files if stop else files.kill()
        async with running(files, clock=clock) as rig:
            await asyncio.sleep(0.05)
            assert rig.broker.timers.delivered == 0
            assert rig.broker.store.queue("Orders", 1).visible_offset == 4
            assert rig.broker.timer_table.total == 1
            move(rig, clock, 200_000)
            assert (await bodies(rig, 5))[-1] == b"4"

    run(scenario)


def damage_of(how: str, files: FakeFiles) -> None:
    """Damage entries 3 to 5 in the file of the queue of timers."""
    path = Path("/data/consumequeue") / TIMER_TOPIC / "0" / f"{0:020d}"
    data = bytearray(files.read(path))
    for offset in range(3, 6):
        at = 20 * offset
        if how == "zeroed":
            data[at : at + 20] = bytes(20)
        elif how == "astray":
            data[at + 6] ^= 0x04
        else:
            code = int.from_bytes(data[at + 12 : at + 20], "big") - 2 * 3_600_000
            data[at + 12 : at + 20] = code.to_bytes(8, "big")
    files.write(path, bytes(data), 0)


@pytest.mark.parametrize("stop", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("how", ["zeroed", "astray", "an hour early"])
def test_damaged_entries_of_the_queue_lose_no_timer_and_deliver_none_early(
    how: str, stop: bool
) -> None:
    """The queue is compared with the log first; what an entry says of the time is not believed."""

    async def scenario() -> None:
        files, clock = FakeFiles(), MovableClock()
        base = clock.now_ms() + 3 * 86_400_000 - 1000
        async with running(files, clock=clock, stop=stop) as rig:
            for number in range(9):
                due = base - 86_400_000 * (number % 2)
                await rig.send(b"%d" % number, i=timer("TIMER_DELIVER_MS", due, f"{number}"))
            store = rig.broker.store
            await until(lambda: store.queues.written_position == store.log.end_position)
        await rig.broker.offload.drain()
        files = files if stop else files.kill()
        damage_of(how, files)
        async with running(files, clock=clock) as rig:
            queue = rig.broker.store.queue("Orders", 1)
            for hours, wanted in ((47.5, 0), (0.5, 4), (23.5, 4), (0.5, 9)):
                move(rig, clock, int(3_600_000 * hours))
                async with asyncio.timeout(30):
                    await until(lambda wanted=wanted: queue.visible_offset >= wanted)
                await asyncio.sleep(0.3)
                assert queue.visible_offset == wanted
            found = await bodies(rig, 9)
            assert sorted(found) == [b"%d" % number for number in range(9)]

    run(scenario)


@pytest.mark.parametrize("how", ["zeroed", "astray"])
def test_a_damaged_entry_of_a_delivered_timer_does_not_bring_it_again(how: str) -> None:
    """The mark in the log counts for the entry as the log says it is."""

    async def scenario() -> None:
        files, clock = FakeFiles(), MovableClock()
        async with running(files, clock=clock, stop=False) as rig:
            for number in range(9):
                ms = 1000 + number % 2 * 60_000
                await rig.send(b"%d" % number, i=timer("TIMER_DELAY_MS", ms, f"{number}"))
            move(rig, clock, 1000)
            assert len(await bodies(rig, 5)) == 5
            store = rig.broker.store
            await until(lambda: store.queues.written_position == store.log.end_position)
        await rig.broker.offload.drain()
        files = files.kill()
        for path in [path for path in files.listdir(Path("/data/config")) if "inorderT" in path]:
            files.remove(Path("/data/config") / path)
        damage_of(how, files)
        async with running(files, clock=clock) as rig:
            queue = rig.broker.store.queue("Orders", 1)
            assert rig.broker.timer_table.total == 4
            move(rig, clock, 61_000)
            async with asyncio.timeout(30):
                await until(lambda: queue.visible_offset >= 9)
            await asyncio.sleep(0.1)
            assert queue.visible_offset == 9

    run(scenario)


def test_without_its_snapshot_everything_is_found_in_the_log() -> None:
    """A lost file costs a longer start and nothing else."""

    async def scenario() -> None:
        files, clock = FakeFiles(), MovableClock()
        base = clock.now_ms()
        async with running(files, clock=clock) as rig:
            for number in range(10):
                at = base + 1000 * (10 - number)
                await rig.send(b"%d" % number, i=timer("TIMER_DELIVER_MS", at, f"{number}"))
            move(rig, clock, 5500)
            await bodies(rig, 5)
        for name in files.listdir(rig.broker.timer_snapshot.path.parent):
            if name.startswith(("inorderTimers", "timercheck")):
                files.remove(rig.broker.timer_snapshot.path.parent / name)
        async with running(files, clock=clock) as rig:
            assert rig.broker.timer_table.total == 5
            move(rig, clock, 10_000)
            assert await bodies(rig, 10) == [b"%d" % number for number in reversed(range(10))]
            await asyncio.sleep(0.02)
            assert rig.broker.store.queue("Orders", 1).visible_offset == 10

    run(scenario)


def test_a_mark_that_somebody_made_up_skips_nobodys_message() -> None:
    """A start after a kill believes only the delivery of the very message that waited."""

    async def scenario() -> None:
        files, clock = FakeFiles(), MovableClock()
        async with running(files, clock=clock, stop=False) as rig:
            for number in range(3):
                await rig.send(b"x", i=timer("TIMER_DELAY_SEC", 60, f"U{number}"))
            for forged in ("UNIQ_KEY\x01U7\x02INORDER_TIMER\x012\x02", "INORDER_TIMER\x01zz\x02"):
                assert (await rig.send(b"x", i=forged)).code == 0
            same = "UNIQ_KEY\x01U1\x02INORDER_TIMER\x011\x02"
            assert (await rig.send(b"x", i=same)).code == 0, "all equal, but before its time"
        await rig.broker.offload.drain()
        async with running(files.kill(), clock=clock) as rig:
            move(rig, clock, 61_000)
            await until(lambda: rig.broker.timers.delivered == 3)

    run(scenario)


async def recall(rig: Rig, handle: str, topic: str = "Orders") -> Command:
    return await rig.ask(
        RequestCode.RECALL_MESSAGE,
        {"topic": topic, "recallHandle": handle, "producerGroup": "PG"},
    )


@pytest.mark.parametrize("store", [SMALL, SYNC])
@pytest.mark.parametrize("stop", [True, False])
def test_a_recalled_message_never_comes(store: object, stop: bool) -> None:
    """Neither in time nor after a restart; its neighbours of the same millisecond do."""

    async def scenario() -> None:
        files, clock = FakeFiles(), MovableClock()
        due = clock.now_ms() + 60_000
        async with running(files, clock=clock, store=store, stop=stop) as rig:
            handles = []
            for number in range(3):
                answer = await rig.send(
                    b"%d" % number, i=timer("TIMER_DELIVER_MS", due, f"U{number}")
                )
                handles.append(answer.fields["recallHandle"])
            answer = await recall(rig, handles[1])
            assert (answer.code, answer.fields["msgId"]) == (0, "U1")
            if not stop:
                await rig.broker.timer_snapshot.saved()
        await rig.broker.offload.drain()
        files = files if stop else files.kill()
        async with running(files, clock=clock, store=store, stop=stop) as rig:
            move(rig, clock, 60_001)
            assert await bodies(rig, 2) == [b"0", b"2"]
            await until(lambda: rig.broker.timer_table.total == 0)
            assert rig.broker.timers.recalled == 1
            answer = await recall(rig, handles[0])
            assert (answer.code, answer.remark) == (
                ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid",
            )  # fmt: skip
        await rig.broker.offload.drain()
        async with running(files if stop else files.kill(), clock=clock, store=store) as rig:
            await asyncio.sleep(0.02)
            assert rig.broker.store.queue("Orders", 1).visible_offset == 2

    run(scenario)


def test_recalls_are_refused_as_rocketmq_does() -> None:
    """Each with its code and text."""

    async def scenario() -> None:
        clock = FakeClock()
        async with running(clock=clock) as rig:
            await rig.send(b"x")
            due = clock.now_ms() + 5000
            good = Handle("Orders", "broker-a", due, "U1")
            cases = [
                ("", "Orders", ILLEGAL, "recall handle is invalid"),
                ("%%%", "Orders", ILLEGAL, "recall handle is invalid"),
                (good._replace(topic="Other").encode(), "Orders", ILLEGAL, "topic not match"),
                (
                    good._replace(broker="b").encode(),
                    "Orders",
                    ILLEGAL,
                    "broker service not available",
                ),
                (
                    good._replace(due_ms=clock.now_ms()).encode(),
                    "Orders",
                    ILLEGAL,
                    "timestamp invalid",
                ),
                (
                    good._replace(due_ms=due + 10**9).encode(),
                    "Orders",
                    ILLEGAL,
                    "timestamp invalid",
                ),
                (good.encode(), "Nowhere", 17, "not exist"),
                (
                    good._replace(message_id="U1\x02TIMER_OUT_MS\x015").encode(),
                    "Orders",
                    ILLEGAL,
                    "names and values must not",
                ),
            ]
            for handle, topic, code, text in cases:
                answer = await recall(rig, handle, topic)
                assert answer.code == code, (handle, answer)
                assert text in answer.remark
            assert (await recall(rig, good.encode())).code == 0, "whether it exists is not checked"
        async with running(recall_enable=False) as rig:
            answer = await recall(rig, good.encode())
            assert (answer.code, answer.remark) == (
                ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden",
            )  # fmt: skip

    run(scenario)


def test_the_counts_by_topic_and_the_checkpoint_are_told() -> None:
    """61 as JSON, 60 as 56 bytes."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig:
            for number in range(3):
                topic = "Other" if number else "Orders"
                await rig.send(b"x", b=topic, i=timer("TIMER_DELAY_SEC", 60 + number, f"{number}"))
            answer = await rig.ask(RequestCode.GET_TIMER_METRICS)
            counts = fastjson.loads(answer.body)["timingCount"]
            assert {name: one["count"] for name, one in counts.items()} == {
                "Orders": 1, "Other": 2,
            }  # fmt: skip
            answer = await rig.ask(RequestCode.GET_TIMER_CHECK_POINT)
            assert len(answer.body) == 56
            move(rig, clock, 60_500)
            await bodies(rig, 1)
            answer = await rig.ask(RequestCode.GET_TIMER_CHECK_POINT)
            assert int.from_bytes(answer.body[16:24], "big") == 1

    run(scenario)


def test_many_that_are_due_at_once_come_in_turns_and_in_order() -> None:
    """No turn of the loop delivers more than its share."""

    async def scenario() -> None:
        clock, count = MovableClock(), TURN_RECORDS * 2 + 7
        async with running(clock=clock) as rig:
            due = clock.now_ms() + 60_000
            for number in range(count):
                fields = send_fields(i=timer("TIMER_DELIVER_MS", due, f"U{number}"))
                rig.connection.notify(Command.request(310, fields, b"%d" % number, oneway=True))
            queue = rig.broker.store.queue(TIMER_TOPIC, 0)
            await until(lambda: queue.visible_offset == count)
            ticks = rig.broker.ticks.ticks
            move(rig, clock, 61_000)
            assert await bodies(rig, count) == [b"%d" % number for number in range(count)]
            assert rig.broker.ticks.ticks - ticks >= 3

    run(scenario)


@pytest.mark.parametrize("store", [SMALL, SYNC])
def test_old_timers_are_read_in_a_thread(store: object) -> None:
    """What may have to come from the disk does not hold up the loop; nothing else changes."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock, store=store) as rig:
            rig.broker.store.reader.hot_bytes = -1
            due = clock.now_ms() + 60_000
            for number in range(150):
                at = due + number % 7
                await rig.send(b"%d" % number, i=timer("TIMER_DELIVER_MS", at, f"U{number}"))
            move(rig, clock, 61_000)
            queue = rig.broker.store.queue("Orders", 1)
            await until(lambda: queue.visible_offset == 150)
            rig.broker.store.reader.hot_bytes = 1 << 40
            wanted = sorted(range(150), key=lambda number: (number % 7, number))
            assert await bodies(rig, 150) == [b"%d" % number for number in wanted]

    run(scenario)


def test_a_full_disk_delays_and_loses_nothing() -> None:
    """What could not be stored is taken again when there is room."""

    async def scenario() -> None:
        files, clock = FakeFiles(), MovableClock()
        async with running(files, clock=clock) as rig:
            for number in range(3):
                await rig.send(b"x" * 100, i=timer("TIMER_DELAY_SEC", 60, f"U{number}"))
            files.fail(Fault("write", 1, errno.ENOSPC, forever=True))
            move(rig, clock, 61_000)
            await until(lambda: not rig.broker.writable)
            answer = await rig.send(b"x", i=timer("TIMER_DELAY_SEC", 60, "U9"))
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            files.heal()
            await bodies(rig, 3)
            assert rig.broker.timer_table.total == 0

    run(scenario)


def test_a_timer_that_has_to_wait_for_the_store_is_counted_once() -> None:
    """A busy store takes the first of three; a fourth is due later, and counts until then."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig:
            for number, seconds in enumerate((60, 60, 60, 600)):
                more = timer("TIMER_DELAY_SEC", seconds, f"U{number}")
                assert (await rig.send(b"%d" % number, i=more)).code == 0
            packer, tried = rig.broker.sends.packer, []
            put = packer.put_record

            def busy_once(target: Target, record: Record, tag_code: int | None = None) -> int:
                tried.append(record)
                if len(tried) == 2:
                    raise StoreBusy("many bytes wait to be written")
                return put(target, record, tag_code)

            packer.put_record = busy_once  # type: ignore[method-assign]
            move(rig, clock, 61_000)
            await until(lambda: len(tried) == 2)
            move(rig, clock, 1000)
            assert await bodies(rig, 3) == [b"0", b"1", b"2"]
            assert rig.broker.timer_table.total == 1

    run(scenario)


def test_nothing_that_waits_means_no_alarm() -> None:
    """An idle broker is not woken by this, and far timers do not wake it now."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig:
            assert rig.broker.timers._alarm is None
            await rig.send(b"x", i=timer("TIMER_DELAY_SEC", 3600))
            alarm = rig.broker.timers._alarm
            assert alarm is not None
            assert alarm.when() - asyncio.get_running_loop().time() > 3000
            move(rig, clock, 3_600_000)
            await bodies(rig, 1)
            await until(lambda: rig.broker.timers._alarm is None)

    run(scenario)


def test_retention_keeps_what_waits() -> None:
    """The oldest segment with a timer that waits stays, however old it is."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig:
            await rig.send(b"x", i=timer("TIMER_DELAY_SEC", 3600))
            entry = rig.broker.store.queue(TIMER_TOPIC, 0).entry(0)
            assert entry is not None
            assert rig.broker.timers.keep_from == entry[0]
            rig.broker.housekeeping._clean()
            assert rig.broker.store.keep_from is not None
            assert rig.broker.store.keep_from <= entry[0]
            move(rig, clock, 3_600_000)
            await bodies(rig, 1)
            assert rig.broker.timers.keep_from is None

    run(scenario)


def test_a_clock_set_back_neither_repeats_nor_loses() -> None:
    """A time that had passed already is kept as late, and comes when it is due again."""

    async def scenario(*, stop: bool) -> None:
        files, clock = FakeFiles(), FakeClock()
        async with running(files, clock=clock, stop=stop) as rig:
            await rig.send(b"0", i=timer("TIMER_DELAY_SEC", 60, "U0"))
            clock.advance(60_000)
            rig.broker.timers.check_all()
            await bodies(rig, 1)
            clock.set_wall_clock(clock.now_ms() - 30_000)
            rig.broker.timers.check_clock()
            await rig.send(b"1", i=timer("TIMER_DELAY_SEC", 10, "U1"))
            await asyncio.sleep(0.02)
            assert rig.broker.store.queue("Orders", 1).visible_offset == 1
        await rig.broker.offload.drain()
        files = files if stop else files.kill()
        clock.advance(10_000)
        async with running(files, clock=clock) as rig:
            assert await bodies(rig, 2) == [b"0", b"1"]

    asyncio.run(scenario(stop=True))
    asyncio.run(scenario(stop=False))


def test_a_deleted_topic_is_made_again_for_what_was_acknowledged() -> None:
    """Better there than thrown away."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig:
            await rig.send(b"x", i=timer("TIMER_DELAY_SEC", 60), e="2")
            rig.broker.topics.delete("Orders", clock.now_ms())
            move(rig, clock, 60_000)
            await until(lambda: "Orders" in rig.broker.topics)
            assert only(await rig.pull(queueId="2")).body == b"x"

    run(scenario)


def _wheel(files: FakeFiles, *, read_ms: int, offset: int, units: list[tuple[int, int]]) -> None:
    """Write RocketMQ's files of a timer wheel: units of (time, position)."""
    root = Path("/data")
    write(files, root / "timerwheel", bytes(64))
    log = b"".join(
        UNIT.pack(52, -1, 1, time_ms - 1000, 1000, position, 9, 0, 0) for time_ms, position in units
    )
    write(files, root / "timerlog" / "00000000000000000000", log.ljust(5200, b"\0"))
    check = CHECKPOINT.pack(read_ms, len(log), offset, offset, 0, 0, 0)
    write(files, root / "config" / "timercheck", check.ljust(4096, b"\0"))


def write(files: FakeFiles, path: Path, content: bytes) -> None:
    files.makedirs(path.parent)
    file = files.open(path, create=True)
    file.truncate(len(content))
    file.pwrite(content, 0)
    file.close()


def test_a_wheel_without_its_checkpoint_is_refused_before_a_byte_is_written() -> None:
    """And the refusal says what to do."""

    async def scenario() -> None:
        files = FakeFiles()
        _wheel(files, read_ms=5000, offset=2, units=[(2000, 0), (10_000, 0)])
        files.remove(Path("/data/config/timercheck"))
        with pytest.raises(StoreError, match="timercheck, which says which of them are delivered"):
            async with running(files):
                pass
        assert files.listdir(Path("/data")) == ["config", "timerlog", "timerwheel"]

    run(scenario)


@pytest.mark.parametrize("directory", ["clean", "killed"])
def test_timers_in_rocketmqs_wheel_are_taken_over(directory: str, tmp_path: Path) -> None:
    """A directory of RocketMQ: what waits comes at its millisecond, and only that."""
    with tarfile.open(GOLDEN / f"{directory}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    sample = GOLDEN.joinpath(f"{directory}.json").read_text()
    found = {name: fastjson.loads(sample.encode())["config"][name] for name in CONFIG}
    store = StoreConfig(
        segment_bytes=int(found["mappedFileSizeCommitLog"]),
        queue_file_bytes=int(found["mappedFileSizeConsumeQueue"]),
        index_slots=int(found["maxHashSlotNum"]), index_entries=int(found["maxIndexNum"]),
        retention_hours=1_000_000,
    )  # fmt: skip

    (data,) = [path.parent for path in tmp_path.rglob("commitlog")]

    async def scenario() -> None:
        clock = FakeClock(1_794_717_069_000)  # when the samples were made
        async with running(OsFiles(), clock=clock, store=store, data=str(data)) as rig:
            assert not OsFiles().exists(data / "timerwheel")
            (waiting,) = rig.broker.timer_table.counts
            assert rig.broker.timer_table.total == 1
            queue = rig.broker.store.queue(TIMER_TOPIC, 0)
            due = max(
                entry[2] // 2
                for offset in range(queue.min_offset, queue.visible_offset)
                if (entry := queue.entry(offset)) is not None and entry[2] > 1 << 33
            )
            ends = [one.visible_offset for one in rig.broker.store.queues_of(waiting)]
            clock.set_wall_clock(due - 1)
            rig.broker.timers.check_clock()
            await asyncio.sleep(0.05)
            assert [one.visible_offset for one in rig.broker.store.queues_of(waiting)] == ends
            clock.set_wall_clock(due)
            rig.broker.timers.check_clock()
            await until(lambda: rig.broker.timers.delivered == 1)
        async with running(OsFiles(), clock=clock, store=store, data=str(data)) as rig:
            await asyncio.sleep(0.05)
            assert (rig.broker.timers.delivered, rig.broker.timer_table.total) == (0, 0)

    run(scenario)


def test_a_wheel_in_which_nothing_waits_is_taken_over() -> None:
    """It is removed, since RocketMQ would believe it and not the checkpoint."""

    async def scenario() -> None:
        files, clock = FakeFiles(), MovableClock()
        async with running(files, clock=clock) as rig:
            await rig.send(b"x", i=timer("TIMER_DELAY_SEC", 60))
            move(rig, clock, 61_000)
            await bodies(rig, 1)
        _wheel(files, read_ms=clock.now_ms(), offset=1, units=[(10_000, 0)])
        async with running(files, clock=clock, stop=False) as rig:
            root = rig.broker.config.data_path
            assert not files.exists(root / "timerwheel")
            assert not files.listdir(root / "timerlog")
            await asyncio.sleep(0.02)
            assert rig.broker.store.queue("Orders", 1).visible_offset == 1
            await rig.send(b"y", i=timer("TIMER_DELAY_SEC", 60, "U2"))
            move(rig, clock, 61_000)
            assert await bodies(rig, 2) == [b"x", b"y"]

    run(scenario)
