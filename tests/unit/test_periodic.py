"""Work that comes again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from inorder.tasks import periodic


class JumpingClock:
    """A clock that `asyncio.sleep` moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ms = 0.0
        real_sleep = asyncio.sleep

        async def sleep(seconds: float) -> None:
            self.ms += seconds * 1000
            await real_sleep(0)

        monkeypatch.setattr(asyncio, "sleep", sleep)

    def now_ms(self) -> int:
        return round(self.ms)

    def monotonic_ms(self) -> int:
        return round(self.ms)


def run(clock: JumpingClock, action: Callable[[], None], **settings: int) -> None:
    """Run the action periodically until it raises CancelledError."""
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(periodic(action, clock=clock, name="test", **settings))


def test_calls_come_at_multiples_of_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that a call takes does not move the later ones, and missed ones drop out."""
    clock = JumpingClock(monkeypatch)
    times: list[int] = []
    durations = iter([0, 30, 250, 0])

    def action() -> None:
        times.append(clock.monotonic_ms())
        clock.ms += next(durations)
        if len(times) == 4:
            raise asyncio.CancelledError

    run(clock, action, interval_ms=100)
    assert times == [100, 200, 300, 600]


def test_the_first_delay_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """`first_ms=0` starts at once, and goes on from there."""
    clock = JumpingClock(monkeypatch)
    times: list[int] = []

    def action() -> None:
        times.append(clock.monotonic_ms())
        if len(times) == 3:
            raise asyncio.CancelledError

    run(clock, action, interval_ms=100, first_ms=0)
    assert times == [0, 100, 200]


def test_an_error_is_logged_and_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One failure must not stop what has to happen again; awaitable actions are awaited."""
    clock = JumpingClock(monkeypatch)
    calls: list[int] = []

    async def action() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("disk on fire")
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(periodic(action, interval_ms=5, clock=clock, name="saving"))
    assert len(calls) == 2
    assert "periodic=saving failed" in caplog.text


def test_an_interval_of_nothing_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would keep the loop busy for ever."""
    clock = JumpingClock(monkeypatch)
    with pytest.raises(ValueError, match="interval_ms=0"):
        asyncio.run(periodic(lambda: None, interval_ms=0, clock=clock, name="busy"))
