"""What was read ahead, and the reader's position."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inorder.client.consume.rules.pulls import Prefetched
from inorder.model import ReceivedMessage, TopicQueue

QUEUE = TopicQueue("t", "b", 0)


def message(offset: int) -> ReceivedMessage:
    return ReceivedMessage("t", QUEUE, offset, b"x" * (offset % 3 + 1), {}, str(offset), 0, 0)


def test_position_follows_what_was_taken():
    """Message by message, and past those that a filter left out."""
    ahead = Prefetched(10)
    ahead.add([message(10), message(12)], 15)
    assert (ahead.position, ahead.fetch_offset, ahead.messages) == (10, 15, 2)
    assert [m.offset for m in ahead.take(1)] == [10]
    assert ahead.position == 11
    assert [m.offset for m in ahead.take(5)] == [12]
    assert (ahead.position, ahead.messages, ahead.size_bytes) == (15, 0, 0)
    ahead.add([], 20)
    assert ahead.position == 20


def test_a_pull_that_matched_nothing_does_not_pass_what_waits():
    """The position moves on when the reader has taken what lies before."""
    ahead = Prefetched(0)
    ahead.add([message(0)], 1)
    ahead.add([], 9)
    assert (ahead.position, ahead.fetch_offset) == (0, 9)
    ahead.take(1)
    assert ahead.position == 9


@given(
    st.lists(st.lists(st.booleans(), max_size=6), max_size=8),
    st.lists(st.integers(1, 5), max_size=40),
)
def test_all_messages_come_once_in_order(pulls: list[list[bool]], takes: list[int]):
    """However pulls and takes fall; sizes add up; the position never lies before a taken one."""
    ahead, offset, expected = Prefetched(0), 0, []
    for pulled in pulls:
        found = [offset + n for n, wanted in enumerate(pulled) if wanted]
        offset += len(pulled)
        expected += found
        ahead.add([message(n) for n in found], offset)
    taken: list[int] = []
    for limit in [*takes, 1000]:
        got = ahead.take(limit)
        assert len(got) <= limit
        taken += [m.offset for m in got]
        left = [n for n in expected if n >= ahead.position]
        assert taken + left == expected
        assert ahead.messages == len(left)
    assert taken == expected
    assert (ahead.position, ahead.size_bytes) == (offset, 0)
