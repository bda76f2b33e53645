"""Concurrent handling: the ack index, what is sent back, what is tried again here."""

from __future__ import annotations

import pytest

from inorder.client.consume.rules.leases import LeaseState, RevokeReason
from inorder.client.consume.rules.outcomes import (
    CALLS_KEPT_MAX,
    EXPIRED_SCAN_MS,
    LOCAL_RETRY_MS,
    CallPace,
    Concluded,
    Handled,
    after_concurrent_send_back,
    batches,
    calls_of_run,
    conclude,
    done_count,
    is_late,
    runs,
    runs_in_hand,
    tells_loop,
)
from inorder.client.consume.rules.queue import QueueProgress
from tests.unit.client.consume.consuming import QUEUE, filled, message, offsets


def lease() -> LeaseState:
    return LeaseState(QUEUE, now_ms=0)


def ended(
    progress: QueueProgress, batch: list, done: int, *, broadcasting: bool = False
) -> Concluded:
    return conclude(progress, lease(), batch, done=done, broadcasting=broadcasting, now_ms=0)


@pytest.mark.parametrize(
    ("result", "batch", "count"),
    [
        (None, 3, 3),
        ("anything", 3, 3),
        (Handled(0), 3, 0),
        (Handled(2), 3, 2),
        (Handled(3), 3, 3),
        (Handled(2**31), 3, 3),
    ],
)
def test_how_many_of_a_batch_are_done(result: object, batch: int, count: int) -> None:
    """All, unless the handler says how many; never more than there are."""
    assert done_count(result, batch) == count


@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_messages_behind_the_ack_index_are_sent_back(done: int) -> None:
    """Those up to it are done; nothing is committed before the others are dealt with."""
    progress = filled(0, 3)
    batch = progress.take(3, 0)
    found = ended(progress, batch, done)
    assert (offsets(found.done), offsets(found.send_back)) == (
        list(range(done)),
        list(range(done, 3)),
    )
    assert progress.done_below == (3 if done == 3 else 0)
    assert (found.dropped, found.ignored) == ((), False)


def test_a_message_that_was_sent_back_is_done() -> None:
    """The broker has it: the offset goes on."""
    progress = filled(0, 3)
    found = ended(progress, progress.take(3, 0), 1)
    assert after_concurrent_send_back(progress, lease(), found, {1, 2}, now_ms=0) == ()
    assert progress.done_below == 3


def test_what_cannot_be_sent_back_is_tried_again_in_5_s() -> None:
    """It stays here, holds the offset, and counts one try more."""
    progress = filled(0, 3)
    found = ended(progress, progress.take(3, 0), 0)
    retry = after_concurrent_send_back(progress, lease(), found, {0, 2}, now_ms=0)
    assert progress.done_below == 1
    assert [(one.offset, one.redeliveries) for one in retry] == [(1, 1)]
    assert offsets(progress.take(9, 0)) == [3]  # it is not handed to anybody else
    assert LOCAL_RETRY_MS == 5000
    ended(progress, list(retry), 1)
    assert progress.done_below == 3


def test_a_broadcast_drops_what_failed() -> None:
    """Nobody else would get it; the offset goes on, one line in the log for each."""
    progress = filled(0, 3)
    found = ended(progress, progress.take(3, 0), 1, broadcasting=True)
    assert (offsets(found.done), offsets(found.dropped)) == ([0], [1, 2])
    assert (found.send_back, progress.done_below) == ((), 3)


def test_what_ends_after_the_queue_was_given_up_is_thrown_away() -> None:
    """Its next owner begins at the committed offset; a late commit would move that back."""
    progress, gone = filled(0, 3), lease()
    batch = progress.take(2, 0)
    gone.drop(RevokeReason.MOVED)
    found = conclude(progress, gone, batch, done=2, broadcasting=False, now_ms=0)
    assert found == Concluded(ignored=True)
    assert (progress.lowest, progress.done_below) == (0, 0)


def test_a_drop_while_a_message_is_sent_back_commits_nothing() -> None:
    """Nor is anything tried again here."""
    progress, gone = filled(0, 3), lease()
    found = conclude(progress, gone, progress.take(2, 0), done=0, broadcasting=False, now_ms=0)
    gone.drop(RevokeReason.MOVED)
    assert after_concurrent_send_back(progress, gone, found, {0}, now_ms=0) == ()
    assert progress.done_below == 0


def test_a_consumer_that_stops_still_counts_results_and_tries_nothing_again_here() -> None:
    """It owns the queue until the release."""

    progress, gone = filled(0, 3), lease()
    batch = progress.take(3, 0)
    gone.drop(RevokeReason.STOPPED)
    found = conclude(progress, gone, batch, done=1, broadcasting=False, now_ms=0)
    assert (offsets(found.done), offsets(found.send_back)) == ([0], [1, 2])
    assert after_concurrent_send_back(progress, gone, found, {1}, now_ms=0) == ()
    assert progress.done_below == 2


def test_an_expired_message_is_not_sent_back_twice() -> None:
    """It was cleaned while its handler ran: the handler's failure is no news."""
    progress = filled(0, 3)
    batch = progress.take(3, 0)
    progress.remove(batch[:1], 0)
    found = ended(progress, batch, 0)
    assert offsets(found.send_back) == [1, 2]
    progress.remove(batch, 0)
    assert ended(progress, batch, 0) == Concluded()
    assert progress.done_below == 3
    assert EXPIRED_SCAN_MS == 900_000


def test_what_is_committed_is_the_lowest_unfinished_offset() -> None:
    """Whichever batch ends first."""
    progress = filled(0, 5)
    first, second, third = (progress.take(2, 0) for _ in range(3))
    committed = []
    for batch in (second, third, first):
        ended(progress, batch, 2)
        committed.append(progress.done_below)
    assert committed == [0, 0, 6]


@pytest.mark.parametrize(
    ("count", "size", "cut"), [(5, 2, [2, 2, 1]), (4, 4, [4]), (3, 1, [1, 1, 1]), (0, 9, [])]
)
def test_what_was_pulled_is_cut_into_batches(count: int, size: int, cut: list[int]) -> None:
    """Of at most so many messages each, in order."""
    messages = [message(offset) for offset in range(count)]
    found = list(batches(messages, size))
    assert [len(batch) for batch in found] == cut
    assert [one for batch in found for one in batch] == messages


@pytest.mark.parametrize(
    ("count", "size", "calls", "cut"),
    [
        (5, 2, 1, [[2], [2], [1]]),
        (5, 2, 2, [[2, 2], [1]]),
        (5, 1, 3, [[1, 1, 1], [1, 1]]),
        (1, 1, 1, [[1]]),
        (0, 1, 1, []),
    ],
)
def test_batches_are_cut_into_runs(count: int, size: int, calls: int, cut: list[list[int]]) -> None:
    """Of at most so many calls each, in order."""
    messages = [message(offset) for offset in range(count)]
    found = runs(messages, size, calls)
    assert [[len(batch) for batch in run] for run in found] == cut
    assert [one for run in found for batch in run for one in batch] == messages


@pytest.mark.parametrize(
    ("calls", "spent_ms", "waiting", "expected"),
    [
        (0, 0, 1000, 1),
        (99, 0, 1000, 1),  # too few to know
        (100, 0, 100_000, 64),
        (100, 0, 39, 64),  # all of them take less time than to wake another worker
        (1000, 10, 100_000, 64),  # 10 us each
        (1000, 10, 39, 10),  # no more than it takes to wake another one
        (1000, 10, 640, 16),  # all forty workers get some
        (1000, 50, 100_000, 20),  # 50 us each: as many as take 1 ms
        (1000, 200, 100_000, 5),
        (1000, 200, 39, 1),
        (1000, 1000, 100_000, 1),  # 1 ms each: whoever is free takes the next one
        (1000, 2000, 100_000, 1),
        (1000, 60_000_000, 100_000, 1),
    ],
)
def test_short_handlers_are_called_several_times_by_one_worker(
    calls: int, spent_ms: int, waiting: int, expected: int
) -> None:
    """As many as take 1 ms, and less if another worker would have nothing to do."""
    assert calls_of_run(CallPace(calls, spent_ms), waiting=waiting, workers=40) == expected


@pytest.mark.parametrize(
    ("calls", "spent_ms", "expected"),
    [
        (0, 0, 40),
        (1000, 60_000_000, 40),
        (1000, 10_000, 40),
        (1000, 5000, 80),  # 5 ms each: two of them take 10 ms
        (1000, 2000, 160),
        (1000, 1000, 160),
        (1000, 50, 160),  # runs of 20 calls
        (1000, 0, 40),
    ],
)
def test_workers_have_something_to_do_for_10_ms(calls: int, spent_ms: int, expected: int) -> None:
    """Short runs wait there in greater numbers, four times as many as usual at most."""
    assert runs_in_hand(CallPace(calls, spent_ms), capacity=40) == expected


def test_what_was_long_ago_counts_less() -> None:
    """A handler that has become slow is known to be slow before as many slow calls were made."""
    pace = CallPace()
    for _ in range(100):
        pace.note(1000, 0)
    assert calls_of_run(pace, waiting=100_000, workers=40) == 64
    for _ in range(CALLS_KEPT_MAX // 10):
        pace.note(1, 100)
    assert calls_of_run(pace, waiting=100_000, workers=40) == 1
    for _ in range(20):
        pace.note(CALLS_KEPT_MAX, 0)
    assert calls_of_run(pace, waiting=100_000, workers=40) == 64


@pytest.mark.parametrize(
    ("started_ms", "now_ms", "late"),
    [(None, 1000, False), (1000, 1010, False), (1000, 1011, True)],
)
def test_messages_that_wait_behind_a_long_call_are_taken_back(
    started_ms: int | None, now_ms: int, late: bool
) -> None:
    """When the run should have ended; of one that nobody has begun nothing is taken."""
    assert is_late(started_ms, now_ms) is late


@pytest.mark.parametrize(
    ("ended", "waiting", "expected"),
    [
        (1, 0, True),
        (1, 20, True),  # soon they have nothing to do
        (1, 21, False),
        (19, 21, False),
        (20, 21, True),
        (20, 1000, True),  # many at once would hold them all up
    ],
)
def test_the_loop_hears_of_many_runs_at_once(ended: int, waiting: int, expected: bool) -> None:
    """While the workers have enough to do; otherwise of every one."""
    assert tells_loop(ended, waiting, workers=20) is expected
