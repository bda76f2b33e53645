"""How much a producer takes in at a time: messages, bytes, and one call above the limit."""

from __future__ import annotations

import pytest

from inorder.client.send.rules import Room


@pytest.mark.parametrize(
    ("calls", "taken"),
    [
        ([(1, 1)] * 5, [True, True, True, True, False]),
        ([(1, 60), (1, 60), (1, 1)], [True, True, False]),
        ([(1, 500), (1, 1)], [True, False]),
        ([(100, 1), (1, 1)], [True, False]),
        ([(3, 99), (100, 1), (1, 0)], [True, True, False]),
    ],
    ids=["messages", "bytes", "a large message", "a large batch", "behind others"],
)
def test_a_call_comes_in_while_there_is_any_room(calls: list[tuple[int, int]], taken: list[bool]):
    """So what is larger than the limit goes too, and the limits are passed by one call at most."""
    room = Room(4, 100)
    assert [room.enter(*call) for call in calls] == taken


def test_what_leaves_makes_room():
    """For the next call at once; a thread is woken when half is free."""
    room = Room(4, 100)
    assert all(room.enter(1, 25) for _ in range(4))
    assert (room.full, room.wide) == (True, False)
    room.leave(1, 25)
    assert (room.full, room.wide) == (False, False)
    room.leave(1, 25)
    assert (room.full, room.wide) == (False, True)


def test_the_smallest_room_opens_again():
    """With a limit of one message, or one byte, half is all of it."""
    room = Room(1, 1)
    assert room.enter(1, 7)
    assert not room.wide
    room.leave(1, 7)
    assert room.wide
