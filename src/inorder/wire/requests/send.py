"""Sending: one header with two sets of names, long (10) and letters (310, 320)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from inorder.wire.codes import RequestCode
from inorder.wire.fields import Int32, decode_fields, encode_fields

LETTER_CODES: Final = frozenset((RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE))

_LETTER: Final = "letter"


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Store a message, or a batch of them."""

    CODE: ClassVar = RequestCode.SEND_MESSAGE

    producer_group: str = field(metadata={"letter": "a"})
    topic: str = field(metadata={"letter": "b"})
    default_topic: str = field(metadata={"letter": "c"})
    default_topic_queues: Int32 = field(metadata={"letter": "d", "wire": "defaultTopicQueueNums"})
    queue_id: Int32 = field(metadata={"letter": "e"})
    sys_flag: Int32 = field(metadata={"letter": "f"})
    born_at_ms: int = field(metadata={"letter": "g", "wire": "bornTimestamp"})
    flag: Int32 = field(metadata={"letter": "h"})
    properties: str | None = field(default=None, metadata={"letter": "i"})
    redeliveries: Int32 | None = field(
        default=None, metadata={"letter": "j", "wire": "reconsumeTimes"}
    )
    unit_mode: bool = field(default=False, metadata={"letter": "k"})
    redeliveries_max: Int32 | None = field(
        default=None, metadata={"letter": "l", "wire": "maxReconsumeTimes"}
    )
    batch: bool = field(default=False, metadata={"letter": "m"})
    broker_name: str | None = field(default=None, metadata={"letter": "n", "wire": "bname"})

    @classmethod
    def from_fields(cls, code: int, fields: dict[str, str]) -> SendMessage:
        """Read the header of code 10, 310 or 320."""
        return decode_fields(cls, fields, names=_LETTER if code in LETTER_CODES else "wire")

    @classmethod
    def from_fields_v2(cls, fields: dict[str, str]) -> SendMessage:
        """Read the letters of SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""
        return decode_fields(cls, fields, names=_LETTER)

    def to_fields_v2(self) -> dict[str, str]:
        """Write the letters of SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""
        return encode_fields(self, names=_LETTER)


@dataclass(frozen=True, slots=True)
class SendReply:
    """Where a message went; for a batch the ids are joined by commas."""

    message_id: str = field(metadata={"wire": "msgId"})
    queue_id: Int32
    queue_offset: int
    transaction_id: str | None = None
    batch_unique_id: str | None = field(default=None, metadata={"wire": "batchUniqId"})
    region: str | None = field(default=None, metadata={"wire": "MSG_REGION"})
    trace_on: bool | None = field(default=None, metadata={"wire": "TRACE_ON"})


@dataclass(frozen=True, slots=True)
class SendRefusal:
    """What accompanies the codes 13, 16, 17 and 29 of a send."""

    region: str = field(metadata={"wire": "MSG_REGION"})
    trace_on: bool = field(metadata={"wire": "TRACE_ON"})
