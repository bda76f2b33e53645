"""Forwards delayed messages to another broker, to which their key moved while they waited.

A due message whose key belongs to another broker is delivered into an outbox of this broker: a
system topic, written in one tick with the mark, like any delivery. From there messages are sent one
after another to the queue that the newest map gives their key:

    outbox rmq_sys_INORDER_FORWARD_<broker>   offset 7    sent with sequence number 7 by
                                                          `inorder.forward:<here>:<broker>:<generation>`

Sequence numbers make the forwarding exactly once. Message 8 is sent only after message 7 is stored.
So if any queue that some map gave the key holds a number of 7 or above, message 7 was stored. The
generation is that of the log when the message entered the outbox: if the end of the log is lost,
offsets are assigned anew, and so are sequence numbers. Why: decision 23.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from inorder.broker.cluster import Peers
from inorder.broker.delays.rules import without
from inorder.errors import InorderError, ServiceNotAvailable
from inorder.logs import get_logger
from inorder.ordering.keymap import KeyMap
from inorder.tasks import Backoff
from inorder.wire.codes import RequestCode
from inorder.wire.extensions import (
    FORWARDED,
    HALF,
    MAP_DIGEST,
    MAP_VERSION,
    PREDECESSOR,
    PRODUCER_ID,
    PROTOCOL,
    SCHEDULED,
    SEQUENCE,
    TIMED,
)
from inorder.wire.header import Command
from inorder.wire.names import SYSTEM_TOPIC_PREFIX
from inorder.wire.properties import append, get
from inorder.wire.record import (
    BORN_HOST_V6,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    Record,
    decode,
)
from inorder.wire.requests.producers import ProducerHello, ProducerState
from inorder.wire.requests.sends import SendMessage

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.sends.packing import Target
    from inorder.net.connection import Connection

log = get_logger(__name__)

OUTBOX: Final = f"{SYSTEM_TOPIC_PREFIX}INORDER_FORWARD_"
GROUP: Final = "INORDER_FORWARD"
NOT_VISIBLE_YET_S: Final = 0.005
RETRY_FIRST_MS: Final = 50
RETRY_MAX_MS: Final = 2000

_LEFT_HERE: Final = tuple(
    name.encode()
    for name in (
        "DELAY",
        "REAL_TOPIC",
        "REAL_QID",
        "TRAN_MSG",
        HALF,
        SCHEDULED,
        TIMED,
        FORWARDED,
    )
)


class Forwarding:
    """Sends the messages of the outboxes."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._peers = Peers(broker)
        self._greeted: dict[tuple[str, str], Connection] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopped = False
        self.forwarded = 0

    def __repr__(self) -> str:
        return f"Forwarding({self.forwarded} forwarded, {sorted(self._tasks)} busy)"

    def start(self) -> None:
        """Continue with messages that are left in the outboxes."""
        for topic in self._broker.topics.names():
            if topic.startswith(OUTBOX):
                self._wake(topic.removeprefix(OUTBOX))

    def cancel(self) -> None:
        """Stop sending."""
        self._stopped = True
        for task in self._tasks.values():
            task.cancel()
        self._peers.close()

    def place(self, record: Record, topic: str, broker: str) -> Target:
        """Return the outbox for a message of a topic; it is sent on once it is stored there."""
        generation = self._broker.lease_journal.start.now.generation
        note = f"{FORWARDED}\x01{generation}:{topic}\x02"
        record.properties = append(without(record.properties, _LEFT_HERE[-1:]), note.encode())
        outbox = OUTBOX + broker
        self._broker.ensure_topic(outbox, queues=1)
        self._wake(broker)
        return self._broker.sends.target(outbox, 0)

    def _wake(self, broker: str) -> None:
        if broker not in self._tasks and not self._stopped:
            task = asyncio.get_running_loop().create_task(
                self._run(broker), name=f"forwarding to {broker}"
            )
            self._tasks[broker] = task

    async def _run(self, broker: str) -> None:
        outbox, backoff, said = OUTBOX + broker, Backoff(RETRY_FIRST_MS, RETRY_MAX_MS), ""
        queue = self._broker.store.queue(outbox, 0)
        try:
            while True:
                offset = max(0, self._broker.offsets.query(GROUP, outbox, 0), queue.min_offset)
                if offset >= queue.next_offset:
                    return
                if offset >= queue.visible_offset:
                    await asyncio.sleep(NOT_VISIBLE_YET_S)
                    continue
                try:
                    await self._forward(outbox, broker, offset)
                except (InorderError, OSError) as error:
                    if str(error) != said:
                        log.warning("delayed messages wait for broker=%s: %s", broker, error)
                    said = str(error)
                    await asyncio.sleep(backoff.next_ms() / 1000)
                    continue
                backoff.reset()
                now_ms = self._broker.clock.now_ms()
                self._broker.offsets.put(GROUP, outbox, 0, offset + 1, now_ms)
                self.forwarded += 1
        finally:
            self._tasks.pop(broker, None)

    async def _forward(self, outbox: str, broker: str, offset: int) -> None:
        record = self._read(outbox, offset)
        noted = None if record is None else get(record.properties, FORWARDED.encode())
        key = None if record is None else get(record.properties, b"__SHARDINGKEY")
        if record is None or noted is None or key is None:
            log.error("a delayed message is lost on its way outbox=%s offset=%d", outbox, offset)
            return
        generation, _, topic = noted.decode().partition(":")
        if topic not in self._broker.topics:
            log.error("topic=%s was deleted: a delayed message is dropped", topic)
            return
        resizing = self._broker.resizing
        if resizing.closing(topic) is not None:
            raise ServiceNotAvailable(f"topic {topic} is being resized")
        now = resizing.versions(topic)
        text = key.decode("utf-8", "replace")
        producer = f"inorder.forward:{self._broker.config.name}:{broker}:{generation}"
        maps = [now.map, *(one.map for one in now.past)]
        lasts = {}
        for place in dict.fromkeys(KeyMap.decode(one).queue(text) for one in maps):
            lasts[place] = await self._last(topic, producer, *place)
        if any(last >= offset for last in lasts.values()):
            return  # stored there before this broker was killed
        home = KeyMap.decode(now.map).queue(text)
        fields = _send_fields(record, topic, home[1])
        fields["i"] += _number(producer, offset, lasts[home])
        fields[MAP_VERSION] = str(now.version)
        fields[MAP_DIGEST] = KeyMap.decode(now.map).digest
        command = Command.request(RequestCode.SEND_MESSAGE_V2, fields, record.body)
        await self._peers.send(topic, home[0], command)

    async def _last(self, topic: str, producer: str, broker: str, queue_id: int) -> int:
        """Say hello on a new connection, and return the last sequence number on a queue."""
        connection = await self._peers.connect(topic, broker)
        if self._greeted.get((broker, producer)) is not connection:
            incarnation = self._broker.clock.now_ms() << 12
            hello = ProducerHello(producer, incarnation, named=True, protocol=PROTOCOL)
            await self._peers.ask(topic, broker, hello)
            self._greeted[broker, producer] = connection
        state = await self._peers.ask(topic, broker, ProducerState(producer, topic, queue_id))
        return state.last

    def _read(self, outbox: str, offset: int) -> Record | None:
        queue = self._broker.store.find_queue(outbox, 0)
        entry = None if queue is None else queue.entry(offset)
        if entry is None:
            return None
        return decode(self._broker.store.log.bytes_at(entry[0], entry[1]))


def _number(producer: str, number: int, before: int) -> str:
    return f"{PRODUCER_ID}\x01{producer}\x02{SEQUENCE}\x01{number}\x02{PREDECESSOR}\x01{before}\x02"


def _send_fields(record: Record, topic: str, queue_id: int) -> dict[str, str]:
    """Return the send header of a delayed message, as it was before the delay."""
    properties = without(record.properties, _LEFT_HERE).decode("utf-8", "surrogateescape")
    request = SendMessage(
        GROUP, topic, "", 0, queue_id,
        record.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6 | TRANSACTION_MASK),
        record.born_at_ms, record.flag, properties, record.redeliveries,
    )  # fmt: skip
    return request.to_fields_v2()
