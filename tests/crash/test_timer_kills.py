"""Messages for a time of day over crashes: none lost, none twice, none early, none recalled.

A broker on the disk and the loop of `inorder.testing`. Senders go on while it is killed twenty
times (or loses power under sync flush), at random instants with timers pending, and at every change
of a file; in the end every message that was acknowledged has been delivered exactly once, at its
time or when the broker was back, unless its recall was acknowledged. Messages of unknown outcome
were delivered once or never.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from inorder.client.api import BrokerApi
from inorder.errors import BrokerError, InorderError
from inorder.model import TopicConfig
from inorder.net.connection import Connection
from inorder.testing.clock import EPOCH_MS, MovableClock
from inorder.wire.codes import RequestCode
from inorder.wire.header import Command
from inorder.wire.properties import format_properties, parse
from inorder.wire.record import Record, decode_all
from inorder.wire.requests.sends import SendMessage
from tests.crash.load import read_queue
from tests.crash.machine import STORE, Machine
from tests.integration.brokerkit import SMALL, Rig, running, until
from tests.kit.disk import _CHANGES, FakeFiles, Fault
from tests.kit.simcluster import stream
from tests.kit.simloop import SimLoop, run

COUNT = int(os.environ.get("INORDER_ROUNDS", "3"))
SEEDS = [int(os.environ["INORDER_SEED"])] if "INORDER_SEED" in os.environ else range(1, COUNT + 1)
TOPIC = "later"
QUEUES = 2
KILLS = 20
LONGEST_MS = 4000
TIMED = replace(STORE, delay_save_interval_ms=700)


@dataclass
class Sendings:
    """What was sent: id to due time, and what became of it."""

    due_ms: dict[str, int] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    recalled: set[str] = field(default_factory=set)
    perhaps_recalled: set[str] = field(default_factory=set)
    waited: list[str] = field(default_factory=list)
    """What lies in the queue of timers in the end."""


async def send_on(machine: Machine, loop: SimLoop, log: Sendings, name: str) -> None:
    """Send messages with times, a few at a time, until cancelled; over every end of the broker."""
    draw = stream(loop.seed, name)
    numbers = itertools.count()
    connection: Connection | None = None
    while True:
        await asyncio.sleep(draw.uniform(0.0, 0.05))
        try:
            if connection is None or connection.closed:
                connection = await machine.connect()
            at_ms = EPOCH_MS + int(loop.time() * 1000)
            await asyncio.gather(
                *(
                    send(
                        connection, log, f"{name}-{next(numbers)}",
                        at_ms + draw.randrange(1, LONGEST_MS), draw.randrange(QUEUES),
                        recalled=draw.random() < 0.2,
                    )
                    for _ in range(draw.randint(1, 4))
                )
            )  # fmt: skip
        except (InorderError, OSError):
            connection = None


async def send(
    connection: Connection, log: Sendings, id_: str, due_ms: int, queue_id: int, *, recalled: bool
) -> None:
    """Send one message, and recall some."""
    properties = format_properties({"UNIQ_KEY": id_, "TIMER_DELIVER_MS": str(due_ms)})
    header = SendMessage("p", TOPIC, "TBW102", QUEUES, queue_id, 0, 0, 0, properties)
    log.due_ms[id_] = due_ms
    command = Command.request(RequestCode.SEND_MESSAGE_V2, header.to_fields_v2(), id_.encode())
    answer = await connection.request(command, 3000)
    if answer.code:
        log.refused.add(id_)
        return
    log.acknowledged.add(id_)
    handle = answer.fields.get("recallHandle")
    if recalled and handle is not None:
        log.perhaps_recalled.add(id_)
        try:
            await BrokerApi(connection).recall(TOPIC, handle, "p")
        except BrokerError:
            log.perhaps_recalled.discard(id_)
        else:
            log.recalled.add(id_)


async def play(
    loop: SimLoop, *, power: bool, sync: bool
) -> tuple[Sendings, list[list[Record]], int]:
    """Send and crash; return what was sent, and what lies in the topic in the end."""
    draw = stream(loop.seed, "plan")
    machine = Machine(loop, replace(TIMED, sync_flush=sync))
    log = Sendings()
    await machine.start()
    api = BrokerApi(await machine.connect(), timeout_ms=10_000)
    await api.create_topic(TopicConfig(TOPIC, QUEUES, QUEUES))
    work = [asyncio.create_task(send_on(machine, loop, log, f"p{n}")) for n in range(2)]
    delivered = 0
    for _ in range(KILLS):
        await asyncio.sleep(draw.choice((draw.uniform(0, 0.3), draw.uniform(0, 2.5))))
        delivered += machine.broker.timers.delivered
        if power and draw.random() < 0.6:
            machine.cut_power()
        elif draw.random() < 0.1:
            await machine.stop()
        else:
            machine.kill()
        await asyncio.sleep(draw.choice((0, draw.uniform(0, 2.0))))
        await machine.start()
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    await asyncio.sleep(LONGEST_MS / 1000 + 3)
    api = BrokerApi(await machine.connect(), timeout_ms=10_000)
    queues = [await read_queue(api, (TOPIC, queue_id)) for queue_id in range(QUEUES)]
    log.waited = [
        found["UNIQ_KEY"]
        for record in await read_queue(api, ("rmq_sys_wheel_timer", 0))
        if "TIMER_DEL_UNIQKEY" not in (found := parse(record.properties))
    ]
    assert machine.broker.timer_table.total == 0, "nothing waits any more"
    await machine.stop()
    return log, queues, delivered


def judge(log: Sendings, queues: list[list[Record]], *, lossy: bool = False) -> list[str]:
    """Return what is wrong."""
    wrong = []
    counts: Counter[str] = Counter()
    for record in itertools.chain(*queues):
        id_ = parse(record.properties)["UNIQ_KEY"]
        counts[id_] += 1
        if record.stored_at_ms < log.due_ms[id_]:
            wrong.append(f"{id_} came {log.due_ms[id_] - record.stored_at_ms} ms early")
        if record.body != id_.encode() or record.redeliveries:
            wrong.append(f"{id_} is not what was sent: {record}")
    wrong += [f"{id_} was delivered {count} times" for id_, count in counts.items() if count > 1]
    kept = log.acknowledged - log.perhaps_recalled
    if not lossy:
        wrong += [f"{id_} was lost" for id_ in kept if id_ not in counts]
        wrong += [f"{id_} was recalled and came" for id_ in log.recalled if id_ in counts]
    silent = [id_ for id_ in log.waited if id_ not in counts and id_ not in log.perhaps_recalled]
    wrong += [f"{id_} waited and never came" for id_ in silent]
    wrong += [f"{id_} was refused and came" for id_ in log.refused if id_ in counts]
    return wrong


@pytest.mark.sample
@pytest.mark.parametrize("seed", SEEDS)
def test_no_timer_is_lost_or_doubled_over_twenty_kills(seed: int):
    """Async flush, kill -9: what was written is there, and is delivered once."""
    log, queues, delivered = run(lambda loop: play(loop, power=False, sync=False), seed)
    assert judge(log, queues) == []
    assert len(log.acknowledged) > 200
    assert len(log.recalled) > 20
    assert delivered > 50, "otherwise nothing was delivered between two kills"


@pytest.mark.sample
@pytest.mark.parametrize("seed", SEEDS)
def test_no_timer_is_lost_or_doubled_over_power_cuts(seed: int):
    """Sync flush: the same when the machine goes down."""
    log, queues, _ = run(lambda loop: play(loop, power=True, sync=True), seed)
    assert judge(log, queues) == []


@pytest.mark.sample
@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_power_cut_leaves_under_async_flush_is_delivered_once(seed: int):
    """The end of the log may be lost, with its timers; nothing comes twice or early."""
    log, queues, _ = run(lambda loop: play(loop, power=True, sync=False), seed)
    assert judge(log, queues, lossy=True) == []


class Watched(FakeFiles):
    """A disk that keeps how it was before each change, as a kill there would have left it."""

    def __init__(self) -> None:
        super().__init__()
        self.acknowledged: list[str] = []
        self.recalled: list[str] = []
        self.watching = False
        self.moments: list[tuple[FakeFiles, int, int]] = []

    def _fault(self, operation: str, path: Path) -> Fault | None:
        fault = super()._fault(operation, path)
        if self.watching and operation in _CHANGES:
            # Counted first: a thread may be writing, and the loop goes on meanwhile.
            acknowledged, recalled = len(self.acknowledged), len(self.recalled)
            self.moments.append((self.kill(), acknowledged, recalled))
        return fault


@pytest.mark.slow
@pytest.mark.parametrize("sync", [False, True])
def test_a_kill_at_any_change_of_a_file_loses_and_repeats_none(sync: bool):
    """Whatever is being written then: messages, queues, the snapshot, the checkpoint."""
    files, clock = Watched(), MovableClock()
    store = replace(SMALL, sync_flush=sync, delay_save_interval_ms=20)

    async def send_some(rig: Rig, due_ms: int, first: int) -> None:
        for number in range(first, first + 6):
            id_ = f"m{number}"
            properties = format_properties(
                {"UNIQ_KEY": id_, "TIMER_DELIVER_MS": str(due_ms + number % 3)}
            )
            answer = await rig.send(id_.encode(), i=properties)
            assert answer.code == 0
            files.acknowledged.append(id_)
            if number % 6 == 2:
                fields = {"topic": "Orders", "recallHandle": answer.fields["recallHandle"]}
                assert (await rig.ask(RequestCode.RECALL_MESSAGE, fields)).code == 0
                files.recalled.append(id_)

    async def live() -> None:
        async with running(files, clock=clock, store=store, stop=False) as rig:
            base_ms = clock.now_ms()
            files.watching = True
            await send_some(rig, base_ms + 60_000, 0)
            await send_some(rig, base_ms + 120_000, 6)
            for end in (5, 10):
                clock.advance(60_010)
                rig.broker.timers.check_clock()
                queue = rig.broker.store.queue("Orders", 1)
                await until(lambda: queue.visible_offset == end)  # noqa: B023 - awaited here
                await rig.broker.timer_snapshot.saved()
            await rig.broker.housekeeping.flush_now()
            files.watching = False

    async def come_back(disk: FakeFiles, acknowledged: set[str], recalled: set[str]) -> None:
        async with running(disk, clock=clock, store=store, stop=False) as rig:
            await until(lambda: not rig.broker.timer_table.waiting)
            found: Counter[str] = Counter()
            queue = rig.broker.store.queue("Orders", 1)
            # The last one is stored, but under sync flush not on disk yet, so nobody sees it.
            await until(lambda: queue.visible_offset == queue.next_offset)
            while found.total() < queue.visible_offset:
                answer = await rig.pull(queueOffset=str(found.total()))
                found.update(record.body.decode() for record in decode_all(answer.body))
            assert [id_ for id_, times in found.items() if times > 1] == []
            assert recalled.isdisjoint(found)
            assert acknowledged - set(files.recalled) <= found.keys()
            assert rig.broker.timer_table.total == 0
        await rig.broker.offload.drain()

    asyncio.run(live())
    assert len(files.moments) > 40
    for disk, acknowledged, recalled in files.moments:
        asyncio.run(
            come_back(disk, set(files.acknowledged[:acknowledged]), set(files.recalled[:recalled]))
        )


def test_the_judge_sees_what_is_wrong():
    """Lost, doubled, early and recalled messages are found."""
    due = {"a": EPOCH_MS, "b": EPOCH_MS, "c": EPOCH_MS + 6000, "d": EPOCH_MS}
    log = Sendings(due, {"a", "b", "c", "d"}, recalled={"d"}, perhaps_recalled={"d"})

    def record(id_: str, at_ms: int) -> Record:
        properties = format_properties({"UNIQ_KEY": id_}).encode()
        return Record(TOPIC, 0, 0, 0, id_.encode(), properties, stored_at_ms=EPOCH_MS + at_ms)

    found = judge(log, [[record("a", 1), record("a", 1), record("c", 5500), record("d", 7)]])
    assert [text.partition(" ")[0] for text in found] == ["c", "a", "b", "d"]
    assert "early" in found[0]
    assert "2 times" in found[1]
    assert "lost" in found[2]
    assert "recalled" in found[3]
