"""Consumers that pop, by raw requests, and time that is moved by hand."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass, field

from inorder.testing.clock import FakeClock
from inorder.wire import fastjson
from inorder.wire.header import Command
from inorder.wire.record import Record, decode_all
from tests.integration.brokerkit import Rig

GROUP, TOPIC = "CG", "Orders"
SECOND = 1000
INVISIBLE_MS = 10 * SECOND
RETRY = f"%RETRY%{GROUP}_{TOPIC}"


@dataclass
class Popped:
    """The answer to a pop, read as RocketMQ's client reads it."""

    answer: Command
    records: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.records = decode_all(self.answer.body)

    @property
    def code(self) -> int:
        return self.answer.code

    @property
    def pop_ms(self) -> int:
        return int(self.answer.fields["popTime"])

    @property
    def revive_queue(self) -> int:
        return int(self.answer.fields["reviveQid"])

    @property
    def bodies(self) -> list[bytes]:
        return [record.body for record in self.records]

    @property
    def places(self) -> list[tuple[int, int]]:
        return [(record.queue_id, record.queue_offset) for record in self.records]

    def counts(self) -> dict[str, int]:
        """Return orderCountInfo by its keys."""
        text = self.answer.fields.get("orderCountInfo", "")
        return {
            " ".join(one.split(" ")[:2]): int(one.split(" ")[2])
            for one in text.split(";") if one
        }  # fmt: skip

    def extra(self, queue_id: int, offset: int, retry: str = "0") -> str:
        """Return the extraInfo of a message."""
        start = next(
            int(one.split(" ")[2])
            for one in self.answer.fields["startOffsetInfo"].split(";")
            if one.split(" ")[:2] == [retry, str(queue_id)]
        )
        invisible = self.answer.fields["invisibleTime"]
        return (
            f"{start} {self.pop_ms} {invisible} {self.revive_queue} {retry} broker-a "
            f"{queue_id} {offset}"
        )


def pop_fields(**changes: str) -> dict[str, str]:
    """Return the header of a pop."""
    return {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1", "maxMsgNums": "32",
        "invisibleTime": str(INVISIBLE_MS), "pollTime": "0", "bornTime": "0", "initMode": "0",
        "expType": "TAG", "exp": "*", "order": "false", **changes,
    }  # fmt: skip


async def pop(rig: Rig, **changes: str) -> Popped:
    """Pop, and return at once or when something is there."""
    return Popped(await rig.ask(200050, pop_fields(**changes)))


async def pop_in_order(rig: Rig, queue: int = 1, **changes: str) -> Popped:
    """Pop one queue in order."""
    return await pop(rig, queueId=str(queue), order="true", **changes)


async def ack(
    rig: Rig, popped: Popped, queue: int, offset: int, *, topic: str = TOPIC, retry: str = "0"
) -> Command:
    """Acknowledge a message."""
    return await rig.ask(200051, {
        "consumerGroup": GROUP, "topic": topic, "queueId": str(queue), "offset": str(offset),
        "extraInfo": popped.extra(queue, offset, retry),
    })  # fmt: skip


async def change(
    rig: Rig, popped: Popped, queue: int, offset: int, invisible_ms: int, *, extra: str = ""
) -> Command:
    """Change when others see a message."""
    return await rig.ask(200053, {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue), "offset": str(offset),
        "invisibleTime": str(invisible_ms), "extraInfo": extra or popped.extra(queue, offset),
    })  # fmt: skip


def batch_body(*acks: Mapping[str, object]) -> bytes:
    """Return the body of a batch of acknowledgements."""
    return fastjson.dumps({"brokerName": "broker-a", "acks": list(acks)})


def bits(*numbers: int) -> str:
    """Return a Java BitSet as it is written."""
    value = sum(1 << one for one in numbers)
    return base64.b64encode(value.to_bytes((value.bit_length() + 7) // 8, "little")).decode()


def batch_ack(popped: Popped, queue: int, *numbers: int, retry: str = "0") -> dict[str, object]:
    """Return an entry of a batch: offsets counted from where the pop began."""
    start = int(popped.extra(queue, 0, retry).split(" ")[0])
    return {
        "c": GROUP, "t": TOPIC, "r": retry, "q": queue, "rq": popped.revive_queue, "so": start,
        "pt": popped.pop_ms, "it": INVISIBLE_MS, "b": bits(*numbers),
    }  # fmt: skip


async def send(rig: Rig, count: int, queue: int = 1, first: int = 0) -> None:
    """Send messages `m0`, `m1`, ... to a queue."""
    for number in range(first, first + count):
        answer = await rig.send(b"m%d" % number, e=str(queue))
        assert answer.code == 0, answer.remark


async def move(rig: Rig, clock: FakeClock, ms: int) -> None:
    """Let time pass, and the broker look at its deadlines."""
    clock.advance(ms)
    await look(rig)


async def look(rig: Rig) -> None:
    """Let the broker look at its deadlines."""
    broker = rig.broker
    broker.revival.on_deadline()
    broker.pops.expire()
    await broker.lease_expiry.check()
    for _ in range(5):
        await asyncio.sleep(0)


def offset_of(rig: Rig, queue: int = 1, topic: str = TOPIC) -> int:
    """Return the committed offset."""
    return rig.broker.offsets.query(GROUP, topic, queue)
