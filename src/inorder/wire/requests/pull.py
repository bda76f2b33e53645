"""Pulling messages of one queue."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

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


@dataclass(frozen=True, slots=True)
class PullMessage:
    """Ask for messages from an offset on; `sys_flag` holds the PULL_ bits."""

    CODE: ClassVar = RequestCode.PULL_MESSAGE

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: int
    max_messages: Int32 = field(metadata={"wire": "maxMsgNums"})
    sys_flag: Int32
    commit_offset: int
    suspend_timeout_ms: int = field(metadata={"wire": "suspendTimeoutMillis"})
    sub_version: int
    subscription: str | None = None
    expression_type: str | None = None
    max_bytes: Int32 | None = field(default=None, metadata={"wire": "maxMsgBytes"})
    broker_name: str | None = field(default=None, metadata={"wire": "bname"})
    bulk: Int32 | None = None  # ours, see wire/extensions.py
    epoch: int | None = None  # ours


@dataclass(frozen=True, slots=True)
class PullReply:
    """Where to go on; the first four are in every answer with code 0, 19, 20 and 21."""

    suggest_broker_id: int = field(metadata={"wire": "suggestWhichBrokerId"})
    next_begin_offset: int
    min_offset: int
    max_offset: int
    offset_delta: int | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None
    map_version: int | None = field(default=None, metadata={"wire": "mv"})  # ours
    parked: int | None = None  # ours


@dataclass(frozen=True, slots=True)
class PullRefusal:
    """What accompanies NO_PERMISSION: one of the FORBIDDEN_ numbers."""

    forbidden_type: Int32
