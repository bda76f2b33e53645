"""Which queues a member of a group works on, if the broker decides it; and by pull or by pop."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from inorder.errors import RemoteProtocolError
from inorder.model import TopicQueue
from inorder.wire import fastjson, shapes
from inorder.wire.shapes import request_body

PULL: Final = "PULL"
POP: Final = "POP"
BROADCASTING: Final = "BROADCASTING"
_MODELS: Final = ("CLUSTERING", BROADCASTING)


class RequestMode(NamedTuple):
    """Whether a group pulls or pops a topic, and how many members share a queue when it pops."""

    topic: str
    group: str
    mode: str = PULL
    share: int = 0
    """Further members that may pop a member's queues; 0 or less: all members pop all queues."""

    def to_json(self) -> dict[str, Any]:
        """Return RocketMQ's object."""
        return {
            "consumerGroup": self.group,
            "mode": self.mode,
            "popShareQueueNum": self.share,
            "topic": self.topic,
        }


def mode_from_json(value: object) -> RequestMode:
    """Return the mode that an object holds. Raises RemoteProtocolError."""
    fields = shapes.as_object(value, "the request mode")
    mode = shapes.text(fields, "mode", PULL)
    if mode not in (PULL, POP):
        raise RemoteProtocolError(f"the mode {mode[:32]!r} is neither PULL nor POP")
    return RequestMode(
        shapes.text(fields, "topic"),
        shapes.text(fields, "consumerGroup"),
        mode,
        shapes.integer(fields, "popShareQueueNum", 0, 32),
    )


@request_body
def decode_mode(body: bytes | memoryview) -> RequestMode:
    """Return the mode that a request sets. Raises SystemError_."""
    return mode_from_json(_loads(body))


class AssignmentQuery(NamedTuple):
    """A member asks for its queues of a topic."""

    topic: str
    group: str
    client_id: str
    strategy: str
    broadcasting: bool


@request_body
def decode_query(body: bytes | memoryview) -> AssignmentQuery:
    """Return the question of a member. Raises SystemError_."""
    fields = shapes.as_object(_loads(body), "the query")
    model = shapes.text(fields, "messageModel", _MODELS[0])
    if model not in _MODELS:
        raise RemoteProtocolError(f"the message model {model[:32]!r} is not known")
    return AssignmentQuery(
        shapes.text(fields, "topic"),
        shapes.text(fields, "consumerGroup"),
        shapes.text(fields, "clientId", ""),
        shapes.text(fields, "strategyName", ""),
        model == BROADCASTING,
    )


def encode_assignments(queues: list[TopicQueue] | None, mode: str) -> bytes:
    """Return the answer to a question; None tells the member to keep what it has."""
    if queues is None:
        return b"{}"
    return fastjson.dumps(
        {
            "messageQueueAssignments": [
                {
                    "messageQueue": {
                        "brokerName": one.broker,
                        "queueId": one.index,
                        "topic": one.topic,
                    },
                    "mode": mode,
                }
                for one in queues
            ]
        }
    )


def _loads(body: bytes | memoryview) -> object:
    return fastjson.loads(
        body, items_max=fastjson.REQUEST_ITEMS_MAX, slow_items_max=fastjson.SLOW_ITEMS_MAX
    )
