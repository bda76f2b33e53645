"""Requests about messages for a time of day: the recall, and how many wait."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from inorder.wire import fastjson, shapes
from inorder.wire.codes import RequestCode
from inorder.wire.replies import body_as, fields_as


class RecallReply(msgspec.Struct, frozen=True):
    """The id of the message."""

    msg_id: str = ""


class Recall(msgspec.Struct, frozen=True):
    """Ask that a message that waits for its time is never delivered."""

    CODE: ClassVar = RequestCode.RECALL_MESSAGE
    REPLY = fields_as(RecallReply)

    topic: str
    recall_handle: str
    producer_group: str | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


def decode_metrics(body: bytes | memoryview) -> dict[str, int]:
    """Return how many messages of each topic wait. Raises RemoteProtocolError."""
    content = shapes.as_object(fastjson.loads(bytes(body)), "timer metrics")
    table = shapes.as_object(content.get("timingCount", {}), "timingCount")
    counts: dict[str, int] = {}
    for topic, one in table.items():
        entry = shapes.as_object(one, "timingCount")
        count = shapes.as_integer(entry.get("count"), "count")
        if count:
            counts[topic] = count
    return counts


class TimerMetrics(msgspec.Struct, frozen=True):
    """Ask how many messages of each topic wait for their time."""

    CODE: ClassVar = RequestCode.GET_TIMER_METRICS
    REPLY = body_as(decode_metrics)
