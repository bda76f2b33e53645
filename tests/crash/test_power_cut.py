"""The machine goes down under a broker: what was not synced is lost, torn or reordered.

A broker on the disk of `tests.kit.disk`, on a simulated loop: time jumps, threads are turns
of the loop, and everything follows from the seed. Producers and consumers as in the kill tests; at
a random instant power goes, and what `FakeFiles.crash` leaves is opened again, several times over.

Sync flush promises: nothing acknowledged is lost, and no (queue, offset) that a consumer was ever
shown names another message later. Async flush promises less (what was not yet synced may go, also
if a consumer has seen it, and its offsets are given again), but what is left is a prefix of every
queue, in order, with its index, and no committed offset lies beyond it.

`INORDER_ROUNDS=30` plays more seeds, `INORDER_SEED=n` one alone.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from inorder.client.api import BrokerApi
from inorder.model import TopicQueue
from tests.crash.load import GROUP, QUEUES, TOPICS, Book, Sender, consume, make_topics, pull
from tests.crash.machine import STORE, Machine
from tests.kit.disk import Fault
from tests.kit.simcluster import stream
from tests.kit.simloop import SimLoop, run

COUNT = int(os.environ.get("INORDER_ROUNDS", "8"))
SEEDS = [int(os.environ["INORDER_SEED"])] if "INORDER_SEED" in os.environ else range(1, COUNT + 1)
SYNC = replace(STORE, sync_flush=True)


@dataclass
class Outcome:
    """What one seed came to."""

    wrong: list[str]
    acknowledged: int
    shown: int
    lost: bool


async def play(loop: SimLoop, *, sync: bool, judged_as_sync: bool | None = None) -> Outcome:
    """Load and crash, some rounds; judge after each."""
    draw = stream(loop.seed, "plan")
    loop.executor_delay_ms = draw.choice(((0.05, 1.0), (1, 30), (20, 100)))  # how slow a sync is
    machine = Machine(loop, SYNC if sync else STORE)
    book = Book()
    senders = [Sender(f"p{number}", book, loop.seed) for number in range(draw.randint(1, 3))]
    wrong: list[str] = []
    lost = made = False
    for number in range(draw.randint(2, 5)):
        await machine.start()
        made = await load(machine, book, senders, draw, made=made)
        machine.cut_power() if draw.random() < 0.75 else machine.kill()
        for _ in range(draw.choice((0, 0, 1, 2))):  # and again right after recovery
            await machine.start()
            await asyncio.sleep(draw.choice((0, 0, draw.uniform(0, 0.5))))
            machine.cut_power() if draw.random() < 0.5 else machine.kill()
        await machine.start()
        api = BrokerApi(await machine.connect(), timeout_ms=30_000)
        wrong += await judge(
            book, api, draw, sync=sync if judged_as_sync is None else judged_as_sync
        )
        lost = lost or bool(book.forgotten)
        if wrong:
            wrong.insert(0, f"seed {loop.seed} round {number}")
            break
        if draw.random() < 0.5:
            machine.cut_power()  # nothing was written since: nothing may change
        else:
            await machine.stop()
    return Outcome(wrong, book.acknowledged, len(book.shown), lost)


async def load(
    machine: Machine, book: Book, senders: list[Sender], draw: random.Random, *, made: bool
) -> bool:
    """Send and consume for a while; tell whether the topics are made."""
    api = BrokerApi(await machine.connect(), timeout_ms=30_000)
    if not made:
        await make_topics(api)
    # Mostly short; sometimes, and then slowly, beyond the flush of everything after 10 s.
    load_s, pause_ms = draw.choice(
        ((draw.uniform(0, 0.1), 1), (draw.uniform(0, 1), 3), (draw.uniform(0, 2), 5), (13, 60))
    )
    tasks = [
        asyncio.create_task(
            sender.run(
                await machine.connect(), window=draw.choice((1, 4, 32)),
                pause_ms=lambda: draw.expovariate(1 / pause_ms),
            )
        )
        for sender in senders
    ]  # fmt: skip
    places = [(topic, queue) for topic in TOPICS for queue in range(QUEUES)]
    tasks.append(asyncio.create_task(consume(api, places, book, suspend_ms=200)))
    await asyncio.sleep(load_s)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return True


async def judge(book: Book, api: BrokerApi, draw: random.Random, *, sync: bool) -> list[str]:
    if sync:
        return [*await book.judge(api), *await book.judge_keys(api, draw)]
    return await book.judge_after_loss(api)


@pytest.mark.sample
@pytest.mark.parametrize("seed", SEEDS)
def test_power_cut_under_sync_flush_loses_nothing_acknowledged_or_shown(seed: int) -> None:
    """C1 and C1': acknowledged is there; what was shown at an offset is there for ever."""
    outcome = run(lambda loop: play(loop, sync=True), seed)
    assert not outcome.wrong, "\n".join(outcome.wrong[:20])
    assert outcome.acknowledged or outcome.shown, "a seed that proves nothing"


@pytest.mark.sample
@pytest.mark.parametrize("seed", SEEDS)
def test_power_cut_under_async_flush_leaves_a_consistent_prefix(seed: int) -> None:
    """The unsynced end may go; no gap, no swap, nothing from nowhere, no offset beyond the log."""
    outcome = run(lambda loop: play(loop, sync=False), seed)
    assert not outcome.wrong, "\n".join(outcome.wrong[:20])


@pytest.mark.sample
def test_the_judge_of_power_cuts_sees_loss() -> None:
    """The other side of the coin: async flush, held to the promise of sync flush, breaks it."""
    outcomes = [
        run(lambda loop: play(loop, sync=False, judged_as_sync=True), seed) for seed in range(1, 5)
    ]
    assert any("acknowledged" in line for outcome in outcomes for line in outcome.wrong)
    assert any("was shown" in line for outcome in outcomes for line in outcome.wrong)


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_topic_is_there_after_a_power_cut_right_after_it_was_made(seed: int) -> None:
    """The answer to its creation means that it is on disk, its directory too."""

    async def main(loop: SimLoop) -> None:
        machine = Machine(loop, SYNC)
        await machine.start()
        await make_topics(BrokerApi(await machine.connect()))
        machine.cut_power()
        await machine.start()
        assert set(TOPICS) <= set(await BrokerApi(await machine.connect()).topics())

    run(main, seed)


def test_an_offset_that_was_cut_back_stays_cut_back_after_a_kill() -> None:
    """Cut in memory only, the old offset would come back and skip what was stored since."""

    async def main(loop: SimLoop) -> None:
        machine = Machine(loop, STORE)
        queue = TopicQueue(TOPICS[0], "broker-a", 0)
        await machine.start()
        api = BrokerApi(await machine.connect())
        await make_topics(api)
        await api.pull_message(pull(("orders", 0), 0, 0))  # makes the group
        machine.broker.offsets.commit(GROUP, TOPICS[0], 0, 9, 0)  # a power cut has taken them
        await machine.stop()
        await machine.start()
        api = BrokerApi(await machine.connect())
        assert await api.query_offset(GROUP, queue) == 0
        machine.kill()
        await machine.start()
        api = BrokerApi(await machine.connect())
        sender = Sender("p", Book(), 1)
        task = asyncio.create_task(sender.run(await machine.connect(), pause_ms=lambda: 1))
        await asyncio.sleep(0.5)
        assert await api.max_offset(queue) > 9
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        machine.kill()
        await machine.start()
        assert await BrokerApi(await machine.connect()).query_offset(GROUP, queue) == 0

    run(main, 1)


def test_a_log_that_was_lost_before_its_first_sync_is_an_empty_one() -> None:
    """Names of queue files may survive a power cut that took the first log file: that starts."""

    async def main(loop: SimLoop) -> None:
        machine = Machine(loop, replace(STORE, flush_interval_ms=60_000))
        await machine.start()
        await make_topics(BrokerApi(await machine.connect()))
        task = asyncio.create_task(Sender("p", Book(), 1).run(await machine.connect()))
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for folder in ("consumequeue", *(f"consumequeue/{topic}" for topic in TOPICS)):
            machine.disk.fsync_dir(Path("/srv/broker/data") / folder)
        machine.disk = machine.disk.crash(NothingUnsynced())
        machine.kill()
        assert machine.disk.listdir(Path("/srv/broker/data/consumequeue/orders"))
        await machine.start()
        assert machine.broker.store.log.end_position == 0

    run(main, 1)


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_directory_whose_first_start_failed_is_durable_after_the_second(nth: int) -> None:
    """The first one made parents and could not sync them: the second must not rely on them."""

    async def main(loop: SimLoop) -> None:
        machine = Machine(loop, SYNC)
        machine.disk.fail(Fault("sync", nth, errno.EIO))
        with pytest.raises(OSError, match="Input/output"):
            await machine.start()
        machine.disk.heal()
        machine.kill()
        await machine.start()
        await make_topics(BrokerApi(await machine.connect()))
        machine.disk = machine.disk.crash(NothingUnsynced())
        machine.kill()
        await machine.start()
        assert set(TOPICS) <= set(await BrokerApi(await machine.connect()).topics())

    run(main, 1)


class NothingUnsynced(random.Random):
    """Draws a power cut after which only what was synced is left."""

    def choice(self, options: Sequence[Any]) -> Any:  # type: ignore[override]
        return "none" if "none" in options else 0
