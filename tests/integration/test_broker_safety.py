"""A failed sync in the `inorder/` folder stops a broker, once, until the file is written anew."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from inorder.broker import housekeeping, ticks
from inorder.broker.housekeeping import Housekeeping
from inorder.broker.leases import storage as lease_storage
from inorder.config import BrokerConfig, StoreConfig
from inorder.testing.clock import FakeClock
from inorder.wire.requests.leases import (
    CommitBody,
    LeaseBody,
    LockBatchBody,
    QueueCommit,
    QueueWish,
)
from tests.integration.brokerkit import SMALL, Rig, running
from tests.integration.consumerkit import Kit, begin, handler_of, twice
from tests.integration.consumerkit import play as consumer_play
from tests.integration.leasekit import (
    GROUP,
    QUEUES,
    TOPIC,
    Ours,
    RocketMQPeer,
    connected,
    group,
    ours,
    send,
)
from tests.kit.disk import FakeFiles, Fault

SYNC = replace(SMALL, sync_flush=True)
REFUSED = 14
TIMERS_S = 0.6
"""In this time each of the broker's timers rings."""


@pytest.fixture(autouse=True)
def _short_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the broker's timers ring twenty times as often."""
    every = Housekeeping._every

    def often(self: Housekeeping, name: str, interval_ms: int, work: Callable[[], None]) -> None:
        every(self, name, max(5, interval_ms // 20), work)

    monkeypatch.setattr(Housekeeping, "_every", often)
    monkeypatch.setattr(housekeeping, "DISK_FULL_RETRY_MS", 50)
    monkeypatch.setattr(ticks, "SYNC_RETRY_MS", 10)


def spoil(files: FakeFiles, operation: str, place: str, error: int = errno.EIO) -> Fault:
    """Let such operations fail there until the disk is healed."""
    fault = Fault(operation, 0, error, place=place)
    files.fail(fault)
    return fault


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


async def until_true(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what is watched has no event to wait for
            await asyncio.sleep(0.01)


async def lease_code(one: Ours, queue: int, epoch: int, lease_ms: int = 5000) -> int:
    terms = {"leaseMs": str(lease_ms), "graceMs": "1000"}
    body = LeaseBody([QueueWish(TOPIC, queue, epoch)]).encode()
    return (await one.ask(7120, one.who | terms, body)).code


async def commit_code(one: Ours, offset: int) -> int:
    one.number += 1
    commit = QueueCommit(TOPIC, 0, one.epochs[0], one.number, offset, "")
    return (await one.ask(7122, one.who, CommitBody([commit]).encode())).code


async def break_owners(rig: Rig, a: Ours) -> None:
    await commit_code(a, 3)


async def break_start(rig: Rig, a: Ours) -> None:
    await lease_code(a, 1, 0, lease_ms=29_000)  # longer than any before: start.json has to say so


async def break_version_spans(rig: Rig, a: Ours) -> None:
    await rig.ask(17, {
        "topic": "Other", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    })  # fmt: skip
    assert (await rig.send(b"x", b="Other", e="0")).code == 0
    await rig.ask(215, {"topic": "Other"})


async def break_resizing(rig: Rig, a: Ours) -> None:
    with suppress(OSError):
        await rig.broker.resizing.delete("Past", 3)


POINTS = [
    ("owners.*", break_owners, SYNC),
    ("owners.*", break_owners, SMALL),
    ("start.json.tmp", break_start, SMALL),
    ("start.json.tmp", break_start, SYNC),
    ("chapters.json.tmp", break_version_spans, SMALL),
    ("resizing.json.tmp", break_resizing, SMALL),
]


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == level]


@pytest.mark.slow
@pytest.mark.parametrize(("place", "breaks", "store"), POINTS)
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_a_failed_sync_of_an_own_file_stops_all_until_it_is_written_anew(
    place: str, breaks: Callable[[Rig, Ours], Awaitable[None]], store: StoreConfig, error: int,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """No send, grant, renewal or commit; reads go on; said once; healed without a restart."""
    caplog.set_level(logging.WARNING, "inorder")

    async def scenario() -> None:
        files = FakeFiles()
        async with (
            group("a", messages=8, files=files, store=store, stop=False) as (rig, clock, a),
            connected(rig, RocketMQPeer, "java") as (java,),
        ):
            await send(rig, 1, queue=3)
            await a.take()
            assert await a.commit(2)
            spoil(files, "sync", place, error)
            await breaks(rig, a)
            await until_true(lambda: rig.broker.safety.broken)
            await asyncio.sleep(TIMERS_S)  # timers go by: nothing may say that all is well again
            rig.broker.housekeeping._check_disk()
            assert not rig.broker.writable
            assert (await rig.send(b"no")).code == REFUSED
            assert await lease_code(a, 0, a.epochs[0]) == REFUSED, "a renewal"
            assert await lease_code(a, 2, 0) == REFUSED, "a grant"
            assert await commit_code(a, 5) == REFUSED
            assert (await a.pull(queueOffset="0")).code == REFUSED, "a renewal, too"
            assert (await a.release(5)).code == REFUSED
            assert (await java.commit(1, queue_id=3)).code == REFUSED
            assert (await java.ask(41, body=_lock("java", 3))).code == REFUSED
            assert (await rig.pull(queueId="0", consumerGroup="R")).code == 0, "reads go on"
            assert len(lines(caplog, logging.CRITICAL)) == 1, lines(caplog, logging.CRITICAL)
            assert not [one for one in lines(caplog, logging.WARNING) if "again" in one]
            files.heal()
            clock.advance(lease_storage.HEAL_RETRY_MS)
            await until_true(lambda: rig.broker.writable)
            assert len([one for one in lines(caplog, logging.WARNING) if "taken again" in one]) == 1
            assert (await rig.send(b"yes")).code == 0
            assert await lease_code(a, 0, a.epochs[0]) == 0
            assert await commit_code(a, 6) == 0
            assert len(lines(caplog, logging.CRITICAL)) == 1
            if store.sync_flush:
                await _survives(files, a)

    play(scenario)


def _lock(client: str, queue: int) -> bytes:
    return LockBatchBody(client, GROUP, (QUEUES[queue],)).encode()


async def _survives(files: FakeFiles, a: Ours) -> None:
    """What is acknowledged after the healing is there after a power cut."""
    for seed in range(4):
        async with running(files.crash(Random(seed)), store=SYNC, clock=FakeClock()) as rig:
            assert rig.broker.offsets.query(GROUP, TOPIC, 0) == 6
            async with ours(rig, "a") as (again,):
                rig.broker.leases.closed_until_ms = 0
                rig.broker.leases.forget(group=GROUP)
                assert (await again.take()).epoch > a.epochs[0]


@pytest.mark.slow
def test_a_sync_that_works_again_does_not_heal_by_itself() -> None:
    """fsyncgate: only one sync fails, the next would succeed; what it lost is written anew."""

    async def scenario() -> None:
        files = FakeFiles()
        async with group("a", messages=8, files=files, store=SYNC, stop=False) as (rig, clock, a):
            await a.take()
            spoil(files, "sync", "owners.*")
            assert await commit_code(a, 5) == REFUSED
            files.heal()
            before = rig.broker.lease_journal.journal.folder
            names = set(files.listdir(before))
            assert await commit_code(a, 5) == REFUSED, "no sync of the same file counts"
            clock.advance(lease_storage.HEAL_RETRY_MS)
            await until_true(lambda: rig.broker.writable)
            now = {name for name in files.listdir(before) if name.startswith("owners.")}
            assert len(now) == 1
            assert not now & names, "a new file, and the old one is gone"
            assert await commit_code(a, 5) == 0
            for seed in range(6):
                async with running(files.crash(Random(seed)), store=SYNC, clock=FakeClock()) as new:
                    assert new.broker.offsets.query(GROUP, TOPIC, 0) == 5

    play(scenario)


@pytest.mark.slow
def test_a_journal_with_a_failed_sync_is_rewritten_at_a_stop() -> None:
    """The disk is well again: the stop is a clean one, and nothing is missing after a power cut."""

    async def scenario() -> None:
        files = FakeFiles()
        async with group("a", messages=8, files=files, store=SYNC) as (rig, _, a):
            await a.take()
            assert await commit_code(a, 4) == 0
            spoil(files, "sync", "owners.*")
            assert await commit_code(a, 5) == REFUSED
            files.heal()
        async with running(files.crash(Random(1)), store=SYNC, clock=FakeClock()) as rig:
            assert rig.broker.offsets.query(GROUP, TOPIC, 0) == 5
            assert not rig.broker.lease_journal.start.may_have_lost

    play(scenario)


@pytest.mark.slow
def test_a_full_disk_at_a_write_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """ENOSPC at the journal refuses a commit, stops no sends and needs no new file."""
    caplog.set_level(logging.WARNING, "inorder")

    async def scenario() -> None:
        files = FakeFiles()
        async with group("a", messages=8, files=files, store=SYNC) as (rig, _, a):
            await a.take()
            spoil(files, "write", "owners.*", errno.ENOSPC)
            assert await commit_code(a, 4) == REFUSED
            assert await commit_code(a, 4) == REFUSED
            assert (await rig.send(b"goes on")).code == 0
            files.heal()
            assert await commit_code(a, 4) == 0
            assert rig.broker.lease_journal.journal._number <= 2
        assert not lines(caplog, logging.CRITICAL)

    play(scenario)


@pytest.mark.slow
def test_a_full_disk_is_said_once_and_its_end_once(caplog: pytest.LogCaptureFixture) -> None:
    """Not with every write that fails, nor as often as it is looked whether there is room."""
    caplog.set_level(logging.WARNING, "inorder")

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files) as rig:
            spoil(files, "write", "commitlog/*", errno.ENOSPC)
            for _ in range(12):
                assert (await rig.send(b"no")).code == REFUSED
                await asyncio.sleep(0.03)
            files.heal()
            assert (await rig.send(b"yes")).code == 0
            assert (await rig.send(b"yes")).code == 0
        assert len([one for one in lines(caplog, logging.ERROR) if "are refused" in one]) == 1
        assert len([one for one in lines(caplog, logging.WARNING) if "takes writes" in one]) == 1

    play(scenario)


@pytest.mark.slow
def test_a_log_that_failed_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """The flush timer goes on ringing; the critical line does not repeat."""
    caplog.set_level(logging.WARNING, "inorder")

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files, stop=False) as rig:
            assert (await rig.send(b"one")).code == 0
            spoil(files, "sync", "commitlog/*")
            assert (await rig.send(b"two")).code == 0
            await until_true(lambda: not rig.broker.writable)
            await asyncio.sleep(TIMERS_S)
            files.heal()
            rig.broker.housekeeping._check_disk()
            assert (await rig.send(b"three")).code == REFUSED
            assert (await rig.pull(queueOffset="0")).code == 0

    play(scenario)
    assert len(lines(caplog, logging.CRITICAL)) == 1, lines(caplog, logging.CRITICAL)
    assert not [one for one in lines(caplog, logging.WARNING) if "again" in one]


@pytest.mark.slow
def test_no_descriptor_is_no_failed_sync(caplog: pytest.LogCaptureFixture) -> None:
    """EMFILE at the files of queues and at the log's directory: tried again, said, never final."""
    caplog.set_level(logging.WARNING, "inorder")

    async def scenario() -> None:
        files = FakeFiles()
        store = replace(SYNC, sync_flush_timeout_ms=60_000)
        async with running(files, store=store) as rig:
            assert (await rig.send(b"one")).code == 0
            await until_true(lambda: bool(rig.broker.store.queues.queue_files.unsynced))
            spoil(files, "sync", "consumequeue/*/*/*", errno.EMFILE)
            with pytest.raises(Exception, match="Too many open files"):
                await rig.broker.housekeeping.flush_now()
            files.heal()
            rig.broker.housekeeping._flush_all()  # its timer rings, though nothing more has come
            store = rig.broker.store
            await until_true(lambda: store.flushed_position == store.log.end_position)
            fault = spoil(files, "sync", "commitlog/*", errno.EMFILE)
            sending = asyncio.create_task(rig.send(b"two"))
            await until_true(lambda: fault.met > 2)
            assert not sending.done()
            files.heal()
            assert (await sending).code == 0
        assert not lines(caplog, logging.CRITICAL)
        said = [one for one in lines(caplog, logging.ERROR) if "no file descriptor" in one]
        assert len(said) == 1, said

    play(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.2, 40], ids=["within the lease", "beyond it"])
@pytest.mark.parametrize("order", ["queue", "key"])
def test_a_consumer_goes_on_when_the_disk_is_well_again(order: str, seconds: float) -> None:
    """Nothing is skipped, keys stay in order, and at the end all is committed; no restart."""

    async def story(kit: Kit) -> None:
        consumer, got = await handler_of(kit, order=order, seconds=0.05)
        await kit.send(30)
        await begin(kit, consumer)
        await kit.until(lambda: len(got) >= 5)
        spoil(kit.cluster.disk, "sync", "owners.*")
        await kit.until(lambda: kit.cluster.broker.safety.broken)
        await asyncio.sleep(seconds)
        assert kit.cluster.broker.safety.broken
        kit.cluster.disk.heal()
        await kit.until(lambda: not kit.cluster.broker.safety.broken)
        await kit.send(10)
        await kit.until(lambda: len({one.offset for one in got}) == 40)
        for key in {one.key for one in got}:
            first = list(dict.fromkeys(one.offset for one in got if one.key == key))
            assert first == sorted(first)
        async with asyncio.timeout(60):
            while await kit.committed() != 40:  # noqa: ASYNC110 - simulated time
                await asyncio.sleep(0.1)
        if seconds < 1:
            assert not twice(got)

    consumer_play(story, broker=BrokerConfig(store=SYNC))
