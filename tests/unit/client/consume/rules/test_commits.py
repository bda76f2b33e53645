"""Commits under a lease: numbered, with the map of what is done above the offset."""

from __future__ import annotations

import pytest

from inorder.client.consume.leases import commit_parts
from inorder.client.consume.rules.commits import (
    NOT_STORED,
    NumberedCommit,
    Progress,
    busy_interval_ms,
    idle_commit_in_ms,
)
from inorder.client.consume.rules.keyed import KeyOrder, Work
from inorder.client.consume.rules.queue import FlowControl, Limits, QueueProgress
from inorder.model import TopicQueue
from inorder.ordering.finished import SPAN_MAX, FinishedMap
from tests.unit.client.consume.consuming import message, offsets

QUEUE = TopicQueue("orders", "broker-a", 0)


def keyed(
    offset: int,
    keys: str,
    *,
    stored: Progress = NOT_STORED,
    finished: FinishedMap | None = None,
) -> QueueProgress:
    """Return a queue with one message of each key, none of them taken."""
    order = KeyOrder(lambda found: found.properties["k"])
    queue = QueueProgress(offset, stored=stored, finished=finished, keys=order)
    queue.put([message(offset + at, k=key) for at, key in enumerate(keys)], offset + len(keys))
    return queue


def finish(queue: QueueProgress, work: Work | None) -> None:
    assert work is not None
    queue.done(work, 0)


def test_a11_commits_are_numbered() -> None:
    """So that the broker tells an older one that comes later."""
    queue = keyed(5, "abcd", stored=Progress(5))
    works = [queue.take_work(0) for _ in range(4)]
    finish(queue, works[0])
    first = queue.next_commit()
    finish(queue, works[1])
    finish(queue, works[3])
    assert (first, queue.next_commit()) == (
        NumberedCommit(1, Progress(6)),
        NumberedCommit(2, Progress(7, "7:2")),
    )


def test_what_the_broker_knows_is_not_sent_again() -> None:
    """The first commit is, for the group may have none yet; and a map alone is news."""
    queue = keyed(5, "ab", stored=Progress(5))
    for progress in (Progress(5), Progress(5, "5:2")):
        commit = queue.next_commit()
        assert commit is not None
        assert commit.progress == progress
        queue.committed(commit)
        assert queue.next_commit() is None
        works = [queue.take_work(0), queue.take_work(0)]
        if works[1] is not None:
            finish(queue, works[1])


def test_a_commit_that_was_not_answered_is_sent_again_under_a_new_number() -> None:
    """Whether the broker took it or not: the higher number counts."""
    queue = keyed(5, "")
    assert queue.next_commit() == NumberedCommit(1, Progress(5))
    assert queue.next_commit() == NumberedCommit(2, Progress(5))


def test_answers_may_come_in_any_order() -> None:
    """An older answer does not make us forget what a newer commit said."""
    queue = keyed(5, "")
    assert queue.saved == NOT_STORED
    first = queue.next_commit()
    queue.put([], 9)
    second = queue.next_commit()
    assert first is not None
    assert second is not None
    queue.committed(second)
    queue.committed(first)
    assert queue.saved == Progress(9)


@pytest.mark.parametrize(("now_ms", "wait_ms"), [(1000, 0), (950, 0), (900, 50), (850, 100)])
def test_an_idle_queue_is_committed_at_once_but_not_all_the_time(now_ms: int, wait_ms: int) -> None:
    """A trickle of messages makes ten requests a second at most."""
    assert idle_commit_in_ms(now_ms, 850) == wait_ms


@pytest.mark.parametrize(("configured", "used"), [(5000, 1000), (1000, 1000), (200, 200)])
def test_a_busy_queue_is_committed_every_second(configured: int, used: int) -> None:
    """Or more often, if that is configured."""
    assert busy_interval_ms(configured) == used


def test_commits_of_many_queues_are_divided() -> None:
    """By number and by size: a map may have 16 KB."""
    commits = [
        (TopicQueue("t", "b", index), 1, NumberedCommit(1, Progress(0, "x" * size)))
        for index, size in enumerate((5, 5, 5, 20, 1, 1, 1))
    ]
    parts = commit_parts(commits, count_max=3, chars_max=10)
    assert [[one[0].index for one in part] for part in parts] == [[0, 1], [2], [3], [4, 5, 6]]
    assert commit_parts([], count_max=3, chars_max=10) == []


def test_the_map_goes_on_where_the_grant_left_off() -> None:
    """O25, P4: what a former owner did and committed is left out, and stays in our commits."""
    queue = keyed(100, "kkkkkkk", finished=FinishedMap.decode("100:2c"))  # 102, 103, 105
    assert queue.progress() == Progress(100, "100:2c")
    taken = []
    while (work := queue.take_work(0)) is not None:
        taken += offsets(work.messages)
        queue.done(work, 0)
    assert taken == [100, 101, 104, 106]
    assert queue.progress() == Progress(107)


def test_messages_beyond_the_map_wait() -> None:
    """A stuck key and a far message: no exception; it waits until the base moves."""
    queue = QueueProgress(0, keys=KeyOrder(lambda found: str(found.offset)))
    far = SPAN_MAX + 5
    queue.put([message(0), message(far - 6), message(far)], far + 1)
    first, second = queue.take_work(0), queue.take_work(0)
    assert first is not None
    assert second is not None
    assert offsets((*first.messages, *second.messages)) == [0, far - 6]
    assert (queue.take_work(0), queue.waiting) == (None, 1)
    finish(queue, second)
    assert queue.progress().offset == 0
    finish(queue, first)
    third = queue.take_work(0)
    assert third is not None
    assert offsets(third.messages) == [far]


def test_pulls_do_not_run_away_over_messages_of_others() -> None:
    """Filtered messages count for the reach: the map must span them."""
    progress = QueueProgress(0)
    progress.put([message(0)], 40_000)
    assert progress.flow_control(Limits(), ordered=False) is None
    assert progress.flow_control(Limits(), ordered=False, ahead_max=30_000) is FlowControl.SPAN
    progress.take(1, 0)
    progress.commit()
    assert progress.flow_control(Limits(), ordered=False, ahead_max=30_000) is None


def test_messages_of_a_parked_key_are_marked() -> None:
    """They come in their order, and are not for the handler."""
    order = KeyOrder(lambda found: found.properties["k"])
    order.parked = {"bad"}
    order.put([message(0, k="bad"), message(1, k="good")])
    first, second = order.take(0), order.take(0)
    assert first is not None
    assert second is not None
    assert (first.key, first.parked) == ("bad", True)
    assert (second.key, second.parked) == ("good", False)
