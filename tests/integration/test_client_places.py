"""The client in all the places where people use it: forks, notebooks, threads, uvloop; no leaks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import inorder
import inorder.aio
import inorder.testing
from inorder.errors import UsageError
from inorder.testing import RunningBroker

uvloop = pytest.importorskip("uvloop")

CHILD_SECONDS = 30


@pytest.fixture
def broker():
    """A broker with a topic that holds one message."""
    with inorder.testing.broker() as running:
        running.create_topic("orders", queues=1)
        with inorder.Producer(running.namesrv) as producer:
            producer.send("orders", b"x", key="k")
        yield running


def use_producer(producer: inorder.Producer) -> object:
    return producer.send("orders", b"y", key="k", timeout=5)


def use_consumer(consumer: inorder.PullConsumer) -> object:
    (queue,) = consumer.queues("orders")
    return [message.body for message in consumer.pull_all(queue)]


def use_admin(admin: inorder.Admin) -> object:
    return admin.topics.describe("orders")


def make_consumer(namesrv: str) -> inorder.PullConsumer:
    return inorder.PullConsumer(namesrv, group="g")


CLIENTS: list[Any] = [
    pytest.param(inorder.Producer, use_producer, id="Producer"),
    pytest.param(make_consumer, use_consumer, id="PullConsumer"),
    pytest.param(inorder.Admin, use_admin, id="Admin"),
]


def in_child(work: Callable[[], str]) -> str:
    """Fork, work, and return what the child says; a child that hangs is ended and told of."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(CHILD_SECONDS)  # a hang ends it, and the pipe
        said = "it failed"
        try:
            said = work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said or "it hung"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # it is what we look at
@pytest.mark.parametrize(("make", "use"), CLIENTS)
def test_fork_then_use(broker: RunningBroker, make: Any, use: Any):
    """What was made before says so, can be closed, and a new one works; the parent goes on."""
    with make(broker.namesrv) as client:
        use(client)

        def child() -> str:
            try:
                use(client)
            except UsageError as error:
                said = str(error)
            client.close()
            with make(broker.namesrv) as own:
                use(own)
            return said

        assert "before the fork; make a new one in this process" in in_child(child)
        use(client)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(("make", "use"), CLIENTS)
def test_fork_before_first_use(broker: RunningBroker, make: Any, use: Any):
    """A client that did nothing yet says the same, and a child may fork in turn."""
    with make(broker.namesrv) as client:

        def grandchild() -> str:
            with make(broker.namesrv) as own:
                use(own)
            return "fine"

        def child() -> str:
            with pytest.raises(UsageError, match="before the fork"):
                use(client)
            with make(broker.namesrv) as own:
                use(own)
                return in_child(grandchild)

        assert in_child(child) == "fine"
        use(client)


@pytest.mark.parametrize(("make", "use"), CLIENTS)
def test_in_a_running_loop_and_in_a_thread(broker: RunningBroker, make: Any, use: Any):
    """A notebook's cell has a loop in its thread already; a worker thread has none."""

    async def cell() -> object:
        with make(broker.namesrv) as client:
            return use(client)

    assert asyncio.run(cell()) is not None
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(asyncio.run, cell()).result(10) is not None
        assert pool.submit(lambda: use_and_close(make(broker.namesrv), use)).result(10) is not None
    assert [one for one in threading.enumerate() if one.name == "inorder"] == []


def use_and_close(client: Any, use: Any) -> object:
    with client:
        return use(client)


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_asyncio_and_uvloop(broker: RunningBroker, factory: Any):
    """The async client runs on either loop."""

    async def story() -> list[bytes]:
        async with (
            inorder.aio.Producer(broker.namesrv) as producer,
            inorder.aio.PullConsumer(broker.namesrv, group="g", consume_from="first") as consumer,
            inorder.aio.Admin(broker.namesrv) as admin,
        ):
            await producer.send("orders", b"y", key="k")
            assert (await admin.topics.describe("orders")).messages == 2
            await consumer.subscribe("orders")
            found: list[bytes] = []
            while len(found) < 2:
                found += [message.body for message in await consumer.poll(5)]
            return found

    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(story()) == [b"x", b"y"]


SCRIPT = """
    import gc, os, sys, threading
    if {hide}:
        sys.modules["uvloop"] = None  # as where it is not installed
    import inorder

    def one():
        with inorder.Producer("{namesrv}") as producer, inorder.Admin("{namesrv}") as admin:
            with inorder.PullConsumer("{namesrv}", group="g") as consumer:
                producer.send("orders", b"x" * 100, key="k")
                consumer.subscribe("orders")
                consumer.poll(0)
                admin.topics.configs("orders")

    def pages():
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024

    for _ in range({block}):
        one()
    sizes = [pages()]
    objects, files = len(gc.get_objects()), len(os.listdir("/proc/self/fd"))
    for _ in range(7):
        for _ in range({block}):
            one()
        sizes.append(pages())
    growth = sorted(after - before for before, after in zip(sizes, sizes[1:]))
    print(growth[2], len(gc.get_objects()) - objects, threading.active_count(),
          len(os.listdir("/proc/self/fd")) - files)
"""


def leftovers(broker: RunningBroker, block: int, *, hide: bool) -> list[int]:
    """Return growth in KiB a block, growth in objects, threads, more descriptors.

    In a process of its own, after a block of cycles to warm up, seven blocks. What leaks grows in
    each of them, so the third smallest growth counts: threads take memory of the system in large
    pieces, from one arena here, and give them back.
    """
    code = textwrap.dedent(SCRIPT).format(namesrv=broker.namesrv, block=block, hide=hide)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {"MALLOC_ARENA_MAX": "1"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return [int(word) for word in done.stdout.split()]


@pytest.mark.slow
@pytest.mark.parametrize("hide", [False, True], ids=["uvloop", "asyncio"])
def test_cycles_grow_nothing(broker: RunningBroker, hide: bool):
    """Memory stays where it is, under 1 KiB a cycle; and no object, thread or descriptor."""
    kib, objects, threads, descriptors = leftovers(broker, 80, hide=hide)
    print(f"grew by {kib} KiB in 80 cycles, and by {objects} objects in 560")
    assert kib < 80
    assert objects < 100
    assert threads == 1
    assert descriptors <= 0
