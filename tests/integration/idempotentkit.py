"""Numbered sends by hand: what our own producer puts on the wire, one request at a time."""

from __future__ import annotations

import struct

from inorder.config import NetConfig
from inorder.net.connection import Connection
from inorder.wire.header import Command
from tests.integration.brokerkit import PATIENT_MS, Rig, send_fields

PRODUCER = "0123456789abcdef"


def properties(
    number: int, *, unique: str | None = None, before: int | None = None, producer: str = PRODUCER
) -> str:
    """Return the properties of a numbered message."""
    text = f"UNIQ_KEY\x01{unique or f'U{number}'}\x02"
    text += f"INORDER_PID\x01{producer}\x02INORDER_SEQ\x01{number}\x02"
    return text if before is None else text + f"INORDER_PREV\x01{before}\x02"


def batch(
    numbers: list[int],
    *,
    befores: list[int] | None = None,
    producer: str = PRODUCER,
    extra: str = "",
) -> bytes:
    """Return the body of a numbered batch."""
    items = []
    for index, number in enumerate(numbers):
        before = None if befores is None else befores[index]
        raw = (extra + properties(number, before=before, producer=producer)).encode()
        body = b"m%d" % number
        head = struct.pack(">iiiii", 22 + len(body) + len(raw), 0, 0, 0, len(body))
        items.append(head + body + struct.pack(">h", len(raw)) + raw)
    return b"".join(items)


class Sender:
    """One connection of a producer."""

    def __init__(self, rig: Rig, connection: Connection | None = None) -> None:
        self.rig = rig
        self.connection = connection or rig.connection

    @classmethod
    async def connect(cls, rig: Rig) -> Sender:
        """Open another connection to the broker."""
        return cls(
            rig,
            await Connection.open(rig.broker.address, NetConfig(), connect_timeout_ms=PATIENT_MS),
        )

    async def ask(
        self, code: int, fields: dict[str, str], body: bytes = b"", *, serializer: int = 0
    ) -> Command:
        """Send a request and return its answer."""
        return await self.connection.request(
            Command.request(code, fields, body, serializer=serializer), PATIENT_MS
        )

    async def hello(
        self,
        incarnation: int = 1,
        *,
        named: bool = False,
        producer: str = PRODUCER,
        memory: int = -1,
        protocol: int | None = None,
    ) -> Command:
        """Say hello; without a protocol as clients did before there was a second one."""
        return await self.ask(
            7100,
            {
                "producerId": producer,
                "incarnation": str(incarnation),
                "named": "true" if named else "false",
                "memory": str(memory),
                **({} if protocol is None else {"protocol": str(protocol)}),
            },
        )

    async def send(
        self,
        number: int,
        *,
        unique: str | None = None,
        before: int | None = None,
        producer: str = PRODUCER,
        serializer: int = 0,
        **changes: str,
    ) -> Command:
        """Send the message with a number; its body says which it is."""
        text = properties(number, unique=unique, before=before, producer=producer)
        fields = send_fields(i=changes.pop("extra", "") + text, **changes)
        return await self.ask(310, fields, b"m%d" % number, serializer=serializer)

    async def send_batch(
        self, numbers: list[int], *, befores: list[int] | None = None, **changes: str
    ) -> Command:
        """Send numbered messages in one request."""
        body = batch(numbers, befores=befores, extra=changes.pop("extra", ""))
        return await self.ask(320, send_fields(m="true", i="", **changes), body)

    async def state(
        self, *, topic: str = "Orders", queue_id: int = 1, since: int = -1
    ) -> dict[str, str]:
        """Ask what is stored; with `since` also where."""
        fields = {"producerId": PRODUCER, "topic": topic, "queueId": str(queue_id)}
        answer = await self.ask(7101, fields | ({"since": str(since)} if since >= 0 else {}))
        assert answer.code == 0
        return answer.fields


def stored_numbers(rig: Rig, *, topic: str = "Orders", queue_id: int = 1) -> list[int]:
    """Return the numbers of the messages in a queue, as they lie there."""
    store = rig.broker.store
    queue = store.find_queue(topic, queue_id)
    numbers = []
    for offset in range(queue.visible_offset if queue is not None else 0):
        assert queue is not None
        entry = queue.entry(offset)
        assert entry is not None
        raw = store.log.bytes_at(entry[0], entry[1])
        at = raw.rindex(b"INORDER_SEQ\x01") + 12
        numbers.append(int(raw[at : raw.index(b"\x02", at)]))
    return numbers
