"""Finding messages: by key, by position."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from inorder.wire.codes import RequestCode
from inorder.wire.fields import Int32


class QueryMessage(msgspec.Struct, frozen=True):
    """Ask for the messages of a key that were stored between two times."""

    CODE: ClassVar = RequestCode.QUERY_MESSAGE

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

    position: int = msgspec.field(name="offset")
    topic: str | None = None
