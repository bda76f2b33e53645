"""How much a producer takes in at a time: messages, bytes, and one call above the limit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from inorder.client.send.router import SendRouter
from inorder.client.send.rules import Pace, Room
from inorder.client.send.topics import TopicSends
from inorder.ordering.keymap import queue_for_key


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


def test_the_pace_grows_with_what_is_stored_in_time():
    """It begins with a thousand messages and ends at the limit."""
    pace = Pace(10_000, 8000)
    assert pace.allowed == 1024
    for now_ms in range(1, 40):
        pace.stored(256, pace.allowed, accepted_ms=now_ms - 1, now_ms=now_ms)
    assert pace.allowed == 10_000
    pace.stored(256, 10_000, accepted_ms=0, now_ms=3000)
    assert pace.allowed == 10_000


def test_the_pace_does_not_grow_while_few_messages_wait():
    """That they are stored at once does not tell how many a broker stores in that time."""
    pace = Pace(10_000, 8000)
    for now_ms in range(1, 40):
        pace.stored(256, 256, accepted_ms=now_ms - 1, now_ms=now_ms)
    assert pace.allowed == 1024


def test_the_pace_shrinks_once_when_messages_wait_too_long():
    """So that the next ones wait for a quarter of their time; those before it count no more."""
    pace = Pace(10_000, 8000)
    pace.stored(1, 1024, accepted_ms=0, now_ms=6000)
    assert pace.allowed == 1024 * 8000 // (4 * 6000)
    shrunk = pace.allowed
    pace.stored(1, 1024, accepted_ms=10, now_ms=7000)
    assert pace.allowed == shrunk
    pace.stored(1, 300, accepted_ms=6000, now_ms=60_000)
    assert pace.allowed == 64


def test_the_pace_keeps_to_a_small_limit():
    """However slow or fast brokers are."""
    pace = Pace(5, 1000)
    pace.stored(9, 5, accepted_ms=0, now_ms=900)
    assert pace.allowed == 5
    pace.stored(9, 5, accepted_ms=900, now_ms=900)
    assert pace.allowed == 5


def test_a_broker_that_stalls_takes_its_share_of_the_room_only():
    """One of two brokers: half of it. With one broker there is nothing to share."""
    router = object.__new__(SendRouter)
    topic = TopicSends("t")
    queues = [SimpleNamespace(sender=SimpleNamespace(pending=n)) for n in (50, 3)]
    topic.keyed_send_queues = cast("Any", queues)
    router.topics = {"t": topic}
    router.senders = cast("Any", {"a": queues[0].sender, "b": queues[1].sender})
    at_a, at_b = (next(k for k in "abcdef" if queue_for_key(k, 2) == n) for n in (0, 1))
    assert router.is_crowded("t", at_a, 100)
    assert not router.is_crowded("t", at_b, 100)
    assert not router.is_crowded("t", at_a, 102)
    assert not router.is_crowded("other", at_a, 100)
    del router.senders["b"]
    assert not router.is_crowded("t", at_a, 100)
