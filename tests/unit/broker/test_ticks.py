"""Replies that wait for a tick: also several frames in one piece have an outcome each."""

from __future__ import annotations

from typing import Any

import pytest

from inorder.broker.ticks import PartlyStored, PendingReplies
from inorder.wire.codes import ResponseCode
from inorder.wire.frame import FrameDecoder, encode_frame
from inorder.wire.header import Command, decode_command


class Connection:
    """Keeps what is written."""

    def __init__(self, *, closed: bool = False) -> None:
        self.closed = closed
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def answers(self) -> list[Command]:
        return [decode_command(one) for one in FrameDecoder().receive_data(b"".join(self.written))]


def pending(kind: type[PendingReplies], *, closed: bool = False) -> tuple[Any, PendingReplies]:
    """Return replies to five requests: one alone, three in a piece, one in the other serializer."""
    connection: Any = Connection(closed=closed)
    replies = kind(connection, 0)
    frames = [
        encode_frame(Command(0, number, 1, {"queueOffset": str(number)}, serializer=number // 5))
        for number in range(1, 6)
    ]
    for piece, count in ((frames[0], 1), (b"".join(frames[1:4]), 3), (frames[4], 1)):
        replies.add(piece, count)
    return connection, replies


def test_all_replies_leave_as_one_piece():
    """In the order of their requests."""
    connection, replies = pending(PendingReplies)
    replies.write()
    assert len(connection.written) == 1
    assert [one.request_id for one in connection.answers()] == [1, 2, 3, 4, 5]
    assert replies.count == 5


@pytest.mark.parametrize("kind", [PendingReplies, PartlyStored])
def test_each_request_is_refused(kind: type[PendingReplies]):
    """In its own serializer, in the order of the requests."""
    connection, replies = pending(kind)
    replies.refuse(ResponseCode.SERVICE_NOT_AVAILABLE, "full", {"a": "b"})
    found = connection.answers()
    assert [(one.request_id, one.serializer) for one in found] == [
        (1, 0), (2, 0), (3, 0), (4, 0), (5, 1),
    ]  # fmt: skip
    assert all(one.code != 0 and "full" in (one.remark or "") for one in found)
    assert all(one.fields == {"a": "b"} and one.is_response for one in found)


def test_each_request_hears_that_its_sync_is_late():
    """With the fields of its own reply."""
    connection, replies = pending(PendingReplies)
    assert replies.write_late()
    found = connection.answers()
    assert [one.code for one in found] == [ResponseCode.FLUSH_DISK_TIMEOUT] * 5
    assert [one.fields["queueOffset"] for one in found] == ["1", "2", "3", "4", "5"]


def test_a_closed_connection_hears_nothing():
    """Neither of refusals nor of late syncs."""
    connection, replies = pending(PendingReplies, closed=True)
    replies.refuse(1, "x", {})
    replies.write_late()
    assert connection.written == []
