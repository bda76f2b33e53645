"""Commits under a lease: numbered, with the map of what is done above the offset."""

from __future__ import annotations

import pytest

from inorder.client.consume.leases import commit_parts
from inorder.client.consume.rules.commits import (
    NOT_STORED,
    CommitSequence,
    NumberedCommit,
    Progress,
    busy_interval_ms,
    idle_commit_in_ms,
)
from inorder.client.consume.rules.keyed import KeyedQueue
from inorder.client.consume.rules.queue import FlowControl, Limits, ProcessQueue
from inorder.model import TopicQueue
from inorder.ordering.finished import SPAN_MAX, FinishedMap
from tests.unit.client.consume.consuming import message, offsets

QUEUE = TopicQueue("orders", "broker-a", 0)


def test_a11_commits_are_numbered() -> None:
    """So that the broker tells an older one that comes later."""
    line = CommitSequence(Progress(5))
    first, second = line.next(Progress(6)), line.next(Progress(7, "7:4"))
    assert (first, second) == (
        NumberedCommit(1, Progress(6)),
        NumberedCommit(2, Progress(7, "7:4")),
    )


def test_what_the_broker_knows_is_not_sent_again() -> None:
    """The first commit is, for the group may have none yet; and a map alone is news."""
    line = CommitSequence(Progress(5))
    commit = line.next(Progress(5))
    assert commit is not None
    line.taken(commit)
    assert line.next(Progress(5)) is None
    commit = line.next(Progress(5, "5:2"))
    assert commit is not None
    line.taken(commit)
    assert line.next(Progress(5, "5:2")) is None


def test_a_commit_that_was_not_answered_is_sent_again_under_a_new_number() -> None:
    """Whether the broker took it or not: the higher number counts."""
    line = CommitSequence(NOT_STORED)
    assert line.next(Progress(5)) == NumberedCommit(1, Progress(5))
    assert line.next(Progress(5)) == NumberedCommit(2, Progress(5))


def test_answers_may_come_in_any_order() -> None:
    """An older answer does not make us forget what a newer commit said."""
    line = CommitSequence(NOT_STORED)
    first, second = line.next(Progress(5)), line.next(Progress(9))
    assert first is not None
    assert second is not None
    line.taken(second)
    line.taken(first)
    assert line.saved == Progress(9)


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
    queue = KeyedQueue(
        100, key_of=lambda found: "k", finished=FinishedMap.decode("100:2c")
    )  # 102, 103, 105
    queue.put([message(offset) for offset in range(100, 107)], 107)
    taken = []
    while (work := queue.take(0)) is not None:
        taken += offsets(work.messages)
        queue.done(work)
    assert taken == [100, 101, 104, 106]
    assert queue.base == 107


def test_messages_beyond_the_map_wait() -> None:
    """A stuck key and a far message: no exception, it waits in the cache until the base moves."""
    cache = ProcessQueue(0)
    far = SPAN_MAX + 5
    cache.put([message(0), message(far - 6), message(far)], far + 1)
    queue = KeyedQueue(0, key_of=lambda found: str(found.offset))
    assert offsets(cache.take_below(queue.room_to, 0)) == [0, far - 6]
    queue.put([message(0), message(far - 6)], far - 5)
    work = queue.take(0)
    assert work is not None
    queue.done(work)
    assert offsets(cache.take_below(queue.room_to, 0)) == [far]


def test_pulls_do_not_run_away_over_messages_of_others() -> None:
    """Filtered messages count for the reach: the map must span them."""
    cache = ProcessQueue(0)
    cache.put([message(0)], 40_000)
    assert cache.flow_control(Limits(), ordered=False) is None
    assert cache.flow_control(Limits(), ordered=False, ahead_max=30_000) is FlowControl.SPAN
    cache.take(1, 0)
    cache.commit()
    assert cache.flow_control(Limits(), ordered=False, ahead_max=30_000) is None


def test_messages_of_a_parked_key_are_marked() -> None:
    """They come in their order, and are not for the handler."""
    queue = KeyedQueue(0, key_of=lambda found: found.properties["k"])
    queue.parked = {"bad"}
    queue.put([message(0, k="bad"), message(1, k="good")], 2)
    first, second = queue.take(0), queue.take(0)
    assert first is not None
    assert second is not None
    assert (first.key, first.parked) == ("bad", True)
    assert (second.key, second.parked) == ("good", False)
