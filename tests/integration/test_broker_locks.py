"""Locks, notices and commits of RocketMQ consumers on a running broker."""

from __future__ import annotations

import asyncio

import pytest

from inorder.broker.offsets import handlers
from inorder.model import GroupQueue
from inorder.testing.clock import MovableClock
from inorder.wire.codes import LanguageCode
from inorder.wire.frame import FrameDecoder, encode_frame
from inorder.wire.header import Command
from inorder.wire.requests.leases import LockBatchBody
from tests.integration.brokerkit import pull_fields, running, send_fields, until
from tests.integration.leasekit import GROUP, LEASE_MS, QUEUES, ours, rocketmq, send


def test_a_group_is_told_once_a_turn_whatever_happened() -> None:
    """Unlock, unlock and unregister in one read are one notice for each member."""

    async def scenario() -> None:
        async with running() as rig, rocketmq(rig, "a", "b") as (a, b):
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


def test_a_go_clients_commits_get_their_replies_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for them; one in its socket when it closes would cost the next commits."""
    monkeypatch.setattr(handlers, "GO_REPLY_MS", 60_000)

    async def scenario() -> None:
        async with running() as rig, rocketmq(rig, "go", language=LanguageCode.GO) as (go,):
            await send(rig, 4)
            commits = [asyncio.create_task(go.commit(offset)) for offset in (2, 3)]
            await asyncio.sleep(0)
            assert (await go.ask(28)).code == 0, "came after them, and is answered before"
            assert [commit.done() for commit in commits] == [False] * 2
            assert rig.broker.offsets.query("CG", "Orders", 0) == 3
            for commit in commits:
                commit.cancel()
            monkeypatch.setattr(handlers, "GO_REPLY_MS", 1)
            assert (await go.commit(4)).code == 0

    asyncio.run(scenario())


def test_of_a_gone_peers_requests_commits_count_and_sends_do_not() -> None:
    """A send may have come again over the next connection, and would come behind newer ones."""

    async def scenario() -> None:
        async with running() as rig, rocketmq(rig, "go", language=LanguageCode.GO) as (go,):
            await send(rig, 4)
            known = set(rig.broker.server.connections)
            async with rocketmq(rig, "leaver"):
                (mine,) = set(rig.broker.server.connections) - known
                fields = {"consumerGroup": GROUP, "topic": "Orders", "queueId": "0"}
                frames = FrameDecoder().receive_data(
                    encode_frame(Command.request(310, send_fields(e="0"), b"late"))
                    + encode_frame(Command.request(15, fields | {"commitOffset": "3"}))
                )
                mine.defer(frames)
                mine._transport.abort()
                await until(lambda: mine not in set(rig.broker.server.connections))
            await go.ask(28)
            assert rig.broker.offsets.query("CG", "Orders", 0) == 3
            assert rig.broker.store.end_offset("Orders", 0) == 4

    asyncio.run(scenario())


def test_a_go_clients_renewal_that_leaves_a_queue_out_frees_it_and_tells() -> None:
    """Within the 20 s of its timer; RocketMQ needs 60 s."""

    async def scenario() -> None:
        clock = MovableClock()
        async with (
            running(clock=clock) as rig,
            rocketmq(rig, "go", language=LanguageCode.GO) as (go,),
            rocketmq(rig, "b") as (b,),
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
        async with running(clock=clock) as rig, rocketmq(rig, "a", "b") as (a, b):
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
        async with running(clock=clock) as rig, rocketmq(rig, "a", "b") as (a, b):
            await a.lock(*QUEUES)
            async with rocketmq(rig, "a") as (again,):
                assert rig.broker.members.client_ids("CG") == ["a", "b"]
                clock.advance(20_000)
                assert await again.lock(*QUEUES) == set(QUEUES)
                a.connection.close()
                await until(lambda: len(rig.broker.members.connections("CG")) == 2)
                clock.advance(59_000)
                assert await b.lock(*QUEUES) == set()

    asyncio.run(scenario())


def test_o11_only_the_owner_commits_while_a_queue_is_locked() -> None:
    """By request and with a pull; and never back, neither with the lock nor after it (A16)."""

    async def scenario() -> None:
        async with running() as rig, rocketmq(rig, "a", "b") as (a, b):
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
            assert offsets.query("CG", "Orders", 0) == 6
            await b.commit(7)
            assert offsets.query("CG", "Orders", 0) == 7

    asyncio.run(scenario())


def test_o9_a_commit_that_comes_before_the_unlock_is_what_the_next_owner_reads() -> None:
    """Requests of one connection are served in order, and the notice comes after both."""

    async def scenario() -> None:
        async with running() as rig, rocketmq(rig, "a", "b") as (a, b):
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
        async with running() as rig, rocketmq(rig, "a", "b") as (a, b):
            await send(rig, 9)
            await a.lock(QUEUES[0])
            await a.unlock(QUEUES[0])
            await b.lock(QUEUES[0])
            await b.commit(5)
            await a.commit(2)
            await a.commit(9)
            assert rig.broker.offsets.query("CG", "Orders", 0) == 5

    asyncio.run(scenario())


def test_o6_locks_and_leases_keep_each_other_out() -> None:
    """One table: nobody gets what another one has, whichever kind they are; both hear of more."""

    async def scenario() -> None:
        clock = MovableClock()
        async with (
            running(clock=clock) as rig,
            rocketmq(rig, "stock") as (theirs,),
            ours(rig, "a") as (a,),
        ):
            await send(rig, 1)
            await a.take(0)
            assert await theirs.lock(*QUEUES[:2]) == {QUEUES[1]}
            refusal = await a.refused(1)
            assert refusal.holder == "stock"
            assert 59_000 < refusal.waits_ms <= 60_000
            assert (await a.release()).code == 0
            await until(lambda: bool(theirs.notices))
            a.notices.clear()
            await theirs.unlock(QUEUES[1])
            await until(lambda: bool(a.notices))
            await a.take(1)
            assert await theirs.lock(*QUEUES[:2]) == {QUEUES[0]}

    asyncio.run(scenario())


def test_the_group_is_told_of_what_runs_out() -> None:
    """A lease after its time, a lock after 60 s: nobody has to ask to find it free."""

    async def scenario() -> None:
        clock = MovableClock()
        async with (
            running(clock=clock) as rig,
            rocketmq(rig, "stock") as (theirs,),
            ours(rig, "a", "b") as (a, b),
        ):
            await send(rig, 1)
            await a.take(0)
            await theirs.lock(QUEUES[1])
            for queue, after_ms in ((0, LEASE_MS), (1, 60_000 - LEASE_MS)):
                clock.advance(after_ms - 100)
                await b.lease()
                await rig.broker.lease_expiry.check()
                assert rig.broker.locks.is_locked(GroupQueue.of(GROUP, QUEUES[queue]))
                b.notices.clear()
                clock.advance(100)
                await rig.broker.lease_expiry.check()
                await until(lambda: bool(b.notices))
                assert not rig.broker.locks.is_locked(GroupQueue.of(GROUP, QUEUES[queue]))

    asyncio.run(scenario())


def test_what_a_consumer_is_asked_comes_back_over_the_wire() -> None:
    """307 through the broker to the client and back."""

    async def scenario() -> None:
        async with running() as rig, rocketmq(rig, "a") as (a,):
            asked = asyncio.create_task(rig.ask(307, {"consumerGroup": "CG", "clientId": "a"}))
            await until(lambda: bool(a.notices))
            a.connection.notify(a.notices[0].reply(0, body=b'{"mqTable":{}}'))
            answer = await asked
            assert (answer.code, bytes(answer.body)) == (0, b'{"mqTable":{}}')

    asyncio.run(scenario())
