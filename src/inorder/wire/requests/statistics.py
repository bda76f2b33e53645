"""Statistics and queue contents, as operators ask for them.

QUERY_CONSUME_TIME_SPAN (303)      when a queue's first, last and next messages were stored
QUERY_CORRECTION_OFFSET (308)      the lowest offsets that any group has on a topic
VIEW_BROKER_STATS_DATA (315)       messages of a topic or group in the last minute, hour and day
GET_BROKER_CONSUME_STATS (317)     the progress of all groups
QUERY_CONSUME_QUEUE (321)          the entries of a queue
CLEAN_EXPIRED_CONSUMEQUEUE (306), CLEAN_UNUSED_TOPIC (316), DELETE_EXPIRED_COMMITLOG (329)
                                   delete what is not needed any more; no fields, no body
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final

import msgspec

from inorder.model import Subscription, TopicQueue
from inorder.wire import shapes
from inorder.wire.codes import RequestCode
from inorder.wire.fastjson import TABLE_ITEMS_MAX, dumps, loads
from inorder.wire.fields import Int32
from inorder.wire.replies import EMPTY, body_as
from inorder.wire.requests.groups import subscription_to_json
from inorder.wire.requests.leases import queue_from_json, queue_to_json
from inorder.wire.requests.offsets import ConsumeStats

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
"""The statistic of messages stored in a topic."""
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
"""The statistic of messages given to a group on a topic: `topic@group`."""


class CleanQueues(msgspec.Struct, frozen=True):
    """Delete queue files whose messages have all expired."""

    CODE: ClassVar = RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE
    REPLY = EMPTY


class CleanTopics(msgspec.Struct, frozen=True):
    """Delete the queues of topics that do not exist."""

    CODE: ClassVar = RequestCode.CLEAN_UNUSED_TOPIC
    REPLY = EMPTY


class CleanLog(msgspec.Struct, frozen=True):
    """Delete expired files of the log now."""

    CODE: ClassVar = RequestCode.DELETE_EXPIRED_COMMITLOG
    REPLY = EMPTY


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """Store times of a queue's messages; -1: there is no such message."""

    queue: TopicQueue
    first_ms: int
    last_ms: int
    consumed_ms: int
    """Of the last message that the group is done with; of the first one if it is done with none."""
    delay_ms: int
    """How long the next message of the group has been stored; 0: there is none."""


def encode_time_spans(spans: Iterable[TimeSpan]) -> bytes:
    """Return a QueryConsumeTimeSpanBody."""
    return dumps({"consumeTimeSpanSet": [_span_to_json(span) for span in spans]})


def _span_to_json(span: TimeSpan) -> dict[str, Any]:
    return {
        "consumeTimeStamp": span.consumed_ms,
        "consumeTimeStampStr": _time_text(span.consumed_ms),
        "delayTime": span.delay_ms,
        "maxTimeStamp": span.last_ms,
        "maxTimeStampStr": _time_text(span.last_ms),
        "messageQueue": queue_to_json(span.queue),
        "minTimeStamp": span.first_ms,
        "minTimeStampStr": _time_text(span.first_ms),
    }


def _time_text(at_ms: int) -> str:
    """Return a local time in RocketMQ's notation: 2026-11-15#04:07:37:412."""
    seconds, millis = divmod(at_ms, 1000)
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d#%H:%M:%S}:{millis:03d}"


def decode_time_spans(data: bytes | memoryview) -> list[TimeSpan]:
    """Read a QueryConsumeTimeSpanBody."""
    value = shapes.as_object(loads(data, items_max=TABLE_ITEMS_MAX), "time spans")
    return [
        TimeSpan(
            queue_from_json(shapes.as_object(one.get("messageQueue"), "messageQueue")),
            shapes.integer(one, "minTimeStamp", -1),
            shapes.integer(one, "maxTimeStamp", -1),
            shapes.integer(one, "consumeTimeStamp", -1),
            shapes.integer(one, "delayTime", 0),
        )
        for one in shapes.objects(value, "consumeTimeSpanSet")
    ]


class GetTimeSpans(msgspec.Struct, frozen=True):
    """Ask when the messages of a topic were stored, and how late a group is."""

    CODE: ClassVar = RequestCode.QUERY_CONSUME_TIME_SPAN
    REPLY = body_as(decode_time_spans)

    topic: str
    group: str


def encode_correction_offsets(offsets: Mapping[int, int]) -> bytes:
    """Return a QueryCorrectionOffsetBody."""
    return dumps({"correctionOffsets": dict(offsets)})


def decode_correction_offsets(data: bytes | memoryview) -> dict[int, int]:
    """Read a QueryCorrectionOffsetBody."""
    value = shapes.as_object(loads(data, items_max=TABLE_ITEMS_MAX), "correction offsets")
    table = shapes.as_object(value.get("correctionOffsets"), "correctionOffsets")
    return {
        shapes.as_integer(queue_id, "queue id"): shapes.as_integer(offset, "offset")
        for queue_id, offset in table.items()
    }


class GetCorrectionOffsets(msgspec.Struct, frozen=True):
    """Ask for the lowest offset that a group, but those in `filter_groups`, has on each queue.

    A queue on which all are behind `compare_group` has 2^63 - 1.
    """

    CODE: ClassVar = RequestCode.QUERY_CORRECTION_OFFSET
    REPLY = body_as(decode_correction_offsets)

    topic: str
    compare_group: str
    filter_groups: str | None = None


@dataclass(frozen=True, slots=True)
class WindowStats:
    """Messages in a window of time: how many, per second, and per request."""

    sum: int = 0
    rate: float = 0.0
    per_request: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return fastjson's BrokerStatsItem."""
        return {"avgpt": self.per_request, "sum": self.sum, "tps": self.rate}

    @classmethod
    def from_json(cls, value: dict[Any, Any]) -> WindowStats:
        """Read a BrokerStatsItem."""
        return cls(
            shapes.integer(value, "sum", 0), shapes.rate(value, "tps"), shapes.rate(value, "avgpt")
        )


@dataclass(frozen=True, slots=True)
class StatsData:
    """The answer to VIEW_BROKER_STATS_DATA."""

    minute: WindowStats
    hour: WindowStats
    day: WindowStats

    def encode(self) -> bytes:
        """Return the JSON text."""
        return dumps(
            {
                "statsDay": self.day.to_json(),
                "statsHour": self.hour.to_json(),
                "statsMinute": self.minute.to_json(),
            }
        )

    @classmethod
    def decode(cls, data: bytes | memoryview) -> StatsData:
        """Read the JSON text."""
        value = shapes.as_object(loads(data), "stats")
        return cls(
            *(
                WindowStats.from_json(shapes.as_object(value.get(name), name))
                for name in ("statsMinute", "statsHour", "statsDay")
            )
        )


class GetStatsData(msgspec.Struct, frozen=True):
    """Ask for a statistic: TOPIC_PUT_NUMS of a topic, GROUP_GET_NUMS of `topic@group`."""

    CODE: ClassVar = RequestCode.VIEW_BROKER_STATS_DATA
    REPLY = body_as(StatsData.decode)

    stats_name: str
    stats_key: str


@dataclass(frozen=True, slots=True)
class AllConsumeStats:
    """The progress of all groups of a broker, topic by topic."""

    address: str
    groups: dict[str, list[ConsumeStats]]
    lag: int = 0

    def encode(self) -> bytes:
        """Return fastjson's ConsumeStatsList."""
        return dumps(
            {
                "brokerAddr": self.address,
                "consumeStatsList": [
                    {group: [one.to_json() for one in stats]}
                    for group, stats in self.groups.items()
                ],
                "totalDiff": self.lag,
                "totalInflightDiff": 0,
            }
        )

    @classmethod
    def decode(cls, data: bytes | memoryview) -> AllConsumeStats:
        """Read a ConsumeStatsList."""
        value = shapes.as_object(loads(data, items_max=TABLE_ITEMS_MAX), "consume stats")
        return cls(
            shapes.text(value, "brokerAddr", ""),
            {
                shapes.as_text(group, "group"): [
                    ConsumeStats.from_json(shapes.as_object(one, "consume stats"))
                    for one in shapes.as_list(stats, "consumeStatsList")
                ]
                for entry in shapes.objects(value, "consumeStatsList")
                for group, stats in entry.items()
            },
            shapes.integer(value, "totalDiff", 0),
        )


class GetAllConsumeStats(msgspec.Struct, frozen=True):
    """Ask for the progress of all groups, on ordered topics only if `is_order`."""

    CODE: ClassVar = RequestCode.GET_BROKER_CONSUME_STATS
    REPLY = body_as(AllConsumeStats.decode)

    is_order: bool


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """One entry of a queue."""

    position: int
    size: int
    tag_hash: int


@dataclass(frozen=True, slots=True)
class QueueContents:
    """The answer to QUERY_CONSUME_QUEUE; `entries` None: there is none at this index."""

    first: int
    end: int
    entries: tuple[QueueEntry, ...] | None = None
    subscription: Subscription | None = None
    filter_text: str | None = None

    def encode(self) -> bytes:
        """Return fastjson's QueryConsumeQueueResponseBody."""
        entries = None
        if self.entries is not None:
            entries = [
                {
                    "eval": False,
                    "physicOffset": one.position,
                    "physicSize": one.size,
                    "tagsCode": one.tag_hash,
                }
                for one in self.entries
            ]
        return dumps(
            {
                "filterData": self.filter_text,
                "maxQueueIndex": self.end,
                "minQueueIndex": self.first,
                "queueData": entries,
                "subscriptionData": None
                if self.subscription is None
                else subscription_to_json(self.subscription),
            }
        )

    @classmethod
    def decode(cls, data: bytes | memoryview) -> QueueContents:
        """Read the entries of a queue."""
        value = shapes.as_object(loads(data, items_max=TABLE_ITEMS_MAX), "queue contents")
        return cls(
            shapes.integer(value, "minQueueIndex", 0),
            shapes.integer(value, "maxQueueIndex", 0),
            tuple(
                QueueEntry(
                    shapes.integer(one, "physicOffset", 0),
                    shapes.integer(one, "physicSize", 0),
                    shapes.integer(one, "tagsCode", 0),
                )
                for one in shapes.objects(value, "queueData")
            ),
        )


class GetQueueContents(msgspec.Struct, frozen=True):
    """Ask for the entries of a queue from an offset on."""

    CODE: ClassVar = RequestCode.QUERY_CONSUME_QUEUE
    REPLY = body_as(QueueContents.decode)

    topic: str
    queue_id: Int32
    index: int
    count: Int32
    consumer_group: str | None = None
