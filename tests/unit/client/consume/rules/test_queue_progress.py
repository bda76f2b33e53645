"""The progress of a queue: what is taken, done and committed, and when the queue is full."""

from __future__ import annotations

import pytest

from inorder.client.consume.rules.queue import (
    CONSUME_TIMEOUT_MS,
    EXPIRED_PER_ROUND_MAX,
    FlowControl,
    Limits,
    QueueProgress,
)
from tests.unit.client.consume.consuming import filled, message, offsets

MIB = 1024 * 1024


def test_messages_are_taken_in_the_order_of_the_queue() -> None:
    """Batches come in offset order, and what is taken is not taken twice."""
    progress = filled(10, 14)
    assert offsets(progress.take(2, 0)) == [10, 11]
    assert offsets(progress.take(2, 0)) == [12, 13]
    assert offsets(progress.take(2, 0)) == [14]
    assert progress.take(2, 0) == []
    assert (progress.count, progress.waiting, progress.taken) == (5, 0, 5)


def test_put_tells_whether_something_new_waits() -> None:
    """A handler is started for news only; what was here before is not added again."""
    progress = QueueProgress(5)
    assert progress.put([message(5), message(6)], 7) is True
    assert progress.put([message(5), message(6)], 7) is False
    assert progress.put([], 9) is False
    assert (progress.count, progress.pulled_to, progress.size_bytes) == (2, 9, 8)
    assert progress.put([message(8), message(9)], 10) is True  # 8 was skipped before: filtered
    assert offsets(progress.take(9, 0)) == [5, 6, 9]


def test_commit_finishes_what_is_taken() -> None:
    """The offset behind the last taken message; nothing taken, nothing to commit."""
    progress = filled(0, 4)
    progress.commit()
    assert progress.done_below == 0
    progress.take(3, 0)
    progress.commit()
    assert (progress.count, progress.size_bytes, progress.lowest, progress.done_below) == (
        2,
        8,
        3,
        3,
    )
    progress.commit()
    assert progress.done_below == 3


def test_rollback_puts_everything_back_in_front() -> None:
    """With auto-commit off several batches may be taken; all come again, in order."""
    progress = filled(0, 4)
    progress.take(1, 0)
    progress.take(2, 0)
    progress.rollback()
    assert (progress.taken, progress.waiting, progress.lowest) == (0, 5, 0)
    assert offsets(progress.take(9, 0)) == [0, 1, 2, 3, 4]


def test_messages_that_come_again_keep_their_place() -> None:
    """A batch is put back before what follows it, with its redeliveries."""
    progress = filled(0, 4)
    taken = progress.take(2, 0)
    progress.make_again([message(found.offset, redeliveries=1) for found in reversed(taken)])
    again = progress.take(3, 0)
    assert [(found.offset, found.redeliveries) for found in again] == [(0, 1), (1, 1), (2, 0)]


def test_one_of_several_taken_messages_comes_again_between_others() -> None:
    """Several handlers per queue: the place of a message is that of its offset, always."""
    progress = filled(0, 3)
    taken = progress.take(4, 0)
    progress.make_again(taken[2:])
    progress.make_again(taken[:1])
    progress.put([message(4)], 5)
    progress.make_again(taken[1:2])
    assert offsets(progress.take(9, 0)) == [0, 1, 2, 3, 4]


def test_what_was_not_taken_cannot_come_again() -> None:
    """A late put-back of a message that is done already changes nothing."""
    progress = filled(0, 2)
    taken = progress.take(1, 0)
    progress.commit()
    progress.make_again(taken)
    progress.replace_taken(taken)
    assert offsets(progress.take(9, 0)) == [1, 2]


def test_the_lowest_unfinished_offset_may_be_committed() -> None:
    """Concurrent: a stuck message holds the offset, whatever is done behind it."""
    progress = filled(0, 3)
    taken = progress.take(4, 0)
    for now_ms, (done, below) in enumerate(
        ((taken[1:3], 0), (taken[:1], 3), (taken[3:], 4), (taken, 4))
    ):
        progress.remove(done, now_ms)
        assert progress.done_below == below
    assert (progress.count, progress.size_bytes, progress.handled_at_ms) == (0, 0, 3)


def test_an_empty_queue_may_commit_up_to_where_it_was_pulled() -> None:
    """Messages that were filtered behind the last one are done too."""
    progress = QueueProgress(0)
    progress.put([message(0)], 7)
    progress.remove(progress.take(1, 0), 0)
    assert (progress.lowest, progress.done_below) == (7, 7)


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
    progress = QueueProgress(0)
    bodies = bytes(body)
    progress.put([message(offset, body=bodies) for offset in range(count)], count)
    assert progress.flow_control(Limits(), ordered=ordered) is full
    progress.take(count, 0)
    assert progress.flow_control(Limits(), ordered=ordered) is full  # taken ones count too
    progress.commit()
    assert progress.flow_control(Limits(), ordered=ordered) is None


@pytest.mark.parametrize(("last", "full"), [(2000, None), (2001, FlowControl.SPAN)])
def test_flow_control_by_span_is_for_concurrent_handling(
    last: int, full: FlowControl | None
) -> None:
    """One stuck message stops pulling 2000 offsets later; an ordered queue has no such limit."""
    progress = QueueProgress(0)
    progress.put([message(0), message(last)], last + 1)
    assert progress.span == last
    assert progress.flow_control(Limits(), ordered=False) is full
    assert progress.flow_control(Limits(), ordered=True) is None


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
    progress = filled(0, 2)
    assert progress.expired(CONSUME_TIMEOUT_MS * 2) is None  # nobody handles it
    taken = progress.take(2, 0)
    progress.start(taken[1:], 1000)
    assert progress.expired(CONSUME_TIMEOUT_MS * 2) is None  # the first one was not started
    progress.start(taken[:1], 5000)
    assert progress.expired(CONSUME_TIMEOUT_MS + 5000) is None
    assert progress.expired(CONSUME_TIMEOUT_MS + 5001) == taken[0]
    progress.remove(taken[:1], 0)
    assert progress.expired(CONSUME_TIMEOUT_MS + 5001) == taken[1]
    progress.make_again(taken[1:])
    assert progress.expired(CONSUME_TIMEOUT_MS * 2) is None
    assert QueueProgress(0).expired(0) is None
    assert EXPIRED_PER_ROUND_MAX == 16


def test_it_says_where_it_is() -> None:
    """The repr names what an operator asks for."""
    assert repr(filled(3, 9)) == (
        "QueueProgress(saved=-1, done_below=3, lowest=3, waiting=7, taken=0, pulled_to=10)"
    )
    assert message(3) in filled(3, 9)
    assert message(2) not in filled(3, 9)


def test_what_lies_below_an_offset_is_taken_and_the_rest_waits():
    """A stop hands it out."""
    progress = filled(0, 4)
    progress.remove(progress.take(1, 0), 0)
    assert offsets(progress.take_below(3, 0)) == [1, 2]
    assert progress.take_below(3, 0) == []
    assert (progress.waiting, progress.taken, progress.lowest) == (2, 2, 1)
