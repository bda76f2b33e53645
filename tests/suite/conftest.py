"""One suite, two systems: `cluster` is ours in `make test`, Apache RocketMQ in `make interop`.

Both run once per session; every test has topics and groups of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

import inorder.testing
from bench import rocketmq
from inorder.aio import Admin, PullConsumer, Session
from inorder.errors import TopicNotRouted
from tests.interop.rocketmq import real_cluster
from tests.suite.differences import BY_NAME

QUEUES = 4
T = TypeVar("T")
Story = Callable[[Session, Admin], Awaitable[None]]


class SuiteCluster:
    """A running system, of which a client knows the name server only."""

    def __init__(self, kind: str, namesrv: str) -> None:
        self.kind = kind
        self.namesrv = namesrv
        self._numbers = itertools.count(1)

    def differs(self, name: str) -> bool:
        """Tell whether the right-hand side of a line of the table of differences holds here."""
        assert name in BY_NAME, f"{name} has no line in tests/suite/differences.py"
        return self.kind == "rocketmq"

    def unique(self, word: str) -> str:
        """Return a name that nobody has used."""
        return f"{re.sub('[^a-zA-Z0-9_-]', '-', word)[:60]}-{next(self._numbers)}"

    def play(self, story: Story) -> None:
        """Run a story with a session of its own."""

        async def main() -> None:
            async with Session(self.namesrv) as session:
                await story(session, Admin(session))

        asyncio.run(main())


async def until(ask: Callable[[], Awaitable[T]], *, seconds: float = 15) -> T:
    """Ask another process again and again until its answer is true; return that."""
    async with asyncio.timeout(seconds):
        while not (found := await ask()):  # noqa: ASYNC110 - a server changes it, nobody here
            await asyncio.sleep(0.02)
        return found


async def until_shown(cluster: SuiteCluster, session: Session, topic: str, count: int) -> None:
    """Wait until so many messages can be pulled: on ours they can be when they are stored."""
    queues = await PullConsumer(session, group="suite-readers").queues(topic)

    async def shown() -> int:
        return sum([await (await session.reader_of(queue)).max_offset(queue) for queue in queues])

    if not cluster.differs("shown-at-once"):
        assert await shown() == count

    async def all_shown() -> bool:
        return await shown() >= count

    await until(all_shown)


async def make_topic(admin: Admin, name: str, queues: int = QUEUES) -> None:
    """Make a topic and wait until the name server knows all of it."""
    await admin.topics.create(name, queues=queues)

    async def routed() -> bool:
        try:
            route = await admin.cluster.route(name)
        except TopicNotRouted:
            return False
        return [one.write_queues for one in route.queues] == [queues]

    await until(routed)


@pytest.fixture(
    scope="session",
    params=["inorder", pytest.param("rocketmq", marks=pytest.mark.interop)],
)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SuiteCluster]:
    """Run ours in the process, or Apache RocketMQ beside it."""
    if request.param == "inorder":
        with inorder.testing.broker() as broker:
            yield SuiteCluster("inorder", broker.namesrv)
        return
    if (lacking := rocketmq.missing()) is not None:
        pytest.skip(f"Apache RocketMQ cannot run here: {lacking}")
    rocketmq.fetch()
    with real_cluster(tmp_path_factory.mktemp("rocketmq")) as (host, port):
        running = SuiteCluster("rocketmq", f"{host}:{port}")
        running.play(_wait_registered)
        yield running


async def _wait_registered(_: Session, admin: Admin) -> None:
    """Wait for the broker at the name server; its first registration may fail for 10 s."""
    await until(admin.cluster.brokers, seconds=60)


@pytest.fixture
def topic(cluster: SuiteCluster, request: pytest.FixtureRequest) -> str:
    """Make a topic of four queues for one test."""
    name = cluster.unique(request.node.originalname)
    cluster.play(lambda _, admin: make_topic(admin, name))
    return name
