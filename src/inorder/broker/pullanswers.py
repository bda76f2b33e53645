"""The answer to a pull in words: its code, and the fields that every answer has.

The plain answer with messages is written by `pulls.py` itself, from a template; this is all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inorder.store.reader import ReadStatus
from inorder.wire.codes import ResponseCode
from inorder.wire.header import Command

if TYPE_CHECKING:
    from inorder.broker.gates import Gate
    from inorder.store.reader import ReadResult

_CODES: Final = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.QUEUE_DAMAGED: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
}


def answer_code(result: ReadResult, offset: int) -> ResponseCode:
    """Return the code for what a read at an offset found."""
    code = _CODES.get(result.status)
    if code is not None:
        return code
    return ResponseCode.PULL_NOT_FOUND if offset == 0 else ResponseCode.PULL_OFFSET_MOVED


def answer(
    result: ReadResult, gate: Gate, offset: int, request_id: int, serializer: int
) -> Command:
    """Return the answer to a pull at an offset; the records follow its head."""
    return Command(
        code=answer_code(result, offset),
        request_id=request_id,
        flag=1,
        serializer=serializer,
        remark=result.status.name,
        fields={
            "suggestWhichBrokerId": "0",
            "groupSysFlag": str(gate.group_flag),
            "nextBeginOffset": str(result.next_offset),
            "maxOffset": str(result.max_offset),
            "minOffset": str(result.min_offset),
            "topicSysFlag": str(gate.topic_flag),
        },
    )
