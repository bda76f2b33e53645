"""The offset of a queue: which way it moves, and what is saved without a lease."""

from __future__ import annotations

from inorder.client.consume.rules.commits import NOT_STORED, Progress
from inorder.client.consume.rules.queue import QueueProgress
from tests.unit.client.consume.consuming import message


def queue_at(offset: int, *, stored: bool) -> QueueProgress:
    return QueueProgress(offset, stored=Progress(offset) if stored else NOT_STORED)


def test_only_what_changed_is_saved() -> None:
    """O11: an unchanged offset that is sent again could come late over a newer one."""
    queue = queue_at(10, stored=True)
    assert queue.is_saved
    queue.put([message(10)], 11)
    assert queue.is_saved
    queue.remove(queue.take(1, 0), 0)
    assert (queue.offset, queue.is_saved) == (11, False)
    queue.saved = Progress(11)
    assert queue.is_saved
    assert not queue_at(20, stored=False).is_saved


def test_what_moved_on_while_it_was_saved_is_saved_again() -> None:
    """The answer is for the offset that was sent."""
    queue = queue_at(0, stored=False)
    queue.put([], 2)
    queue.saved = Progress(1)
    assert (queue.offset, queue.is_saved) == (2, False)


def test_a_queue_that_is_moved_keeps_its_new_offset() -> None:
    """A corrected offset is not undone by a handler that still runs."""
    queue = queue_at(10, stored=True)
    queue.put([message(10), message(11)], 12)
    taken = queue.take(2, 0)
    queue.moved_to = 500
    queue.remove(taken, 0)
    assert (queue.offset, queue.progress(), queue.is_saved) == (500, Progress(500), False)


def test_a_pull_that_leaves_nothing_to_handle_moves_the_offset() -> None:
    """Filtered messages count as finished, unless one before them is unfinished."""
    queue = queue_at(0, stored=True)
    queue.put([], 3)
    assert queue.offset == 3
    queue.put([message(4)], 9)
    assert queue.offset == 3
    queue.remove(queue.take(1, 0), 0)
    assert queue.offset == 9


def test_an_ordered_commit_ends_behind_its_last_message() -> None:
    """What follows it was pulled, and counts with the next commit or pull."""
    queue = queue_at(0, stored=True)
    queue.put([message(0), message(1), message(5)], 9)
    queue.take(2, 0)
    queue.commit()
    assert (queue.offset, queue.lowest) == (2, 5)
