"""The list of named producers (PRODUCER_LIST)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from msgspec.json import encode as _encode_standard

from inorder.wire import shapes
from inorder.wire.fastjson import loads

_ITEMS_MAX: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class NamedProducer:
    """A named producer: whether it is connected, and its last number per (topic, queue)."""

    producer_id: str
    connected: bool
    last: dict[tuple[str, int], int]


def encode_named_producers(producers: Iterable[NamedProducer], total: int) -> bytes:
    """Return the answer's body; `total` counts also those that it leaves out."""
    listed = [
        {
            "producerId": producer.producer_id,
            "connected": producer.connected,
            "queues": [
                {"topic": topic, "queueId": queue_id, "last": last}
                for (topic, queue_id), last in producer.last.items()
            ],
        }
        for producer in producers
    ]
    return _encode_standard({"producers": listed, "total": total})


def decode_named_producers(data: bytes | memoryview) -> tuple[list[NamedProducer], int]:
    """Read the producers and how many there are; malformed: RemoteProtocolError."""
    whole = shapes.as_object(loads(data, items_max=_ITEMS_MAX), "producers")
    listed = [
        NamedProducer(
            shapes.text(producer, "producerId"),
            shapes.boolean(producer, "connected", False),
            {
                (shapes.text(queue, "topic"), shapes.integer(queue, "queueId", 0)): shapes.integer(
                    queue, "last", -1
                )
                for queue in shapes.objects(producer, "queues")
            },
        )
        for producer in shapes.objects(whole, "producers")
    ]
    return listed, shapes.integer(whole, "total", len(listed))
