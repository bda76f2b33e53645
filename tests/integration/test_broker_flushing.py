"""When a message is acknowledged and shown: async and sync flush, a full disk, a failing sync."""

from __future__ import annotations

import asyncio
import errno
import threading
from dataclasses import replace
from random import Random

import pytest

from inorder.wire.codes import RequestCode, ResponseCode
from inorder.wire.record import decode_all
from inorder.wire.requests.nameserver import decode_kv_table
from tests.integration.brokerkit import SMALL, Rig, running, until
from tests.kit.disk import FakeFiles, Fault

SYNC = replace(SMALL, sync_flush=True)


def bodies(answer: object) -> list[bytes]:
    return [record.body for record in decode_all(answer.body)]  # type: ignore[attr-defined]


async def failed_puts(rig: Rig) -> int:
    """Ask the broker how many messages it could not store."""
    answer = await rig.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    return int(decode_kv_table(answer.body)["putMessageFailedTimes"])


async def held_sync(rig: Rig) -> threading.Event:
    """Make the next syncs of the log wait until the returned event is set."""
    gate = threading.Event()
    real = rig.broker.store.log.sync

    def sync() -> int:
        gate.wait(10)
        return real()

    rig.broker.store.sync = sync  # type: ignore[method-assign]
    return gate


@pytest.mark.parametrize("store", [SMALL, SYNC], ids=["async", "sync"])
def test_acknowledged_messages_survive_a_kill(store: object) -> None:
    """What was answered is there after the process died at any later moment."""

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files, store=store, stop=False) as rig:  # type: ignore[arg-type]
            for number in range(50):
                assert (await rig.send(b"m%d" % number)).code == 0
            left = files.kill()
        async with running(left, store=store) as rig:  # type: ignore[arg-type]
            found = bodies(await rig.pull()) + bodies(await rig.pull(queueOffset="32"))
            assert found == [b"m%d" % number for number in range(50)]
            assert (await rig.send(b"next")).fields["queueOffset"] == "50"

    asyncio.run(scenario())


def test_sync_flush_answers_and_shows_only_what_is_on_disk() -> None:
    """Before the sync comes back there is no answer and nothing to pull."""

    async def scenario() -> None:
        async with running(store=SYNC) as rig:
            assert (await rig.send(b"first")).code == 0
            gate = await held_sync(rig)
            pull = asyncio.ensure_future(rig.pull(queueOffset="1", sysFlag="6"))
            send = asyncio.ensure_future(rig.send(b"second"))
            await until(lambda: bool(rig.broker.ticks.unsettled_bytes))
            assert (await rig.pull(queueOffset="1")).code == ResponseCode.PULL_NOT_FOUND
            assert not send.done()
            assert not pull.done()
            gate.set()
            assert (await send).code == 0
            assert bodies(await pull) == [b"second"]

    asyncio.run(scenario())


def test_sync_flush_commits_in_groups() -> None:
    """Sends that arrive while a sync runs share the next one."""

    async def scenario() -> None:
        async with running(store=SYNC) as rig:
            await rig.send(b"warm")
            gate = await held_sync(rig)
            calls: list[int] = []
            gated = rig.broker.store.sync

            def counted() -> int:
                calls.append(1)
                return gated()

            rig.broker.store.sync = counted  # type: ignore[method-assign]
            sends = [asyncio.ensure_future(rig.send(b"m%d" % n)) for n in range(3)]
            await until(lambda: bool(calls))
            sends += [asyncio.ensure_future(rig.send(b"late%d" % n)) for n in range(20)]
            await until(lambda: not (rig.broker.sends.packer.messages < 24))
            gate.set()
            assert {(await send).code for send in sends} == {0}
            assert len(calls) <= 2

    asyncio.run(scenario())


def test_sync_flush_that_takes_too_long_is_answered_10() -> None:
    """Stored, not yet known to be on disk; the fields are those of a success."""

    async def scenario() -> None:
        async with running(store=replace(SYNC, sync_flush_timeout_ms=50)) as rig:
            await rig.send(b"warm")
            gate = await held_sync(rig)
            answer = await rig.send(b"slow")
            assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
            assert answer.fields["queueOffset"] == "1"
            gate.set()
            await until(lambda: not (rig.broker.ticks.unsettled_bytes))
            assert bodies(await rig.pull(queueOffset="1")) == [b"slow"]

    asyncio.run(scenario())


def test_failed_sync_is_final() -> None:
    """No acknowledgement for that write or any later one; reads of what was durable go on."""

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files, store=SYNC, stop=False) as rig:
            assert (await rig.send(b"kept")).code == 0
            files.fail(Fault("sync", 1, errno.EIO))
            doubtful = await rig.send(b"doubtful")
            assert doubtful.code == ResponseCode.SYSTEM_ERROR
            assert "unknown" in (doubtful.remark or "")
            for _ in range(2):  # the disk would say yes now; nobody asks it
                refused = await rig.send(b"refused")
                assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert bodies(await rig.pull()) == [b"kept"]
            assert await failed_puts(rig) == 0, "as in RocketMQ, where the log took the message"

    asyncio.run(scenario())


def test_full_disk_refuses_writes_while_reads_go_on_and_writes_come_back() -> None:
    """RocketMQ's code 14; nothing of a refused write is ever delivered."""

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files, stop=False) as rig:
            assert (await rig.send(b"before")).code == 0
            # Nothing is left to the housekeeping, which would meet the full disk first.
            while rig.broker.store.housekeep(rig.broker.clock.now_ms()):
                pass
            files.fail(Fault("write", 1, errno.ENOSPC, forever=True))
            refused = await rig.send(b"refused")
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "full" in (refused.remark or "")
            assert refused.fields["MSG_REGION"] == "DefaultRegion"
            again = await rig.send(b"refused too")
            assert again.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert bodies(await rig.pull()) == [b"before"]
            assert await failed_puts(rig) == 2
            files.heal()
            rig.broker.housekeeping._check_disk()
            answer = await rig.send(b"after")
            assert (answer.code, answer.fields["queueOffset"]) == (0, "1")
            assert bodies(await rig.pull()) == [b"before", b"after"]
            left = files.kill()
        async with running(left) as rig:
            assert bodies(await rig.pull()) == [b"before", b"after"]

    asyncio.run(scenario())


def test_a_full_disk_that_the_housekeeping_meets_is_named_too() -> None:
    """The index cannot be made: sends are refused, and the refusal says that the disk is full."""

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files, stop=False) as rig:
            for _ in range(50):  # on a busy machine the housekeeping may have run by itself
                assert (await rig.send(b"before")).code == 0
                files.fail(Fault("write", 1, errno.ENOSPC, forever=True))
                rig.broker.store.housekeep(rig.broker.clock.now_ms())
                if not rig.broker.store.writable:
                    break
                files.heal()
            assert not rig.broker.store.writable
            rig.broker.housekeeping._check_disk()
            refused = await rig.send(b"refused")
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "the disk is full" in (refused.remark or "")
            files.heal()
            rig.broker.housekeeping._check_disk()
            assert (await rig.send(b"after")).code == 0

    asyncio.run(scenario())


def test_clean_stop_leaves_a_clean_directory() -> None:
    """No abort file, and the next start scans nothing."""

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files) as rig:
            for number in range(10):
                await rig.send(b"m%d" % number)
            await rig.pull()  # makes the group
            await rig.ask(
                15,
                {"consumerGroup": "CG", "topic": "Orders", "queueId": "1", "commitOffset": "7"},
            )
        assert not [path for path in files.tree() if path.endswith("abort")]
        async with running(files) as rig:
            assert rig.broker.store.recovery.clean
            assert rig.broker.store.recovery.scanned_records == 0
            answer = await rig.ask(14, {"consumerGroup": "CG", "topic": "Orders", "queueId": "1"})
            assert answer.fields["offset"] == "7"

    asyncio.run(scenario())


def test_too_much_waiting_for_the_disk_is_answered_busy() -> None:
    """SYSTEM_BUSY, and nothing is stored for it."""

    async def scenario() -> None:
        async with running(store=replace(SYNC, pending_bytes_max=200_000)) as rig:
            await rig.send(b"warm")
            gate = await held_sync(rig)
            waiting = [asyncio.ensure_future(rig.send(bytes(50_000) + b"x")) for _ in range(5)]
            await until(lambda: rig.broker.ticks.unsettled_bytes > 200_000)
            assert (await rig.send(b"one more")).code == ResponseCode.SYSTEM_BUSY
            gate.set()
            codes = [(await send).code for send in waiting]
            assert codes.count(0) >= 4  # the fifth may come with them, or behind their write
            assert set(codes) <= {0, ResponseCode.SYSTEM_BUSY}
            end = await rig.ask(30, {"topic": "Orders", "queueId": "1"})
            assert end.fields["offset"] == str(1 + codes.count(0))

    asyncio.run(scenario())


def test_a_deleted_topic_is_gone_for_good_when_that_is_answered() -> None:
    """Also when a flush was under way: one runs at a time, so no older one takes it back."""

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files, stop=False) as rig:
            for number in range(5):
                await rig.send(b"old%d" % number)
            rig.broker.store.housekeep(0)
            under_way = asyncio.ensure_future(rig.broker.housekeeping.flush_now())
            await asyncio.sleep(0)
            assert (await rig.ask(215, {"topic": "Orders"})).code == 0
            assert under_way.done()
            cuts = [files.crash(Random(seed)) for seed in range(5)]
        for left in cuts:
            async with running(left) as rig:
                answer = await rig.send(b"new")
                assert answer.fields["queueOffset"] == "0"
                assert bodies(await rig.pull()) == [b"new"]

    asyncio.run(scenario())
