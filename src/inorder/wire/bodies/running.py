"""What a consumer says of itself: its queues and counts (307), how far it is (221), and how it got
on with one message (309)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from inorder.model import Subscription, TopicQueue
from inorder.wire import shapes
from inorder.wire.bodies.heartbeat import subscription_from_json, subscription_to_json
from inorder.wire.bodies.locks import queue_from_json, queue_to_json
from inorder.wire.fastjson import dumps, loads

_ITEMS_MAX: Final = 2_000_000

CR_SUCCESS: Final = "CR_SUCCESS"
CR_LATER: Final = "CR_LATER"
CR_ROLLBACK: Final = "CR_ROLLBACK"
CR_COMMIT: Final = "CR_COMMIT"
CR_THROW_EXCEPTION: Final = "CR_THROW_EXCEPTION"


@dataclass(frozen=True, slots=True)
class QueueRunning:
    """One queue of a consumer; times are ms since 1970, 0: never."""

    commit_offset: int = 0
    cached_min_offset: int = 0
    cached_max_offset: int = 0
    cached_messages: int = 0
    cached_mib: int = 0
    taken_messages: int = 0
    locked: bool = False
    locked_at_ms: int = 0
    pulled_at_ms: int = 0
    handled_at_ms: int = 0
    dropped: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return fastjson's ProcessQueueInfo."""
        return {
            "cachedMsgCount": self.cached_messages,
            "cachedMsgMaxOffset": self.cached_max_offset,
            "cachedMsgMinOffset": self.cached_min_offset,
            "cachedMsgSizeInMiB": self.cached_mib,
            "commitOffset": self.commit_offset,
            "droped": self.dropped,
            "lastConsumeTimestamp": self.handled_at_ms,
            "lastLockTimestamp": self.locked_at_ms,
            "lastPullTimestamp": self.pulled_at_ms,
            "locked": self.locked,
            "transactionMsgCount": self.taken_messages,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": 0,
        }

    @classmethod
    def from_json(cls, value: dict[Any, Any]) -> QueueRunning:
        """Read a ProcessQueueInfo."""
        return cls(
            shapes.integer(value, "commitOffset", 0),
            shapes.integer(value, "cachedMsgMinOffset", 0),
            shapes.integer(value, "cachedMsgMaxOffset", 0),
            shapes.integer(value, "cachedMsgCount", 0),
            shapes.integer(value, "cachedMsgSizeInMiB", 0),
            shapes.integer(value, "transactionMsgCount", 0),
            shapes.boolean(value, "locked", False),
            shapes.integer(value, "lastLockTimestamp", 0),
            shapes.integer(value, "lastPullTimestamp", 0),
            shapes.integer(value, "lastConsumeTimestamp", 0),
            shapes.boolean(value, "droped", False),
        )


@dataclass(frozen=True, slots=True)
class TopicRunning:
    """What a consumer did of one topic: rates a second, times in ms."""

    handled_rate: float = 0.0
    failed_rate: float = 0.0
    handling_ms: float = 0.0
    failed_total: int = 0
    pulled_rate: float = 0.0
    pulling_ms: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return fastjson's ConsumeStatus."""
        return {
            "consumeFailedMsgs": self.failed_total,
            "consumeFailedTPS": self.failed_rate,
            "consumeOKTPS": self.handled_rate,
            "consumeRT": self.handling_ms,
            "pullRT": self.pulling_ms,
            "pullTPS": self.pulled_rate,
        }

    @classmethod
    def from_json(cls, value: dict[Any, Any]) -> TopicRunning:
        """Read a ConsumeStatus."""
        return cls(
            _rate(value, "consumeOKTPS"),
            _rate(value, "consumeFailedTPS"),
            _rate(value, "consumeRT"),
            shapes.integer(value, "consumeFailedMsgs", 0),
            _rate(value, "pullTPS"),
            _rate(value, "pullRT"),
        )


@dataclass(frozen=True, slots=True)
class RunningInfo:
    """The answer to GET_CONSUMER_RUNNING_INFO."""

    properties: dict[str, str] = field(default_factory=dict)
    subscriptions: tuple[Subscription, ...] = ()
    queues: dict[TopicQueue, QueueRunning] = field(default_factory=dict)
    topics: dict[str, TopicRunning] = field(default_factory=dict)
    stacks: str | None = None

    def encode(self) -> bytes:
        """Return the JSON text."""
        return dumps(
            {
                "jstack": self.stacks,
                "mqPopTable": {},
                "mqTable": {_key(queue): item.to_json() for queue, item in self.queues.items()},
                "properties": self.properties,
                "statusTable": {topic: item.to_json() for topic, item in self.topics.items()},
                "subscriptionSet": [subscription_to_json(item) for item in self.subscriptions],
                "userConsumerInfo": {},
            }
        )

    @classmethod
    def decode(cls, data: bytes | memoryview) -> RunningInfo:
        """Read the JSON text of any client; malformed: RemoteProtocolError."""
        value = shapes.as_object(loads(data, items_max=_ITEMS_MAX), "running info")
        queues = shapes.as_object(value.get("mqTable"), "mqTable")
        topics = shapes.as_object(value.get("statusTable"), "statusTable")
        return cls(
            shapes.text_map(value, "properties"),
            tuple(map(subscription_from_json, shapes.objects(value, "subscriptionSet"))),
            {
                _queue(key): QueueRunning.from_json(shapes.as_object(item, "mqTable"))
                for key, item in queues.items()
            },
            {
                str(topic): TopicRunning.from_json(shapes.as_object(item, "statusTable"))
                for topic, item in topics.items()
            },
            shapes.text(value, "jstack", "") or None,
        )


@dataclass(frozen=True, slots=True)
class DirectResult:
    """The answer to CONSUME_MESSAGE_DIRECTLY; `result` is one of the CR_ names."""

    result: str
    spent_ms: int = 0
    remark: str | None = None
    order: bool = False
    auto_commit: bool = True

    def encode(self) -> bytes:
        """Return the JSON text."""
        return dumps(
            {
                "autoCommit": self.auto_commit,
                "consumeResult": self.result,
                "order": self.order,
                "remark": self.remark,
                "spentTimeMills": self.spent_ms,
            }
        )

    @classmethod
    def decode(cls, data: bytes | memoryview) -> DirectResult:
        """Read the JSON text; malformed: RemoteProtocolError."""
        value = shapes.as_object(loads(data), "direct result")
        return cls(
            shapes.text(value, "consumeResult", ""),
            shapes.integer(value, "spentTimeMills", 0),
            shapes.text(value, "remark", "") or None,
            shapes.boolean(value, "order", False),
            shapes.boolean(value, "autoCommit", True),
        )


def encode_consumer_status(offsets: Mapping[TopicQueue, int]) -> bytes:
    """Return the answer's body of GET_CONSUMER_STATUS_FROM_CLIENT."""
    table = {_key(queue): offset for queue, offset in offsets.items()}
    return dumps({"consumerTable": {}, "messageQueueTable": table})


def decode_consumer_status(data: bytes | memoryview) -> dict[TopicQueue, int]:
    """Read the answer's body of GET_CONSUMER_STATUS_FROM_CLIENT; malformed: RemoteProtocolError."""
    value = shapes.as_object(loads(data, items_max=_ITEMS_MAX), "consumer status")
    table = shapes.as_object(value.get("messageQueueTable"), "messageQueueTable")
    return {_queue(key): shapes.as_integer(offset, "offset") for key, offset in table.items()}


def encode_consumer_statuses(clients: Mapping[str, Mapping[TopicQueue, int]]) -> bytes:
    """Return the answer's body of INVOKE_BROKER_TO_GET_CONSUMER_STATUS, by client id."""
    table = {
        client: {_key(queue): offset for queue, offset in offsets.items()}
        for client, offsets in clients.items()
    }
    return dumps({"consumerTable": table, "messageQueueTable": {}})


def decode_consumer_statuses(data: bytes | memoryview) -> dict[str, dict[TopicQueue, int]]:
    """Read the same; malformed: RemoteProtocolError."""
    value = shapes.as_object(loads(data, items_max=_ITEMS_MAX), "consumer statuses")
    return {
        str(client): {
            _queue(key): shapes.as_integer(offset, "offset")
            for key, offset in shapes.as_object(offsets, "consumerTable").items()
        }
        for client, offsets in shapes.as_object(value.get("consumerTable"), "consumerTable").items()
    }


def _key(queue: TopicQueue) -> tuple[tuple[str, Any], ...]:
    return tuple(queue_to_json(queue).items())


def _queue(key: Any) -> TopicQueue:
    """Read a queue that is a key: an object, or (by standard JSON writers) the text of one."""
    bean = loads(key) if isinstance(key, str) else dict(key)
    return queue_from_json(shapes.as_object(bean, "queue"))


def _rate(value: dict[Any, Any], key: str) -> float:
    found = value.get(key)
    return float(found) if isinstance(found, int | float) else 0.0
