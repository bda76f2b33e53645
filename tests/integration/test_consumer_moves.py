"""Queues without order that move while their handlers run, on a real broker in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from inorder.client.consume.consumer import Consumer
from inorder.model import ReceivedMessage, TopicQueue
from tests.integration.consumerkit import (
    TOPIC,
    Kit,
    begin,
    consumer_of,
    leases_and_locks,
    place,
    play,
)

pytestmark = pytest.mark.slow


class Given:
    """An allocation that the test decides: everything, or nothing."""

    def __init__(self, *, mine: bool) -> None:
        self.mine = mine
        self.name = "GIVEN"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[TopicQueue], ids: Sequence[str]
    ) -> list[TopicQueue]:
        return list(queues) if self.mine else []


class Mover:
    """A consumer without order whose handler of some offsets waits until it is let go."""

    def __init__(self, kit: Kit, consumer: Consumer, share: Given, slow: frozenset[int]) -> None:
        self.kit, self.consumer, self.share = kit, consumer, share
        self.let_go = asyncio.Event()
        self.let_first_go = asyncio.Event()
        self.began: list[int] = []
        self.ended: list[int] = []

        @consumer.on(TOPIC, order=None, concurrency=8)
        async def handle(message: ReceivedMessage) -> None:
            self.began.append(message.offset)
            if message.offset in slow:
                first = self.began.count(message.offset) == 1
                await (self.let_first_go if first else self.let_go).wait()
            self.ended.append(message.offset)

    async def give(self, *, mine: bool) -> None:
        """Let the next round, now, allocate everything or nothing."""
        self.share.mine = mine
        self.consumer._running().member.changed.set()
        await self.kit.until(lambda: bool(self.mine()) == mine)

    def mine(self) -> list[TopicQueue]:
        return [queue for queue in self.consumer.assignment() if queue.topic == TOPIC]


async def mover(kit: Kit, *, mine: bool, slow: frozenset[int] = frozenset()) -> Mover:
    share = Given(mine=mine)
    consumer = await consumer_of(kit, allocation=share)
    made = Mover(kit, consumer, share, slow)
    await begin(kit, consumer)
    return made


@leases_and_locks
def test_what_ends_after_the_queue_moved_does_not_take_the_group_back(stock: bool):
    """A handles 0 slowly, the queue moves, B commits 50, A ends: the group stays at 50."""

    async def story(kit: Kit) -> None:
        await kit.send(20, key="k")
        slow = await mover(kit, mine=True, slow=frozenset((10,)))
        heir = await mover(kit, mine=False)
        await kit.until(lambda: len(slow.ended) == 19)
        await slow.give(mine=False)
        await heir.give(mine=True)
        await kit.send(30, key="k")
        await kit.until(lambda: set(heir.ended) >= set(range(10, 50)))
        await heir.consumer.commit()
        assert await kit.committed() == 50
        slow.let_first_go.set()
        await kit.until(lambda: len(slow.ended) == 20)
        await asyncio.sleep(30)
        assert await kit.committed() == 50
        await place(kit, slow.consumer)[0].run(slow.consumer.close())
        assert await kit.committed() == 50

    play(story, stock=stock)


@leases_and_locks
def test_a_close_commits_what_its_handlers_finish(stock: bool):
    """The queue is still ours then: what ends while the consumer closes is done."""

    async def story(kit: Kit) -> None:
        await kit.send(20, key="k")
        one = await mover(kit, mine=True, slow=frozenset((10,)))
        await kit.until(lambda: len(one.ended) == 19)
        closing = asyncio.create_task(place(kit, one.consumer)[0].run(one.consumer.close()))
        await asyncio.sleep(2)
        assert not closing.done()
        one.let_first_go.set()
        await closing
        assert await kit.committed() == 20

    play(story, stock=stock)


@leases_and_locks
def test_a_member_that_lost_its_queue_unawares_does_not_take_the_group_back(stock: bool):
    """Cut off while another member goes on, it commits what it knows when it comes back."""

    async def story(kit: Kit) -> None:
        await kit.send(20, key="k")
        cut = await mover(kit, mine=True, slow=frozenset((10,)))
        await kit.until(lambda: len(cut.ended) == 19)
        await cut.consumer.commit()
        assert await kit.committed() == 10
        heir = await mover(kit, mine=True)  # both have it: no lock keeps them apart
        await kit.until(lambda: set(heir.ended) >= set(range(10, 20)))
        await kit.send(30, key="k")
        await kit.until(lambda: set(heir.ended) >= set(range(10, 50)))
        await heir.consumer.commit()
        assert await kit.committed() == 50
        (queue,) = cut.mine()
        progress = cut.consumer._running().member.assigned_queues[queue].progress
        progress.done_below = 30  # what it would say, with the 20 it has done
        await cut.consumer.commit()
        assert await kit.committed() == 50
        progress.done_below = 31  # and with its pulls
        await kit.send(1, key="k")
        await asyncio.sleep(3)
        assert await kit.committed() >= 50

    play(story, stock=stock)


@leases_and_locks
def test_a_queue_that_comes_back_is_pulled_at_once(stock: bool):
    """As in RocketMQ, beside the handler that still runs; a close waits for that one, too."""

    async def story(kit: Kit) -> None:
        await kit.send(20, key="k")
        one = await mover(kit, mine=True, slow=frozenset((10,)))
        await kit.until(lambda: len(one.ended) == 19)
        await one.give(mine=False)
        await one.give(mine=True)
        await kit.until(lambda: one.began.count(10) == 2, seconds=5)
        assert one.consumer.statistics().running == 2
        assert await kit.committed() == 10
        closing = asyncio.create_task(place(kit, one.consumer)[0].run(one.consumer.close()))
        await asyncio.sleep(2)
        one.let_go.set()
        await asyncio.sleep(2)
        assert not closing.done()
        one.let_first_go.set()
        await closing
        assert one.ended.count(10) == 2
        assert await kit.committed() == 20

    play(story, stock=stock)


@leases_and_locks
def test_what_an_old_handler_has_done_does_not_count_for_the_new_one(stock: bool):
    """The queue came back: its offset waits for the handler that has the message now."""

    async def story(kit: Kit) -> None:
        await kit.send(20, key="k")
        one = await mover(kit, mine=True, slow=frozenset((10,)))
        await kit.until(lambda: len(one.ended) == 19)
        await one.give(mine=False)
        await one.give(mine=True)
        await kit.until(lambda: one.began.count(10) == 2, seconds=5)
        one.let_first_go.set()
        await kit.until(lambda: one.ended.count(10) == 1)
        await kit.until(lambda: one.ended.count(19) == 2)
        await one.consumer.commit()
        assert await kit.committed() == 10
        one.let_go.set()
        await kit.until(lambda: one.ended.count(10) == 2)
        await one.consumer.commit()
        assert await kit.committed() == 20

    play(story, stock=stock)
