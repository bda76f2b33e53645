"""Locks, notices and commits of stock consumers on a running broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from inorder.config import NetConfig
from inorder.model import Subscription, TopicQueue
from inorder.net.connection import Connection
from inorder.testing.clock import MovableClock
from inorder.wire.bodies import ClientHeartbeat, ConsumerData, LockBatchBody, LockedQueues
from inorder.wire.codes import LanguageCode
from inorder.wire.command import Command
from tests.integration.brokerkit import Rig, pull_fields, running, until

QUEUES = tuple(TopicQueue("Orders", "broker-a", index) for index in range(4))


@dataclass
class Consumer:
    """A stock consumer of group CG."""

    name: str
    connection: Connection
    notices: list[Command]
    language: int = LanguageCode.JAVA

    async def ask(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> Command:
        command = Command.request(code, fields, body, language=self.language)
        return await self.connection.request(command, 5000)

    async def beat(self) -> None:
        data = ConsumerData(
            "CG", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET",
            (Subscription("Orders", "*", version=1),),
        )  # fmt: skip
        beat = ClientHeartbeat(self.name, consumers=(data,))
        assert (await self.ask(34, body=beat.encode())).code == 0

    async def lock(self, *queues: TopicQueue) -> set[TopicQueue]:
        answer = await self.ask(41, body=LockBatchBody(self.name, "CG", queues).encode())
        return set(LockedQueues.decode(answer.body).queues)

    async def unlock(self, *queues: TopicQueue) -> None:
        await self.ask(42, body=LockBatchBody(self.name, "CG", queues).encode())

    async def commit(self, offset: int, queue_id: int = 0) -> Command:
        fields = {"consumerGroup": "CG", "topic": "Orders", "queueId": str(queue_id)}
        return await self.ask(15, fields | {"commitOffset": str(offset)})


@asynccontextmanager
async def consumers(
    rig: Rig, *names: str, language: int = LanguageCode.JAVA
) -> AsyncIterator[list[Consumer]]:
    """Connect consumers, registered and told of each other."""
    made = []
    for name in names:
        notices: list[Command] = []
        connection = await Connection.open(
            rig.broker.address, NetConfig(), on_request=lambda _, c, n=notices: n.append(c)
        )
        made.append(Consumer(name, connection, notices, language))
        await made[-1].beat()
    await rig.ask(28)  # a round trip: what was to be told is told
    await asyncio.sleep(0.01)
    for one in made:
        one.notices.clear()
    try:
        yield made
    finally:
        for one in made:
            one.connection.close()


def test_a_group_is_told_once_a_turn_whatever_happened() -> None:
    """Unlock, unlock and unregister in one read are one notice for each member."""

    async def scenario() -> None:
        async with running() as rig, consumers(rig, "a", "b") as (a, b):
            await rig.send(b"x")
            assert await a.lock(*QUEUES) == set(QUEUES)
            left = {"clientID": "a", "consumerGroup": "CG"}
            await asyncio.gather(a.unlock(QUEUES[0]), a.unlock(QUEUES[1]), a.ask(35, left))
            await until(lambda: bool(b.notices))
            await rig.ask(28)
            assert [notice.code for notice in b.notices] == [40]
            assert b.notices[0].fields == {"consumerGroup": "CG"}
            assert await b.lock(*QUEUES) == set(QUEUES), "also what the client forgot to unlock"

    asyncio.run(scenario())


def test_a_go_clients_renewal_that_leaves_a_queue_out_frees_it_and_tells() -> None:
    """Within the 20 s of its timer; RocketMQ needs 60 s."""

    async def scenario() -> None:
        clock = MovableClock()
        async with (
            running(clock=clock) as rig,
            consumers(rig, "go", language=LanguageCode.GO) as (go,),
            consumers(rig, "b") as (b,),
        ):
            await go.lock(*QUEUES)
            clock.advance(20_000)
            b.notices.clear()
            await go.lock(*QUEUES[:2])
            await until(lambda: bool(b.notices))
            assert await b.lock(*QUEUES) == set(QUEUES[2:])

    asyncio.run(scenario())


def test_locks_of_a_killed_client_are_free_when_its_own_view_has_run_out() -> None:
    """30 s after the last renewal, if it has not come back on another connection."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig, consumers(rig, "a", "b") as (a, b):
            await a.lock(*QUEUES)
            a.connection.close()
            await until(lambda: rig.broker.members.client_ids("CG") == ["b"])
            clock.advance(29_000)
            assert await b.lock(*QUEUES) == set()
            clock.advance(1_000)
            assert await b.lock(*QUEUES) == set(QUEUES)

    asyncio.run(scenario())


def test_o29_a_client_that_reconnects_is_one_member_and_keeps_its_locks() -> None:
    """The close of its old connection, noticed late, takes nothing from it."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig, consumers(rig, "a", "b") as (a, b):
            await a.lock(*QUEUES)
            async with consumers(rig, "a") as (again,):
                assert rig.broker.members.client_ids("CG") == ["a", "b"]
                clock.advance(20_000)
                assert await again.lock(*QUEUES) == set(QUEUES)
                a.connection.close()
                await until(lambda: len(rig.broker.members.connections("CG")) == 2)
                clock.advance(59_000)
                assert await b.lock(*QUEUES) == set()

    asyncio.run(scenario())


def test_o11_only_the_owner_commits_while_a_queue_is_locked() -> None:
    """By request and with a pull; and never back. Without the lock anybody may, as in RocketMQ."""

    async def scenario() -> None:
        async with running() as rig, consumers(rig, "a", "b") as (a, b):
            for number in range(8):
                await rig.send(b"%d" % number, e="0")
            offsets = rig.broker.offsets
            await a.lock(QUEUES[0])
            assert (await a.commit(3)).remark is None
            answer = await b.commit(7)
            assert answer.code == 0
            assert "ignored" in (answer.remark or "")
            await a.commit(2)
            assert offsets.query("CG", "Orders", 0) == 3
            fields = pull_fields(queueId="0", sysFlag="5", commitOffset="6")
            await b.ask(11, fields)
            assert offsets.query("CG", "Orders", 0) == 3
            await a.ask(11, fields)
            assert offsets.query("CG", "Orders", 0) == 6
            await a.unlock(QUEUES[0])
            await b.commit(1)
            assert offsets.query("CG", "Orders", 0) == 1

    asyncio.run(scenario())


def test_o9_a_commit_that_comes_before_the_unlock_is_what_the_next_owner_reads() -> None:
    """Requests of one connection are served in order, and the notice comes after both."""

    async def scenario() -> None:
        async with running() as rig, consumers(rig, "a", "b") as (a, b):
            await rig.send(b"x", e="0")
            await a.lock(QUEUES[0])
            fields = {"consumerGroup": "CG", "topic": "Orders", "queueId": "0"}
            oneway = Command.request(15, fields | {"commitOffset": "1"}, oneway=True)
            a.connection.notify(oneway)
            a.connection.notify(
                Command.request(
                    42, body=LockBatchBody("a", "CG", (QUEUES[0],)).encode(), oneway=True
                )
            )
            await until(lambda: bool(b.notices))
            assert await b.lock(QUEUES[0]) == {QUEUES[0]}
            assert (await b.ask(14, fields)).fields == {"offset": "1"}

    asyncio.run(scenario())


def test_o10_a_commit_that_comes_after_the_unlock_does_not_take_the_next_owner_back() -> None:
    """RocketMQ's client unlocks first when it stops; its late commit is a stranger's."""

    async def scenario() -> None:
        async with running() as rig, consumers(rig, "a", "b") as (a, b):
            await rig.send(b"x", e="0")
            await a.lock(QUEUES[0])
            await a.unlock(QUEUES[0])
            await b.lock(QUEUES[0])
            await b.commit(5)
            await a.commit(2)
            await a.commit(9)
            assert rig.broker.offsets.query("CG", "Orders", 0) == 5

    asyncio.run(scenario())


def test_what_a_consumer_is_asked_comes_back_over_the_wire() -> None:
    """307 through the broker to the client and back."""

    async def scenario() -> None:
        async with running() as rig, consumers(rig, "a") as (a,):
            asked = asyncio.create_task(rig.ask(307, {"consumerGroup": "CG", "clientId": "a"}))
            await until(lambda: bool(a.notices))
            a.connection.notify(a.notices[0].reply(0, body=b'{"mqTable":{}}'))
            answer = await asked
            assert (answer.code, bytes(answer.body)) == (0, b'{"mqTable":{}}')

    asyncio.run(scenario())
