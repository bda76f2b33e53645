"""The testing kit as its users see it: six faults, both ways to wait, time that jumps."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import inorder
import inorder.aio
import inorder.testing
from inorder.config import BrokerConfig, ClientConfig
from inorder.errors import ConnectFailed, NotStarted, TransportError
from inorder.testing import AsyncRunningBroker, MovableClock, RunningBroker
from inorder.wire.codes import RequestCode

QUICK = ClientConfig(request_timeout_ms=300, retry_first_ms=5, retry_max_ms=20)
SEND = RequestCode.SEND_MESSAGE_V2


async def distinct(broker: AsyncRunningBroker) -> list[bytes]:
    """Return what is stored, without second copies and what its sender gave up."""
    found = dict.fromkeys(message.body for message in await broker.messages("orders"))
    return [body for body in found if body != b"perhaps"]


async def drop(broker: AsyncRunningBroker, producer: inorder.aio.Producer) -> None:
    await broker.drop(1, code=SEND)
    start = time.monotonic()
    await producer.send("orders", b"2", key="k")
    assert time.monotonic() - start >= 0.25  # it was asked again after its time was up


async def delay(broker: AsyncRunningBroker, producer: inorder.aio.Producer) -> None:
    await broker.delay(0.05)
    start = time.monotonic()
    await producer.send("orders", b"2", key="k")
    assert time.monotonic() - start >= 0.045  # timers may ring a millisecond early
    await broker.delay(0)


async def close(broker: AsyncRunningBroker, producer: inorder.aio.Producer) -> None:
    await broker.close_connections()
    await producer.send("orders", b"2", key="k")


async def freeze(broker: AsyncRunningBroker, producer: inorder.aio.Producer) -> None:
    await broker.freeze()
    with pytest.raises(TransportError):  # whether it was on its way by then nobody knows
        await producer.send("orders", b"perhaps", key="k", timeout=0.1)
    waiting = asyncio.ensure_future(producer.send("orders", b"2", key="k"))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    await broker.thaw()
    await waiting


async def restart(broker: AsyncRunningBroker, producer: inorder.aio.Producer) -> None:
    address = broker.address
    await broker.restart()
    assert broker.address == address
    await producer.send("orders", b"2", key="k")


async def kill(broker: AsyncRunningBroker, producer: inorder.aio.Producer) -> None:
    await broker.kill()
    assert "killed" in repr(broker)
    with pytest.raises(NotStarted, match="killed already"):
        await broker.kill()
    with pytest.raises(ConnectFailed):
        await producer.send("orders", b"refused", key="k", timeout=0.5)
    await broker.restart()
    await producer.send("orders", b"2", key="k")


@pytest.mark.slow
@pytest.mark.parametrize("fault", [drop, delay, close, freeze, restart, kill])
def test_six_faults_for_asyncio(fault) -> None:
    """Each does what it says, on the loop of the test, and is over when it is."""

    async def story() -> None:
        async with inorder.testing.broker(client=QUICK) as broker:
            async with broker.producer() as producer:
                await producer.send("orders", b"1", key="k")
                await fault(broker, producer)
                await producer.send("orders", b"3", key="k")
            assert await distinct(broker) == [b"1", b"2", b"3"]

    asyncio.run(story())


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", ["drop", "delay", "close_connections", "freeze", "restart", "kill", "lose_answers"]
)
def test_the_same_faults_for_code_that_blocks(fault: str) -> None:
    """Acknowledged before and after, in order."""
    with inorder.testing.broker(client=QUICK) as broker, broker.producer() as producer:
        producer.send("orders", b"1", key="k")
        getattr(broker, fault)(*([0.05] if fault == "delay" else []))
        future = producer.send_nowait("orders", b"2", key="k")
        if fault == "freeze":
            broker.thaw()
        if fault == "kill":
            broker.restart()
        future.result(10)
        producer.send("orders", b"3", key="k")
        stored = [message.body for message in broker.messages("orders")]
        assert list(dict.fromkeys(stored)) == [b"1", b"2", b"3"]


def test_faults_of_a_stopped_broker_say_so() -> None:
    """Nothing to act on, before the start and after the end."""
    stopped = RunningBroker()
    with pytest.raises(NotStarted, match="start it first"):
        stopped.freeze()
    with inorder.testing.broker() as broker:
        assert broker.connections == 0
    with pytest.raises(NotStarted, match="start it first"):
        broker.restart()
    broker.stop()


@pytest.mark.slow
def test_pytest_loads_the_broker_before_the_first_test_that_wants_one(tmp_path: Path) -> None:
    """The fixture itself only starts servers; a run without it loads none of them."""
    head = "import sys\n\nimport pytest\n\n\n"
    loaded = "'inorder.broker.broker' in sys.modules"
    (tmp_path / "test_with.py").write_text(
        f"{head}@pytest.fixture(autouse=True)\ndef before_all():\n    assert {loaded}\n\n\n"
        "def test_it(before_all, inorder_broker):\n    inorder_broker.create_topic('t')\n"
    )
    (tmp_path / "test_without.py").write_text(f"{head}def test_it():\n    assert not {loaded}\n")
    for name in ("test_with.py", "test_without.py"):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "inorder.testing.plugin",
             "-p", "no:cacheprovider", str(tmp_path / name)],
            cwd=tmp_path, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_nothing_is_left(tmp_path: Path) -> None:
    """No thread; a folder of one's own stays, and what was stored with it."""
    before = set(threading.enumerate())
    with inorder.testing.broker(data=tmp_path) as broker, broker.producer() as producer:
        producer.send("orders", b"kept", key="k")
    assert set(threading.enumerate()) <= before
    with inorder.testing.broker(data=tmp_path) as broker:
        assert [message.body for message in broker.messages("orders")] == [b"kept"]


@pytest.mark.slow
def test_time_jumps() -> None:
    """Messages are stamped with the broker's time; what expires does so when time has come."""
    clock = MovableClock()
    config = BrokerConfig(register_interval_ms=50)
    with inorder.testing.broker(clock=clock, config=config) as broker:
        with broker.producer() as producer:
            producer.send("orders", b"now", key="k")
            clock.advance(3_600_000)
            producer.send("orders", b"in an hour", key="k")
        first, second = broker.messages("orders")
        assert 3_590_000 < second.stored_at_ms - first.stored_at_ms < 3_610_000


@pytest.mark.slow
def test_an_async_broker_starts_in_under_100_ms() -> None:
    """Of CPU, the best of three, for the machine may be busy."""

    async def story() -> list[float]:
        durations = []
        for _ in range(3):
            start = time.process_time()
            async with inorder.testing.broker():
                durations.append(time.process_time() - start)
        return durations

    assert min(asyncio.run(story())) < 0.1
