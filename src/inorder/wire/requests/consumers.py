"""Consumers and their messages: giving one back (36), and what a broker asks a consumer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from inorder.wire.codes import RequestCode
from inorder.wire.fields import Int32


@dataclass(frozen=True, slots=True)
class SendBack:
    """Give a message back that could not be handled: the broker stores it again, for later.

    `delay_level` 0: the broker decides; below: it goes to the dead letters at once.
    """

    CODE: ClassVar = RequestCode.CONSUMER_SEND_MSG_BACK

    position: int = field(metadata={"wire": "offset"})
    group: str
    delay_level: Int32
    origin_message_id: str | None = field(default=None, metadata={"wire": "originMsgId"})
    origin_topic: str | None = None
    unit_mode: bool = False
    redeliveries_max: Int32 | None = field(default=None, metadata={"wire": "maxReconsumeTimes"})


@dataclass(frozen=True, slots=True)
class ResetClientOffset:
    """Tell a consumer to go on elsewhere (oneway); the body has the offsets."""

    CODE: ClassVar = RequestCode.RESET_CONSUMER_CLIENT_OFFSET

    topic: str
    group: str
    timestamp_ms: int = field(default=0, metadata={"wire": "timestamp"})
    force: bool = field(default=False, metadata={"wire": "isForce"})


@dataclass(frozen=True, slots=True)
class GetConsumerStatus:
    """Ask a consumer how far it is on a topic."""

    CODE: ClassVar = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT

    topic: str
    group: str


@dataclass(frozen=True, slots=True)
class GetRunningInfo:
    """Ask a consumer what it does."""

    CODE: ClassVar = RequestCode.GET_CONSUMER_RUNNING_INFO

    consumer_group: str
    client_id: str
    stacks: bool = field(default=False, metadata={"wire": "jstackEnable"})


@dataclass(frozen=True, slots=True)
class ConsumeDirectly:
    """Let a consumer handle one message now; the broker puts its record into the body."""

    CODE: ClassVar = RequestCode.CONSUME_MESSAGE_DIRECTLY

    consumer_group: str
    client_id: str | None = None
    message_id: str | None = field(default=None, metadata={"wire": "msgId"})
    broker_name: str | None = None
    topic: str | None = None
