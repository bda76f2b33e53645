"""Finding messages: by key, by position."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from inorder.wire.codes import RequestCode
from inorder.wire.fields import Int32


@dataclass(frozen=True, slots=True)
class QueryMessage:
    """Ask for the messages of a key that were stored between two times."""

    CODE: ClassVar = RequestCode.QUERY_MESSAGE

    topic: str
    key: str
    max_messages: Int32 = field(metadata={"wire": "maxNum"})
    begin_ms: int = field(metadata={"wire": "beginTimestamp"})
    end_ms: int = field(metadata={"wire": "endTimestamp"})
    unique_key: bool = field(default=False, metadata={"wire": "_UNIQUE_KEY_QUERY"})


@dataclass(frozen=True, slots=True)
class QueryMessageReply:
    """How far the key index reaches."""

    index_updated_at_ms: int = field(metadata={"wire": "indexLastUpdateTimestamp"})
    index_position: int = field(metadata={"wire": "indexLastUpdatePhyoffset"})


@dataclass(frozen=True, slots=True)
class ViewMessage:
    """Ask for the record at a position."""

    CODE: ClassVar = RequestCode.VIEW_MESSAGE_BY_ID

    position: int = field(metadata={"wire": "offset"})
    topic: str | None = None
