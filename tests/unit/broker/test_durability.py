"""Shared syncs and saves of tables: who waits for them is told, also after a slow or failed one."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inorder.broker.durability import DurableTable, LogSync, Saving, SharedSync
from inorder.errors import StoreError, StoreFailed
from inorder.testing.clock import FakeClock


class File:
    """A file that notes what is saved to it."""

    def __init__(self, name: str) -> None:
        self.path = Path(name)
        self.saved: list[bytes] = []

    def save(self, content: bytes) -> None:
        """Take a text."""
        self.saved.append(content)


class Table:
    """A table of one entry."""

    def prepare(self, count: int) -> bool:
        """Have all texts."""
        return True

    def encode(self) -> bytes:
        """Return the text."""
        return b"text"


class Disk:
    """An offload whose work is done when the test says so, as slowly as it says."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._work: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def run(self, function: Any, done: Any, failed: Any) -> None:
        """Put work aside."""
        self._work.append((function, done))

    def finish(self, took_ms: int) -> None:
        """Do what was put aside."""
        self._clock.advance(took_ms)
        work, self._work = self._work, []
        for function, done in work:
            done(function())


def test_a_delete_does_not_wait_for_an_unchanged_table() -> None:
    """A slow save of another table, all of whose changes are saved, is nothing to wait for.

    The table pauses so that names by the thousand cost little; no save of it follows.
    """

    async def story() -> None:
        clock = FakeClock()
        disk = Disk(clock)
        saving = Saving(clock, None, disk)  # type: ignore[arg-type]
        groups: Any = File("groups")
        topics: Any = File("topics")
        saving.save(groups, Table())
        disk.finish(took_ms=100)
        saving.save(topics, Table())
        waiting = asyncio.ensure_future(saving.saved(always=True))
        await asyncio.sleep(0)
        assert not waiting.done()
        disk.finish(took_ms=1)
        await asyncio.wait_for(waiting, 5)
        assert (groups.saved, topics.saved) == ([b"text"], [b"text"])

    asyncio.run(story())


def test_a_delete_waits_for_a_change_that_came_while_its_table_rests() -> None:
    """It is in the next save, which comes after the pause."""

    async def story() -> None:
        clock = FakeClock()
        disk = Disk(clock)
        saving = Saving(clock, None, disk)  # type: ignore[arg-type]
        groups: Any = File("groups")
        saving.save(groups, Table())
        disk.finish(took_ms=10)
        saving.save(groups, Table())
        unhurried = asyncio.ensure_future(saving.saved())
        strict = asyncio.ensure_future(saving.saved(always=True))
        await asyncio.wait_for(unhurried, 5)
        assert not strict.done()
        while len(groups.saved) < 2:
            await asyncio.sleep(0.01)
            disk.finish(took_ms=1)
        await asyncio.wait_for(strict, 5)

    asyncio.run(story())


class Syncs:
    """Syncs that end when the test says so."""

    def __init__(self) -> None:
        self.begun = 0
        self.reports: list[tuple[Callable[[int], None], Callable[[BaseException], None]]] = []

    def begin(self, done: Callable[[int], None], failed: Callable[[BaseException], None]) -> None:
        """Begin a sync."""
        self.begun += 1
        self.reports.append((done, failed))

    def succeed(self) -> None:
        """End the running sync; its result is its number."""
        self.reports.pop(0)[0](self.begun)

    def fail(self, error: BaseException) -> None:
        """End the running sync with an error."""
        self.reports.pop(0)[1](error)


def test_requests_during_a_sync_share_the_next_one() -> None:
    """The running sync may have begun before their bytes were written."""
    syncs, told = Syncs(), []
    sync = SharedSync(syncs.begin)
    sync.start(lambda result: told.append(("first", result)))
    for name in ("second", "third"):
        sync.start(lambda result, name=name: told.append((name, result)))  # type: ignore[misc]
    assert syncs.begun == 1
    syncs.succeed()
    assert (told, syncs.begun) == ([("first", 1)], 2)
    syncs.succeed()
    assert told[1:] == [("second", 2), ("third", 2)]
    assert syncs.begun == 2, "nobody waits for another one"


def test_a_failed_sync_fails_only_those_it_was_for() -> None:
    """Those who came later get the outcome of their own sync."""

    async def story() -> None:
        syncs = Syncs()
        sync = SharedSync(syncs.begin)
        first = asyncio.ensure_future(sync.synced())
        await asyncio.sleep(0)
        second = asyncio.ensure_future(sync.synced())
        await asyncio.sleep(0)
        syncs.fail(StoreFailed("no"))
        syncs.succeed()
        with pytest.raises(StoreFailed):
            await first
        assert await second == 2

    asyncio.run(story())


def test_one_caller_cannot_keep_the_outcome_from_the_others() -> None:
    """Neither one that was cancelled nor one that fails; and the next sync begins."""

    async def story() -> None:
        syncs = Syncs()
        sync = SharedSync(syncs.begin)
        sync.start()
        gone = asyncio.ensure_future(sync.synced())
        sync.start(lambda _: 1 // 0)  # type: ignore[arg-type, return-value]
        last = asyncio.ensure_future(sync.synced())
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        syncs.succeed()
        syncs.succeed()
        assert await last == 2
        sync.start()
        assert syncs.begun == 3

    asyncio.run(story())


def test_idle_means_that_no_sync_runs() -> None:
    """Neither the one that ran nor the next one; the journal switches files then."""

    async def story() -> None:
        syncs = Syncs()
        sync = SharedSync(syncs.begin)
        await sync.idle()
        sync.start()
        sync.start()
        idle = asyncio.ensure_future(sync.idle())
        await asyncio.sleep(0)
        syncs.succeed()
        await asyncio.sleep(0.01)
        assert (idle.done(), sync.running) == (False, True)
        syncs.fail(StoreFailed("no"))
        await idle
        assert not sync.running

    asyncio.run(story())


def test_after_a_stop_no_sync_begins() -> None:
    """As after a kill."""
    syncs = Syncs()
    sync = SharedSync(syncs.begin)
    sync.start()
    sync.start()
    sync.stop()
    syncs.succeed()
    assert syncs.begun == 1


class Log:
    """A log that may have failed."""

    failed: str | None = None


class Store:
    """A store that syncs as it is told."""

    def __init__(self) -> None:
        self.log = Log()
        self.error: Exception | None = None
        self.fails_meanwhile = False

    def sync(self) -> int:
        """Sync the log."""
        if self.error is not None:
            raise self.error
        if self.fails_meanwhile:
            self.log.failed = "a queue could not be synced"
        return 7


class Direct:
    """An offload that does its work at once."""

    def run(self, function: Any, done: Any, failed: Any, *, log_sync: bool) -> None:
        """Do it."""
        assert log_sync, "syncs of the log run in their own thread"
        try:
            result = function()
        except Exception as error:
            failed(error)
        else:
            done(result)


def test_a_sync_of_a_log_that_failed_meanwhile_counts_for_nothing() -> None:
    """The broker hears of it first, so it takes nothing more when those who wait hear of it."""
    store, heard = Store(), []

    def trouble(error: StoreError) -> None:
        heard.append(("broker", str(error)))

    def failed(error: BaseException) -> None:
        heard.append(("caller", str(error)))

    sync = LogSync(store, Direct(), trouble)  # type: ignore[arg-type]
    sync.start(lambda position: heard.append(("durable", str(position))), failed)
    store.error = OSError("EIO")
    sync.start(failed=failed)
    store.error, store.fails_meanwhile = None, True
    sync.start(failed=failed)
    assert heard == [
        ("durable", "7"),
        ("broker", "EIO"),
        ("caller", "EIO"),
        ("broker", "a queue could not be synced"),
        ("caller", "a queue could not be synced"),
    ]


class Counter(DurableTable):
    """A number in a file; `events` tells what happened, in order."""

    def __init__(self) -> None:
        self.value = 0
        self.events: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.clock = FakeClock()
        self.gate = asyncio.Event()
        self.gate.set()
        super().__init__(
            SimpleNamespace(
                files=None,
                clock=self.clock,
                config=SimpleNamespace(data_path=Path("data")),
                store=SimpleNamespace(log=Log(), sync=lambda: self.note("sync")),
                log_sync=SimpleNamespace(synced=self.synced),
                offload=SimpleNamespace(call=self.call),
            ),  # type: ignore[arg-type]
            "counter.json",
            "the counter was not saved",
        )
        self.file: Any = SimpleNamespace(path=Path("counter.json"), save=self.save)

    @property
    def revision(self) -> int:
        """Return the number."""
        return self.value

    @property
    def settled_position(self) -> int:
        """Return where the log would be."""
        return 10 * self.value

    def encode(self, covered: int) -> Iterator[bytes]:
        """Encode it in two steps."""
        value = self.value
        yield b""
        yield b"%d at %d" % (value, covered)

    def note(self, event: str) -> None:
        """Note an event, or fail."""
        self.events.append(event)
        if event in self.fails:
            raise self.fails[event]

    async def synced(self) -> int:
        """Sync the log."""
        await self.gate.wait()
        self.note("sync")
        return 0

    async def call(self, function: Callable[[], None]) -> None:
        """Call a function in a thread."""
        function()

    def save(self, content: bytes) -> None:
        """Write the file."""
        self.note(content.decode())

    async def end(self) -> None:
        """Wait for the running save."""
        assert self._task is not None
        await self._task


def test_a_table_is_written_after_its_log() -> None:
    """A change that comes meanwhile is in the next save; without changes there is none."""

    async def story() -> None:
        table = Counter()
        table.save_soon()
        assert not table.saving, "nothing has changed"
        table.value = 1
        table.gate.clear()
        table.save_soon()
        await asyncio.sleep(0.01)
        table.value = 2
        table.save_soon()
        table.gate.set()
        await table.end()
        assert table.events == ["sync", "1 at 10"]
        assert table.changed
        table.save_soon()
        await table.end()
        assert table.events[2:] == ["sync", "2 at 20"]
        assert not table.changed

    asyncio.run(story())


@pytest.mark.parametrize("place", ["sync", "1 at 10"])
def test_a_table_that_is_not_saved_is_saved_later(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the log or the file fails, it is said and the next save has the change."""

    async def story() -> None:
        table = Counter()
        table.value = 1
        table.fails[place] = OSError(errno.ENOSPC, "no room")
        table.save_soon()
        await table.end()
        assert table.changed
        assert table.events[-1] == place
        table.fails.clear()
        table.save_soon()
        await table.end()
        assert table.events[-2:] == ["sync", "1 at 10"]
        assert not table.changed

    caplog.set_level(logging.ERROR, "inorder")
    asyncio.run(story())
    assert [one.getMessage() for one in caplog.records] == [
        "the counter was not saved, the old file is kept error=[Errno 28] no room"
    ]


def test_a_table_is_saved_when_it_is_due() -> None:
    """Half a minute after the last save, ten seconds after a failed one."""

    async def story() -> None:
        table = Counter()
        table.value = 1

        async def saves(after_ms: int) -> bool:
            table.clock.advance(after_ms - 1)
            table.save_if_due()
            assert not table.saving
            table.clock.advance(1)
            table.save_if_due()
            await table.end()
            return not table.changed

        table.fails["sync"] = StoreFailed("no")
        assert not await saves(after_ms=30_000)
        table.fails.clear()
        assert await saves(after_ms=10_000)
        table.value = 2
        assert await saves(after_ms=30_000)

    asyncio.run(story())


def test_a_request_waits_until_its_change_is_in_the_file() -> None:
    """A save that began before the change is not enough; no change, no wait."""

    async def story() -> None:
        table = Counter()
        await table.saved()
        assert table.events == []
        table.value = 1
        table.gate.clear()
        first = asyncio.ensure_future(table.saved())
        await asyncio.sleep(0.01)
        table.value = 2
        others = [asyncio.ensure_future(table.saved()) for _ in range(3)]
        await asyncio.sleep(0.01)
        table.gate.set()
        await asyncio.gather(first, *others)
        assert table.events == ["sync", "1 at 10", "sync", "2 at 20"]
        table.fails["sync"] = StoreFailed("no")
        table.value = 3
        with pytest.raises(StoreFailed):
            await table.saved()

    asyncio.run(story())


def test_no_table_is_saved_after_its_log_has_failed() -> None:
    """How much of the log is on disk is not known."""

    async def story() -> None:
        table = Counter()
        table.value = 1
        table._broker.store.log.failed = "a sync failed"
        table.save_soon()
        assert not table.saving

    asyncio.run(story())


def test_a_table_is_saved_at_a_stop() -> None:
    """In the same order, and all at once."""

    async def story() -> None:
        table = Counter()
        table.value = 3
        table.save_here()
        assert (table.events, table.changed) == (["sync", "3 at 30"], False)
        table.fails["sync"] = StoreFailed("no")
        table.value = 4
        with pytest.raises(StoreFailed):
            table.save_here()
        assert (table.events[2:], table.changed) == (["sync"], True)

    asyncio.run(story())
