"""Offsets: how far a group is, and what a queue holds."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from inorder.wire.codes import RequestCode
from inorder.wire.fields import Int32


class QueryConsumerOffset(msgspec.Struct, frozen=True):
    """Ask how far a group is."""

    CODE: ClassVar = RequestCode.QUERY_CONSUMER_OFFSET

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffset(msgspec.Struct, frozen=True):
    """Say how far a group is. What is None here is refused with INVALID_PARAMETER."""

    CODE: ClassVar = RequestCode.UPDATE_CONSUMER_OFFSET

    consumer_group: str
    topic: str
    queue_id: Int32 | None = None
    commit_offset: int | None = None
    only_up: bool | None = None  # ours, see wire/extensions.py


class SearchOffset(msgspec.Struct, frozen=True):
    """Ask for the offset at a time."""

    CODE: ClassVar = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP

    topic: str
    queue_id: Int32
    timestamp_ms: int = msgspec.field(name="timestamp")
    boundary_type: str | None = None


class GetMaxOffset(msgspec.Struct, frozen=True):
    """Ask for the offset that the next message will get."""

    CODE: ClassVar = RequestCode.GET_MAX_OFFSET

    topic: str
    queue_id: Int32
    committed: bool | None = None


class GetMinOffset(msgspec.Struct, frozen=True):
    """Ask for the offset of the oldest message."""

    CODE: ClassVar = RequestCode.GET_MIN_OFFSET

    topic: str
    queue_id: Int32


class GetEarliest(msgspec.Struct, frozen=True):
    """Ask when the oldest message was stored."""

    CODE: ClassVar = RequestCode.GET_EARLIEST_MSG_STORETIME

    topic: str
    queue_id: Int32


class OffsetReply(msgspec.Struct, frozen=True):
    """An offset."""

    offset: int


class TimestampReply(msgspec.Struct, frozen=True):
    """A time; -1 is none."""

    timestamp_ms: int = msgspec.field(name="timestamp")
