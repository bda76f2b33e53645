"""Replies to requests: how a responder sends one, and how the broker pushes it to the requester.

    SEND_REPLY_MESSAGE (324), SEND_REPLY_MESSAGE_V2 (325)   the header of a send, long or by letters
    PUSH_REPLY_MESSAGE_TO_CLIENT (326)                      broker to requester, the body unchanged

A request is a message with the properties CORRELATION_ID, REPLY_TO_CLIENT (the requester's client
id) and TTL. Its reply carries them too, and MSG_TYPE=reply.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from inorder.wire.codes import RequestCode
from inorder.wire.fields import Int32

REPLY_TYPE: Final = "reply"
"""The MSG_TYPE of a reply."""
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
"""The property with the time at which the broker pushed the reply."""
REPLY_CODES: Final = frozenset((RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2))


def reply_topic(cluster: str) -> str:
    """Return the topic to which the replies of a cluster are sent."""
    return f"{cluster}_REPLY_TOPIC"


class PushReply(msgspec.Struct, frozen=True):
    """A reply on its way to the client that asked."""

    CODE: ClassVar = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queues: Int32 = msgspec.field(name="defaultTopicQueueNums")
    queue_id: Int32
    sys_flag: Int32
    born_at_ms: int = msgspec.field(name="bornTimestamp")
    flag: Int32
    born_host: str
    store_host: str
    stored_at_ms: int = msgspec.field(name="storeTimestamp")
    properties: str | None = None
    redeliveries: Int32 | None = msgspec.field(default=None, name="reconsumeTimes")
    unit_mode: bool = False
