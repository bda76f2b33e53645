"""The bodies of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ. Queues are echoed exactly: clients compare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from inorder.errors import RemoteProtocolError
from inorder.model import TopicQueue
from inorder.wire import shapes
from inorder.wire.fastjson import REQUEST_ITEMS_MAX, SLOW_ITEMS_MAX, dumps, loads

QUEUES_MAX: Final = 2048
"""Queues of one request."""
NAME_CHARS_MAX: Final = 1024
"""Characters of a client id, a group, a topic or a broker: a lock is kept, and told to others."""

_INT32_BITS: Final = 32


@dataclass(frozen=True, slots=True)
class LockBatchBody:
    """Which queues a client wants locked or unlocked."""

    client_id: str
    group: str
    queues: tuple[TopicQueue, ...]
    only_this_broker: bool = False

    def encode(self) -> bytes:
        """Return the JSON text."""
        return dumps(
            {
                "clientId": self.client_id,
                "consumerGroup": self.group,
                "mqSet": [queue_to_json(queue) for queue in self.queues],
                "onlyThisBroker": self.only_this_broker,
            }
        )

    @classmethod
    @shapes.request_body
    def decode(cls, data: bytes | memoryview) -> LockBatchBody:
        """Read the JSON text; malformed: SystemError_."""
        value = shapes.as_object(
            loads(data, items_max=REQUEST_ITEMS_MAX, slow_items_max=SLOW_ITEMS_MAX), "lock request"
        )
        queues = shapes.objects(value, "mqSet")
        if len(queues) > QUEUES_MAX:
            raise RemoteProtocolError(f"{len(queues)} queues; at most {QUEUES_MAX} in one request")
        found = cls(
            shapes.text(value, "clientId"),
            shapes.text(value, "consumerGroup"),
            tuple(map(queue_from_json, queues)),
            shapes.boolean(value, "onlyThisBroker", False),
        )
        names = [found.client_id, found.group]
        for queue in found.queues:
            names += (queue.topic, queue.broker)
        if max(map(len, names)) > NAME_CHARS_MAX:
            raise RemoteProtocolError(f"a name has more than {NAME_CHARS_MAX} characters")
        return found


@dataclass(frozen=True, slots=True)
class LockedQueues:
    """Which of the queues are locked for the client now."""

    queues: tuple[TopicQueue, ...] = ()

    def encode(self) -> bytes:
        """Return the JSON text; there must be one even if no queue is locked."""
        return dumps({"lockOKMQSet": [queue_to_json(queue) for queue in self.queues]})

    @classmethod
    def decode(cls, data: bytes | memoryview) -> LockedQueues:
        """Read the JSON text; malformed: RemoteProtocolError."""
        value = shapes.as_object(loads(data), "lock answer")
        return cls(tuple(map(queue_from_json, shapes.objects(value, "lockOKMQSet"))))


def queue_to_json(queue: TopicQueue) -> dict[str, Any]:
    """Return fastjson's MessageQueue."""
    return {"brokerName": queue.broker, "queueId": queue.index, "topic": queue.topic}


def queue_from_json(value: dict[Any, Any]) -> TopicQueue:
    """Read a MessageQueue."""
    return TopicQueue(
        shapes.text(value, "topic"),
        shapes.text(value, "brokerName", ""),
        shapes.integer(value, "queueId", 0, _INT32_BITS),
    )
