"""Consumers and their messages: giving one back (36), and what a broker asks a consumer."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from inorder.wire.codes import RequestCode
from inorder.wire.extensions import SENT_BACK_ERROR
from inorder.wire.fields import Int32


class SendBack(msgspec.Struct, frozen=True):
    """Give a message back that could not be handled: the broker stores it again, for later.

    `delay_level` 0: the broker decides; below: it goes to the dead letters at once.
    """

    CODE: ClassVar = RequestCode.CONSUMER_SEND_MSG_BACK

    position: int = msgspec.field(name="offset")
    group: str
    delay_level: Int32
    origin_message_id: str | None = msgspec.field(default=None, name="originMsgId")
    origin_topic: str | None = None
    unit_mode: bool = False
    redeliveries_max: Int32 | None = msgspec.field(default=None, name="maxReconsumeTimes")
    error: str | None = msgspec.field(default=None, name=SENT_BACK_ERROR)  # ours


class ResetClientOffset(msgspec.Struct, frozen=True):
    """Tell a consumer to go on elsewhere (oneway); the body has the offsets."""

    CODE: ClassVar = RequestCode.RESET_CONSUMER_CLIENT_OFFSET

    topic: str
    group: str
    timestamp_ms: int = msgspec.field(default=0, name="timestamp")
    force: bool = msgspec.field(default=False, name="isForce")


class GetConsumerStatus(msgspec.Struct, frozen=True):
    """Ask a consumer how far it is on a topic."""

    CODE: ClassVar = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT

    topic: str
    group: str


class GetRunningInfo(msgspec.Struct, frozen=True):
    """Ask a consumer what it does."""

    CODE: ClassVar = RequestCode.GET_CONSUMER_RUNNING_INFO

    consumer_group: str
    client_id: str
    stacks: bool = msgspec.field(default=False, name="jstackEnable")


class ConsumeDirectly(msgspec.Struct, frozen=True):
    """Let a consumer handle one message now; the broker puts its record into the body."""

    CODE: ClassVar = RequestCode.CONSUME_MESSAGE_DIRECTLY

    consumer_group: str
    client_id: str | None = None
    message_id: str | None = msgspec.field(default=None, name="msgId")
    broker_name: str | None = None
    topic: str | None = None
