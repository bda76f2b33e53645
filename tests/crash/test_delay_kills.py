"""Delayed messages over crashes: none lost, none twice, none early.

A broker on the disk and the loop of `inorder.testing`. Senders go on while it is killed twenty
times (or loses power under sync flush), at random instants with delays pending; in the end every
message that was acknowledged has been delivered exactly once, at its time or when the broker was
back. Messages of unknown outcome were delivered once or never.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from inorder.client.api import BrokerApi
from inorder.errors import InorderError
from inorder.model import TopicConfig
from inorder.net.connection import Connection
from inorder.wire.codes import RequestCode
from inorder.wire.header import Command
from inorder.wire.properties import format_properties, parse
from inorder.wire.record import Record
from inorder.wire.requests.sends import SendMessage
from tests.crash.load import read_queue
from tests.crash.machine import STORE, Machine
from tests.kit.simcluster import stream
from tests.kit.simloop import SimLoop, run

COUNT = int(os.environ.get("INORDER_ROUNDS", "3"))
SEEDS = [int(os.environ["INORDER_SEED"])] if "INORDER_SEED" in os.environ else range(1, COUNT + 1)
DELAYS_S = (1, 2, 3, 5)
LEVELS = " ".join(f"{seconds}s" for seconds in DELAYS_S)
TOPIC = "later"
QUEUES = 2
KILLS = 20
DELAYED = replace(STORE, delay_levels=LEVELS, delay_save_interval_ms=700)


@dataclass
class Sendings:
    """What was sent: id to level, time before the send and, if acknowledged, after it."""

    level: dict[str, int] = field(default_factory=dict)
    sent_s: dict[str, float] = field(default_factory=dict)
    acknowledged_s: dict[str, float] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    waited: list[str] = field(default_factory=list)
    """What lies in the queues of the levels in the end."""


async def send_on(machine: Machine, loop: SimLoop, log: Sendings, name: str) -> None:
    """Send delayed messages, a few at a time, until cancelled; over every end of the broker."""
    draw = stream(loop.seed, name)
    numbers = itertools.count()
    connection: Connection | None = None
    while True:
        await asyncio.sleep(draw.uniform(0.0, 0.05))
        try:
            if connection is None or connection.closed:
                connection = await machine.connect()
            batch = [f"{name}-{next(numbers)}" for _ in range(draw.randint(1, 4))]
            levels = [draw.randint(1, len(DELAYS_S) + 1) for _ in batch]  # one too high, too
            places = [draw.randrange(QUEUES) for _ in batch]
            await asyncio.gather(
                *(
                    send(connection, loop, log, id_, level=level, queue_id=place)
                    for id_, level, place in zip(batch, levels, places, strict=True)
                )
            )
        except (InorderError, OSError):
            connection = None


async def send(
    connection: Connection, loop: SimLoop, log: Sendings, id_: str, *, level: int, queue_id: int
) -> None:
    """Send one message."""
    properties = format_properties({"UNIQ_KEY": id_, "DELAY": str(level)})
    header = SendMessage("p", TOPIC, "TBW102", QUEUES, queue_id, 0, 0, 0, properties)
    log.level[id_] = min(level, len(DELAYS_S))
    log.sent_s[id_] = loop.time()
    command = Command.request(RequestCode.SEND_MESSAGE_V2, header.to_fields_v2(), id_.encode())
    answer = await connection.request(command, 3000)
    if answer.code == 0:
        log.acknowledged_s[id_] = loop.time()
    else:
        log.refused.add(id_)


async def play(loop: SimLoop, *, power: bool, sync: bool) -> tuple[Sendings, list[Record], int]:
    """Send and crash; return what was sent, and what lies in the topic in the end."""
    draw = stream(loop.seed, "plan")
    machine = Machine(loop, replace(DELAYED, sync_flush=sync))
    log = Sendings()
    await machine.start()
    api = BrokerApi(await machine.connect(), timeout_ms=10_000)
    await api.create_topic(TopicConfig(TOPIC, QUEUES, QUEUES))
    work = [asyncio.create_task(send_on(machine, loop, log, f"p{n}")) for n in range(2)]
    found = 0
    for _ in range(KILLS):
        await asyncio.sleep(draw.choice((draw.uniform(0, 0.3), draw.uniform(0, 2.5))))
        before = machine.broker.delayed.delivered
        found += before
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
    await asyncio.sleep(max(DELAYS_S) + 3)
    api = BrokerApi(await machine.connect(), timeout_ms=10_000)
    records = [
        record for queue_id in range(QUEUES) for record in await read_queue(api, (TOPIC, queue_id))
    ]
    for level in range(len(DELAYS_S)):
        waited = await read_queue(api, ("SCHEDULE_TOPIC_XXXX", level))
        log.waited += [parse(record.properties)["UNIQ_KEY"] for record in waited]
    await machine.stop()
    return log, records, found


def judge(log: Sendings, records: list[Record], *, lossy: bool = False) -> list[str]:
    """Return what is wrong."""
    wrong = []
    counts: Counter[str] = Counter()
    for record in records:
        found = parse(record.properties)
        id_ = found["UNIQ_KEY"]
        counts[id_] += 1
        due_ms = int(log.sent_s[id_] * 1000) + DELAYS_S[log.level[id_] - 1] * 1000
        if record.stored_at_ms - 1_700_000_000_000 < due_ms:
            wrong.append(f"{id_} came {due_ms - record.stored_at_ms} ms early")
        if record.body != id_.encode() or record.redeliveries:
            wrong.append(f"{id_} is not what was sent: {record}")
    wrong += [f"{id_} was delivered {count} times" for id_, count in counts.items() if count > 1]
    if not lossy:
        wrong += [f"{id_} was lost" for id_ in log.acknowledged_s if id_ not in counts]
    wrong += [f"{id_} waited and never came" for id_ in log.waited if id_ not in counts]
    wrong += [f"{id_} was refused and came" for id_ in log.refused if id_ in counts]
    return wrong


@pytest.mark.sample
@pytest.mark.parametrize("seed", SEEDS)
def test_no_delayed_message_is_lost_or_doubled_over_twenty_kills(seed: int):
    """Async flush, kill -9: what was written is there, and is delivered once."""
    log, records, delivered = run(lambda loop: play(loop, power=False, sync=False), seed)
    assert judge(log, records) == []
    assert len(log.acknowledged_s) > 200
    assert delivered > 50, "otherwise nothing was delivered between two kills"


@pytest.mark.sample
@pytest.mark.parametrize("seed", SEEDS)
def test_no_delayed_message_is_lost_or_doubled_over_power_cuts(seed: int):
    """Sync flush: the same when the machine goes down."""
    log, records, _ = run(lambda loop: play(loop, power=True, sync=True), seed)
    assert judge(log, records) == []


@pytest.mark.sample
@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_power_cut_leaves_under_async_flush_is_delivered_once(seed: int):
    """The end of the log may be lost, with its delayed messages; nothing comes twice or early."""
    log, records, _ = run(lambda loop: play(loop, power=True, sync=False), seed)
    assert judge(log, records, lossy=True) == []


def test_the_judge_sees_what_is_wrong():
    """Lost, doubled and early messages are found."""
    log = Sendings({"a": 1, "b": 1, "c": 1}, {"a": 0.0, "b": 0.0, "c": 5.0}, {"a": 0.1, "b": 0.1})

    def record(id_: str, at_ms: int) -> Record:
        properties = format_properties({"UNIQ_KEY": id_}).encode()
        return Record(
            TOPIC, 0, 0, 0, id_.encode(), properties, stored_at_ms=1_700_000_000_000 + at_ms
        )

    found = judge(log, [record("a", 1000), record("a", 1001), record("c", 5500)])
    assert [text.partition(" ")[0] for text in found] == ["c", "a", "b"]
    assert "early" in found[0]
    assert "2 times" in found[1]
    assert "lost" in found[2]
