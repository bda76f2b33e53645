"""Consumers under leases on a real broker in simulated time: hand-overs, kills, freezes, resets."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from inorder.broker.offsets.rules import CommitTable
from inorder.broker.router import HANDLERS
from inorder.client.api import LeaseApi
from inorder.client.consume.consumer import Consumer
from inorder.client.consume.rules.outcomes import Retry
from inorder.config import ClientConfig, ConsumerConfig
from inorder.errors import LeaseLost, UsageError
from inorder.model import Fence, GroupQueue, ReceivedMessage, TopicQueue
from inorder.wire.extensions import ExtensionCode
from inorder.wire.requests.leases import Release
from inorder.wire.requests.offsets import ResetOffset
from tests.integration.consumerkit import (
    GROUP,
    TOPIC,
    Kit,
    begin,
    consumer_of,
    handler_of,
    place,
    play,
    twice,
)
from tests.kit.simcluster import BROKER_HOST

QUEUE = TopicQueue(TOPIC, "broker-a", 0)


def lease(kit: Kit) -> Any:
    """Return the lease on the queue, as the broker has it."""
    return kit.cluster.broker.leases.get(GroupQueue.of(GROUP, QUEUE))


async def idle_after(kit: Kit, count: int, **how: Any) -> tuple[Consumer, list[ReceivedMessage]]:
    """Return a consumer that has handled and committed so many messages, and what it handled."""
    consumer, got = await handler_of(kit, **how)
    await kit.send(count)
    await begin(kit, consumer)
    await kit.until(lambda: len(got) == count)
    await asyncio.sleep(0.25)
    return consumer, got


@pytest.mark.parametrize("order", ["queue", "key"])
def test_p5_a_clean_hand_over_repeats_nothing_and_takes_no_time(order: str):
    """P5, P6: the old owner commits and releases in one request, the next is woken by it."""

    async def story(kit: Kit) -> None:
        first, by_first = await handler_of(kit, order=order)
        second, by_second = await handler_of(kit, order=order)
        await kit.send(200)
        await begin(kit, first)
        await kit.until(lambda: len(by_first) > 50)
        await begin(kit, second)
        node, _ = place(kit, first)
        await node.run(first.close())
        closed = kit.loop.time()
        await kit.until(lambda: bool(by_second))
        assert kit.loop.time() - closed < 0.15
        await kit.until(lambda: len(kit.got) == 200)
        await asyncio.sleep(2)
        assert twice(kit.got) == []
        assert await kit.committed() == 200

    play(story)


@pytest.mark.parametrize("order", ["queue", "key"])
def test_a_kill_repeats_nothing_that_was_committed(order: str):
    """P4, P6: after the grace the other one begins with the offset and the map."""

    async def story(kit: Kit) -> None:
        first, by_first = await handler_of(kit, order=order, seconds=0.5)
        second, by_second = await handler_of(kit, order=order)
        await kit.send(40)
        await begin(kit, first)
        await kit.until(lambda: len(by_first) >= 6)
        node, _ = place(kit, first)
        await node.run(first.commit())
        committed = {message.offset for message in by_first}
        await begin(kit, second)
        kit.loop.kill(node)
        killed = kit.loop.time()
        await kit.until(lambda: bool(by_second))
        assert 0.9 < kit.loop.time() - killed < 1.3
        await kit.until(lambda: {m.offset for m in kit.got} == set(range(40)))
        assert not committed & {message.offset for message in by_second}

    play(story)


def test_an_idle_queue_is_committed_at_once():
    """A kill right after the last message repeats nothing."""

    async def story(kit: Kit) -> None:
        await idle_after(kit, 20, order="key")
        assert await kit.committed() == 20

    play(story)


def test_the_map_of_a_busy_queue_is_committed_every_second():
    """One key is stuck, the others go on: what they did is known to the broker."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)

        @consumer.on(TOPIC, order="key", concurrency=8)
        async def handle(message: ReceivedMessage) -> None:
            if message.key == "k0":
                await asyncio.sleep(1000)
            kit.got.append(message)

        await kit.send(50)
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 40)
        await asyncio.sleep(1.5)
        assert await kit.committed() == 0
        found = kit.cluster.broker.commits.get((GROUP, TOPIC, 0))
        assert found.finished.startswith("0:")
        kit.loop.kill(place(kit, consumer)[0])
        heir, by_heir = await handler_of(kit, order="key")
        await begin(kit, heir)
        await kit.until(lambda: len(by_heir) == 10)
        assert {message.key for message in by_heir} == {"k0"}

    play(story)


def test_a_map_of_keys_is_heeded_by_order_queue_too():
    """A group that goes from keys to queues repeats nothing, also over another kill."""

    async def story(kit: Kit) -> None:
        keyed = await consumer_of(kit)

        @keyed.on(TOPIC, order="key", concurrency=8)
        async def handle(message: ReceivedMessage) -> None:
            if message.offset == 3:
                await asyncio.sleep(1000)
            kit.got.append(message)

        await kit.send(9)  # 3 and 8 are of one key
        await begin(kit, keyed)
        await kit.until(lambda: len(kit.got) == 7)
        await asyncio.sleep(1.2)
        kit.loop.kill(place(kit, keyed)[0])
        queued, by_queued = await handler_of(kit, seconds=3)
        await begin(kit, queued)
        await kit.until(lambda: len(by_queued) == 1)
        await asyncio.sleep(1.2)  # offset 3 is committed, 8 is under way
        kit.loop.kill(place(kit, queued)[0])
        last, by_last = await handler_of(kit)
        await begin(kit, last)
        await kit.until(lambda: bool(by_last))
        await asyncio.sleep(3)
        assert [message.offset for message in by_queued] == [3]
        assert [message.offset for message in by_last] == [8]

    play(story)


def test_p2_a_frozen_owner_loses_its_queue_and_commits_nothing():
    """P2, P6: cut off without a closed connection, it is one lease; what it did is refused."""

    async def story(kit: Kit) -> None:
        first, by_first = await handler_of(kit, seconds=0.3)
        second, by_second = await handler_of(kit, seconds=0.05)
        await kit.send(60)
        await begin(kit, first)
        await kit.until(lambda: len(by_first) == 2)
        await begin(kit, second)
        node, _ = place(kit, first)
        epoch = lease(kit).epoch
        kit.loop.network.partition(node.host, BROKER_HOST)
        cut = kit.loop.time()
        started_late = []
        await kit.until(lambda: bool(by_second))
        assert kit.loop.time() - cut < 5 + 0.5
        # The old one started nothing once its lease was in doubt (A10).
        started_late = [m.offset for m in by_first if m.offset >= by_second[0].offset]
        assert len(by_first) <= 2 + int(1.0 / 0.3) + 1, started_late
        assert lease(kit).epoch > epoch
        kit.loop.network.heal()
        await kit.until(lambda: {m.offset for m in kit.got} == set(range(60)))
        firsts = list(dict.fromkeys(message.offset for message in kit.got))
        assert firsts == sorted(firsts)
        await asyncio.sleep(2)
        assert await kit.committed() == 60

    play(story)


def test_a10_no_handler_starts_when_the_lease_is_unconfirmed():
    """A10: within min(lease, grace) of the last answered request, and it goes on afterwards with
    what is here, for nobody else had the queue."""

    async def story(kit: Kit) -> None:
        consumer, got = await handler_of(kit, seconds=0.05, lease=20, grace=1)
        await kit.send(200)
        await begin(kit, consumer)
        await kit.until(lambda: len(got) == 10)
        node, _ = place(kit, consumer)
        kit.loop.network.partition(node.host, BROKER_HOST)
        await asyncio.sleep(3)
        in_doubt = len(got)
        assert 10 < in_doubt <= 10 + 1.0 / 0.05 + 2
        await asyncio.sleep(5)
        assert len(got) == in_doubt, "it waits for the broker's word"
        pulled = consumer.statistics().pulled
        kit.loop.network.heal()
        await kit.until(lambda: len(got) > in_doubt)
        assert consumer.statistics().pulled == pulled, "it went on with its cache"
        await kit.until(lambda: len(got) == 200)
        assert twice(got) == []

    play(story)


def test_a_lost_connection_is_asked_about_before_the_next_handler():
    """The broker gives the queue away one grace after it; so the epoch is confirmed first."""

    async def story(kit: Kit) -> None:
        consumer, got = await handler_of(kit, order="key", seconds=0.05)
        await kit.send(300)
        await begin(kit, consumer)
        await kit.until(lambda: len(got) > 30)
        node, _ = place(kit, consumer)
        epoch = lease(kit).epoch
        for _ in range(5):
            for connection in kit.loop.network.connections(node.host):
                connection.drop()
            await asyncio.sleep(0.4)
        await kit.until(lambda: len(got) == 300)
        assert lease(kit).epoch == epoch
        assert twice(got) == []

    play(story)


def test_o7_an_async_handler_that_outlives_its_lease_is_cancelled():
    """O7, O8: the next owner may have begun; it is no failed attempt, and is counted."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        ended: list[str] = []

        @consumer.on(TOPIC)
        async def handle(message: ReceivedMessage) -> None:
            assert message.attempt == 1
            try:
                await asyncio.sleep(30 if not ended else 0)
                ended.append("done")
            except asyncio.CancelledError:
                ended.append(f"cancelled at {kit.loop.time() - cut:.1f}")
                raise

        await kit.send(1)
        await begin(kit, consumer)
        await kit.until(lambda: consumer.statistics().running == 1)
        node, _ = place(kit, consumer)
        kit.loop.network.partition(node.host, BROKER_HOST)
        cut = kit.loop.time()
        await kit.until(lambda: bool(ended))
        assert 4.6 < kit.loop.time() - cut < 5.2
        kit.loop.network.heal()
        await kit.until(lambda: len(ended) == 2)
        assert ended[1] == "done"
        statistics = consumer.statistics()
        assert (statistics.outlived, statistics.failed) == (1, 0)

    play(story)


def test_a_message_that_ends_unconfirmed_counts_when_the_epoch_is_confirmed():
    """O11, O12: it is kept as done and committed with the broker's next word; nothing is
    repeated."""

    async def story(kit: Kit) -> None:
        consumer, got = await handler_of(kit, seconds=3, lease=20, grace=1)
        await kit.send(3, key="k")
        await begin(kit, consumer)
        await kit.until(lambda: consumer.statistics().running == 1)
        node, _ = place(kit, consumer)
        kit.loop.network.partition(node.host, BROKER_HOST)
        await kit.until(lambda: len(got) == 1)
        await asyncio.sleep(4)
        assert kit.cluster.broker.offsets.query(GROUP, TOPIC, 0) < 1
        kit.loop.network.heal()
        await kit.until(lambda: len(got) == 3)
        await asyncio.sleep(1)
        assert [message.offset for message in got] == [0, 1, 2]
        assert await kit.committed() == 3

    play(story)


def test_an_operator_takes_a_queue_from_an_owner_that_is_stuck():
    """O8: nothing else does. The next owner begins within the grace and under a higher epoch; an
    async handler of the old one is cancelled when the lease would have ended, and commits
    nothing."""

    async def story(kit: Kit) -> None:
        heir, by_heir = await handler_of(kit)
        stuck, by_stuck = await handler_of(kit, seconds=1000)
        await kit.send(3, key="k")
        await begin(kit, stuck)
        await kit.until(lambda: stuck.statistics().running == 1)
        await begin(kit, heir)
        await asyncio.sleep(30)
        assert not by_heir, "it is the heir's by now, but a release waits for the handler"
        epoch = lease(kit).epoch
        assert await LeaseApi(kit.api).free(GROUP, TOPIC, 0) == place(kit, stuck)[1].client_id
        taken = kit.loop.time()
        await kit.until(lambda: len(by_heir) == 3)
        assert kit.loop.time() - taken < 1.5
        assert by_heir[0].fence.epoch > epoch
        await kit.until(lambda: stuck.statistics().outlived == 1)
        assert 4 < kit.loop.time() - taken < 5.5
        await asyncio.sleep(1)
        assert by_stuck == []
        assert await kit.committed() == 3

    play(story)


def test_o9_o10_commit_and_release_are_one_request():
    """O9, O10: there is no moment at which the queue is free and the commit not there."""

    async def story(kit: Kit) -> None:
        consumer, got = await handler_of(kit, seconds=0.2)
        await kit.send(10)
        await begin(kit, consumer)
        await kit.until(lambda: len(got) == 3)
        node, _ = place(kit, consumer)
        epoch = lease(kit).epoch
        closing = asyncio.ensure_future(node.run(consumer.close()))
        while lease(kit) is not None and not closing.done():
            assert lease(kit).epoch == epoch
            await asyncio.sleep(0.001)
        assert await kit.committed() == len(got)
        await closing

    play(story)


def test_a11_a_reset_while_handling_counts():
    """A11: the commit under way is refused, the queue begins anew at the new offset, without the
    map of before."""

    async def story(kit: Kit) -> None:
        consumer, got = await handler_of(kit, order="key", seconds=0.1)
        await kit.send(60)
        await begin(kit, consumer)
        await kit.until(lambda: len(got) >= 30)
        epoch = lease(kit).epoch
        await kit.api.reset_offset(ResetOffset(TOPIC, GROUP, -1, True, 0, 5))
        del got[:]
        await kit.until(lambda: len({m.offset for m in got if m.offset >= 5}) >= 55)
        assert lease(kit).epoch > epoch
        assert {message.offset for message in got} >= set(range(5, 60))
        await asyncio.sleep(1)
        assert await kit.committed() == 60

    play(story)


def test_a11_a_reset_waits_for_a_handler_that_runs_longer_than_the_lease():
    """A11, P4: the queue stays its owner's while it handles, though it has to be begun anew; then
    it is given back at once, and another member may begin."""

    async def story(kit: Kit) -> None:
        consumer, got = await handler_of(kit, seconds=60)
        await kit.send(3)
        await begin(kit, consumer)
        other, later = await handler_of(kit, seconds=60)
        await begin(kit, other)
        await asyncio.sleep(1)
        await kit.api.reset_offset(ResetOffset(TOPIC, GROUP, -1, True, 0, 0))
        epoch = lease(kit).epoch
        await kit.until(lambda: lease(kit) is None or lease(kit).epoch != epoch)
        assert len(got) + len(later) == 1, "it is over"
        await kit.until(lambda: len(got) + len(later) == 2)
        assert kit.loop.time() < 122, "and the next began at once"

    play(story)


def test_o11_a_late_release_of_a_former_owner_changes_nothing():
    """O11, O25: a stale epoch neither commits nor frees."""

    async def story(kit: Kit) -> None:
        consumer, _ = await idle_after(kit, 20)
        _, session = place(kit, consumer)
        held = lease(kit)
        stale = Release(
            GROUP, session.client_id, held.owner.instance, TOPIC, 0, held.epoch - 1, 3, "", 99
        )
        with pytest.raises(LeaseLost):
            await LeaseApi(kit.api).release(stale)
        assert await kit.committed() == 20
        assert lease(kit).epoch == held.epoch

    play(story)


def test_a_seek_goes_back_under_a_lease():
    """An explicit reset: the only way by which an offset moves back."""

    async def story(kit: Kit) -> None:
        consumer, got = await idle_after(kit, 20)
        node, _ = place(kit, consumer)
        await node.run(consumer.seek(QUEUE, 15))
        await kit.until(lambda: len(got) == 25)
        assert [message.offset for message in got[20:]] == [15, 16, 17, 18, 19]
        await node.run(consumer.seek(QUEUE, "end"))
        await kit.send(3)
        await kit.until(lambda: len(got) == 28)
        await asyncio.sleep(1)
        assert await kit.committed() == 23

    play(story)


def test_messages_carry_their_fence():
    """P7: the sequence grows along the queue, the epoch is the lease's."""

    async def story(kit: Kit) -> None:
        consumer, got = await handler_of(kit, order="key")
        await kit.send(30)
        await begin(kit, consumer)
        await kit.until(lambda: len(got) == 30)
        for message in got:
            assert message.fence.epoch == lease(kit).epoch
            assert message.fence.sequence is not None
            assert message.fence.sequence & (1 << 40) - 1 == message.offset
        plain = await consumer_of(kit)
        seen: list[ReceivedMessage] = []
        plain._group = "others"

        @plain.on(TOPIC, order=None)
        async def look(message: ReceivedMessage) -> None:
            seen.append(message)

        await begin(kit, plain)
        await kit.until(lambda: len(seen) == 30)
        assert {message.fence.sequence for message in seen} == {None}

    play(story)


def test_a_broker_that_is_killed_gives_the_queue_back_to_its_owner():
    """A9: its journal knows the epoch; what was committed stays, and the consumer goes on with
    what it has."""

    async def story(kit: Kit) -> None:
        consumer, got = await handler_of(kit, seconds=0.05)
        await kit.send(100)
        await begin(kit, consumer)
        await kit.until(lambda: len(got) == 20)
        epoch = lease(kit).epoch
        kit.cluster.kill_broker()
        await asyncio.sleep(0.5)
        await kit.cluster.start_broker()
        await kit.until(lambda: len(got) == 100)
        assert lease(kit).epoch == epoch
        assert [message.offset for message in got] == list(range(100))

    play(story)


@pytest.mark.parametrize(("lease_s", "grace_s"), [(0.4, 0.3), (121, 1), (5, 6), (5, 0.05)])
def test_leases_have_bounds(lease_s: float, grace_s: float):
    """What no broker would grant is refused at once."""

    async def story(kit: Kit) -> None:
        with pytest.raises(UsageError):
            await consumer_of(kit, lease=lease_s, grace=grace_s)

    play(story)


def test_a_broker_without_leases_is_told_once_what_does_not_hold(
    caplog: pytest.LogCaptureFixture,
):
    """Apache RocketMQ: its locks, the same order, no fence; said once for all queues."""

    async def story(kit: Kit) -> None:
        consumer, got = await handler_of(kit, order="key")
        await kit.send(20)
        await begin(kit, consumer)
        await kit.until(lambda: len(got) == 20)
        assert {message.fence for message in got} == {Fence(None, None)}
        await asyncio.sleep(6)
        assert await kit.committed() in range(21)

    play(story, queues=4, stock=True)
    said = [one.getMessage() for one in caplog.records if "knows no leases" in one.getMessage()]
    assert len(said) == 1
    assert "Order is kept" in said[0]


def test_a_broker_that_forgets_what_leases_are_ends_them(monkeypatch: pytest.MonkeyPatch):
    """Another kind of broker on the same address and data: RocketMQ's locks from then on."""

    async def story(kit: Kit) -> None:
        _, got = await idle_after(kit, 5)
        for code in (ExtensionCode.LEASE, ExtensionCode.RELEASE, ExtensionCode.COMMIT):
            monkeypatch.delitem(HANDLERS, code)
        kit.cluster.broker.leases.forget(group=GROUP)
        await kit.send(5)
        await kit.until(lambda: len(got) == 10)
        assert [message.offset for message in got] == list(range(10))
        assert got[-1].fence == Fence(None, None)

    play(story)


def test_a_connection_that_says_nothing_is_given_up():
    """The broker's machine lost its power: nobody resets the connection, yet it is not kept."""

    async def story(kit: Kit) -> None:
        _, got = await idle_after(kit, 5)
        await asyncio.sleep(1)
        kit.cluster.cut_power()
        await kit.cluster.start_broker()
        back = kit.loop.time()
        async with asyncio.timeout(100):
            for number in range(5):
                await kit.producer.send(TOPIC, b"%d" % number, key="k", timeout=90)
        await kit.until(lambda: len(got) >= 10)
        assert kit.loop.time() - back < 60

    play(story)


def test_members_ask_again_when_the_lease_ends_not_by_a_timer():
    """P6: a refusal says how long; three rounds for a kill, not one every half a second."""

    async def story(kit: Kit) -> None:
        first, by_first = await handler_of(kit, lease=30, grace=20)
        second, by_second = await handler_of(kit)
        await kit.send(20)
        await begin(kit, first)
        await kit.until(lambda: len(by_first) == 20)
        await begin(kit, second)
        await asyncio.sleep(1)
        rounds = second.statistics().rebalances
        kit.loop.kill(place(kit, first)[0])
        killed = kit.loop.time()
        await kit.send(5)
        await kit.until(lambda: len(by_second) == 5)
        assert 19.5 < kit.loop.time() - killed < 20.3
        assert second.statistics().rebalances - rounds <= 5

    play(story)


@pytest.mark.parametrize("batch", [1, 4])
def test_batches_of_keys_are_handed_over_without_repetition(batch: int):
    """A batch that is half way is finished by its owner; the next one begins behind it."""

    async def story(kit: Kit) -> None:
        consumers = []
        for _ in range(2):
            consumer = await consumer_of(kit)

            @consumer.on(TOPIC, order="key", concurrency=4, batch=batch)
            async def handle(messages: Any) -> None:
                await asyncio.sleep(0.05)
                kit.got.extend(messages if isinstance(messages, list) else [messages])

            consumers.append(consumer)
        await kit.send(200)
        await begin(kit, consumers[0])
        await kit.until(lambda: len(kit.got) > 40)
        await begin(kit, consumers[1])
        node, _ = place(kit, consumers[0])
        await node.run(consumers[0].close())
        await kit.until(lambda: len({m.message_id for m in kit.got}) == 200)
        assert len(kit.got) == 200

    play(story, queues=2)


def test_a_stuck_key_far_behind_is_flow_control_and_no_error():
    """Bounded span: with a tag that matches little the queue waits for its stuck key, then goes
    on."""
    config = ClientConfig(consumer=ConsumerConfig(cached_span_max=10**9))

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit, config=config)
        healed = False

        @consumer.on(TOPIC, order="key", tag="rare", concurrency=8)
        async def handle(message: ReceivedMessage) -> None:
            if not kit.got and not healed:
                raise Retry(after=1)
            kit.got.append(message)

        async def send(numbers: range) -> None:
            for number in numbers:
                tag = "rare" if number % 150 == 0 else "other"
                await kit.producer.send(TOPIC, b"x", key=f"k{number}", tag=tag)

        with patch("inorder.client.consume.pulls.PULL_AHEAD_MAX", 100):
            await send(range(150))
            await begin(kit, consumer)
            await asyncio.sleep(5)
            await send(range(150, 400))
            await asyncio.sleep(5)
            assert consumer.statistics().pulled == 1, "it waits"
            healed = True
            await kit.until(lambda: len(kit.got) == 3)
            await asyncio.sleep(1)
            assert await kit.committed() == 400

    play(story)


def test_a_broker_without_room_for_maps_still_takes_offsets(caplog: pytest.LogCaptureFixture):
    """At the bound: said, and the commit before stands; nothing that was committed comes again."""

    async def story(kit: Kit) -> None:
        stuck, got = await consumer_of(kit), []

        @stuck.on(TOPIC, order="key", concurrency=8)
        async def handle(message: ReceivedMessage) -> None:
            if message.queue.index == 0 and message.key == first:
                await asyncio.sleep(0.01 if released else 2)
            got.append(message)

        released = False
        await kit.send(40)
        first = (await kit.stored(TOPIC, 0))[0].key
        with patch.object(CommitTable, "has_room", lambda self, key, text: not text):
            await begin(kit, stuck)
            await kit.until(lambda: len(got) >= 20)
            await asyncio.sleep(1.5)
            assert await kit.committed(queue=1) == len(await kit.stored(TOPIC, 1))
            assert kit.cluster.broker.offsets.query(GROUP, TOPIC, 0) <= 0
            released = True
            await kit.until(lambda: len(got) == 40)
            await asyncio.sleep(1)
            assert await kit.committed(queue=0) == len(await kit.stored(TOPIC, 0))

    play(story, queues=2)
    assert "maps of finished messages are not taken" in caplog.text
