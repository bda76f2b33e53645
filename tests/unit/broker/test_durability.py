"""Saves of the tables of names: who waits for them is told, also after a slow one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inorder.broker.durability import Saving
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


def test_a_delete_does_not_wait_for_a_table_that_rests() -> None:
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
