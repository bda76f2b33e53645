"""Reading a message's numbers from its properties."""

from __future__ import annotations

import pytest

from inorder.errors import MessageIllegal
from inorder.wire.requests.producers import NUMBER_MAX, offsets_of, offsets_text, read_numbered


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", None),
        ("KEYS\x01INORDER_PID\x02", None),
        ("TAGS\x01a\x02", None),
        ("INORDER_SCHED\x013:4\x02", None),
        ("INORDER_PID\x01p\x02INORDER_SEQ\x010\x02", ("p", 0, None)),
        ("INORDER_PID\x01p\x02INORDER_SEQ\x0112", ("p", 12, None)),
        ("A\x01b\x02INORDER_PID\x01p q\x02INORDER_SEQ\x017\x02C\x01d\x02", ("p q", 7, None)),
        ("INORDER_PID\x01p\x02INORDER_SEQ\x017\x02INORDER_PREV\x01-1\x02", ("p", 7, -1)),
        ("INORDER_PID\x01p\x02INORDER_SEQ\x017\x02INORDER_PREV\x016", ("p", 7, 6)),
        (f"INORDER_PID\x01p\x02INORDER_SEQ\x01{NUMBER_MAX}\x02", ("p", NUMBER_MAX, None)),
        ("x\x01INORDER_PID\x01p\x02", None),
    ],
)
def test_the_group_is_found(text: str, found: tuple[str, int, int | None] | None) -> None:
    """Side by side, anywhere among the properties; the last separator may be missing."""
    assert read_numbered(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "INORDER_PID\x01p\x02",
        "INORDER_PID\x01p\x02A\x01b\x02INORDER_SEQ\x017\x02",
        "INORDER_SEQ\x017\x02INORDER_PID\x01p\x02",
        "INORDER_PID\x01p\x02INORDER_SEQ\x01-7\x02",
        "INORDER_PID\x01p\x02INORDER_SEQ\x01x\x02",
        "INORDER_PID\x01p\x02INORDER_SEQ\x01\u0661\x02",
        "x\x01INORDER_PID\x01p\x02INORDER_SEQ\x017\x02",
        f"INORDER_PID\x01p\x02INORDER_SEQ\x01{NUMBER_MAX + 1}\x02",
        f"INORDER_PID\x01{'p' * 256}\x02INORDER_SEQ\x017\x02",
    ],
)
def test_what_makes_no_sense_is_refused(text: str) -> None:
    """A message that names a producer and cannot be counted is never stored as a plain one."""
    with pytest.raises(MessageIllegal):
        read_numbered(text)


def test_places_of_messages_go_through_a_field() -> None:
    """As runs; a damaged field ends where it is damaged, and none is as long as it claims."""
    assert offsets_of(offsets_text([(5, 3), (-1, 2), (9, 1)]), 1024) == [5, 6, 7, -1, -1, 9]
    assert offsets_of("5:999999999,7:1", 4) == [5, 6, 7, 8]
    assert offsets_of("5:2,x:1,7:1", 10) == [5, 6]
    assert offsets_of("5", 10) == offsets_of("-2:1", 10) == offsets_of("", 10) == []
    assert offsets_of(None, 10) == []
