"""Bodies about progress: what queues hold, how far groups are. Their maps have queues as keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from inorder.model import TopicQueue
from inorder.wire import shapes
from inorder.wire.bodies.locks import queue_from_json, queue_to_json
from inorder.wire.fastjson import dumps, loads

_ITEMS_MAX: Final = 4_000_000


@dataclass(frozen=True, slots=True)
class QueueStats:
    """What a queue holds: offsets from `min_offset` to below `max_offset`."""

    min_offset: int
    max_offset: int
    updated_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class TopicStats:
    """The answer to GET_TOPIC_STATS_INFO."""

    queues: dict[TopicQueue, QueueStats] = field(default_factory=dict)
    put_rate: float = 0.0

    def encode(self) -> bytes:
        """Return the JSON text."""
        table = {
            _key(queue): {
                "lastUpdateTimestamp": stats.updated_at_ms,
                "maxOffset": stats.max_offset,
                "minOffset": stats.min_offset,
            }
            for queue, stats in self.queues.items()
        }
        return dumps({"offsetTable": table, "topicPutTps": self.put_rate})

    @classmethod
    def decode(cls, data: bytes | memoryview) -> TopicStats:
        """Read the JSON text; 4.9 has no rate. Malformed: RemoteProtocolError."""
        value = shapes.as_object(loads(data, items_max=_ITEMS_MAX), "topic stats")
        return cls(
            {
                queue: QueueStats(
                    shapes.integer(item, "minOffset", 0),
                    shapes.integer(item, "maxOffset", 0),
                    shapes.integer(item, "lastUpdateTimestamp", 0),
                )
                for queue, item in _table(value)
            },
            _rate(value, "topicPutTps"),
        )


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far a group is on a queue; `pulled_offset` counts what it has but did not commit."""

    end_offset: int
    committed_offset: int
    pulled_offset: int
    committed_at_ms: int = 0
    """When the last message that the group is done with was stored."""

    @property
    def lag(self) -> int:
        """Return how many messages the group has yet to do."""
        return max(0, self.end_offset - self.committed_offset)


@dataclass(frozen=True, slots=True)
class ConsumeStats:
    """The answer to GET_CONSUME_STATS."""

    queues: dict[TopicQueue, QueueProgress] = field(default_factory=dict)
    consume_rate: float = 0.0

    def encode(self) -> bytes:
        """Return the JSON text."""
        table = {
            _key(queue): {
                "brokerOffset": progress.end_offset,
                "consumerOffset": progress.committed_offset,
                "lastTimestamp": progress.committed_at_ms,
                "pullOffset": progress.pulled_offset,
            }
            for queue, progress in self.queues.items()
        }
        return dumps({"consumeTps": self.consume_rate, "offsetTable": table})

    @classmethod
    def decode(cls, data: bytes | memoryview) -> ConsumeStats:
        """Read the JSON text; 4.9 has no pull offsets. Malformed: RemoteProtocolError."""
        value = shapes.as_object(loads(data, items_max=_ITEMS_MAX), "consume stats")
        found = {}
        for queue, item in _table(value):
            committed = shapes.integer(item, "consumerOffset", 0)
            found[queue] = QueueProgress(
                shapes.integer(item, "brokerOffset", 0),
                committed,
                shapes.integer(item, "pullOffset", committed),
                shapes.integer(item, "lastTimestamp", 0),
            )
        return cls(found, _rate(value, "consumeTps"))


def encode_queue_offsets(offsets: Mapping[TopicQueue, int]) -> bytes:
    """Return a ResetOffsetBody."""
    return dumps({"offsetTable": {_key(queue): offset for queue, offset in offsets.items()}})


def encode_queue_offset_list(offsets: Mapping[TopicQueue, int]) -> bytes:
    """Return a ResetOffsetBody as the C++ client wants it: a list."""
    return dumps(
        {"offsetTable": [queue_to_json(queue) | {"offset": at} for queue, at in offsets.items()]}
    )


def decode_queue_offsets(data: bytes | memoryview) -> dict[TopicQueue, int]:
    """Read a ResetOffsetBody; malformed: RemoteProtocolError."""
    value = shapes.as_object(loads(data, items_max=_ITEMS_MAX), "offsets")
    table = shapes.as_object(value.get("offsetTable"), "offsetTable")
    return {_queue(key): shapes.as_integer(offset, "offset") for key, offset in table.items()}


def _key(queue: TopicQueue) -> tuple[tuple[str, Any], ...]:
    return tuple(queue_to_json(queue).items())


def _table(value: dict[Any, Any]) -> list[tuple[TopicQueue, dict[Any, Any]]]:
    table = shapes.as_object(value.get("offsetTable"), "offsetTable")
    return [(_queue(key), shapes.as_object(item, "offsetTable")) for key, item in table.items()]


def _queue(key: Any) -> TopicQueue:
    """Read a queue that is a key: an object, or (by standard JSON writers) the text of one."""
    if isinstance(key, str):
        return queue_from_json(shapes.as_object(loads(key), "queue"))
    return queue_from_json(shapes.as_object(dict(key), "queue"))


def _rate(value: dict[Any, Any], key: str) -> float:
    found = value.get(key)
    return float(found) if isinstance(found, int | float) else 0.0
