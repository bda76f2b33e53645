"""Numbered sends over kills, power cuts, full disks and slow syncs: each number once, in order."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from inorder.broker.producers.records import decode
from inorder.client.api import BrokerApi
from inorder.errors import ProducerUnknown, StoreError
from inorder.store.snapshot import Snapshot
from inorder.wire.header import Command
from inorder.wire.requests.producers import NamedProducer
from tests.integration.brokerkit import SMALL, Rig, running, send_fields, until
from tests.integration.idempotentkit import PRODUCER, Sender, batch, properties, stored_numbers
from tests.integration.test_broker_flushing import SYNC, held_sync
from tests.kit.disk import FakeFiles, Fault

FILE = Path("/data/config/inorderProducers.bin")
NEVER_FLUSHED = replace(SMALL, flush_interval_ms=600_000)


async def greeted(rig: Rig, incarnation: int = 1) -> Sender:
    """Return a sender that has said hello."""
    sender = Sender(rig)
    assert (await sender.hello(incarnation)).code == 0
    return sender


async def send_all(sender: Sender, numbers: range) -> list[Command]:
    """Send several messages, one after another, and expect them to be taken."""
    answers = [await sender.send(number) for number in numbers]
    assert [answer.code for answer in answers] == [0] * len(numbers)
    return answers


@pytest.mark.parametrize("how", ["clean stop", "kill", "kill after a save"])
def test_numbers_survive_a_restart(how: str) -> None:
    """Resent after a restart, a message gets its first answer; the next one goes on."""

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files, stop=how == "clean stop") as rig:
            sender = await greeted(rig)
            first = await send_all(sender, range(5))
            if how == "kill after a save":
                await rig.broker.producer_snapshot.save_now()
            first += await send_all(sender, range(5, 10))
            left = files.kill()
        if how == "clean stop":
            left = files
        async with running(left, advertised_host=None) as rig:
            sender = await greeted(rig)
            again = [await sender.send(number) for number in range(10)]
            for one, other in zip(first, again, strict=True):
                assert other.fields["queueOffset"] == one.fields["queueOffset"]
                assert other.fields["msgId"][-16:] == one.fields["msgId"][-16:]
            assert (await sender.send(11)).fields["expected"] == "10"
            await send_all(sender, range(10, 12))
            assert stored_numbers(rig) == list(range(12))

    asyncio.run(scenario())


def test_a_power_cut_takes_numbers_back_with_the_log() -> None:
    """Under async flush the end of the log is lost, and what is known of it, wherever it is cut."""

    async def scenario(seed: int) -> None:
        files = FakeFiles()
        async with running(files, store=NEVER_FLUSHED, stop=False) as rig:
            sender = await greeted(rig)
            await send_all(sender, range(10))
            await rig.broker.producer_snapshot.save_now()
            await send_all(sender, range(10, 30))
            left = files.crash(Random(seed))
        async with running(left) as rig:
            sender = await greeted(rig)
            stored = stored_numbers(rig)
            assert len(stored) >= 10, "the file was written when the log was durable"
            assert stored == list(range(len(stored)))
            assert (await sender.state())["expected"] == str(len(stored))
            await send_all(sender, range(30))
            assert stored_numbers(rig) == list(range(30))

    for seed in range(12):
        asyncio.run(scenario(seed))


def test_the_file_never_depends_on_log_that_is_not_durable() -> None:
    """A1, writing: the log is synced up to where the table was taken, then the file is written."""

    async def scenario(seed: int) -> None:
        files = FakeFiles()
        async with running(files, store=NEVER_FLUSHED, stop=False) as rig:
            await send_all(await greeted(rig), range(10))
            end = rig.broker.store.log.end_position
            await rig.broker.producer_snapshot.save_now()
            left = files.crash(Random(seed))
            assert decode(left.read(FILE)).depends_on == end
        async with running(left) as rig:
            assert rig.broker.store.log.end_position == end

    for seed in range(6):
        asyncio.run(scenario(seed))


@pytest.mark.parametrize("cut", [False, True])
def test_a_file_beyond_the_log_is_dropped_for_good(*, cut: bool) -> None:
    """A1, reading: or a resend would be answered as a duplicate, yet not be stored.

    Also when the machine goes down right after the start, and when the log has grown past the
    place since.
    """

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files, stop=False) as rig:
            sender = await greeted(rig)
            await send_all(sender, range(5))
            await rig.broker.housekeeping.flush_now()
            short = files.kill()
            await send_all(sender, range(5, 10))
            await rig.broker.producer_snapshot.save_now()
            beyond = files.read(FILE)
        short.makedirs(FILE.parent)
        for path in (FILE, FILE.with_name(FILE.name + ".bak")):
            file = short.open(path, create=True, size=len(beyond))
            file.pwrite(beyond, 0)
            file.fdatasync()
        short.fsync_dir(FILE.parent)
        async with running(short, stop=False) as rig:
            if cut:
                left = short.crash(Random(1))
            else:
                sender = await greeted(rig)
                assert (await sender.state())["expected"] == "5"
                await send_all(sender, range(5, 9))
                other = await Sender.connect(rig)
                for _ in range(20):  # the log grows past what the dropped file depended on
                    await other.ask(310, send_fields(), b"x" * 200)
                left = short.kill()
        async with running(left) as rig:
            sender = await greeted(rig)
            before = len([n for n in _numbers(rig) if n >= 0])
            assert before == (5 if cut else 9)
            assert (await sender.state())["expected"] == str(before)
            await send_all(sender, range(before, 10))
            assert [n for n in _numbers(rig) if n >= 0] == list(range(10))

    asyncio.run(scenario())


def _numbers(rig: Rig) -> list[int]:
    """Return the numbers in the queue, -1 for a message without."""
    store, queue = rig.broker.store, rig.broker.store.find_queue("Orders", 1)
    assert queue is not None
    numbers = []
    for offset in range(queue.visible_offset):
        entry = queue.entry(offset)
        assert entry is not None
        raw = store.log.bytes_at(entry[0], entry[1])
        at = raw.rfind(b"INORDER_SEQ\x01") + 12
        numbers.append(int(raw[at : raw.index(b"\x02", at)]) if at >= 12 else -1)
    return numbers


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["create", "write", "truncate", "sync", "rename"])
def test_a_save_may_die_anywhere(operation: str) -> None:
    """Whatever a save has done when the process or the machine dies, nothing is stored twice."""

    async def scenario(nth: int) -> int:
        files = FakeFiles()
        async with running(files, store=NEVER_FLUSHED, stop=False) as rig:
            sender = await greeted(rig)
            await send_all(sender, range(10))
            await rig.broker.producer_snapshot.save_now(copies=1)
            await send_all(sender, range(10, 20))
            before = files.counts.get(operation, 0)
            files.fail(Fault(operation, nth, errno.EIO, forever=True))
            with contextlib.suppress(OSError, StoreError):
                await rig.broker.producer_snapshot.save_now(copies=1)
            reached = files.counts.get(operation, 0) - before
            disks = [files.kill(), files.crash(Random(nth)), files.crash(Random(nth + 100))]
        for disk in disks:
            async with running(disk) as rig:
                sender = await greeted(rig)
                stored = stored_numbers(rig)
                assert stored == list(range(len(stored)))
                assert (await sender.state())["expected"] == str(len(stored))
                await send_all(sender, range(20))
                assert stored_numbers(rig) == list(range(20))
        return reached

    nth = 1
    while asyncio.run(scenario(nth)) >= nth:
        nth += 1
    assert nth > 1, f"no {operation} was reached"


def test_a_damaged_file_falls_back_to_the_one_before_then_to_the_log() -> None:
    """Nothing is forgotten as long as the log is there."""

    async def scenario(broken: int) -> None:
        files = FakeFiles()
        async with running(files, stop=False) as rig:
            sender = await greeted(rig)
            await send_all(sender, range(3))
            await rig.broker.producer_snapshot.save_now(copies=1)
            await send_all(sender, range(3, 6))
            await rig.broker.producer_snapshot.save_now(copies=1)
            await send_all(sender, range(6, 9))
            left = files.kill()
        for name in (FILE.name, FILE.name + ".bak")[:broken]:
            left.write(FILE.with_name(name), b"garbage", 3)
        async with running(left) as rig:
            sender = await greeted(rig)
            assert (await sender.state())["expected"] == "9"
            assert (await sender.send(4)).fields["queueOffset"] == "4"

    for broken in range(3):
        asyncio.run(scenario(broken))


def test_a_full_disk_does_not_keep_the_broker_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What does not fit is removed; that the new file cannot be written is said and tried later."""

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files, stop=False) as rig:
            await send_all(await greeted(rig), range(5))
            await rig.broker.producer_snapshot.save_now()
            left = files.kill()
        for name in (FILE.name, FILE.name + ".bak"):
            left.write(FILE.with_name(name), b"garbage", 3)
        real = Snapshot.save

        def save(self: Snapshot, content: bytes) -> None:
            if self.path == FILE:
                raise OSError(errno.ENOSPC, "no room")
            real(self, content)

        monkeypatch.setattr(Snapshot, "save", save)
        async with running(left, stop=False) as rig:
            assert (await (await greeted(rig)).state())["expected"] == "5"
            assert not left.exists(FILE)

    asyncio.run(scenario())


def test_another_log_under_an_old_file_is_noticed() -> None:
    """Whoever removes the log and keeps config/ begins anew, also with a longer log."""

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files) as rig:
            await send_all(await greeted(rig), range(5))
        for folder in ("commitlog", "consumequeue", "index", "inorder"):
            files.remove_tree(Path("/data") / folder)
        files.remove(Path("/data/checkpoint"))
        saved = files.read(FILE)
        files.remove(FILE)
        async with running(files) as rig:
            for _ in range(50):
                await rig.send(b"x" * 100)
        file = files.open(FILE, create=True, size=len(saved))
        file.pwrite(saved, 0)
        async with running(files) as rig:
            sender = await greeted(rig)
            assert (await sender.state())["known"] == "false"

    asyncio.run(scenario())


def test_a_full_disk_frees_the_numbers_and_still_answers_duplicates() -> None:
    """A tick that is not written takes its numbers back; what is stored is never refused."""

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files, stop=False) as rig:
            sender = await greeted(rig)
            first = (await send_all(sender, range(1)))[0]
            while rig.broker.store.housekeep(0):
                pass
            files.fail(Fault("write", 1, errno.ENOSPC, forever=True))
            assert (await sender.send(1, unique="lost")).code == 14
            assert (await sender.send(1, unique="lost")).code == 14
            assert (await sender.send(0)).fields == first.fields
            assert (await sender.state())["expected"] == "1"
            files.heal()
            rig.broker.housekeeping._check_disk()
            await send_all(sender, range(1, 3))
            left = files.kill()
        async with running(left) as rig:
            assert stored_numbers(rig) == [0, 1, 2]

    asyncio.run(scenario())


def test_a_half_stored_batch_that_fails_is_told_that_nobody_knows() -> None:
    """Its first messages are stored: "not stored" would be wrong, and free their numbers."""

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files, stop=False) as rig:
            sender = await greeted(rig)
            await send_all(sender, range(1))
            while rig.broker.store.housekeep(0):
                pass
            files.fail(Fault("write", 0, errno.ENOSPC, place="commitlog/*"))
            mixed = await sender.send_batch([0, 1])
            assert mixed.code == 1
            assert "unknown" in (mixed.remark or "")
            assert (await sender.state())["expected"] == "1"

    asyncio.run(scenario())


@pytest.mark.parametrize("why", ["busy", "map", "closed queue", "gap of a name"])
def test_a_half_stored_batch_that_is_refused_is_told_so(why: str) -> None:
    """Every refusal but this one says that nothing of the request is stored."""

    async def scenario() -> None:
        async with running() as rig:
            sender = await greeted(rig)
            await send_all(sender, range(1))
            changes: dict[str, str] = {}
            if why == "busy":
                rig.broker.store._index_trouble = "no room"
            elif why == "map":
                changes["mv"] = "7"
            elif why == "closed queue":
                known = rig.broker.topics.get("Orders")
                assert known is not None
                rig.broker.topics.put(replace(known, read_queues=1, write_queues=1), 1)
            else:
                await sender.ask(7100, {"producerId": "job", "incarnation": "1", "named": "true"})
                for number, before in ((0, -1), (5, 0)):
                    await sender.send(number, before=before, producer="job")
                body = batch([0, 7], befores=[-1, 0], producer="job")
                mixed = await sender.ask(320, send_fields(m="true", i=""), body)
                assert mixed.code == 1
                return
            mixed = await sender.send_batch([0, 1], **changes)
            assert mixed.code == 1
            assert "the first 1 messages of the batch are stored" in (mixed.remark or "")
            assert (await sender.state())["expected"] == "1"
            rig.broker.store._index_trouble = None

    asyncio.run(scenario())


def test_a_duplicate_in_the_same_tick_shares_its_fate() -> None:
    """Sent twice before the write: stored once and answered twice, or not at all."""

    async def scenario(*, fails: bool) -> None:
        files = FakeFiles()
        async with running(files, stop=False) as rig:
            sender = await greeted(rig)
            await rig.send(b"x")
            while rig.broker.store.housekeep(0):
                pass
            if fails:
                files.fail(Fault("write", 0, errno.ENOSPC, place="commitlog/*"))
            before = rig.broker.ticks.ticks
            first, _, again, state = await asyncio.gather(
                sender.send(0), sender.hello(2), sender.send(0), sender.state()
            )
            assert rig.broker.ticks.ticks == before + 1, "it was one tick"
            assert (first.code, again.code) == ((14, 14) if fails else (0, 0))
            assert first.fields == again.fields
            assert state["expected"] == ("0" if fails else "1")

    for fails in (False, True):
        asyncio.run(scenario(fails=fails))


def test_a_duplicate_waits_for_the_sync_of_its_first() -> None:
    """Under sync flush no answer goes out before the record is on disk."""

    async def scenario() -> None:
        async with running(store=SYNC) as rig:
            sender = await greeted(rig)
            await send_all(sender, range(1))
            gate = await held_sync(rig)
            first = asyncio.ensure_future(sender.send(1))
            await until(lambda: bool(rig.broker.ticks.unsettled_bytes))
            again = asyncio.ensure_future(sender.send(1))
            durable = await sender.send(0)
            assert durable.code == 0, "that one is on disk"
            assert not first.done()
            assert not again.done()
            gate.set()
            assert (await first).fields == (await again).fields

    asyncio.run(scenario())


def test_a_duplicate_of_what_the_disk_lost_is_told_that_nobody_knows() -> None:
    """After a failed sync the record may be there or not: neither yes nor no is right."""

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files, store=SYNC, stop=False) as rig:
            sender = await greeted(rig)
            await send_all(sender, range(1))
            files.fail(Fault("sync", 1, errno.EIO, forever=True))
            assert (await sender.send(1)).code == 1
            again = await sender.send(1)
            assert again.code == 1
            assert "unknown" in (again.remark or "")
            assert (await sender.send(0)).code == 0, "that one is on disk"

    asyncio.run(scenario())


def test_a_dropped_name_and_a_deleted_topic_stay_forgotten() -> None:
    """It is not in the file, not in the one before, and not taken from the log behind them."""

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files, stop=False) as rig:
            sender = Sender(rig)
            for name in ("job", "kept"):
                await sender.hello(named=True, producer=name)
                for topic in ("Orders", "Other"):
                    answer = await sender.send(10, before=-1, producer=name, b=topic)
                    assert answer.code == 0
            await rig.broker.producer_snapshot.save_now()
            api = BrokerApi(rig.connection)
            assert await api.drop_producer("job") == 2
            with pytest.raises(ProducerUnknown):
                await api.drop_producer("job")
            assert (await rig.ask(215, {"topic": "Other"})).code == 0
            left = files.crash(Random(3))
        left.remove(FILE)
        async with running(left) as rig:
            sender = Sender(rig)
            api = BrokerApi(rig.connection)
            kept = NamedProducer("kept", False, {("Orders", 1): 10})
            assert await api.named_producers() == [kept]
            assert await api.named_producers("x") == []
            await sender.hello(named=True, producer="job")
            assert (await sender.send(5, before=-1, producer="job")).fields["queueOffset"] == "2"

    asyncio.run(scenario())


def test_retention_waits_for_the_file() -> None:
    """Log that holds numbers that no file has yet is kept, however old it is."""

    async def scenario() -> None:
        files = FakeFiles()
        small = replace(
            SMALL,
            segment_bytes=4096,
            retention_hours=0,
            delete_when="0;1;2;3;4;5;6;7;8;9;10;11;12;13;14;15;16;17;18;19;20;21;22;23",
        )
        async with running(files, store=small) as rig:
            await send_all(await greeted(rig), range(60))
            while rig.broker.store.housekeep(0):
                pass
            await rig.broker.housekeeping.flush_now()
            rig.broker.housekeeping._clean()
            assert rig.broker.store.log.min_position == 0
            await rig.broker.producer_snapshot.save_now()
            rig.broker.housekeeping._clean()
            assert rig.broker.store.log.min_position > 0
            left = files.kill()
        async with running(left, store=small) as rig:
            sender = await greeted(rig)
            assert (await sender.state())["expected"] == "60"
            assert (await sender.send(0)).fields["queueOffset"] == "0", "the record is gone"

    asyncio.run(scenario())


def test_a_delayed_message_is_stored_once_too() -> None:
    """It waits elsewhere; its number counts where it was sent to, also after a kill."""

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files, stop=False) as rig:
            sender = await greeted(rig)
            first = await sender.send(0, extra="DELAY\x0118\x02")
            assert first.code == 0
            assert (await sender.send(0, extra="DELAY\x0118\x02")).fields == first.fields
            await send_all(sender, range(1, 3))
            left = files.kill()
        async with running(left) as rig:
            sender = await greeted(rig)
            again = await sender.send(0, extra="DELAY\x0118\x02")
            assert again.fields["queueOffset"] == first.fields["queueOffset"]
            assert again.fields["msgId"][-16:] == first.fields["msgId"][-16:]
            assert (await sender.state())["expected"] == "3"
            assert stored_numbers(rig) == [1, 2]

    asyncio.run(scenario())


def test_the_file_is_saved_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """When something changed and the time has come, or the log has grown."""

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files) as rig:
            producer_snapshot = rig.broker.producer_snapshot
            await rig.send(b"x")
            producer_snapshot.save_if_due()
            assert producer_snapshot._task is None, "nothing to save"
            await send_all(await greeted(rig), range(1))
            producer_snapshot.save_if_due()
            assert producer_snapshot._task is None, "not yet"
            producer_snapshot._due_ms = 0
            producer_snapshot.save_if_due()
            assert producer_snapshot._task is not None
            await producer_snapshot._task
            assert [one.producer_id for one in decode(files.read(FILE)).producers] == [PRODUCER]
            monkeypatch.setattr("inorder.broker.producers.storage.SAVE_LOG_BYTES", 1000)
            for _ in range(10):
                await rig.send(b"x" * 200)
            producer_snapshot.save_if_due()
            await producer_snapshot._task
            assert decode(files.read(FILE)).replay_from == rig.broker.store.log.end_position

    asyncio.run(scenario())


def test_numbers_of_copies_do_not_count() -> None:
    """Replay passes over retry topics, as sending does."""

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files, stop=False) as rig:
            await rig.ask(200, body=b'{"groupName":"CG","retryQueueNums":1,"retryMaxTimes":16}')
            assert (await rig.send(b"copy", b="%RETRY%CG", e="0", i=properties(7))).code == 0
            left = files.kill()
        async with running(left) as rig:
            assert len(rig.broker.producers) == 0

    asyncio.run(scenario())
