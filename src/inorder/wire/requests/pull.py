"""Pulling messages of one queue."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from inorder.wire.codes import RequestCode
from inorder.wire.fields import Int32

PULL_COMMIT_OFFSET: Final = 1
PULL_SUSPEND: Final = 2
PULL_SUBSCRIPTION: Final = 4
PULL_CLASS_FILTER: Final = 8
PULL_LITE: Final = 16

FORBIDDEN_BROKER: Final = 1
FORBIDDEN_GROUP: Final = 2
FORBIDDEN_TOPIC: Final = 3
FORBIDDEN_BROADCAST: Final = 4
FORBIDDEN_SUBSCRIPTION: Final = 5


class PullMessage(msgspec.Struct, frozen=True):
    """Ask for messages from an offset on; `sys_flag` holds the PULL_ bits."""

    CODE: ClassVar = RequestCode.PULL_MESSAGE

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: int
    max_messages: Int32 = msgspec.field(name="maxMsgNums")
    sys_flag: Int32
    commit_offset: int
    suspend_timeout_ms: int = msgspec.field(name="suspendTimeoutMillis")
    sub_version: int
    subscription: str | None = None
    expression_type: str | None = None
    max_bytes: Int32 | None = msgspec.field(default=None, name="maxMsgBytes")
    broker_name: str | None = msgspec.field(default=None, name="bname")
    bulk: Int32 | None = None  # ours, see wire/extensions.py
    epoch: int | None = None  # ours
    only_up: bool | None = None  # ours


class PullReply(msgspec.Struct, frozen=True):
    """Where to go on; the first four are in every answer with code 0, 19, 20 and 21."""

    suggest_broker_id: int = msgspec.field(name="suggestWhichBrokerId")
    next_begin_offset: int
    min_offset: int
    max_offset: int
    offset_delta: int | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None
    map_version: int | None = msgspec.field(default=None, name="mv")  # ours
    parked: int | None = None  # ours


class PullRefusal(msgspec.Struct, frozen=True):
    """What accompanies NO_PERMISSION: one of the FORBIDDEN_ numbers."""

    forbidden_type: Int32
