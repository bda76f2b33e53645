"""Tasks with an owner."""

from __future__ import annotations

import asyncio

import pytest

from inorder.errors import AlreadyClosed, SystemBusy
from inorder.tasks import Tasks


def test_stop_ends_everything_and_starts_nothing_more() -> None:
    """After `stop` no task of the owner runs, and none can be started."""

    async def story() -> None:
        tasks = Tasks("broker")
        forever = tasks.start(asyncio.sleep(3600), name="housekeeping")
        assert tasks.statistics().running == ("broker: housekeeping",)
        await tasks.stop()
        assert forever.cancelled()
        assert len(tasks) == 0
        with pytest.raises(AlreadyClosed, match="does not start late"):
            tasks.start(asyncio.sleep(0), name="late")
        assert repr(tasks) == "Tasks('broker', running=0, stopped)"

    asyncio.run(story())


def test_stop_lets_short_work_finish() -> None:
    """Within the time to drain a task ends by itself."""

    async def story() -> None:
        tasks = Tasks("broker")
        done: list[str] = []

        async def work() -> None:
            await asyncio.sleep(0.001)
            done.append("saved")

        tasks.start(work(), name="save")
        await tasks.stop(drain_ms=1000)
        assert done == ["saved"]

    asyncio.run(story())


def test_a_failure_is_logged_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    """No task fails unseen."""

    async def story() -> None:
        told: list[str] = []
        tasks = Tasks("broker", on_failure=lambda name, error: told.append(f"{name}: {error}"))

        async def fail() -> None:
            raise OSError("no disk")

        tasks.start(fail(), name="flush")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert told == ["broker: flush: no disk"]
        assert tasks.statistics().failed_total == 1
        await tasks.stop()

    asyncio.run(story())
    assert "task=broker: flush failed" in caplog.text


def test_the_number_of_tasks_has_a_limit() -> None:
    """At the limit work is refused instead of piling up."""

    async def story() -> None:
        tasks = Tasks("broker", tasks_max=1)
        tasks.start(asyncio.sleep(3600), name="one")
        with pytest.raises(SystemBusy, match="runs 1 tasks"):
            tasks.start(asyncio.sleep(0), name="two")
        await tasks.stop()

    asyncio.run(story())


def test_a_task_may_stop_its_own_group() -> None:
    """A task that ends the group is not cancelled by itself."""

    async def story() -> None:
        tasks = Tasks("broker")
        other = tasks.start(asyncio.sleep(3600), name="other")
        await tasks.start(tasks.stop(), name="stopper")
        assert other.cancelled()

    asyncio.run(story())
