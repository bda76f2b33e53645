"""The process queue: what is taken, what is done, what may be committed, when it is full."""

from __future__ import annotations

import pytest

from inorder.client.consume.rules.queue import (
    CONSUME_TIMEOUT_MS,
    EXPIRED_PER_ROUND_MAX,
    FlowControl,
    Limits,
    ProcessQueue,
)
from tests.unit.client.consume.consuming import filled, message, offsets

MIB = 1024 * 1024


def test_messages_are_taken_in_the_order_of_the_queue() -> None:
    """Batches come in offset order, and what is taken is not taken twice."""
    cache = filled(10, 14)
    assert offsets(cache.take(2, 0)) == [10, 11]
    assert offsets(cache.take(2, 0)) == [12, 13]
    assert offsets(cache.take(2, 0)) == [14]
    assert cache.take(2, 0) == []
    assert (cache.count, cache.waiting, cache.taken) == (5, 0, 5)


def test_put_tells_whether_something_new_waits() -> None:
    """A handler is started for news only; what was here before is not added again."""
    cache = ProcessQueue(5)
    assert cache.put([message(5), message(6)], 7) is True
    assert cache.put([message(5), message(6)], 7) is False
    assert cache.put([], 9) is False
    assert (cache.count, cache.pulled_to, cache.size_bytes) == (2, 9, 8)
    assert cache.put([message(8), message(9)], 10) is True  # 8 was skipped before: filtered
    assert offsets(cache.take(9, 0)) == [5, 6, 9]


def test_commit_finishes_what_is_taken() -> None:
    """The offset behind the last taken message; nothing taken, nothing to commit."""
    cache = filled(0, 4)
    assert cache.commit() is None
    cache.take(3, 0)
    assert cache.commit() == 3
    assert (cache.count, cache.size_bytes, cache.lowest) == (2, 8, 3)
    assert cache.commit() is None


def test_rollback_puts_everything_back_in_front() -> None:
    """With auto-commit off several batches may be taken; all come again, in order."""
    cache = filled(0, 4)
    cache.take(1, 0)
    cache.take(2, 0)
    cache.rollback()
    assert (cache.taken, cache.waiting, cache.lowest) == (0, 5, 0)
    assert offsets(cache.take(9, 0)) == [0, 1, 2, 3, 4]


def test_messages_that_come_again_keep_their_place() -> None:
    """A batch is put back before what follows it, with its redeliveries."""
    cache = filled(0, 4)
    taken = cache.take(2, 0)
    cache.make_again([message(found.offset, redeliveries=1) for found in reversed(taken)])
    again = cache.take(3, 0)
    assert [(found.offset, found.redeliveries) for found in again] == [(0, 1), (1, 1), (2, 0)]


def test_one_of_several_taken_messages_comes_again_between_others() -> None:
    """Several handlers per queue: the place of a message is that of its offset, always."""
    cache = filled(0, 3)
    taken = cache.take(4, 0)
    cache.make_again(taken[2:])
    cache.make_again(taken[:1])
    cache.put([message(4)], 5)
    cache.make_again(taken[1:2])
    assert offsets(cache.take(9, 0)) == [0, 1, 2, 3, 4]


def test_what_was_not_taken_cannot_come_again() -> None:
    """A late put-back of a message that is done already changes nothing."""
    cache = filled(0, 2)
    taken = cache.take(1, 0)
    cache.commit()
    cache.make_again(taken)
    cache.replace_taken(taken)
    assert offsets(cache.take(9, 0)) == [1, 2]


def test_remove_returns_the_lowest_unfinished_offset() -> None:
    """Concurrent: a stuck message holds the offset, whatever is done behind it."""
    cache = filled(0, 3)
    taken = cache.take(4, 0)
    assert cache.remove(taken[1:3], 1) == 0
    assert cache.remove(taken[:1], 2) == 3
    assert cache.remove(taken[3:], 3) == 4
    assert cache.remove(taken, 4) is None
    assert (cache.count, cache.size_bytes, cache.handled_at_ms) == (0, 0, 4)


def test_an_empty_queue_may_commit_up_to_where_it_was_pulled() -> None:
    """Messages that were filtered behind the last one are done too."""
    cache = ProcessQueue(0)
    cache.put([message(0)], 7)
    assert cache.remove(cache.take(1, 0), 0) == 7
    assert cache.lowest == 7


@pytest.mark.parametrize(
    ("count", "body", "ordered", "full"),
    [
        (1000, 1, True, None),
        (1001, 1, True, FlowControl.COUNT),
        (1001, 1, False, FlowControl.COUNT),
        (100, MIB, True, None),
        (101, MIB, True, FlowControl.SIZE),
        (101, MIB, False, FlowControl.SIZE),
    ],
)
def test_flow_control_by_count_and_size(
    count: int, body: int, ordered: bool, full: FlowControl | None
) -> None:
    """Above 1000 messages, or above 100 MiB of bodies, a queue is not pulled."""
    cache = ProcessQueue(0)
    bodies = bytes(body)
    cache.put([message(offset, body=bodies) for offset in range(count)], count)
    assert cache.flow_control(Limits(), ordered=ordered) is full
    cache.take(count, 0)
    assert cache.flow_control(Limits(), ordered=ordered) is full  # taken ones count too
    cache.commit()
    assert cache.flow_control(Limits(), ordered=ordered) is None


@pytest.mark.parametrize(("last", "full"), [(2000, None), (2001, FlowControl.SPAN)])
def test_flow_control_by_span_is_for_concurrent_handling(
    last: int, full: FlowControl | None
) -> None:
    """One stuck message stops pulling 2000 offsets later; an ordered queue has no such limit."""
    cache = ProcessQueue(0)
    cache.put([message(0), message(last)], last + 1)
    assert cache.span == last
    assert cache.flow_control(Limits(), ordered=False) is full
    assert cache.flow_control(Limits(), ordered=True) is None


@pytest.mark.parametrize(
    ("queues", "messages", "size"),
    [(0, 1000, 100 * MIB), (1, 500, 900), (4, 125, 225), (999, 1, 1)],
)
def test_limits_of_a_topic_are_shared_by_its_queues(queues: int, messages: int, size: int) -> None:
    """They replace those of a queue, divided by the queues that this consumer has; at least 1."""
    shared = Limits(topic_messages_max=500, topic_bytes_max=900).shared(queues)
    assert (shared.messages_max, shared.size_bytes_max) == (messages, size)
    assert Limits().shared(queues) == Limits()


def test_only_the_first_message_expires_and_only_if_it_was_started() -> None:
    """The consume timeout is 15 minutes from the call of the handler; 16 are cleaned in a round."""
    cache = filled(0, 2)
    assert cache.expired(CONSUME_TIMEOUT_MS * 2) is None  # nobody handles it
    taken = cache.take(2, 0)
    cache.start(taken[1:], 1000)
    assert cache.expired(CONSUME_TIMEOUT_MS * 2) is None  # the first one was not started
    cache.start(taken[:1], 5000)
    assert cache.expired(CONSUME_TIMEOUT_MS + 5000) is None
    assert cache.expired(CONSUME_TIMEOUT_MS + 5001) == taken[0]
    cache.remove(taken[:1], 0)
    assert cache.expired(CONSUME_TIMEOUT_MS + 5001) == taken[1]
    cache.make_again(taken[1:])
    assert cache.expired(CONSUME_TIMEOUT_MS * 2) is None
    assert ProcessQueue(0).expired(0) is None
    assert EXPIRED_PER_ROUND_MAX == 16


def test_it_says_where_it_is() -> None:
    """The repr names what an operator asks for."""
    assert repr(filled(3, 9)) == "ProcessQueue(lowest=3, waiting=7, taken=0, pulled_to=10)"
    assert message(3) in filled(3, 9)
    assert message(2) not in filled(3, 9)
