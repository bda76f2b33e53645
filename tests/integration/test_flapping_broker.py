"""A15: a broker that restarts again and again keeps a dead owner's queue for one lease, not longer.

And not shorter: whoever renewed since a start is waited for anew. Time is that of the broker's
clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from inorder.broker.leases.rules import ROCKETMQ_RESTART_MS
from inorder.model import GroupQueue
from inorder.testing.clock import FakeClock
from inorder.wire.requests.leases import LockBatchBody
from tests.integration.brokerkit import Rig, pull_fields, running
from tests.integration.leasekit import (
    GROUP,
    LEASE_MS,
    QUEUES,
    Ours,
    group,
    ours,
    rocketmq,
    send,
)
from tests.kit.disk import FakeFiles

EVERY_MS = 3000
"""How long the broker runs each time."""


class Flapping:
    """A disk and a clock that outlive the broker."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.files = FakeFiles()
        self.starts = 0

    async def life(self, story: Callable[[Rig, Ours], Awaitable[None]]) -> None:
        """Run the broker for a while, with a member b of ours, then kill it."""
        self.starts += 1
        async with (
            running(self.files, clock=self.clock, stop=False) as rig,
            ours(rig, "b") as (b,),
        ):
            await story(rig, b)
        self.files = self.files.kill()

    async def waited_ms(self, queue: int = 0, *, lives_max: int = 60) -> int:
        """Restart until b gets a queue; return how long after the first of these starts."""
        began_ms, got = self.clock.monotonic_ms(), []

        async def ask(rig: Rig, b: Ours) -> None:
            for _ in range(EVERY_MS // 100):
                if (await b.lease(queue, epoch=0)).granted:
                    got.append(self.clock.monotonic_ms() - began_ms)
                    return
                self.clock.advance(100)

        for _ in range(lives_max):
            await self.life(ask)
            if got:
                return got[0]
        raise AssertionError(f"nobody got the queue in {lives_max} starts")


async def owned(flapping: Flapping, *, stock_client: bool = False) -> dict[int, int]:
    """Let a have queue 0; return its epochs."""
    async with group("a", files=flapping.files, clock=flapping.clock, stop=False) as (rig, _, a):
        if stock_client:
            async with rocketmq(rig, "s") as (s,):
                assert await s.lock(QUEUES[0])
        else:
            await a.take()
    flapping.files = flapping.files.kill()
    return dict(a.epochs)


def test_a_dead_owners_queue_moves_one_lease_after_the_first_start() -> None:
    """With a restart every 3 s and a lease of 5 s: in the second life, at 5 s."""

    async def scenario() -> None:
        flapping = Flapping()
        await owned(flapping)
        assert await flapping.waited_ms() == LEASE_MS
        assert flapping.starts == 2

    asyncio.run(scenario())


def test_a_dead_rocketmq_owners_queue_moves_after_31_s() -> None:
    """Its own view of the lock ends 30 s after our last answer."""

    async def scenario() -> None:
        flapping = Flapping()
        await owned(flapping, stock_client=True)
        assert await flapping.waited_ms() == ROCKETMQ_RESTART_MS

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["lease", "commit", "pull", "changed terms"])
@pytest.mark.parametrize("fold", [False, True])
def test_an_owner_that_renews_has_its_whole_lease_from_the_next_start_on(
    how: str, fold: bool
) -> None:
    """The first renewal after a start voids the deadline, also when the journal is folded."""

    async def scenario() -> None:
        flapping = Flapping()
        epochs = await owned(flapping)

        async def renew(rig: Rig, b: Ours) -> None:
            flapping.clock.advance(EVERY_MS - 100)
            async with ours(rig, "a") as (a,):
                a.epochs, a.number = epochs, 10
                if how == "commit":
                    assert await a.commit(3)
                elif how == "pull":
                    assert (await a.pull(sysFlag="0")).code == 0
                else:
                    lease_ms = LEASE_MS - 1000 * (how != "lease")
                    assert (await a.lease(0, lease_ms=lease_ms)).granted
                if fold:
                    await rig.broker.lease_journal.fold()
            flapping.clock.advance(100)

        await flapping.life(renew)
        assert await flapping.waited_ms() == LEASE_MS - 1000 * (how == "changed terms")

    asyncio.run(scenario())


def test_a_rocketmq_owner_that_renews_is_waited_for_anew() -> None:
    """31 s from the next start on."""

    async def scenario() -> None:
        flapping = Flapping()
        await owned(flapping, stock_client=True)

        async def renew(rig: Rig, b: Ours) -> None:
            async with rocketmq(rig, "s") as (s,):
                assert await s.lock(QUEUES[0])

        await flapping.life(renew)
        assert await flapping.waited_ms() == ROCKETMQ_RESTART_MS

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["fold", "reset", "recall"])
def test_what_is_no_renewal_keeps_the_deadline(how: str) -> None:
    """Folding the journal, resetting the offset, asking for the queue: the owner is still dead."""

    async def scenario() -> None:
        flapping = Flapping()
        await owned(flapping)

        async def act(rig: Rig, b: Ours) -> None:
            flapping.clock.advance(EVERY_MS)
            if how == "fold":
                await rig.broker.lease_journal.fold()
            elif how == "reset":
                rig.broker.offset_service.reset(GROUP, QUEUES[0].topic, {0: 2})
            else:
                assert rig.broker.lease_service.revoke(GroupQueue.of(GROUP, QUEUES[0]))

        await flapping.life(act)
        assert await flapping.waited_ms() == LEASE_MS - EVERY_MS

    asyncio.run(scenario())


def test_a_forced_release_frees_a_queue_when_its_owners_trust_has_ended() -> None:
    """A kill right after the order does not begin the lease anew: its grace is all there is."""

    async def scenario() -> None:
        flapping = Flapping()
        await owned(flapping)

        async def take_away(rig: Rig, b: Ours) -> None:
            assert rig.broker.lease_service.force_release(GroupQueue.of(GROUP, QUEUES[0]))[0] == "a"

        await flapping.life(take_away)
        assert await flapping.waited_ms() == 1000

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(3))
def test_the_wait_after_a_power_cut_is_one_wait(seed: int) -> None:
    """What was granted and lost has run out one longest lease after the first start."""

    async def scenario() -> None:
        flapping = Flapping()
        await owned(flapping)
        flapping.files = flapping.files.crash(Random(seed))

        async def idle(rig: Rig, b: Ours) -> None:
            await send(rig, 1)  # the topic may be lost, too
            flapping.clock.advance(EVERY_MS)

        await flapping.life(idle)
        assert await flapping.waited_ms() == LEASE_MS - EVERY_MS
        flapping.files = flapping.files.crash(Random(seed))
        await flapping.life(idle)
        assert await flapping.waited_ms() == LEASE_MS - EVERY_MS, "another cut, another wait"

    asyncio.run(scenario())


def test_an_owner_goes_on_through_all_restarts() -> None:
    """It renews in each life: nobody else gets the queue, and its epoch stays."""

    async def scenario() -> None:
        flapping = Flapping()
        epochs = await owned(flapping)

        async def renew(rig: Rig, b: Ours) -> None:
            async with ours(rig, "a") as (a,):
                a.epochs = dict(epochs)
                assert (await a.lease(0)).granted[0].epoch == epochs[0]
                flapping.clock.advance(EVERY_MS)
                assert (await b.refused()).holder == "a"

        for _ in range(6):
            await flapping.life(renew)

    asyncio.run(scenario())


def test_a_renewal_that_cannot_be_written_down_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By request, commit, pull or lock: else the next start would keep to the old deadline."""

    async def scenario() -> None:
        flapping = Flapping()
        epochs = await owned(flapping)

        async def renew(rig: Rig, b: Ours) -> None:
            def full(_: object) -> None:
                raise OSError(28, "No space left on device")

            async with ours(rig, "a") as (a,), rocketmq(rig, "s") as (s,):
                a.epochs = dict(epochs)
                lock = LockBatchBody(s.name, GROUP, (QUEUES[1],))
                flapping.clock.advance(EVERY_MS)
                with monkeypatch.context() as patch:
                    patch.setattr(rig.broker.lease_journal.journal, "append", full)
                    pull = pull_fields(queueId="0", epoch=str(epochs[0]), sysFlag="0")
                    for answer in (
                        await a.ask(11, pull),
                        await s.ask(41, body=lock.encode()),
                    ):
                        assert answer.code != 0
                    with pytest.raises(AssertionError):
                        await a.lease(0)
                    with pytest.raises(AssertionError):
                        await a.commit(3)

        await flapping.life(renew)
        assert await flapping.waited_ms() == LEASE_MS - EVERY_MS

    asyncio.run(scenario())
