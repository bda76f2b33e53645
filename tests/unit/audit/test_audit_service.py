"""The audit log on a loop: nothing waits for it, and nothing stops over it."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from inorder.audit.service import WAITING_BYTES_MAX, Audit
from inorder.clock import SystemClock
from inorder.config import AuditConfig, BrokerConfig
from inorder.disk import OsFile, OsFiles
from inorder.wire.header import Command


def play(
    tmp_path: Path,
    story: Callable[[Audit], Awaitable[None]],
    files: OsFiles | None = None,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Run a story with an audit log, stop it, and return its lines."""

    async def run() -> None:
        config = BrokerConfig(data=str(tmp_path), audit=AuditConfig(mode="on", **settings))
        audit = Audit(config, SystemClock(), files or OsFiles())
        await story(audit)
        await audit.stop()

    asyncio.run(run())
    found = []
    paths = (tmp_path / "audit").glob("*.log")
    for path in sorted(paths, key=lambda one: one.name.replace("audit.log", "audit.0"))[::-1]:
        found += [json.loads(line) for line in path.read_text().splitlines()]
    return found


def refuse(audit: Audit, number: int = 0) -> None:
    """Note a refusal."""
    audit.refused(
        user=None, peer="h:1", code=310, resource="Topic:t", action="Pub", rule="none",
        reason="unknown user", request_id=number,
    )  # fmt: skip


def test_events_are_written_in_order(tmp_path: Path) -> None:
    """Refusals, changes and answers, all of a turn at once, and those of a stop."""

    async def story(audit: Audit) -> None:
        for number in range(500):
            refuse(audit, number)
        await asyncio.sleep(0.01)
        audit.changed(user="root", peer="h:2", code=17, resource="Topic:t", action="Update")
        request = Command.request(215, {"topic": "gone"}, request_id=7)
        audit.answered("root", "h:3", request, 0)
        audit.answered("root", "h:3", request, 16)
        audit.answered("root", "h:3", Command.request(34), 0)

    lines = play(tmp_path, story)
    assert [one["id"] for one in lines[:500]] == list(range(500))
    assert [(one["event"], one["verdict"], one["resource"]) for one in lines[500:]] == [
        ("changed", "done", "Topic:t"),
        ("changed", "done", "Topic:gone"),
        ("changed", "answered 16", "Topic:gone"),
    ]


def test_off_writes_nothing(tmp_path: Path) -> None:
    """No file, no thread, no line."""

    async def run() -> None:
        audit = Audit(BrokerConfig(data=str(tmp_path)), SystemClock(), OsFiles())
        refuse(audit)
        audit.answered(None, "h:1", Command.request(17, {"topic": "t"}), 0)
        await audit.stop()
        assert repr(audit) == "Audit(off)"

    asyncio.run(run())
    assert list(tmp_path.iterdir()) == []


class Broken(OsFiles):
    """A disk that refuses to open files for a while."""

    broken = True

    def open(self, path: Path, *, create: bool = False, size: int | None = None) -> OsFile:
        if self.broken:
            raise OSError(28, "No space left on device")
        return super().open(path, create=create, size=size)


def test_a_full_disk_costs_lines_and_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One error is logged; when there is room again, a line says how many are missing."""
    disk = Broken()

    async def story(audit: Audit) -> None:
        for turn in range(5):
            refuse(audit)
            refuse(audit)
            async with asyncio.timeout(30):
                while audit.lost_total < 2 * turn + 2:  # noqa: ASYNC110 - another thread does it
                    await asyncio.sleep(0.001)
        disk.broken = False
        refuse(audit, 77)

    lines = play(tmp_path, story, disk)
    assert [one["event"] for one in lines] == ["lost", "refused"]
    assert lines[0]["reason"] == "10 lines could not be written"
    assert lines[1]["id"] == 77
    said = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert len(said) == 1
    assert "the server goes on" in said[0].getMessage()


class Stuck(OsFiles):
    """A disk that does not answer until it is let."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def open(self, path: Path, *, create: bool = False, size: int | None = None) -> OsFile:
        self.go.wait(30)
        return super().open(path, create=create, size=size)


def test_a_stuck_disk_holds_nobody(tmp_path: Path) -> None:
    """Memory is bounded, events are taken at once, and what did not fit is counted."""
    disk = Stuck()

    async def story(audit: Audit) -> None:
        refuse(audit)
        await asyncio.sleep(0.01)
        count = 2 * WAITING_BYTES_MAX // 200
        for number in range(count):
            refuse(audit, number)
        assert audit._waiting_bytes <= WAITING_BYTES_MAX
        assert 0 < audit.lost_total < count
        disk.go.set()

    lines = play(tmp_path, story, disk)
    lost = [one for one in lines if one["event"] == "lost"]
    assert len(lost) == 1
    assert len(lines) < 2 * WAITING_BYTES_MAX // 200


@pytest.mark.slow
def test_a_stop_does_not_wait_for_a_stuck_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A second at most; then the lines are given up, and said to be."""
    disk = Stuck()

    async def run() -> None:
        config = BrokerConfig(data=str(tmp_path), audit=AuditConfig(mode="on"))
        audit = Audit(config, SystemClock(), disk)
        refuse(audit)
        async with asyncio.timeout(10):
            await audit.stop()
        refuse(audit)
        disk.go.set()

    asyncio.run(run())
    assert "its last lines are lost" in caplog.text


def test_rotation_under_load(tmp_path: Path) -> None:
    """Small files: the newest lines are there, in order, in no more files than allowed."""

    async def story(audit: Audit) -> None:
        for number in range(300):
            refuse(audit, number)
            while number % 10 == 9 and audit.written_total <= number:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.001)

    lines = play(tmp_path, story, file_bytes_max=5000, files_max=4)
    found = [one["id"] for one in lines]
    assert found == list(range(found[0], 300))
    assert len(list((tmp_path / "audit").iterdir())) <= 4
    assert all(path.stat().st_size <= 6000 for path in (tmp_path / "audit").iterdir())
