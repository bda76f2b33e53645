"""Pulls, queries by key and by position, and subscription expressions.

A pull carries the offset to commit and, for inorder brokers, an epoch: decision 26.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from inorder.errors import SubscriptionParseFailed
from inorder.model import Subscription
from inorder.wire.codes import RequestCode, ResponseCode
from inorder.wire.fields import Int32
from inorder.wire.ids import java_hash
from inorder.wire.record import decode, decode_all
from inorder.wire.replies import body_as

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

PULL_REPLY_CODES: Final = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    )
)
"""Codes of replies that say where to pull next. A reply with any other code is a failure."""


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
    bulk: Int32 | None = None  # inorder's, see wire/extensions.py
    epoch: int | None = None  # inorder's
    only_up: bool | None = None  # inorder's


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
    map_version: int | None = msgspec.field(default=None, name="mv")  # inorder's
    parked: int | None = None  # inorder's


class QueryMessage(msgspec.Struct, frozen=True):
    """Ask for the messages of a key that were stored between two times."""

    CODE: ClassVar = RequestCode.QUERY_MESSAGE
    REPLY = body_as(decode_all)

    topic: str
    key: str
    max_messages: Int32 = msgspec.field(name="maxNum")
    begin_ms: int = msgspec.field(name="beginTimestamp")
    end_ms: int = msgspec.field(name="endTimestamp")
    unique_key: bool = msgspec.field(default=False, name="_UNIQUE_KEY_QUERY")


class QueryMessageReply(msgspec.Struct, frozen=True):
    """How far the key index reaches."""

    index_updated_at_ms: int = msgspec.field(name="indexLastUpdateTimestamp")
    index_position: int = msgspec.field(name="indexLastUpdatePhyoffset")


class ViewMessage(msgspec.Struct, frozen=True):
    """Ask for the record at a position."""

    CODE: ClassVar = RequestCode.VIEW_MESSAGE_BY_ID
    REPLY = body_as(decode)

    position: int = msgspec.field(name="offset")
    topic: str | None = None


TAG: Final = "TAG"
SQL92: Final = "SQL92"
ALL: Final = "*"

_OR: Final = "||"
TAGS_MAX: Final = 1024


def parse_subscription(
    topic: str, expression: str | None, version: int = 0, expression_type: str | None = TAG
) -> Subscription:
    """Return the subscription; the hashes come from the tags, never from a peer.

    Raises:
        SubscriptionParseFailed: the expression has operators only, or too many tags.
    """
    kind = expression_type or TAG
    if kind != TAG:
        return Subscription(topic, expression or "", version=version, expression_type=kind)
    if not expression or expression == ALL:
        return Subscription(topic, ALL, version=version)
    parts = expression.split(_OR)
    if len(parts) > TAGS_MAX:
        raise SubscriptionParseFailed(f"more than {TAGS_MAX} tags for the topic {topic}")
    if not any(parts):
        raise SubscriptionParseFailed(f"the expression {expression!r} holds no tag")
    tags = tuple(dict.fromkeys(tag for part in parts if (tag := part.strip())))
    return Subscription(
        topic, expression, tags, frozenset(map(java_hash, tags)), version, expression_type=TAG
    )
