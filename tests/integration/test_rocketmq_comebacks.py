"""A16: a RocketMQ owner that was frozen, or cut off, comes back and commits its older offsets.

Its commits are captured frames of real clients: flag, language, version and serializer are theirs;
only the names and the offset are ours. They come over a new connection, before any heartbeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from inorder.config import NetConfig
from inorder.net.connection import Connection
from inorder.testing.clock import MovableClock
from inorder.wire.fields import encode_fields
from inorder.wire.header import Command
from inorder.wire.requests.offsets import ResetOffset
from tests.golden.replay import capture
from tests.integration.brokerkit import Rig, running, until
from tests.integration.leasekit import (
    GROUP,
    QUEUES,
    TOPIC,
    RocketMQPeer,
    group,
    ours,
    rocketmq,
    send,
)
from tests.kit.disk import FakeFiles

CONSUMERS = ("java53-order", "java53-bin-order", "java49-order", "java49-bin-order", "go-order",
             "cpp-order")  # fmt: skip
DONE, OLD = 11, 3
"""How far the next owner is, and how far the frozen one was."""


def captured(name: str, code: int, **fields: str) -> Command:
    """Return a captured request with other fields."""
    found = next(
        row.command
        for row in capture.load(name).rows
        if row.is_request and row.command.code == code and "queueId" in row.command.fields
    )
    return Command(
        found.code, 0, found.flag, {**found.fields, **fields}, None, found.body,
        language=found.language, version=found.version, serializer=found.serializer,
    )  # fmt: skip


def commit_frame(name: str, offset: int) -> Command:
    return captured(
        name, 15, consumerGroup=GROUP, topic=TOPIC, queueId="0", commitOffset=str(offset)
    )


def pull_frame(name: str, offset: int) -> Command:
    """A pull that commits: a Java client sets the bit once it has something to say."""
    pull = captured(
        name, 11, consumerGroup=GROUP, topic=TOPIC, queueId="0", commitOffset=str(offset),
        queueOffset=str(offset), suspendTimeoutMillis="1", subscription="*",
    )  # fmt: skip
    pull.fields["sysFlag"] = str(int(pull.fields["sysFlag"]) | 1 | 4)
    return pull


@asynccontextmanager
async def stranger(rig: Rig) -> AsyncIterator[Connection]:
    """Connect; the broker does not know whom."""
    connection = await Connection.open(rig.broker.address, NetConfig(), on_request=lambda *_: None)
    try:
        yield connection
    finally:
        connection.close()


async def say(connection: Connection, command: Command) -> Command | None:
    """Send a request; return its answer if it waits for one. The broker has read it then."""
    if command.is_oneway:
        connection.notify(command)
        await connection.request(Command.request(28), 5000)
        return None
    return await connection.request(command, 5000)


def stored(rig: Rig) -> int:
    return rig.broker.offsets.query(GROUP, TOPIC, 0)


async def overtaken(
    rig: Rig, clock: MovableClock, frozen: RocketMQPeer, heir: RocketMQPeer
) -> None:
    """Let a member freeze for 120 s with queue 0, and another one take over and unlock it."""
    await send(rig, DONE + 1)
    assert await frozen.lock(QUEUES[0])
    await frozen.commit(OLD)
    clock.advance(120_000)
    await rig.broker.lease_expiry.check()
    assert await heir.lock(QUEUES[0]) == {QUEUES[0]}
    await heir.commit(DONE)
    assert stored(rig) == DONE
    await heir.unlock(QUEUES[0])


@pytest.mark.parametrize("name", CONSUMERS)
def test_a_thawed_owner_commits_in_the_gap_before_the_next_lock(name: str) -> None:
    """On a new connection, before its heartbeat, by request and with a pull: nothing goes back."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig, rocketmq(rig, "a", "b") as (a, b):
            await overtaken(rig, clock, a, b)
            async with stranger(rig) as thawed:
                answer = await say(thawed, commit_frame(name, OLD))
                assert stored(rig) == DONE
                if answer is not None:
                    assert answer.code == 0
                    assert f"at {DONE} already" in (answer.remark or "")
                await say(thawed, pull_frame(name, OLD))
                assert stored(rig) == DONE
                await say(thawed, commit_frame(name, DONE + 1))
                assert stored(rig) == DONE + 1, "what it did since counts"

    asyncio.run(scenario())


@pytest.mark.parametrize("name", CONSUMERS)
def test_a_thawed_owner_commits_while_another_one_has_the_queue(name: str) -> None:
    """A lock of a RocketMQ client, or a lease of ours: only the next owner moves the group."""

    async def scenario() -> None:
        clock = MovableClock()
        async with (
            running(clock=clock) as rig,
            rocketmq(rig, "a", "b") as (a, b),
            ours(rig, "c") as (c,),
        ):
            await overtaken(rig, clock, a, b)
            assert await b.lock(QUEUES[0]) == {QUEUES[0]}
            async with stranger(rig) as thawed:
                await say(thawed, commit_frame(name, OLD))
                await say(thawed, pull_frame(name, OLD))
                assert stored(rig) == DONE
                await b.unlock(QUEUES[0])
                await c.take()
                for offset in (OLD, DONE + 1):
                    await say(thawed, commit_frame(name, offset))
                    await say(thawed, pull_frame(name, offset))
                    assert stored(rig) == DONE

    asyncio.run(scenario())


@pytest.mark.parametrize("name", CONSUMERS)
@pytest.mark.parametrize("stop", [True, False])
def test_a_group_that_once_consumed_in_order_is_known_after_a_restart(
    name: str, stop: bool
) -> None:
    """Also when nobody held a queue at the stop, and the journal was folded meanwhile."""

    async def scenario() -> None:
        clock, files = MovableClock(), FakeFiles()
        async with running(files, clock=clock, stop=stop) as rig, rocketmq(rig, "a", "b") as (a, b):
            await overtaken(rig, clock, a, b)
            await rig.broker.lease_journal.fold()
        for _ in range(2):
            files = files if stop else files.kill()
            async with (
                running(files, clock=clock, stop=stop) as rig,
                stranger(rig) as thawed,
            ):
                await say(thawed, commit_frame(name, OLD))
                assert stored(rig) == DONE

    asyncio.run(scenario())


def test_tools_and_resets_take_a_group_back() -> None:
    """What `mqadmin cloneGroupOffset` sends, and a reset; of a queue that is held only that."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig, rocketmq(rig, "a", "b") as (a, b):
            await overtaken(rig, clock, a, b)
            async with stranger(rig) as tool:
                answer = await say(tool, commit_frame("mqadmin", OLD))
                assert answer is not None
                assert (answer.code, answer.remark) == (0, None)
                assert stored(rig) == OLD
                await b.lock(QUEUES[0])
                await b.commit(DONE)
                answer = await say(tool, commit_frame("mqadmin", OLD))
                assert answer is not None
                assert "reset" in (answer.remark or "")
                assert stored(rig) == DONE
                order = ResetOffset(TOPIC, GROUP, 0, queue_id=0, offset=OLD)
                assert (await rig.ask(order.CODE, encode_fields(order))).code == 0
                assert stored(rig) == OLD

    asyncio.run(scenario())


def test_a_tool_that_is_a_member_is_a_consumer() -> None:
    """What it sends over the connection of a heartbeat is a member's progress."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig, rocketmq(rig, "a", "b") as (a, b):
            await overtaken(rig, clock, a, b)
            await say(a.connection, commit_frame("mqadmin", OLD))
            assert stored(rig) == DONE

    asyncio.run(scenario())


@pytest.mark.parametrize("name", [*CONSUMERS, "mqadmin"])
@pytest.mark.parametrize("ordered", [True, False])
def test_nobody_commits_messages_that_are_not_there(name: str, ordered: bool) -> None:
    """The next ones stored would be skipped; whoever waits for an answer is told."""

    async def scenario() -> None:
        async with running() as rig, rocketmq(rig, "a") as (a,), stranger(rig) as client:
            await send(rig, 3)
            if ordered:
                await a.lock(QUEUES[0])
                await a.unlock(QUEUES[0])
            await say(client, commit_frame(name, 3))
            assert stored(rig) == 3
            answer = await say(client, commit_frame(name, 4))
            assert answer is None or answer.code == 29
            await say(client, commit_frame(name, 1 << 62))
            assert stored(rig) == 3
            if name != "mqadmin":
                await say(client, pull_frame(name, 4))
                assert stored(rig) == 3

    asyncio.run(scenario())


def test_a_group_that_never_consumed_in_order_goes_where_it_says() -> None:
    """As in RocketMQ, by request and with a pull, unless the commit itself rules it out."""

    async def scenario() -> None:
        async with running() as rig, rocketmq(rig, "a") as (a,):
            await send(rig, 8)
            await a.commit(7)
            await say(a.connection, commit_frame("java53-order", 5))
            assert stored(rig) == 5
            await say(a.connection, pull_frame("java53-order", 4))
            assert stored(rig) == 4
            only_up = commit_frame("java53-order", 2)
            only_up.fields["onlyUp"] = "true"
            await say(a.connection, only_up)
            assert stored(rig) == 4

    asyncio.run(scenario())


@pytest.mark.parametrize("deleted", ["group", "topic"])
def test_a_deleted_group_or_topic_begins_without_order(deleted: str) -> None:
    """What is made again under the name has not consumed in order yet, also after a kill."""

    async def scenario() -> None:
        clock, files = MovableClock(), FakeFiles()
        async with group("x", files=files, clock=clock, stop=False) as (rig, _, x):
            await x.take()
            await x.commit(5)
            await x.release()
            assert rig.broker.leases.is_ordered(GROUP, TOPIC)
            if deleted == "group":
                await rig.ask(207, {"groupName": GROUP, "cleanOffset": "true"})
            else:
                await rig.ask(215, {"topic": TOPIC})
            await until(lambda: not rig.broker.leases.is_ordered(GROUP, TOPIC))
        async with running(files.kill(), clock=clock) as rig, rocketmq(rig, "a") as (a,):
            assert not rig.broker.leases.is_ordered(GROUP, TOPIC)
            await send(rig, 3)
            await a.commit(2)
            await a.commit(1)
            assert stored(rig) == 1

    asyncio.run(scenario())
