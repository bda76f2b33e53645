"""Consumers and a broker that are killed, with producers running: is all handled, in order?

Processes of one group consume queue by queue, others produce; at random a consumer or the broker
gets SIGKILL (or a consumer is stopped as one should), and is started again, the consumer under
another name. Meanwhile the committed offsets are looked at. In the end the log is read without our
code and the order checker judges: every acknowledged message was handled; no offset passed one that
was not; first deliveries of a queue came in order. What was handled again is counted.

    python -m tests.crash.consuming --minutes 10 --seed 7
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from inorder.checker import Committed, Event, Kind, Report, Rules, check
from inorder.client.session import Session
from inorder.errors import InorderError
from inorder.model import TopicConfig, TopicQueue
from tests.crash.consumers import Orders, start_words
from tests.crash.crew import (
    GROUP,
    Crew,
    Figures,
    Member,
    Torment,
    command,
    start_name_server,
    start_producers,
)
from tests.crash.frontdoor import BROKER
from tests.crash.producers import TOPIC
from tests.crash.producing import QUEUES, OurBroker, Worker, stop_all, stored
from tests.crash.verify import Contents
from tests.kit.simcluster import stream

MEMBERS = 3
LOOK_S = 0.2
DRAIN_S = 150
BEGUN = 100  # messages that are handled before anybody is killed
# What is counted and not judged: nothing. Leases and the journals of the broker leave no room for
# overlaps of handlers that take milliseconds, nor for commits that go back.
COUNTED: frozenset[Kind] = frozenset()


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, how often, on what."""

    seconds: float = 600.0
    seed: int = 1
    members: int = MEMBERS
    pause_s: tuple[float, float] = (1.0, 10.0)
    kill_consumers: bool = True
    rate: float = 60.0
    producers: int = 4
    forgetful: bool = False
    """A bug planted in the consumers, to see it found."""


def start_member(folder: Path, namesrv: str, name: str, plan: Plan) -> Member:
    """Start a consumer process."""
    events = folder / f"handled-{name}.jsonl"
    orders = Orders(namesrv, name, GROUP, TOPIC, plan.seed, str(events), forgetful=plan.forgetful)
    return Member(folder, name, start_words(orders), events)


class Watch:
    """Looks at the committed offsets again and again."""

    def __init__(self, namesrv: str) -> None:
        self.seen: list[Event] = []
        self._session = Session(namesrv)
        self._queues = [TopicQueue(TOPIC, BROKER, index) for index in range(QUEUES)]
        self._last: dict[TopicQueue, int] = {}

    async def run(self) -> None:
        """Look until cancelled; while the broker is away there is nothing to see."""
        async with self._session:
            while True:
                try:
                    await self._look()
                except InorderError:
                    pass
                await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        for queue in self._queues:
            api = await self._session.reader_of(queue)
            offset = await api.query_offset(GROUP, queue)
            at_ns = time.monotonic_ns()
            if self._last.get(queue) != offset:
                self._last[queue] = offset
                name = f"{queue.topic}/{queue.broker}/{queue.index}"
                self.seen.append(Committed("the group", name, offset, at_ns))

    async def until_done(self, count: int, seconds: float) -> None:
        """Wait until the group has committed so many messages: a busy machine begins slowly."""
        deadline = time.monotonic() + seconds
        while sum(offset for offset in self._last.values() if offset > 0) < count:
            assert time.monotonic() < deadline, f"not {count} messages within {seconds} s"
            await asyncio.sleep(LOOK_S)

    async def left(self) -> str:
        """Say what the group has not done yet, if anything."""
        try:
            for queue in self._queues:
                api = await self._session.reader_of(queue)
                end = await api.max_offset(queue)
                if end and (offset := await api.query_offset(GROUP, queue)) < end:
                    return f"{queue} is at {offset} of {end}"
        except InorderError as error:
            return str(error)
        return ""


async def run(plan: Plan, folder: Path, *, show: bool = False) -> tuple[Report, Figures]:
    """Play a plan; return the verdict, and what is counted only."""
    began, figures = time.monotonic(), Figures()
    names, namesrv = await start_name_server(folder)
    broker = OurBroker(folder, "", namesrv)
    crew = Crew(lambda name: start_member(folder, namesrv, name, plan))
    workers: list[Worker] = []
    torment = Torment(plan.seconds, plan.pause_s, plan.kill_consumers)
    try:
        await broker.start()
        await make_topic(namesrv, broker.port)
        workers += start_producers(
            folder, namesrv, producers=plan.producers, seed=plan.seed, rate=plan.rate
        )
        for _ in range(plan.members):
            crew.add()
        watch = Watch(namesrv)
        watching = asyncio.create_task(watch.run())
        if not plan.forgetful:
            await watch.until_done(BEGUN, DRAIN_S)
        await torment.run(stream(plan.seed, "torment"), [broker], crew, figures, show=show)
        told = await stop_all(workers)
        await crew.wait_done(watch.left, DRAIN_S)
        await asyncio.sleep(2 * LOOK_S)
        await crew.stop()
        watching.cancel()
        await asyncio.wait((watching,))
        broker.kill()
        await broker.start()
        broker.kill()
    finally:
        for worker in workers:
            worker.kill()
        crew.kill()
        broker.kill()
        await names.stop()
    contents = broker.read()
    assert not contents.problems, "\n".join(contents.problems)
    figures.seconds = time.monotonic() - began
    figures.counted["offsets_seen"] = len(watch.seen)
    return judge([*told, *crew.handled(), *watch.seen], contents, figures), figures


async def make_topic(namesrv: str, port: int) -> None:
    """Make the topic and wait until the name server knows it."""
    async with Session(namesrv) as session:
        api = await session.broker_at(f"127.0.0.1:{port}")
        await api.create_topic(TopicConfig(TOPIC, QUEUES, QUEUES))
        await session.refresh_route(TOPIC)


def judge(told: Iterable[Event], contents: Contents, figures: Figures) -> Report:
    """Hold what was handled and committed against what is stored."""
    rules = Rules(
        stored_once=False, handled_once=False, complete_handled=True, acknowledged_min=100
    )
    report = check([*told, *stored(contents)], rules=rules)
    for kind in COUNTED & report.by_kind.keys():
        figures.counted[str(kind)] = report.by_kind[kind]
    figures.count(report, "acknowledged", "stored", "handled", "repeated_effects")
    return Report(
        tuple(one for one in report.findings if one.kind not in COUNTED),
        {kind: count for kind, count in report.by_kind.items() if kind not in COUNTED},
        report.counts,
        report.vacuous,
    )


if __name__ == "__main__":
    command(run, Plan, about=__doc__, minutes=10.0, rate=60.0)
