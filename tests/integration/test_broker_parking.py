"""Parked keys at a broker: stored and done in one request, over restarts and power cuts."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from inorder.broker.leases.rules import Owner, Terms
from inorder.broker.parking.records import Installed, parked_event
from inorder.client.api import BrokerApi, ParkingApi
from inorder.errors import InvalidParameter, LeaseLost, ServiceNotAvailable
from inorder.model import GroupQueue
from inorder.ordering.keymap import KeyMap
from inorder.wire.properties import parse
from inorder.wire.record import Record
from inorder.wire.requests.parking import (
    Move,
    MoveBody,
    NamedKey,
    Park,
    ParkBody,
    ParkedRead,
    ParkItem,
    ParkMove,
    QueuePlace,
    Redriven,
    RedrivenBody,
    Unpark,
)
from tests.integration.brokerkit import SMALL, Rig, running
from tests.kit.disk import FakeFiles, Fault

TOPIC, QUEUE = "Orders", 1
PLACE = GroupQueue("billing", TOPIC, QUEUE)
OWNER = ("billing", "client", "instance", TOPIC, QUEUE)
SYNCED = replace(SMALL, sync_flush=True)


class Client:
    """An owner and an operator."""

    def __init__(self, rig: Rig, epoch: int = 0) -> None:
        self.rig = rig
        self.epoch = epoch
        self.api = ParkingApi(BrokerApi(rig.connection))

    async def send(self, count: int, key: str = "k") -> None:
        """Store messages of a key."""
        for number in range(count):
            properties = f"__SHARDINGKEY\x01{key}\x02TAGS\x01T\x02UNIQ_KEY\x01{key}-{number}\x02"
            await self.rig.send(f"{key}-{number}".encode(), i=properties)

    async def park(self, offset: int, key: str = "k", error: str | None = None) -> str:
        """Park a message: the first one with its error, the others join."""
        item = ParkItem(offset, key, 6 if error else 0, error, 1000 + offset)
        answer = await self.api.park(Park(*OWNER, self.epoch), ParkBody([item]))
        return answer.outcomes[0]

    async def redriven(self, *offsets: int, key: str = "k", error: str | None = None) -> None:
        """Report."""
        request = Redriven(*OWNER, self.epoch, key)
        await self.api.redriven(request, RedrivenBody(list(offsets), error))

    async def unpark(self, end: int, key: str = "k", *, heir: bool = False) -> bool:
        """Let go."""
        return (await self.api.unpark(Unpark(*OWNER, self.epoch, key, end, heir))).live

    async def records(self, key: str = "k") -> list[Record]:
        """Read what lies in a key's list."""
        return await self.api.read(ParkedRead("billing", TOPIC, QUEUE, key))

    async def bodies(self, key: str = "k") -> list[bytes]:
        """Read the bodies."""
        return [record.body for record in await self.records(key)]


def lease_key(rig: Rig) -> GroupQueue:
    """Return what is leased."""
    return PLACE


def own(client: Client) -> int:
    """Give the queue to the client; return the epoch."""
    leases, now_ms = client.rig.broker.leases, client.rig.broker.clock.monotonic_ms()
    owner, terms = Owner("client", "instance"), Terms(5000, 1000)
    decision = leases.decide(lease_key(client.rig), owner, now_ms, terms=terms)
    leases.apply(decision, now_ms)
    client.epoch = decision.epoch
    return decision.epoch


def state(rig: Rig) -> list[Any]:
    """Return all that a broker knows of parked keys, but for where their records lie."""
    table = rig.broker.parking.table
    return [
        (place, one.key, [m.origin for m in one.messages], one.end, one.first_error,
         one.last_error, one.redrive, one.rate, one.older, one.moved_to, one.sharding_key,
         one.since_ms, one.tries)
        for place, one in table.entries("")
    ] + [table.done(place, 0) for place in sorted(table.places)]  # fmt: skip


async def save(rig: Rig) -> None:
    """Let the file of parked keys be written now."""
    file = rig.broker.parking.file
    file._due_ms = 0
    file.save_if_due()
    assert file._task is not None
    await file._task


def test_a_parked_message_is_the_brokers_own_record() -> None:
    """Its body and properties are those stored, with its origin, its error and its fence."""

    async def scene() -> None:
        async with running() as rig:
            client = Client(rig)
            await client.send(3)
            assert await client.park(0, error="ValueError: 100% no") == "parked"
            assert await client.park(2) == "parked"
            first, second = await client.records()
            found = parse(first.properties)
            assert (first.topic, first.body, first.redeliveries) == ("%PARK%billing", b"k-0", 6)
            assert found["INORDER_PARK_TOPIC"] == TOPIC
            assert (found["INORDER_PARK_QUEUE"], found["INORDER_PARK_OFFSET"]) == ("1", "0")
            assert found["INORDER_PARK_ERROR"] == "ValueError: 100%25 no"
            assert (found["INORDER_PARK_FENCE"], found["UNIQ_KEY"]) == ("1000", "k-0")
            assert (second.body, "INORDER_PARK_ERROR" in parse(second.properties)) == (
                b"k-2", False,
            )  # fmt: skip
            (entry,), full = await client.api.entries()
            assert (entry.key, entry.messages, entry.first_error, entry.tries) == (
                "k", 2, "ValueError: 100% no", 6,
            )  # fmt: skip
            assert full == {}

    asyncio.run(scene())


def test_parking_again_parks_nothing_again() -> None:
    """A request that comes twice, also after the redrive, is answered like the first time."""

    async def scene() -> None:
        async with running() as rig:
            client = Client(rig)
            await client.send(2)
            assert [await client.park(0, error="no") for _ in range(3)] == ["parked"] * 3
            assert await client.bodies() == [b"k-0"]
            await client.redriven(0)
            assert await client.unpark(0)
            assert await client.park(0, error="no") == "parked"
            assert await client.park(0) == "parked"
            assert await client.bodies() == []
            assert await client.park(1) == "live"
            assert await client.park(1, error="worse") == "parked"

    asyncio.run(scene())


def test_what_the_broker_does_not_have_is_not_parked() -> None:
    """The client's copy is never taken in its place."""

    async def scene() -> None:
        async with running() as rig:
            client = Client(rig)
            await client.send(1)
            assert await client.park(1, error="no") == "gone"
            assert rig.broker.parking.table.find(PLACE, "k") is None

    asyncio.run(scene())


def test_requests_of_a_former_owner_are_refused() -> None:
    """Parking, reporting and letting go are the present owner's; reading is anybody's."""

    async def scene() -> None:
        async with running() as rig:
            client = Client(rig)
            await client.send(2)
            mine = own(client)
            assert await client.park(0, error="no") == "parked"
            for epoch in (mine - 1, mine + 1, 0):
                client.epoch = epoch
                with pytest.raises(LeaseLost):
                    await client.park(1)
                with pytest.raises(LeaseLost):
                    await client.redriven(0)
                with pytest.raises(LeaseLost):
                    await client.unpark(0)
            assert await client.bodies() == [b"k-0"]

    asyncio.run(scene())


def test_an_unpark_of_a_list_that_grew_is_refused() -> None:
    """A8: the owner's next message is parked while the last one is redriven: not live yet."""

    async def scene() -> None:
        async with running() as rig:
            client = Client(rig)
            await client.send(3)
            await client.park(0, error="no")
            await client.redriven(0)
            assert await client.park(1) == "parked"
            assert not await client.unpark(0)
            assert await client.park(2) == "parked"
            await client.redriven(1, 2)
            assert not await client.unpark(1)
            assert await client.unpark(2)
            assert await client.unpark(2)  # the answer was lost

    asyncio.run(scene())


@pytest.mark.parametrize("store", [SMALL, SYNCED], ids=["async", "sync"])
@pytest.mark.parametrize("stop", [True, False], ids=["stopped", "killed"])
def test_everything_is_known_again_after_a_restart(store: Any, stop: bool) -> None:
    """The keys, their order, errors, redrives, moves and what is done, from file and log alike."""

    async def scene() -> None:
        files = FakeFiles()
        async with running(files, store=store, stop=stop) as rig:
            client = Client(rig)
            await client.send(4)
            await client.send(2, "other")
            await client.send(1, "gone")
            await client.park(0, error="first")
            await client.park(4, "other", error="second")
            await client.park(6, "gone", error="third")
            await client.park(1)
            await client.redriven(0, error="again")
            await client.api.redrive("billing", [NamedKey(TOPIC, QUEUE, "k", 500)])
            await client.redriven(6, key="gone")
            await client.unpark(6, "gone")
            await client.api.drop("billing", [NamedKey(TOPIC, QUEUE, "other")], reason="test data")
            since_ms = rig.broker.clock.now_ms() - 5000
            far = Move(QUEUE, "came", QueuePlace("elsewhere", 3), since_ms, 6, "far", "came")
            body = MoveBody([far])
            await rig.ask(7138, {"group": "billing", "topic": TOPIC}, body.encode())
            if stop is False:
                await save(rig)
                await client.park(2)
            known, version = state(rig), rig.broker.parking.table.version(*PLACE)
        async with running(files, store=store) as rig:
            assert state(rig) == known
            assert rig.broker.parking.table.version(*PLACE) == version
            client = Client(rig)
            assert await client.park(0, error="late") == "parked"
            assert await client.park(6, "gone", error="late") == "parked"
            assert await client.bodies() == [b"k-1", b"k-2"][: 1 if stop else 2]

    asyncio.run(scene())


@pytest.mark.slow
def test_what_a_power_cut_took_was_not_parked() -> None:
    """A1: the copy is lost with the log's end, so the message is not done; no file knows better."""

    async def not_yet() -> None:
        """Let it be answered although it is not on disk."""

    async def scene() -> None:
        files = FakeFiles()
        async with running(files, stop=False) as rig:
            client = Client(rig)
            log_sync: Any = rig.broker.log_sync
            real, log_sync.synced = log_sync.synced, not_yet
            await client.send(4)
            await client.park(0, error="no")
            log_sync.synced = real
            await save(rig)
            log_sync.synced = not_yet
            await client.park(1)
            await client.redriven(0)
            await client.park(2)
            disks = [files.crash(Random(seed)) for seed in range(40)]
        lost = 0
        for disk in disks:
            async with running(disk) as rig:
                found = rig.broker.parking.table.find(PLACE, "k")
                assert found is not None, "what was synced is there"
                copies = rig.broker.store.find_queue("%PARK%billing", 0)
                assert copies is not None
                lost += copies.visible_offset < 3
                assert found.end == copies.visible_offset - 1
                client = Client(rig)
                expected = [b"k-0", b"k-1", b"k-2"] if found.messages[0].origin == 0 else [
                    b"k-1", b"k-2",
                ]  # fmt: skip
                for offset in (0, 1, 2):
                    assert await client.park(offset) == "parked"
                assert (await client.bodies())[: len(expected)] == expected
        assert 0 < lost < len(disks)

    asyncio.run(scene())


@pytest.mark.slow
def test_a_power_cut_takes_nothing_parked_under_async_flush_either() -> None:
    """Its owner commits past it when it is answered: it is on disk by then."""

    async def scene() -> None:
        files = FakeFiles()
        async with running(files, stop=False) as rig:
            client = Client(rig)
            await client.send(4)
            for offset in range(3):
                await client.park(offset, error=None if offset else "no")
            disks = [files.crash(Random(seed)) for seed in range(20)]
        for disk in disks:
            async with running(disk) as rig:
                found = rig.broker.parking.table.find(PLACE, "k")
                assert found is not None
                assert [message.origin for message in found.messages] == [0, 1, 2]

    asyncio.run(scene())


def test_under_sync_flush_a_power_cut_takes_nothing_parked() -> None:
    """Answered is on disk."""

    async def scene() -> None:
        files = FakeFiles()
        async with running(files, store=SYNCED, stop=False) as rig:
            client = Client(rig)
            await client.send(2)
            assert await client.park(0, error="no") == "parked"
            known = state(rig)
        for seed in range(10):
            async with running(files.crash(Random(seed)), store=SYNCED) as rig:
                assert state(rig) == known

    asyncio.run(scene())


def test_a_full_disk_parks_nothing() -> None:
    """The request is refused as a whole, the table stays as it was; later it works."""

    async def scene() -> None:
        files = FakeFiles()
        unhurried = replace(SMALL, flush_interval_ms=60_000)  # no sync fails beside the write
        async with running(files, store=unhurried) as rig:
            client = Client(rig)
            await client.send(2)
            await client.park(0, error="no")
            known = state(rig)
            files.fail(Fault("change", 1, errno.ENOSPC, forever=True))
            with pytest.raises(ServiceNotAvailable):
                await client.park(1)
            assert state(rig) == known
            files.heal()
            rig.broker.housekeeping._check_disk()
            assert await client.park(1) == "parked"

    asyncio.run(scene())


def test_a_bound_is_answered_and_listed() -> None:
    """Full is an answer of its own, and the list says of what."""

    async def scene() -> None:
        async with running(parked_keys_max=1) as rig:
            client = Client(rig)
            await client.send(2)
            await client.send(1, "other")
            await client.park(0, error="no")
            assert await client.park(2, "other", error="no") == "full"
            assert await client.park(1) == "parked"
            _, full = await client.api.entries("billing")
            assert "parked_keys_max" in full["billing"]

    asyncio.run(scene())


def test_nobody_sends_to_a_park_topic() -> None:
    """It would be taken for something parked."""

    async def scene() -> None:
        async with running() as rig:
            client = Client(rig)
            await client.send(1)
            await client.park(0, error="no")
            for queue in ("0", "1"):
                answer = await rig.send(b"forged", b="%PARK%billing", e=queue)
                assert (answer.code, "forbidden" in (answer.remark or "")) == (16, True)

    asyncio.run(scene())


def test_a_drop_needs_a_reason_and_keeps_it() -> None:
    """The note lies in the log beside what was dropped; the first message can go alone."""

    async def scene() -> None:
        async with running() as rig:
            client = Client(rig)
            await client.send(3)
            await client.park(0, error="no")
            await client.park(1)
            key = [NamedKey(TOPIC, QUEUE, "k")]
            with pytest.raises(InvalidParameter):
                await client.api.drop("billing", key, reason=" ")
            assert await client.api.drop("billing", key, reason="poison", first=True) == 1
            assert await client.bodies() == [b"k-1"]
            notes = rig.broker.store.find_queue("%PARK%billing", 1)
            assert notes is not None
            entry = notes.entry(notes.visible_offset - 1)
            assert entry is not None
            assert b"poison" in rig.broker.store.log.bytes_at(entry[0], entry[1])
            own(client)
            assert await client.api.drop("billing", key, reason="all") == 1
            assert (await client.api.keys("billing", TOPIC, QUEUE)).keys[0].redrive
            assert await client.unpark(1)
            assert await client.park(2, error="no") == "parked"
            rig.broker.leases.release(lease_key(rig))
            assert await client.api.drop("billing", key, reason="nobody is there") == 1
            assert (await client.api.keys("billing", TOPIC, QUEUE)).keys == []

    asyncio.run(scene())


def test_what_is_parked_is_carried_on_before_its_file_goes() -> None:
    """The log may be cleaned around it; a restart finds it where it lies now."""

    async def scene() -> None:
        files = FakeFiles()
        small = replace(SMALL, segment_bytes=1 << 16)
        async with running(files, store=small, stop=False) as rig:
            client = Client(rig)
            await client.send(1)
            await client.park(0, error="no")
            before = rig.broker.store.log.end_position
            assert rig.broker.parking.keep_from is not None
            assert rig.broker.parking.keep_from < before
            assert await rig.broker.parking.reappend_before(before) == 1
            assert rig.broker.parking.table.oldest_position() == before
            assert await rig.broker.parking.reappend_before(before) == 0
            assert await client.bodies() == [b"k-0"]
            known = state(rig)
        async with running(files, store=small) as rig:
            assert state(rig) == known
            assert await Client(rig).bodies() == [b"k-0"]

    asyncio.run(scene())


def test_a_reset_lets_what_was_redriven_be_parked_again() -> None:
    """What is still parked stays parked."""

    async def scene() -> None:
        files = FakeFiles()
        async with running(files, stop=False) as rig:
            client = Client(rig)
            await client.send(2)
            await client.send(1, "still")
            await client.park(0, error="no")
            await client.park(2, "still", error="no")
            await client.redriven(0)
            await client.unpark(0)
            await rig.broker.parking.reset(*PLACE)
        async with running(files) as rig:
            client = Client(rig)
            assert await client.park(0) == "live"
            assert await client.park(2, "still") == "parked"

    asyncio.run(scene())


def test_a_reset_counts_for_what_was_parked_after_a_restart_too() -> None:
    """Nothing of the queue is known any more when it is reset; the log still tells of all."""

    async def scene() -> None:
        files = FakeFiles()
        async with running(files, stop=False) as rig:
            client = Client(rig)
            await client.send(2)
            await client.park(0, error="no")
            await client.redriven(0)
            await client.unpark(0)
            rig.broker.parking.table.prune(GroupQueue(*PLACE), 2)
            assert not rig.broker.parking.table.places
            await asyncio.gather(*rig.broker.parking.was_reset(*PLACE[:2], {PLACE[2]: 2}))
            assert not rig.broker.parking.table.places
        async with running(files) as rig:
            assert not rig.broker.parking.table.places
            assert await Client(rig).park(0) == "live"

    asyncio.run(scene())


def test_a_redrive_reads_nothing_that_waits_for_older_messages() -> None:
    """Those of an older list, and those that a reset brings again; a person is shown all."""

    async def scene() -> None:
        async with running(FakeFiles()) as rig:
            client = Client(rig)
            await client.send(4)
            await client.park(2, error="no")
            await client.park(3)
            reads = ParkedRead("billing", TOPIC, QUEUE, "k", in_order=True)

            async def read() -> list[int]:
                return [
                    parked_event(one.properties, 0).offset for one in await client.api.read(reads)
                ]

            assert await read() == [2, 3]
            parking, offsets = rig.broker.parking, rig.broker.offsets
            await asyncio.gather(*parking.was_reset("billing", TOPIC, {QUEUE: 4}))
            for committed, found in ((0, []), (2, []), (3, [2]), (4, [2, 3]), (0, [2, 3])):
                offsets.reset(*PLACE, committed, 0)
                assert await read() == found, "what is past once is past"
            there = QueuePlace("broker-b", 0)
            await parking.note("billing", Installed(TOPIC, QUEUE, "k", there, 0))
            assert await read() == []
            assert len(await client.records()) == 2

    asyncio.run(scene())


@pytest.mark.parametrize(("instance", "left"), [("instance", [0, 1]), ("", [1])])
def test_messages_that_a_successor_handled_before_a_reset_come_again(
    instance: str, left: list[int]
) -> None:
    """No epoch of the older list's queue tells it of the reset; a job, which has none, knows."""

    async def scene() -> None:
        async with running(FakeFiles()) as rig:
            client = Client(rig)
            await client.send(2)
            await client.park(0, error="no")
            await client.park(1)
            await asyncio.gather(*rig.broker.parking.was_reset("billing", TOPIC, [QUEUE]))
            request = Redriven("billing", "client", instance, TOPIC, QUEUE, 0, "k", heir=True)
            await client.api.redriven(request, RedrivenBody([0]))
            one = rig.broker.parking.table.find(PLACE, "k")
            assert one is not None
            assert [message.origin for message in one.messages] == left

    asyncio.run(scene())


async def nothing_left(_: QueuePlace) -> frozenset[str]:
    """Say that no key has left a queue of another broker."""
    return frozenset()


def test_keys_move_with_a_resize() -> None:
    """A8: the new queue knows the key before its first message; the old list drains first."""

    async def scene() -> None:
        async with running() as rig:
            client, broker = Client(rig), rig.broker
            await client.send(2)
            await client.park(0, error="no")
            name = broker.config.name
            stays = KeyMap.of(2, [(name, QUEUE)])
            leave = broker.parking.moves.leave
            assert (await leave("billing", TOPIC, stays, nothing_left)).coming == {}
            moved = KeyMap.of(3, [(name, 7)])
            await client.api.redrive("billing", [NamedKey(TOPIC, QUEUE, "k")])
            assert (await leave("billing", TOPIC, moved, nothing_left)).busy == 1
            await client.api.redrive("billing", [NamedKey(TOPIC, QUEUE, "k")], cancel=True)
            for _ in range(2):  # said again, the others may not know yet
                leaving = await leave("billing", TOPIC, moved, nothing_left)
                assert leaving.busy == 0
                moves = leaving.coming[name]
                assert [(m.queue_id, m.key, m.other) for m in moves] == [
                    (7, "k", QueuePlace(name, QUEUE))
                ]
                body = MoveBody(moves).encode()
                await client.api._api.ask(ParkMove("billing", TOPIC), body=body)
            there = await client.api.keys("billing", TOPIC, 7)
            assert [(one.key, one.older, one.moved) for one in there.keys] == [
                ("k", [QueuePlace(name, QUEUE)], False)
            ]
            here = await client.api.keys("billing", TOPIC, QUEUE)
            assert [(one.key, one.moved) for one in here.keys] == [("k", True)]
            assert there.version
            new = ("billing", "client", "instance", TOPIC, 7, 0, "k")
            assert not (await client.api.unpark(Unpark(*new, -1))).live
            assert not await client.unpark(0)
            heir = Redriven(*OWNER, 0, "k", heir=True)
            await client.api.redriven(heir, RedrivenBody([0]))
            assert await client.unpark(0, heir=True)
            closed = RedrivenBody(older=QueuePlace(name, QUEUE))
            await client.api.redriven(Redriven(*new), closed)
            assert (await client.api.unpark(Unpark(*new, -1))).live

    asyncio.run(scene())
