"""Syncs of the log take turns: the kernel tells only one of them that a write failed."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from inorder.store.commitlog import CommitLog
from inorder.wire.codes import ResponseCode
from tests.integration.brokerkit import SMALL, running, until

SYNC = replace(SMALL, sync_flush=True)


def test_the_flush_of_everything_waits_for_the_sync_of_a_send(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two syncs side by side: one would hear of an error, the other would acknowledge."""
    running_now: list[str] = []
    overlaps: list[list[str]] = []
    began, second = threading.Event(), threading.Event()
    calls = 0
    real = CommitLog.sync

    logs: list[CommitLog] = []

    def sync(log: CommitLog) -> int:
        nonlocal calls
        if log not in logs:  # of a broker that other tests have left running
            return real(log)
        calls += 1
        running_now.append(threading.current_thread().name)
        if len(running_now) > 1:
            overlaps.append(list(running_now))
            second.set()
        began.set()
        second.wait(0.1)  # give another one the time to come in
        try:
            return real(log)
        finally:
            running_now.pop()

    async def scenario() -> None:
        async with running(store=SYNC) as rig:
            assert (await rig.send(b"warm")).code == 0
            calls_before = calls
            logs.append(rig.broker.store.log)
            monkeypatch.setattr(CommitLog, "sync", sync)
            send = asyncio.ensure_future(rig.send(b"message"))
            await until(began.is_set)
            rig.broker.housekeeping._flush_all()
            assert (await send).code == 0
            await until(lambda: calls >= calls_before + 2)

    asyncio.run(scenario())
    assert overlaps == []


def test_a_log_that_failed_elsewhere_during_a_sync_acknowledges_nothing() -> None:
    """The sync says yes, but something else was told no: the outcome is unknown."""

    async def scenario() -> None:
        async with running(store=SYNC, stop=False) as rig:
            assert (await rig.send(b"warm")).code == 0
            synced, gate = threading.Event(), threading.Event()
            real = rig.broker.store.log.sync

            def sync() -> int:
                durable_position = real()
                synced.set()
                gate.wait(10)
                return durable_position

            rig.broker.store.sync = sync  # type: ignore[method-assign]
            send = asyncio.ensure_future(rig.send(b"doubtful"))
            await until(synced.is_set)
            rig.broker.store.log.fail("the directory could not be synced")
            gate.set()
            answer = await send
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert (await rig.send(b"more")).code == ResponseCode.SERVICE_NOT_AVAILABLE

    asyncio.run(scenario())
