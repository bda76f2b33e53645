"""A14: a consume queue is removed, zeroed, flipped or cut: nothing is skipped silently."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inorder.client.consume.consumer import Consumer
from inorder.config import BrokerConfig, StoreConfig
from inorder.errors import StoreError
from inorder.model import ReceivedMessage, TopicQueue
from tests.integration.consumerkit import GROUP, TOPIC, Kit, begin, consumer_of, play
from tests.kit.disk import FakeFiles

pytestmark = pytest.mark.slow

DATA = Path("/data")
QUEUE = DATA / "consumequeue" / TOPIC / "0"
FIRST = QUEUE / f"{0:020d}"
BROKER = BrokerConfig(
    store=StoreConfig(
        segment_bytes=16 * 1024, queue_file_bytes=2000, index_slots=50, index_entries=400
    )
)
FIRST_QUEUE, SECOND_QUEUE = (TopicQueue(TOPIC, "broker-a", number) for number in (0, 1))

Damage = Callable[[FakeFiles], None]


class Ledger:
    """What a careful handler does: an effect only if its fence is above the last of its key."""

    def __init__(self) -> None:
        self.last: dict[str, int] = {}
        self.applied: list[bytes] = []
        self.refused: list[bytes] = []

    async def handle(self, message: ReceivedMessage) -> None:
        sequence, key = message.fence.sequence, message.key or ""
        assert sequence is not None
        if sequence > self.last.get(key, -1):
            self.last[key] = sequence
            self.applied.append(message.body)
        else:
            self.refused.append(message.body)


async def consumer_with(kit: Kit, ledger: Ledger, **options: Any) -> Consumer:
    consumer = await consumer_of(kit, **options)

    @consumer.on(TOPIC, order="queue", batch=1)
    async def handle(message: ReceivedMessage) -> None:
        await ledger.handle(message)

    return consumer


def committed(kit: Kit) -> int:
    return kit.cluster.broker.offsets.query(GROUP, TOPIC, 0)


async def send(kit: Kit, first: int, count: int) -> list[bytes]:
    bodies = [b"%d" % number for number in range(first, first + count)]
    for number, body in enumerate(bodies):
        await kit.producer.send(TOPIC, body, key=f"k{number % 5}")
    return bodies


async def restart(kit: Kit, damage: Damage, *, clean: bool) -> None:
    if clean:
        await kit.cluster.brokers[0].stop()
    else:
        kit.cluster.kill_broker()
    damage(kit.cluster.disk)
    await kit.cluster.start_broker()


def remove_file(files: FakeFiles) -> None:
    files.remove(FIRST)


def remove_queue(files: FakeFiles) -> None:
    files.remove_tree(QUEUE)


def remove_queues(files: FakeFiles) -> None:
    files.remove_tree(DATA / "consumequeue")


def cut_file(files: FakeFiles) -> None:
    file = files.open(FIRST)
    file.truncate(300)
    file.close()


def zero(first: int, count: int) -> Damage:
    def damage(files: FakeFiles) -> None:
        files.write(FIRST, bytes(20 * count), 20 * first)

    return damage


def flip(first: int, count: int) -> Damage:
    """Turn a bit of the position of entries, so that each leads elsewhere."""

    def damage(files: FakeFiles) -> None:
        data = files.read(FIRST)
        for number in range(first, first + count):
            at = 20 * number + 6
            files.write(FIRST, bytes([data[at] ^ 0x04]), at)

    return damage


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("damage", [remove_file, remove_queue, remove_queues, cut_file])
def test_a_queue_whose_files_are_gone_goes_on_where_it_ended(damage: Damage, clean: bool) -> None:
    """New messages get higher offsets and fences than all before: none refused, none repeated."""

    async def story(kit: Kit) -> None:
        ledger = Ledger()
        consumer = await consumer_with(kit, ledger)
        await begin(kit, consumer)
        before = await send(kit, 0, 60)
        await kit.until(lambda: len(ledger.applied) == 60)
        await asyncio.sleep(3)
        await restart(kit, damage, clean=clean)
        after = await send(kit, 60, 40)
        await kit.until(lambda: len(ledger.applied) + len(ledger.refused) >= 100)
        await asyncio.sleep(3)
        assert (ledger.applied, ledger.refused) == (before + after, [])
        assert committed(kit) == 100
        assert [m.body for m in await kit.stored(TOPIC)] == before + after

    play(story, broker=BROKER)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize(
    "damage",
    [zero(0, 40), zero(40, 40), zero(20, 40), zero(0, 80), flip(4, 32), flip(0, 1), flip(79, 1)],
    ids=["first", "last", "middle", "all", "flipped", "flipped first", "flipped last"],
)
def test_entries_that_do_not_lead_to_their_messages_skip_nothing(
    damage: Damage, clean: bool
) -> None:
    """They are made again from the log: each message has its effect, in order, once."""

    async def story(kit: Kit) -> None:
        sent = await send(kit, 0, 80)
        await asyncio.sleep(3)
        await restart(kit, damage, clean=clean)
        ledger = Ledger()
        await begin(kit, await consumer_with(kit, ledger))
        await kit.until(lambda: len(ledger.applied) >= 80)
        await asyncio.sleep(3)
        assert ledger.applied == sent
        assert committed(kit) == 80
        assert losses(kit) == []
        sent += await send(kit, 80, 5)
        await kit.until(lambda: len(ledger.applied) == 85)
        assert ledger.applied == sent

    play(story, broker=BROKER)


def own(name: str) -> Path:
    return DATA / "inorder" / name


def remove_starts(files: FakeFiles) -> None:
    for name in files.listdir(DATA / "inorder"):
        if name.startswith("start.json"):
            files.remove(own(name))


def remove_owners(files: FakeFiles) -> None:
    for name in files.listdir(DATA / "inorder"):
        if name.startswith("owners."):
            files.remove(own(name))


def losses(kit: Kit) -> list[str]:
    return [one.text for one in kit.cluster.broker.losses.reported]


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_epochs_and_fences_grow_on_without_the_count_of_starts(clean: bool) -> None:
    """`start.json` is gone: the journal and the chapters tell what to go above."""

    async def story(kit: Kit) -> None:
        for _ in range(3):
            await restart(kit, lambda _files: None, clean=True)
        ledger, epochs = Ledger(), []
        consumer = await consumer_of(kit)

        @consumer.on(TOPIC, order="queue", batch=1)
        async def handle(message: ReceivedMessage) -> None:
            epochs.append(message.fence.epoch)
            await ledger.handle(message)

        await begin(kit, consumer)
        before = await send(kit, 0, 20)
        await kit.until(lambda: len(ledger.applied) == 20)
        await asyncio.sleep(3)
        await restart(kit, remove_starts, clean=clean)
        after = await send(kit, 20, 20)
        await kit.until(lambda: len(ledger.applied) + len(ledger.refused) >= 40)
        assert (ledger.applied, ledger.refused) == (before + after, [])
        assert epochs == sorted(epochs)
        assert epochs[-1] > epochs[0]

    play(story, broker=BROKER)


def test_a_broker_that_cannot_know_its_epochs_refuses_to_start() -> None:
    """Neither `start.json` nor a journal is left: the error says how to go on."""

    def damage(files: FakeFiles) -> None:
        remove_starts(files)
        remove_owners(files)

    async def story(kit: Kit) -> None:
        ledger = Ledger()
        await begin(kit, await consumer_with(kit, ledger))
        await send(kit, 0, 5)
        await kit.until(lambda: len(ledger.applied) == 5)
        with pytest.raises(StoreError, match=r"start\.json is missing.*echo"):
            await restart(kit, damage, clean=True)
        content = b'{"start":1763290000}'
        file = kit.cluster.disk.open(own("start.json"), create=True, size=len(content))
        file.pwrite(content, 0)
        file.close()
        await kit.cluster.start_broker()
        await send(kit, 5, 5)
        await kit.until(lambda: len(ledger.applied) == 10)

    play(story, broker=BROKER)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_lost_journal_of_owners_is_said_and_waited_for(clean: bool) -> None:
    """Nobody is given a queue before all that may have been granted has run out."""

    async def story(kit: Kit) -> None:
        ledger = Ledger()
        await begin(kit, await consumer_with(kit, ledger))
        await send(kit, 0, 5)
        await kit.until(lambda: len(ledger.applied) == 5)
        await asyncio.sleep(8)
        await restart(kit, remove_owners, clean=clean)
        assert "owners.* is missing or empty" in losses(kit)[0]
        assert kit.cluster.broker.leases.closed_until_ms > kit.loop.time() * 1000 + 3000
        await send(kit, 5, 5)
        await kit.until(lambda: len(ledger.applied) == 10)
        assert ledger.refused == []
        await restart(kit, lambda _files: None, clean=True)
        assert len(losses(kit)) == 1

    play(story, broker=BROKER)


def test_only_a_queue_whose_end_is_not_certain_gets_a_new_generation() -> None:
    """Its log file is gone with it: it goes on above its noted end; the others keep theirs."""

    def damage(files: FakeFiles) -> None:
        files.remove_tree(QUEUE)
        files.remove(DATA / "commitlog" / f"{0:020d}")

    async def story(kit: Kit) -> None:
        store = kit.cluster.broker.store
        for number in range(10):
            await kit.producer.send(TOPIC, b"a%d" % number, queue=FIRST_QUEUE)
        while store.log.end_position < 3 * 16 * 1024:
            await kit.producer.send(TOPIC, b"b" * 500, queue=SECOND_QUEUE)
        await asyncio.sleep(3)
        end = store.queue(TOPIC, 1).next_offset
        await restart(kit, damage, clean=False)
        broker = kit.cluster.broker
        generation = broker.lease_journal.start.now.generation
        assert generation > 0
        assert broker.generations.of(TOPIC, 0) == [(0, 0), (10, generation)]
        assert broker.generations.of(TOPIC, 1) == [(0, 0)]
        assert "positions 0 to 16383 of the log" in losses(kit)[0]
        receipt = await kit.producer.send(TOPIC, b"new", queue=FIRST_QUEUE)
        other = await kit.producer.send(TOPIC, b"new", queue=SECOND_QUEUE)
        assert (receipt.offset, other.offset) == (10, end)

    play(story, broker=BROKER, queues=2)


def remove_last_log(files: FakeFiles) -> None:
    files.remove(last_log(files))


def zero_last_log(files: FakeFiles) -> None:
    files.write(last_log(files), bytes(16 * 1024))


def last_log(files: FakeFiles) -> Path:
    return DATA / "commitlog" / files.listdir(DATA / "commitlog")[-1]


@pytest.mark.parametrize("damage", [remove_last_log, zero_last_log])
def test_a_log_without_its_end_begins_a_generation_before_entries_were_written(
    damage: Damage,
) -> None:
    """The last file is lost in a kill, and nothing but its tail was noted: no fence goes back."""

    async def story(kit: Kit) -> None:
        ledger = Ledger()
        await begin(kit, await consumer_with(kit, ledger))
        store = kit.cluster.broker.store
        before = await send(kit, 0, 30)
        await kit.until(lambda: committed(kit) == 30)
        await asyncio.sleep(3)
        noted = store.log.end_position
        kit.cluster.broker.housekeeping.cancel()
        while store.log.end_position < 20 * 1024:
            before.append(b"%d" % len(before) + bytes(2000))
            await kit.producer.send(TOPIC, before[-1], key=f"k{len(before) % 5}")
        await kit.until(lambda: len(ledger.applied) == len(before))
        end, done = store.log.end_position, committed(kit)
        assert store._positions.queues == noted
        await restart(kit, damage, clean=False)
        broker = kit.cluster.broker
        left = broker.store.queue(TOPIC, 0).visible_offset
        assert done < left < len(before)  # no commit speaks of what is lost
        assert broker.generations.of(TOPIC, 0) == [(0, 0), (left, 1)]
        assert f"positions 16384 to {end - 1} of the log: the end of commitlog" in losses(kit)[0]
        after = await send(kit, 1000, 5)
        await kit.until(lambda: after[-1] in ledger.applied + ledger.refused)
        assert ledger.applied == before + after
        await restart(kit, lambda _files: None, clean=False)
        assert kit.cluster.broker.lease_journal.start.now.generation == 1
        assert len(losses(kit)) == 1

    play(story, broker=BROKER)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("rest_s", [0, 0.05, 1.2, 12])
def test_a_start_with_a_whole_log_begins_no_generation(clean: bool, rest_s: float) -> None:
    """However long ago the last message was stored, and also if none has been since."""

    async def story(kit: Kit) -> None:
        for first in (0, 30, 60):
            await send(kit, first, 30)
            await asyncio.sleep(rest_s)
            for _ in range(2):
                await restart(kit, lambda _files: None, clean=clean)
                assert kit.cluster.broker.lease_journal.start.now.generation == 0
                assert kit.cluster.broker.generations.of(TOPIC, 0) == [(0, 0)]
        assert losses(kit) == []

    play(story, broker=BROKER)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_changed_file_of_offsets_skips_nothing(clean: bool) -> None:
    """It is not the one that was saved, and nobody else was here: the journal counts."""

    def damage(files: FakeFiles) -> None:
        path = DATA / "config" / "consumerOffset.json"
        data = files.read(path)
        changed = data.replace(b'"0":20', b'"0":39').replace(b":20\n", b":39\n")
        assert changed != data
        files.write(path, changed)

    async def story(kit: Kit) -> None:
        ledger = Ledger()
        consumer = await consumer_with(kit, ledger)
        await begin(kit, consumer)
        sent = await send(kit, 0, 20)
        await kit.until(lambda: committed(kit) == 20)
        await asyncio.sleep(12)
        kit.cluster.broker.housekeeping.cancel()
        await consumer.close()
        sent += await send(kit, 20, 20)
        await restart(kit, damage, clean=clean)
        assert "consumerOffset.json is damaged" in losses(kit)[0]
        assert committed(kit) == 20
        heir = await consumer_with(kit, ledger)
        await begin(kit, heir)
        await kit.until(lambda: len(ledger.applied) == 40)
        assert ledger.applied == sent

    play(story, broker=BROKER)


def test_offsets_on_disk_count_after_a_power_cut_that_took_the_journal() -> None:
    """The file of offsets is newer than what is left of the journal: that is no damage."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_with(kit, Ledger())
        await begin(kit, consumer)
        await send(kit, 0, 10)
        await kit.until(lambda: committed(kit) == 10)
        broker = kit.cluster.broker
        await broker.lease_journal.fold()  # this is on disk, what follows need not be
        await send(kit, 10, 10)
        await kit.until(lambda: committed(kit) == 20)
        await broker.housekeeping.flush_now()
        await broker.offset_snapshot.saved()
        kit.cluster.cut_power()
        await kit.cluster.start_broker()
        assert not [one for one in losses(kit) if "consumerOffset.json is damaged" in one]
        assert committed(kit) == 20

    for seed in range(5):
        play(story, broker=BROKER, seed=seed)
