"""Leases, epochs and commits on a running broker, over kills and power cuts of its disk."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from inorder.broker.leases import records as lease_records
from inorder.broker.leases import storage as lease_storage
from inorder.broker.leases.rules import ROCKETMQ_RESTART_MS
from inorder.model import GroupQueue, TopicQueue
from inorder.store.snapshot import Snapshot
from inorder.testing.clock import FakeClock
from inorder.wire.extensions import ExtensionCode
from inorder.wire.fields import encode_fields
from inorder.wire.requests.leases import LeasePage, LockBatchBody, LockedQueues, VersionSpan
from inorder.wire.requests.offsets import ResetOffset
from inorder.wire.requests.parking import ParkBody, ParkItem
from tests.integration.brokerkit import SMALL, Rig, running, until
from tests.integration.leasekit import (
    GRACE_MS,
    GROUP,
    LEASE_MS,
    QUEUES,
    TOPIC,
    RocketMQPeer,
    connected,
    group,
    ours,
    send,
)
from tests.kit.disk import FakeFiles

LOST = 7120
SYNC = replace(SMALL, sync_flush=True)


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


async def rocketmq_lock(rig: Rig, client_id: str, *queues: TopicQueue) -> set[TopicQueue]:
    answer = await rig.ask(41, body=LockBatchBody(client_id, GROUP, queues).encode())
    return set(LockedQueues.decode(answer.body).queues)


async def rocketmq_commit(rig: Rig, offset: int) -> None:
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": str(offset)}
    assert (await rig.ask(15, fields)).code == 0


def spoil(rig: Rig, operation: str, error: int, *, kept: int = 0) -> None:
    """Let the next such operation on the journal fail; the other files are left alone."""
    file: Any = rig.broker.lease_journal.journal._file
    real = getattr(file, operation)

    def fail(data: bytes = b"", position: int = 0) -> None:
        setattr(file, operation, real)
        if kept:
            real(data[:kept], position)
        raise OSError(error, os.strerror(error))

    setattr(file, operation, fail)


def stored(rig: Rig) -> int:
    return rig.broker.offsets.query(GROUP, TOPIC, 0)


def test_a_queue_has_one_owner_and_the_next_begins_where_it_ended() -> None:
    """P2, P5: refused while held; release is commit and unlock; the map comes with the grant."""

    async def scenario() -> None:
        async with group("a", "b") as (_, _, a, b):
            first = await a.take()
            assert (first.fresh, first.offset, first.finished) == (True, 0, "")
            refusal = await b.refused()
            assert refusal.holder == "a"
            assert 0 < refusal.waits_ms <= LEASE_MS
            assert await a.commit(3, "3:4")
            b.notices.clear()
            assert (await a.release(4, "4:2")).code == 0
            await until(lambda: bool(b.notices))
            second = await b.take()
            assert (second.offset, second.finished) == (4, "4:2")
            assert second.epoch > first.epoch

    play(scenario)


def test_a_release_that_is_repeated_is_answered_like_the_first() -> None:
    """Its answer may be lost; only if its commit was taken, also when another one has it now."""

    async def scenario() -> None:
        async with group("a", "b") as (rig, _, a, b):
            await a.take()
            assert (await a.release(4, number=9)).code == 0
            assert (await a.release(4, number=9)).code == 0
            assert (await a.release()).code == 0, "nothing to commit"
            assert (await a.release(6, number=10)).code == LOST
            await b.take()
            assert (await a.release(4, number=9)).code == 0
            late = await a.release(6, number=10)
            assert (late.code, late.fields["holder"]) == (LOST, "b")
            assert stored(rig) == 4

    play(scenario)


def test_a_stale_epoch_pulls_commits_and_releases_nothing() -> None:
    """P2: the frozen owner thaws when another has the queue."""

    async def scenario() -> None:
        async with group("a", "b") as (rig, clock, a, b):
            await a.take()
            assert (await a.pull()).code == 0
            clock.advance(LEASE_MS)
            await b.take()
            assert await b.commit(2)
            assert not await a.commit(7)
            assert (await a.release(7)).code == LOST
            assert (await a.pull()).code == LOST
            assert (await a.refused()).holder == "b"
            assert stored(rig) == 2

    play(scenario)


def test_who_was_late_and_alone_goes_on() -> None:
    """Nobody else had the queue: the same epoch, by renewal, commit or pull."""

    async def scenario() -> None:
        async with group("a") as (rig, clock, a):
            epoch = (await a.take()).epoch
            for act in (
                lambda: a.lease(0),
                lambda: a.commit(1),
                a.pull,
            ):
                clock.advance(2 * LEASE_MS)
                await rig.broker.lease_expiry.check()
                assert rig.broker.leases.get(GroupQueue.of(GROUP, QUEUES[0])) is None
                await act()
                lease = rig.broker.leases.get(GroupQueue.of(GROUP, QUEUES[0]))
                assert lease is not None
                assert lease.epoch == epoch

    play(scenario)


def test_pulls_and_commits_renew() -> None:
    """A10: any request under the epoch counts; a stale one does not."""

    async def scenario() -> None:
        async with group("a", "b") as (_, clock, a, b):
            await a.take()
            for act in (a.pull, lambda: a.commit(1), a.pull, lambda: a.lease(0)):
                clock.advance(LEASE_MS - 1000)
                await act()
                clock.advance(2000)
                assert (await b.refused(epoch=0)).holder == "a"

    play(scenario)


def test_a10_a_closed_connection_leaves_the_grace_only_if_it_renewed_last() -> None:
    """The late close of an old half-open connection shortens nothing."""

    async def scenario() -> None:
        async with group("a", "b", messages=1) as (rig, clock, a, b):
            await a.take()
            async with ours(rig, "a") as (again,):
                again.epochs = a.epochs
                await again.lease(0)
                a.connection.close()
                await until(lambda: len(rig.broker.members.connections(GROUP)) == 2)
                clock.advance(GRACE_MS + 1)
                assert (await b.refused()).holder == "a"
                b.notices.clear()
            await until(lambda: rig.broker.members.client_ids(GROUP) == ["b"])
            clock.advance(GRACE_MS - 100)
            assert (await b.refused()).waits_ms <= 100
            clock.advance(100)
            await b.take()

    play(scenario)


def test_a10_a_late_loop_reads_renewals_before_it_expires_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker stood still for longer than the lease; both have spoken meanwhile, b first.

    Its timer rings before it has read either of them.
    """

    async def scenario() -> None:
        clock = FakeClock()
        async with running(clock=clock) as rig, ours(rig, "a", "b") as (a, b):
            await send(rig, 1)
            await a.take()
            clock.advance(LEASE_MS + 3000)
            expire, expired = rig.broker.leases.expire, []

            def note(*args: Any, **more: Any) -> Any:
                found = expire(*args, **more)
                expired.extend(found)
                return found

            monkeypatch.setattr(rig.broker.leases, "expire", note)
            from_b = asyncio.create_task(b.lease(0, epoch=0))
            from_a = asyncio.create_task(a.lease(0))
            await asyncio.sleep(0)
            await rig.broker.lease_expiry.check()
            assert (await from_b).refused, "a's renewal was there when b was answered"
            assert not (await from_a).refused
            assert expired == []

    play(scenario)


def test_a10_what_is_in_the_socket_is_read_before_the_timer_counts() -> None:
    """The timer rings when the renewal is on its way from the kernel."""

    async def scenario() -> None:
        async with group("a", messages=1) as (rig, clock, a):
            await a.take()
            clock.advance(LEASE_MS)
            renewing = asyncio.create_task(a.lease(0))
            await rig.broker.lease_expiry.check()
            assert rig.broker.leases.get(GroupQueue.of(GROUP, QUEUES[0])) is not None
            assert not (await renewing).granted[0].fresh

    play(scenario)


def test_a10_what_the_broker_does_not_read_does_not_expire() -> None:
    """It has paused reading itself: the renewal may be there."""

    async def scenario() -> None:
        async with group("a", "b", messages=1) as (rig, clock, a, b):
            await a.take()
            lease = rig.broker.leases.get(GroupQueue.of(GROUP, QUEUES[0]))
            assert lease is not None
            paused = next(c for c in rig.broker.server.connections if c.id == lease.connection)
            paused.congested = True
            clock.advance(2 * LEASE_MS)
            assert (await b.refused()).holder == "a"
            paused.congested = False
            clock.advance(100)
            await b.take()

    play(scenario)


def test_a11_while_a_queue_is_leased_nobody_commits_without_the_epoch() -> None:
    """A RocketMQ client thaws and commits, by request and by pull: nothing moves."""

    async def scenario() -> None:
        async with group("a") as (rig, _, a):
            await rocketmq_commit(rig, 5)
            await a.take()
            for offset in (7, 2):
                await rocketmq_commit(rig, offset)
                await rig.pull(queueId="0", sysFlag="5", commitOffset=str(offset))
                assert stored(rig) == 5
            assert await a.commit(6)
            await a.release()
            await rig.pull(queueId="0", sysFlag="5", commitOffset="2")
            assert stored(rig) == 6, "nor when nobody has it"
            await rocketmq_commit(rig, 2)
            assert stored(rig) == 2, "that was a tool's"

    play(scenario)


def test_a11_commits_are_taken_in_the_order_of_their_numbers() -> None:
    """An older one that arrives later counts as taken and changes nothing."""

    async def scenario() -> None:
        async with group("a") as (rig, _, a):
            await a.take()
            assert await a.commit(4, "4:4", number=5)
            assert await a.commit(6, number=4)
            assert await a.commit(5, number=5)
            assert stored(rig) == 4
            assert await a.commit(3, number=6), "nor does it go back"
            assert (await a.lease(0, epoch=0)).granted[0].finished == "4:4"

    play(scenario)


def test_a11_a_reset_makes_the_owners_commits_and_its_map_void() -> None:
    """What is in flight does not undo it; the owner begins anew at the new offset."""

    async def scenario() -> None:
        async with group("a") as (rig, _, a):
            await a.take()
            assert await a.commit(4, "4:e")
            old = a.epochs[0]
            held = asyncio.create_task(a.pull(queueOffset="8", sysFlag="6"))
            await until(lambda: len(rig.broker.waits) == 1)
            reset = {"topic": TOPIC, "group": GROUP, "queueId": "0", "offset": "4",
                     "timestamp": "-1", "isForce": "true"}  # fmt: skip
            assert (await rig.ask(222, reset)).code == 0
            assert (await held).code == LOST, "the pull that waited is told at once"
            assert not await a.commit(7)
            (grant,) = (await a.lease(0)).granted
            assert (grant.fresh, grant.reset, grant.offset, grant.finished) == (True, True, 4, "")
            assert grant.epoch > old
            assert await a.commit(5)
            assert (await a.pull(queueOffset="5")).code == 0, "the reset is taken"

    play(scenario)


def test_a11_a_reset_of_a_free_queue_ends_the_claim_of_its_last_owner() -> None:
    """Who comes back late finds that it has to begin anew; also after a restart."""

    async def scenario() -> None:
        clock, files = FakeClock(), FakeFiles()
        async with group("a", files=files, clock=clock, stop=False) as (rig, _, a):
            await a.take()
            clock.advance(2 * LEASE_MS)
            await rig.broker.lease_expiry.check()
            reset = {"topic": TOPIC, "group": GROUP, "queueId": "0", "offset": "2",
                     "timestamp": "-1", "isForce": "true"}  # fmt: skip
            assert (await rig.ask(222, reset)).code == 0
            assert (await a.refused()).holder == ""
            epochs = a.epochs
        async with running(files.kill(), clock=clock) as rig, ours(rig, "a") as (a,):
            a.epochs = epochs
            assert (await a.refused()).holder == ""
            assert (await a.take()).offset == 2

    play(scenario)


def test_the_first_request_after_a_kill_may_be_one_to_park() -> None:
    """It renews the lease, and the journal has the renewal: the deadline of the start is gone."""

    async def scenario() -> None:
        clock, files = FakeClock(), FakeFiles()
        async with group("a", files=files, clock=clock, stop=False) as (rig, _, a):
            await a.take()
            await rig.send(b"m0", e="0", i="__SHARDINGKEY\x01k\x02UNIQ_KEY\x01k-0\x02")
            epochs = a.epochs
        async with running(files.kill(), clock=clock, stop=False) as rig, ours(rig, "a") as (a,):
            clock.advance(LEASE_MS - 1)
            fields = a.who | {"topic": TOPIC, "queueId": "0", "epoch": str(epochs[0])}
            body = ParkBody([ParkItem(0, "k", 6, "poison", 1000)]).encode()
            answer = await a.ask(ExtensionCode.PARK, fields, body)
            assert answer.code == 0, answer.remark
            clock.advance(LEASE_MS - 1)
            lease = rig.broker.leases.get(GroupQueue(GROUP, TOPIC, 0))
            assert lease is not None
            assert lease.epoch == epochs[0]
        async with running(files.kill(), clock=clock) as rig, ours(rig, "b") as (b,):
            assert (await b.refused()).holder == "a"

    play(scenario)


def test_a9_after_a_kill_the_owner_resumes_and_others_wait_for_its_lease() -> None:
    """An honest commit in flight is taken; a RocketMQ client's lock is waited for 31 s."""

    async def scenario() -> None:
        clock, files = FakeClock(), FakeFiles()
        async with group("a", files=files, clock=clock, stop=False) as (rig, _, a):
            await a.lease(0, lease_ms=20_000)
            assert await rocketmq_lock(rig, "stock", QUEUES[1]) == {QUEUES[1]}
            assert await a.commit(3, "3:4")
            epochs = a.epochs
        async with running(files.kill(), clock=clock) as rig, ours(rig, "a", "b") as (a, b):
            clock.advance(19_000)
            assert (await b.refused(0)).holder == "a"
            assert (await b.refused(1)).holder == "stock"
            a.epochs, a.number = epochs, 1
            assert await a.commit(5)
            assert stored(rig) == 5
            clock.advance(ROCKETMQ_RESTART_MS - 19_000 - 100)
            assert await rocketmq_lock(rig, "other", QUEUES[1]) == set()
            clock.advance(100)
            await b.take(1)

    play(scenario)


def test_a9_a_rocketmq_client_that_took_over_is_known_after_a_kill() -> None:
    """Our a expires, a RocketMQ client locks and handles, the broker is killed: a stays out."""

    async def scenario() -> None:
        clock, files = FakeClock(), FakeFiles()
        async with group("a", files=files, clock=clock, stop=False) as (rig, _, a):
            await a.take()
            clock.advance(LEASE_MS)
            assert await rocketmq_lock(rig, "stock", QUEUES[0]) == {QUEUES[0]}
            epochs = a.epochs
        async with running(files.kill(), clock=clock) as rig, ours(rig, "a") as (a,):
            a.epochs = epochs
            assert (await a.refused()).holder == "stock"
            assert not await a.commit(5)
            assert await rocketmq_lock(rig, "stock", QUEUES[0]) == {QUEUES[0]}

    play(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_a9_after_a_power_cut_nobody_resumes_and_epochs_still_grow(seed: int) -> None:
    """The journal may have lost something: the longest lease is waited for, also after a kill."""

    async def scenario() -> None:
        clock, files = FakeClock(), FakeFiles()
        async with group("a", files=files, clock=clock, stop=False) as (rig, _, a):
            await a.take()
            epochs = dict(a.epochs)
        files = files.crash(Random(seed))
        for left_ms in (LEASE_MS - 1000, 100):
            async with running(files, clock=clock, stop=False) as rig, ours(rig, "a") as (a,):
                await send(rig, 1)  # the topic may be lost, too
                a.epochs = dict(epochs)
                clock.advance(1000 if left_ms > 1000 else LEASE_MS - 1100)
                assert (await a.refused()).holder == ""
                assert (await a.refused(epoch=0)).waits_ms == left_ms
            files = files.kill()
        async with running(files, clock=clock) as rig, ours(rig, "a") as (a,):
            clock.advance(100)
            await rig.broker.lease_expiry.check()
            assert (await a.take()).epoch > epochs[0]

    play(scenario)


@pytest.mark.parametrize("seed", range(4))
def test_a9_after_a_power_cut_an_owner_does_not_resume_beside_a_forgotten_next_owner(
    seed: int,
) -> None:
    """a's grant is on disk, the grant of b, who took over, is not: neither goes on by the journal.

    Not by a renewal, a commit, a pull or a release; each would be b's word against a's.
    """

    async def scenario() -> None:
        clock, files = FakeClock(), FakeFiles()
        async with group("a", "b", files=files, clock=clock, stop=False) as (rig, _, a, b):
            await rig.broker.housekeeping.flush_now()
            await a.take()
            rig.broker.lease_journal.journal.plan_sync()()
            clock.advance(LEASE_MS)
            await b.take()
            epochs = dict(a.epochs), dict(b.epochs)
        async with (
            running(files.crash(Random(seed)), clock=clock) as rig,
            ours(rig, "a", "b") as (a, b),
        ):
            assert rig.broker.store.queue(TOPIC, 0).visible_offset == 8
            for one, known in zip((a, b), epochs, strict=True):
                one.epochs = dict(known)
                assert (await one.refused()).holder == ""
                assert not await one.commit(5)
                assert (await one.pull()).code == LOST
                assert (await one.release(5)).code == LOST
            assert stored(rig) == -1
            clock.advance(LEASE_MS)
            await rig.broker.lease_expiry.check()
            for one in (a, b):
                assert (await one.refused()).holder == ""
            assert (await b.take()).epoch > max(epochs[0][0], epochs[1][0])

    play(scenario)


def test_a9_equal_client_ids_are_two_owners() -> None:
    """The replacement of a frozen process is a new owner: only one of them commits."""

    async def scenario() -> None:
        clock = FakeClock()
        async with running(clock=clock) as rig, ours(rig, "a", instance="one") as (one,):
            await send(rig, 8)
            await one.take()
            async with ours(rig, "a", instance="two") as (two,):
                assert (await two.refused()).holder == "a"
                two.epochs = dict(one.epochs)
                assert not await two.commit(7)
                clock.advance(LEASE_MS)
                await two.take()
                assert not await one.commit(7)
                assert await two.commit(1)

    play(scenario)


def test_p4_an_answered_commit_survives_a_kill() -> None:
    """Also a RocketMQ client's, if it was answered; the map and the numbers, too."""

    async def scenario() -> None:
        files = FakeFiles()
        async with group("a", files=files, stop=False) as (rig, _, a):
            fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "1", "commitOffset": "0"}
            assert (await rig.ask(15, fields)).code == 0
            await a.take()
            for offset in (1, 2, 3):
                assert await a.commit(offset, f"{offset}:4")
            epochs = a.epochs
        files = files.kill()
        async with running(files, stop=False, clock=FakeClock()) as rig, ours(rig, "a") as (a,):
            assert rig.broker.offsets.query(GROUP, TOPIC, 1) == 0
            a.epochs = epochs
            assert await a.commit(7, number=2)
            assert stored(rig) == 3, "an older number than what is known"
            grant = await a.take()
            assert (grant.offset, grant.finished) == (3, "3:4")

    play(scenario)


@pytest.mark.parametrize("stop", [True, False])
def test_offsets_that_another_broker_saved_are_not_undone(stop: bool) -> None:
    """It worked in our directory meanwhile and knows nothing of our journal."""

    async def scenario() -> None:
        files = FakeFiles()
        async with group("a", files=files, stop=stop) as (rig, _, a):
            await a.take()
            assert await a.commit(3, "3:4")
            path = rig.broker.offset_snapshot.path
        files = files if stop else files.kill()
        theirs = Snapshot(files, path)
        theirs.save(b'{"dataVersion":{},"offsetTable":{"Orders@CG":{0:5}}}')
        root = path.parent.parent
        written = int.from_bytes(files.read(root / "checkpoint")[:8], "big") + 1
        files.write(root / "checkpoint", written.to_bytes(8, "big"))
        files.remove(root / "abort")
        async with running(files, stop=stop, clock=FakeClock()) as rig, ours(rig, "a") as (a,):
            assert stored(rig) == 5
            grant = await a.take()
            assert (grant.offset, grant.finished) == (5, "")
        files = files if stop else files.kill()
        async with running(files, stop=False, clock=FakeClock()) as rig:
            assert stored(rig) == 5, "that was the last word, also after the next start"

    play(scenario)


@pytest.mark.parametrize("seed", range(4))
def test_p4_under_sync_flush_an_answered_commit_survives_a_power_cut(seed: int) -> None:
    """And so does a release: it is on disk before it is answered."""

    async def scenario() -> None:
        clock, files = FakeClock(), FakeFiles()
        async with group("a", files=files, store=SYNC, clock=clock, stop=False) as (rig, _, a):
            await a.lease(0, 1)
            assert await a.commit(3, "3:4")
            assert await a.commit(0, queue=1)
            assert (await a.release(5, "5:4")).code == 0
            cut = files.crash(Random(seed))
        async with running(cut, store=SYNC, clock=clock) as rig, ours(rig, "b") as (b,):
            assert stored(rig) == 5
            assert rig.broker.offsets.query(GROUP, TOPIC, 1) == 0
            clock.advance(LEASE_MS)
            assert (await b.take()).finished == "5:4"

    play(scenario)


@pytest.mark.parametrize("seed", range(4))
def test_under_sync_flush_an_answered_reset_survives_a_power_cut(seed: int) -> None:
    """An operator who was told that a group begins again at 1 finds it there."""

    async def scenario() -> None:
        clock, files = FakeClock(), FakeFiles()
        async with group("a", files=files, store=SYNC, clock=clock, stop=False) as (rig, _, a):
            await a.lease(0)
            assert await a.commit(5)
            order = ResetOffset(TOPIC, GROUP, 0, queue_id=0, offset=1)
            answer = await a.ask(order.CODE, encode_fields(order))
            assert answer.code == 0
            cut = files.crash(Random(seed))
        async with running(cut, store=SYNC, clock=clock) as rig:
            assert stored(rig) == 1

    play(scenario)


def test_under_sync_flush_a_queue_is_free_when_its_release_is_on_disk() -> None:
    """And not before: a power cut would bring the old owner back beside the new one."""

    async def scenario() -> None:
        async with running(store=SYNC, clock=FakeClock()) as rig, ours(rig, "a", "b") as (a, b):
            await send(rig, 1)
            await a.take()
            waiting: list[Callable[[], None]] = []
            plan = rig.broker.lease_journal.journal.plan_sync
            gate = asyncio.Event()
            loop = asyncio.get_running_loop()

            def slow() -> Callable[[], None]:
                sync = plan()

                def wait() -> None:
                    asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()
                    sync()

                waiting.append(wait)
                return wait

            rig.broker.lease_journal.journal.plan_sync = slow  # type: ignore[method-assign]
            releasing = asyncio.create_task(a.release(1))
            await until(lambda: bool(waiting))
            assert (await b.refused()).holder == "a"
            gate.set()
            assert (await releasing).code == 0
            rig.broker.lease_journal.journal.plan_sync = plan  # type: ignore[method-assign]
            await b.take()

    play(scenario)


@pytest.mark.parametrize("kept", [0, 7])
def test_what_the_journal_does_not_take_has_not_happened(kept: int) -> None:
    """A full disk: grants, commits and releases are refused and the tables are as before."""

    async def scenario() -> None:
        files = FakeFiles()
        async with group("a", "b", files=files, stop=False) as (rig, _, a, b):
            await a.take()
            assert await a.commit(2, "2:4")

            def full() -> None:
                spoil(rig, "pwrite", errno.ENOSPC, kept=kept)

            wishes = b'{"queues":[["Orders",1,0]]}'
            full()
            terms = {"leaseMs": "5000", "graceMs": "1000"}
            assert (await b.ask(7120, b.who | terms, wishes)).code == 14
            assert rig.broker.leases.get(GroupQueue.of(GROUP, QUEUES[1])) is None
            full()
            body = b'{"commits":[["Orders",0,%d,9,5,""]]}' % a.epochs[0]
            assert (await a.ask(7122, a.who, body)).code == 14
            assert stored(rig) == 2
            full()
            assert (await a.release(5)).code == 14
            assert (stored(rig), (await b.refused()).holder) == (2, "a")
            assert await a.commit(3), "there is room again"
            epochs = a.epochs
        async with running(files.kill(), clock=FakeClock()) as rig, ours(rig, "a") as (a,):
            a.epochs = epochs
            assert stored(rig) == 3
            assert not (await a.lease(0)).refused

    play(scenario)


def test_a_topic_can_be_deleted_on_a_full_disk() -> None:
    """To make room; what the journal could not take is written first when there is some."""

    async def scenario() -> None:
        files = FakeFiles()
        async with group("a", files=files, stop=False) as (rig, _, a):
            await a.take()
            assert await a.commit(5)
            spoil(rig, "pwrite", errno.ENOSPC)
            assert (await rig.ask(215, {"topic": TOPIC})).code == 0
            await send(rig, 8)
            assert (await a.take()).offset == 0
        async with running(files.kill(), clock=FakeClock()) as rig:
            assert stored(rig) == -1

    play(scenario)


def test_of_several_commits_of_a_queue_in_one_request_the_last_counts() -> None:
    """By their numbers, whatever their places."""

    async def scenario() -> None:
        async with group("a") as (rig, _, a):
            await a.take()
            entry = b'["Orders",0,%d,%d,%d,""]'
            entries = [entry % (a.epochs[0], number, number + 1) for number in (3, 5, 4)]
            body = b'{"commits":[' + b",".join(entries) + b"]}"
            assert (await a.ask(7122, a.who, body)).code == 0
            assert stored(rig) == 6

    play(scenario)


def test_after_a_failed_sync_of_the_journal_no_commit_is_acknowledged() -> None:
    """Sync flush: not even if the next sync of the same file would succeed."""

    async def scenario() -> None:
        files = FakeFiles()
        async with group("a", files=files, store=SYNC, stop=False) as (rig, _, a):
            await a.take()
            spoil(rig, "fdatasync", errno.EIO)
            body = b'{"commits":[["Orders",0,%d,1,5,""]]}' % a.epochs[0]
            assert (await a.ask(7122, a.who, body)).code == 14
            assert (await a.ask(7122, a.who, body.replace(b",1,5,", b",2,6,"))).code == 14
            assert not rig.broker.writable

    play(scenario)


@pytest.mark.parametrize("seed", range(6))
def test_a1_what_was_committed_beyond_a_lost_tail_is_not_skipped_later(seed: int) -> None:
    """Commit 8 of 8; power takes the log's end; new messages take its offsets; a kill: handled."""

    async def scenario() -> None:
        files = FakeFiles()
        store = replace(SMALL, flush_interval_ms=60_000)
        async with group("a", messages=4, files=files, store=store, stop=False) as (rig, _, a):
            await rig.broker.housekeeping.flush_now()
            await a.take()
            synced = rig.broker.lease_journal.journal.plan_sync()
            await send(rig, 4)
            assert await a.commit(6, "6:2")
            await asyncio.get_running_loop().run_in_executor(None, synced)
        files = files.crash(Random(seed))
        async with running(files, store=store, stop=False, clock=FakeClock()) as rig:
            queue = rig.broker.store.find_queue(TOPIC, 0)
            assert queue is not None
            end = queue.visible_offset
            assert 4 <= end <= 8
            assert stored(rig) == min(6, end)
            await send(rig, 8 - end + 4)
        async with (
            running(files.kill(), store=store, clock=FakeClock()) as rig,
            ours(rig, "b") as (b,),
        ):
            assert stored(rig) == min(6, end), "what came later is not done"
            generation = rig.broker.leases.closed_until_ms
            rig.broker.leases.closed_until_ms = 0
            rig.broker.leases.forget(group=GROUP)
            grant = await b.take()
            assert grant.offset == min(6, end)
            assert grant.finished == ("6:2" if end == 8 else "")
            assert grant.chapters == [VersionSpan(0, 0, 0), VersionSpan(end, 0, 1)]
            assert generation

    play(scenario)


def test_a5_a_log_that_somebody_made_shorter_begins_a_generation() -> None:
    """The same boot and no crash: but the journal speaks of more log than there is."""

    async def scenario() -> None:
        files = FakeFiles()
        async with group("a", files=files, stop=False) as (rig, _, a):
            await a.take()
            assert await a.commit(8, number=1)
            record = lease_records.Commit(GROUP, TOPIC, 0, 8, 1 << 40, a.epochs[0], 2, "")
            rig.broker.lease_journal.write([record])
        async with running(files.kill(), clock=FakeClock()) as rig:
            assert rig.broker.lease_service.version_spans(TOPIC, 0)[-1] == VersionSpan(8, 0, 1)

    play(scenario)


def test_offsets_are_saved_only_when_the_log_is_on_disk() -> None:
    """A1: a file that knows more than the log would let a power cut skip messages."""

    async def scenario() -> None:
        files = FakeFiles()
        store = replace(SMALL, flush_interval_ms=60_000)
        async with group("a", files=files, store=store, stop=False) as (rig, _, a):
            await a.take()
            assert await a.commit(8)
            await rig.broker.offset_snapshot.saved()
            log = rig.broker.store.log
            assert log.durable_position == log.end_position

    play(scenario)


def test_saved_offsets_are_not_undone_by_an_older_record_of_the_journal() -> None:
    """A release of a resize relies on them, also on those that no timer has journalled yet."""

    async def scenario() -> None:
        files = FakeFiles()
        async with (
            group(messages=8, files=files, stop=False) as (rig, _),
            connected(rig, RocketMQPeer, "java") as (java,),
        ):
            assert (await java.commit(3)).code == 0
            rig.broker.offsets.commit(GROUP, TOPIC, 0, 7, 0)  # as a one-way commit does
            await rig.broker.offset_snapshot.saved()
            left = files.kill()
        async with running(left, stop=False, clock=FakeClock()) as rig:
            assert stored(rig) == 7

    play(scenario)


def test_a_journal_that_has_grown_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Into no more than stands; nothing is lost by a kill during it or after it."""
    monkeypatch.setattr(lease_storage, "FOLD_AT_ONCE", 1)

    async def scenario() -> None:
        files = FakeFiles()
        async with group("a", "b", files=files, stop=False) as (rig, _, a, b):
            await a.lease(0, 1, 2)
            await b.take(3)
            for number in range(200):
                await a.commit(min(number // 25, 7))
            await b.release(queue=3)
            journal = rig.broker.lease_journal.journal
            before = journal.size
            folding = asyncio.create_task(rig.broker.lease_journal.fold())
            states = []
            while not folding.done():
                with suppress(RuntimeError):  # a thread has changed it just now
                    states.append(files.kill())
                await asyncio.sleep(0)
            assert not journal.has_older
            assert journal.size < before / 4
            epochs = a.epochs
            states.append(files.kill())
        for left in (*states[:: max(1, len(states) // 6)], states[-1]):
            async with running(left, clock=FakeClock()) as rig, ours(rig, "a") as (a,):
                a.epochs = dict(epochs)
                answer = await a.lease(0, 1, 2)
                assert not answer.refused
                assert all(not grant.fresh for grant in answer.granted)
                assert stored(rig) == 7
                assert not (await a.lease(3, epoch=0)).refused, "it was given back"

    play(scenario)


def test_an_operator_takes_a_queue_away() -> None:
    """The owner's pull that waits and its next request are refused; the other gets it in time."""

    async def scenario() -> None:
        async with group("a", "b", messages=1) as (rig, clock, a, b):
            await a.take()
            held = asyncio.create_task(a.pull(queueOffset="1", sysFlag="6"))
            await until(lambda: len(rig.broker.waits) == 1)
            place = {"group": GROUP, "topic": TOPIC, "queueId": "0"}
            answer = await rig.ask(7124, place)
            assert (answer.fields["holder"], answer.fields["epoch"]) == ("a", str(a.epochs[0]))
            assert (await held).code == LOST
            assert not await a.commit(1)
            assert (await b.refused()).waits_ms <= GRACE_MS
            clock.advance(GRACE_MS)
            await b.take()
            assert (await rig.ask(7124, place | {"queueId": "3"})).fields["holder"] == ""

    play(scenario)


def test_leases_are_listed_a_page_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With holder, epoch, age, who waits, and whether the connection is there."""
    monkeypatch.setattr("inorder.broker.leases.handlers.PAGE_MAX", 2)

    async def scenario() -> None:
        async with group("a", "b", messages=1) as (rig, _, a, b):
            await a.lease(0, 1, 2)
            assert await rocketmq_lock(rig, "stock", QUEUES[3]) == {QUEUES[3]}
            await b.refused(1)
            found, after = [], ""
            while True:
                answer = await rig.ask(7123, {"group": GROUP, "after": after})
                page = LeasePage.decode(answer.body)
                assert len(page.leases) <= 2
                found += page.leases
                after = page.next
                if not after:
                    break
            assert [(one.queue, one.holder, one.stock) for one in found] == [
                (0, "a", False), (1, "a", False), (2, "a", False), (3, "stock", True),
            ]  # fmt: skip
            assert found[1].waiting == ["b"]
            assert found[0].connected
            assert found[0].epoch == a.epochs[0]
            assert 0 < found[0].remaining_ms <= LEASE_MS
            everything = LeasePage.decode((await rig.ask(7123, {"group": "other"})).body)
            assert everything.leases == []
            assert (await rig.ask(7123, {"after": "rubbish"})).code == 29

    play(scenario)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"leaseMs": "499"}, 29),
        ({"leaseMs": "120001"}, 29),
        ({"graceMs": "-1"}, 29),
        ({"instance": ""}, 1),
        ({"instance": "a b"}, 29),
        ({"clientId": ""}, 1),
    ],
)
def test_what_cannot_be_granted_is_refused(changes: dict[str, str], code: int) -> None:
    """Times and names have bounds."""

    async def scenario() -> None:
        async with running(clock=FakeClock()) as rig, ours(rig, "a") as (a,):
            fields = a.who | {"leaseMs": "5000", "graceMs": "1000"} | changes
            answer = await a.ask(7120, fields, b'{"queues":[]}')
            assert answer.code in {code, 29}
            assert answer.code != 0

    play(scenario)


def test_a_queue_that_does_not_exist_is_nobodys() -> None:
    """Neither an unknown topic nor a queue beyond its number is leased."""

    async def scenario() -> None:
        async with group("a", messages=1) as (rig, _, a):
            assert (await a.refused(99)).holder == ""
            assert len(rig.broker.leases) == 0

    play(scenario)


def test_a_frozen_member_is_not_listed_until_it_speaks() -> None:
    """It keeps its connection; the others are told and share its queues."""

    async def scenario() -> None:
        clock = FakeClock()
        async with running(clock=clock) as rig, ours(rig, "a", "b") as (a, b):
            await a.lease()
            await b.lease()
            clock.advance(LEASE_MS - 1)
            await b.lease()
            clock.advance(1)
            await rig.broker.lease_expiry.check()
            await until(lambda: bool(b.notices))
            assert await b.members() == ["b"]
            b.notices.clear()
            await a.lease()
            await until(lambda: bool(b.notices))
            assert await b.members() == ["a", "b"]

    play(scenario)


def test_leaving_frees_what_was_forgotten() -> None:
    """Only that of the connection that leaves: another instance keeps its leases."""

    async def scenario() -> None:
        async with group("a", messages=1) as (rig, _, a):
            await a.take(0)
            async with ours(rig, "a", instance="other") as (twin,):
                await twin.take(1)
                fields = {"clientID": "a", "consumerGroup": GROUP}
                assert (await a.ask(35, fields)).code == 0
                await twin.ask(35, fields)
            assert len(rig.broker.leases) == 0

    play(scenario)


def test_a_deleted_topic_leaves_nothing_and_begins_in_a_new_generation() -> None:
    """A5: its offsets begin again at 0, and fences still grow; also after a kill."""

    async def scenario() -> None:
        files = FakeFiles()
        async with group("a", files=files, stop=False) as (rig, _, a):
            await a.take()
            assert await a.commit(5, "5:2")
            assert (await rig.ask(215, {"topic": TOPIC})).code == 0
            assert len(rig.broker.leases) == 0
            await send(rig, 2)
            grant = await a.take()
            assert (grant.offset, grant.finished) == (0, "")
            assert grant.chapters == [VersionSpan(0, 0, 1)]
        async with running(files.kill(), clock=FakeClock()) as rig, ours(rig, "b") as (b,):
            assert stored(rig) == -1
            (found,) = rig.broker.lease_service.version_spans(TOPIC, 0)
            assert found == VersionSpan(0, 0, 1)
            assert (await b.refused()).holder == "a"

    play(scenario)


def test_a_connection_that_is_gone_waits_for_nothing() -> None:
    """Who waited and left is not told, the rest of the group is."""

    async def scenario() -> None:
        async with group("a", "b", messages=1) as (rig, _, a, b):
            await a.take()
            async with ours(rig, "c") as (c,):
                await c.refused()
            await until(lambda: len(rig.broker.members.connections(GROUP)) == 2)
            b.notices.clear()
            await a.release()
            await until(lambda: bool(b.notices))

    play(scenario)
