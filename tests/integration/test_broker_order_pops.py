"""POP in order on a running broker: the invisible time is a lease with an epoch on the queue."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from inorder.cli.locks import _state
from inorder.client.admin import QueueLock
from inorder.model import GroupQueue
from inorder.testing.clock import FakeClock
from tests.integration.brokerkit import running, until
from tests.integration.leasekit import QUEUES, ours, rocketmq
from tests.integration.popkit import (
    GROUP,
    INVISIBLE_MS,
    TOPIC,
    Popped,
    ack,
    batch_ack,
    batch_body,
    change,
    move,
    offset_of,
    pop,
    pop_in_order,
    send,
)
from tests.kit.disk import FakeFiles

KEY = GroupQueue(GROUP, TOPIC, 1)
GONE, ILLEGAL = 208, 13


def run(scenario: Callable[[], object]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


def test_one_batch_of_a_queue_at_a_time() -> None:
    """The next comes when the last message is acknowledged, and begins after it."""

    async def scenario() -> None:
        async with running(clock=FakeClock()) as rig:
            await send(rig, 4)
            first = await pop_in_order(rig, maxMsgNums="2", attemptId="a")
            assert (first.bodies, first.revive_queue) == ([b"m0", b"m1"], 999)
            assert first.counts() == {"0 1": 0}
            assert (await pop_in_order(rig, attemptId="b")).code == 210
            assert (await pop(rig)).code == 210, "nobody gets it without order either"
            assert (await ack(rig, first, 1, 1)).code == 0
            assert offset_of(rig) == 0
            assert (await pop_in_order(rig, attemptId="b")).code == 210
            assert (await ack(rig, first, 1, 0)).code == 0
            assert offset_of(rig) == 2
            second = await pop_in_order(rig, attemptId="b")
            assert second.bodies == [b"m2", b"m3"]
            assert second.pop_ms > first.pop_ms
            assert (await ack(rig, first, 1, 0)).code == GONE, "another batch has the queue"
            assert offset_of(rig) == 2

    run(scenario)


def test_a_batch_whose_time_ended_begins_again_at_the_first_message_that_is_not_done() -> None:
    """Counted; acknowledgements of the lost batch are refused and commit nothing (O19)."""

    async def scenario() -> None:
        clock = FakeClock()
        async with running(clock=clock) as rig:
            await send(rig, 4)
            first = await pop_in_order(rig, maxMsgNums="3", attemptId="a")
            await ack(rig, first, 1, 0)
            await ack(rig, first, 1, 2)
            assert offset_of(rig) == 1
            await move(rig, clock, INVISIBLE_MS)
            second = await pop_in_order(rig, attemptId="b")
            assert second.bodies == [b"m1", b"m2", b"m3"]
            assert second.counts() == {"0 qo1%1": 1, "0 qo1%2": 1, "0 1": 0}
            late = await ack(rig, first, 1, 1)
            assert (late.code, "lost" in (late.remark or "")) == (GONE, True)
            assert (await change(rig, first, 1, 1, 5000)).code == GONE
            assert offset_of(rig) == 1
            await move(rig, clock, INVISIBLE_MS)
            third = await pop_in_order(rig, attemptId="c")
            assert third.counts() == {"0 qo1%1": 2, "0 qo1%2": 2, "0 qo1%3": 1, "0 1": 1}

    run(scenario)


def test_an_expired_batch_still_counts_while_nobody_else_got_its_queue() -> None:
    """As an expired owner of a lease resumes."""

    async def scenario() -> None:
        clock = FakeClock()
        async with running(clock=clock) as rig:
            await send(rig, 2)
            first = await pop_in_order(rig, attemptId="a")
            await move(rig, clock, INVISIBLE_MS)
            assert rig.broker.leases.get(KEY) is None
            assert (await ack(rig, first, 1, 0)).code == 0
            assert offset_of(rig) == 1
            answer = await change(rig, first, 1, 1, 5000)
            assert answer.code == 0
            assert rig.broker.leases.get(KEY) is not None
            assert (await pop_in_order(rig, attemptId="b")).code == 210
            assert (await ack(rig, first, 1, 1)).code == 0
            assert offset_of(rig) == 2

    run(scenario)


def test_the_same_attempt_gets_the_same_batch_again() -> None:
    """Its answer may be lost: the same token, the same lease, what is not acknowledged."""

    async def scenario() -> None:
        async with running(clock=FakeClock()) as rig:
            await send(rig, 5)
            first = await pop_in_order(rig, maxMsgNums="3", attemptId="a")
            epoch = rig.broker.leases.get(KEY).epoch  # type: ignore[union-attr]
            again = await pop_in_order(rig, maxMsgNums="32", attemptId="a")
            assert (again.bodies, again.pop_ms) == (first.bodies, first.pop_ms)
            assert rig.broker.leases.get(KEY).epoch == epoch  # type: ignore[union-attr]
            await ack(rig, again, 1, 0)
            again = await pop(rig, order="true", attemptId="a")
            assert again.bodies == [b"m1", b"m2"]

    run(scenario)


@pytest.mark.parametrize("boots", [False, True])
def test_a_batch_and_its_block_survive_a_kill(boots: bool) -> None:
    """What is left of its time is left (O20); after a reboot the time begins anew."""

    async def scenario() -> None:
        files, clock = FakeFiles(), FakeClock()
        async with running(files, clock=clock, stop=False) as rig:
            await send(rig, 3)
            first = await pop_in_order(rig, attemptId="a")
            await ack(rig, first, 1, 0)
            await ack(rig, first, 1, 2)
            clock.advance(INVISIBLE_MS - 100)
        if boots:
            files._boot += 1
        async with running(files, clock=clock) as rig:
            assert offset_of(rig) == 1
            assert (await pop_in_order(rig, attemptId="b")).code == 210
            if boots:
                assert (await ack(rig, first, 1, 1)).code == GONE
                await move(rig, clock, 100)
                assert (await pop_in_order(rig, attemptId="b")).code == 210
                await move(rig, clock, INVISIBLE_MS - 100)
            else:
                again = await pop_in_order(rig, attemptId="a")
                assert (again.bodies, again.pop_ms) == ([b"m1"], first.pop_ms)
                await move(rig, clock, 100)
            second = await pop_in_order(rig, attemptId="b")
            assert second.bodies == [b"m1", b"m2"]
            assert second.counts()["0 qo1%1"] == 1
            assert second.pop_ms > first.pop_ms
            assert (await ack(rig, first, 1, 1)).code == GONE
            assert offset_of(rig) == 1

    run(scenario)


def test_restarts_do_not_lengthen_a_block() -> None:
    """The deadline was written with the pop."""

    async def scenario() -> None:
        files, clock = FakeFiles(), FakeClock()
        async with running(files, clock=clock, stop=False) as rig:
            await send(rig, 1)
            await pop_in_order(rig, attemptId="a")
        for _ in range(3):
            clock.advance(INVISIBLE_MS // 4)
            async with running(files, clock=clock, stop=False) as rig:
                assert (await pop_in_order(rig, attemptId="b")).code == 210
        clock.advance(INVISIBLE_MS // 4)
        async with running(files, clock=clock) as rig:
            await move(rig, clock, 0)
            assert (await pop_in_order(rig, attemptId="b")).bodies == [b"m0"]

    run(scenario)


def test_changed_times_move_the_end_of_the_block() -> None:
    """The queue is free when the last message is visible, earlier or later."""

    async def scenario() -> None:
        clock = FakeClock()
        async with running(clock=clock) as rig:
            await send(rig, 2)
            first = await pop_in_order(rig, attemptId="a")
            answer = await change(rig, first, 1, 0, 3 * INVISIBLE_MS)
            assert answer.fields["popTime"] == str(first.pop_ms)
            assert int(answer.fields["invisibleTime"]) == 3 * INVISIBLE_MS
            await move(rig, clock, 2 * INVISIBLE_MS)
            assert (await pop_in_order(rig, attemptId="b")).code == 210
            assert (await change(rig, first, 1, 0, 0)).code == 0
            await move(rig, clock, 0)
            second = await pop_in_order(rig, attemptId="b")
            assert second.bodies == [b"m0", b"m1"]
            for offset in (0, 1):
                assert (await change(rig, second, 1, offset, 1000)).code == 0
            await move(rig, clock, 1000)
            assert (await pop_in_order(rig, attemptId="c")).bodies == [b"m0", b"m1"]

    run(scenario)


def test_a_waiting_pop_gets_the_queue_when_its_batch_is_done_or_its_time_ends() -> None:
    """In the same turn."""

    async def scenario() -> None:
        clock = FakeClock()
        async with running(clock=clock) as rig:
            await send(rig, 4)
            first = await pop_in_order(rig, maxMsgNums="1", attemptId="a")

            def wait(name: str) -> asyncio.Task[Popped]:
                work = pop_in_order(rig, pollTime="60000", attemptId=name, maxMsgNums="1")
                return asyncio.create_task(work)

            waiting = wait("b")
            await until(lambda: len(rig.broker.pop_polls) == 1)
            await ack(rig, first, 1, 0)
            assert (await waiting).bodies == [b"m1"]
            waiting = wait("c")
            await until(lambda: len(rig.broker.pop_polls) == 1)
            await move(rig, clock, INVISIBLE_MS)
            assert (await waiting).bodies == [b"m1"]

    run(scenario)


def test_any_queue_is_one_that_is_free() -> None:
    """A pop of queue -1 skips queues whose batch is not done; each of its queues is taken."""

    async def scenario() -> None:
        async with running(clock=FakeClock()) as rig:
            for queue in range(4):
                await send(rig, 2, queue=queue, first=10 * queue)
            first = await pop(rig, order="true", maxMsgNums="2", attemptId="a")
            taken = {queue for queue, _ in first.places}
            rest = await pop(rig, order="true", attemptId="b")
            assert {queue for queue, _ in rest.places} == {0, 1, 2, 3} - taken
            body = batch_body(*(batch_ack(rest, queue, 0, 1) for queue in {0, 1, 2, 3} - taken))
            assert (await rig.ask(200151, {}, body)).code == 0
            assert [offset_of(rig, queue) for queue in range(4)] == [
                0 if queue in taken else 2 for queue in range(4)
            ]

    run(scenario)


def test_a_reset_is_for_the_next_pop_and_the_batch_commits_nothing() -> None:
    """It keeps its queue until it is acknowledged or its time ends, also over a kill."""

    async def scenario() -> None:
        files, clock = FakeFiles(), FakeClock()
        async with running(files, clock=clock, stop=False) as rig:
            await send(rig, 4)
            await ack(rig, await pop_in_order(rig, maxMsgNums="1"), 1, 0)
            batch = await pop_in_order(rig, attemptId="a", maxMsgNums="2")
            answer = await rig.ask(222, {
                "topic": TOPIC, "group": GROUP, "queueId": "1", "offset": "0", "timestamp": "-1",
                "isForce": "true",
            })  # fmt: skip
            assert answer.code == 0, answer.remark
            assert (await pop_in_order(rig, attemptId="b")).code == 210
            assert (await ack(rig, batch, 1, 1)).code == 0
            assert offset_of(rig) == 0
        async with running(files, clock=clock) as rig:
            assert (await pop_in_order(rig, attemptId="b")).code == 210
            assert (await ack(rig, batch, 1, 2)).code == 0
            assert offset_of(rig) == 0
            again = await pop_in_order(rig, attemptId="b")
            assert again.bodies == [b"m0", b"m1", b"m2", b"m3"]
            assert again.counts() == {"0 1": 0}
            for offset in range(4):
                await ack(rig, again, 1, offset)
            assert offset_of(rig) == 4

    run(scenario)


def test_a_popped_queue_is_neither_leased_nor_locked() -> None:
    """Nor is a leased or locked queue popped; whoever waits is told when it is free."""

    async def scenario() -> None:
        clock = FakeClock()
        async with running(clock=clock) as rig, ours(rig, "a") as (a,), rocketmq(rig, "s") as (s,):
            await send(rig, 2)
            first = await pop_in_order(rig, attemptId="x")
            assert (await a.refused(1)).holder == "(popped)"
            assert await s.lock(QUEUES[1]) == set()
            await ack(rig, first, 1, 0)
            await ack(rig, first, 1, 1)
            await until(lambda: any(one.code == 40 for one in a.notices))
            await a.take(1)
            await send(rig, 1, first=2)
            assert (await pop_in_order(rig, attemptId="x")).code == 210
            assert (await pop(rig, queueId="1")).code == 210
            assert await a.commit(2, queue=1)
            await a.release(2, queue=1)
            assert await s.lock(QUEUES[1]) == {QUEUES[1]}
            assert (await pop_in_order(rig, attemptId="x")).code == 210
            await s.unlock(QUEUES[1])
            found = await pop(rig, queueId="1")
            assert found.bodies == [b"m2"]
            assert (await a.refused(1)).holder == "(popped)"
            assert await s.lock(QUEUES[1]) == set()
            assert (await pop_in_order(rig, attemptId="x")).code == 210
            a.notices.clear()
            await ack(rig, found, 1, 2)
            await until(lambda: any(one.code == 40 for one in a.notices))
            await a.take(1)

    run(scenario)


def test_a_batch_is_not_acknowledged_under_another_s_lease() -> None:
    """A consumer with a lease got the queue after the time had ended."""

    async def scenario() -> None:
        clock = FakeClock()
        async with running(clock=clock) as rig, ours(rig, "a") as (a,):
            await send(rig, 2)
            first = await pop_in_order(rig, attemptId="x")
            await move(rig, clock, INVISIBLE_MS)
            await a.take(1)
            assert (await ack(rig, first, 1, 0)).code == GONE
            assert (await change(rig, first, 1, 0, 1000)).code == GONE
            assert offset_of(rig) == 0
            assert await a.commit(1, queue=1)

    run(scenario)


def test_a_message_that_was_not_popped_cannot_be_acknowledged() -> None:
    """RocketMQ commits it if it knows no pop; here it is refused."""

    async def scenario() -> None:
        async with running(clock=FakeClock()) as rig:
            await send(rig, 4)
            first = await pop_in_order(rig, maxMsgNums="2", attemptId="a")
            assert (await ack(rig, first, 1, 3)).code == ILLEGAL
            blind = {
                "consumerGroup": "G2", "topic": TOPIC, "queueId": "1", "offset": "2",
                "extraInfo": "0 1 2 999 0 broker-a 1 2",
            }  # fmt: skip
            assert (await rig.ask(200051, blind)).code == GONE
            assert rig.broker.offsets.query("G2", TOPIC, 1) == -1
            assert offset_of(rig) == 0

    run(scenario)


def test_operators_see_and_free_a_popped_queue() -> None:
    """The batch that lost its queue commits nothing."""

    async def scenario() -> None:
        clock = FakeClock()
        async with running(clock=clock) as rig:
            await send(rig, 1)
            first = await pop_in_order(rig, attemptId="a")
            fields = {"group": GROUP, "topic": TOPIC, "queueId": "1"}
            listed = await rig.ask(7123, {"group": GROUP})
            (shown,) = json.loads(bytes(listed.body))["leases"]
            assert (shown["holder"], shown["queue"]) == ("(popped)", 1)
            state = _state(QueueLock(
                GROUP, QUEUES[1], shown["holder"], shown["instance"], 1, 2, 3, 4, 5,
                stock=False, connected=False, waiting=(), recalled=False,
            ))  # fmt: skip
            assert state == "popped"
            info = json.loads(bytes((await rig.ask(28)).body))["table"]
            assert (info["popBatchesInOrder"], info["popMessagesInFlight"]) == ("1", "0")
            freed = await rig.ask(7124, fields)
            assert (freed.code, freed.fields["holder"]) == (0, "(popped)")
            assert (await ack(rig, first, 1, 0)).code == GONE
            await move(rig, clock, INVISIBLE_MS)
            assert (await pop_in_order(rig, attemptId="b")).bodies == [b"m0"]

    run(scenario)
