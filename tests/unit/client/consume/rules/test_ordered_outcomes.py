"""Ordered handling: what each outcome means, and when a handler may start."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inorder.client.consume.rules import outcomes
from inorder.client.consume.rules.leases import LeaseState, RevokeReason
from inorder.client.consume.rules.outcomes import (
    ATTEMPTS_MAX,
    CONTINUOUS_MAX_MS,
    Outcome,
    Run,
    SendBack,
    Step,
    Stop,
    SuspendFor,
    Warn,
    after_batch,
    after_ordered_send_back,
    before_batch,
    retry_pause_ms,
)
from inorder.client.consume.rules.queue import QueueProgress
from inorder.model import ReceivedMessage
from tests.unit.client.consume.consuming import QUEUE, filled, locked, offsets

SUCCESS, SUSPEND, COMMIT, ROLLBACK = Outcome


def end(
    progress: QueueProgress,
    batch: list[ReceivedMessage],
    outcome: Outcome,
    *,
    auto_commit: bool = True,
    lease: LeaseState | None = None,
    attempts: int = ATTEMPTS_MAX,
    suspend_ms: int | None = None,
    now_ms: int = 0,
    needs_lock: bool = True,
) -> tuple[Step, ...]:
    """End a handler."""
    return after_batch(
        progress,
        locked() if lease is None else lease,
        batch,
        outcome,
        now_ms=now_ms,
        needs_lock=needs_lock,
        auto_commit=auto_commit,
        suspend_ms=suspend_ms,
        redeliveries_max=attempts,
    )


# The table: auto-commit on and off, times every outcome.


@pytest.mark.parametrize(
    ("auto_commit", "outcome", "steps", "done_below", "left"),
    [
        (True, SUCCESS, [], 4, ([4], 0)),
        (True, COMMIT, [Warn], 4, ([4], 0)),
        (True, ROLLBACK, [Warn], 4, ([4], 0)),
        (True, SUSPEND, [SuspendFor(1000)], 0, ([2, 3, 4], 2)),
        (False, SUCCESS, [], 0, ([4], 4)),
        (False, COMMIT, [], 4, ([4], 0)),
        (False, ROLLBACK, [SuspendFor(1000)], 0, ([0, 1, 2, 3, 4], 0)),
        (False, SUSPEND, [SuspendFor(1000)], 0, ([2, 3, 4], 2)),
    ],
)
def test_every_outcome_with_auto_commit_on_and_off(
    auto_commit: bool,
    outcome: Outcome,
    steps: list[object],
    done_below: int,
    left: tuple[list[int], int],
) -> None:
    """Batches 0-1 (not committed yet) and 2-3 are taken when the second handler ends."""
    progress = filled(0, 4)
    progress.take(2, 0)
    batch = progress.take(2, 0)
    found = end(progress, batch, outcome, auto_commit=auto_commit)
    assert len(found) == len(steps)
    for step, expected in zip(found, steps, strict=True):
        assert isinstance(step, Warn) if expected is Warn else step == expected
    waiting = progress.taken, offsets(progress.take(9, 0))
    assert waiting == (left[1], left[0])
    assert progress.done_below == done_below


def test_with_auto_commit_on_commit_and_rollback_warn() -> None:
    """RocketMQ takes them for success and says so."""
    progress = filled(0, 0)
    warning = end(progress, progress.take(1, 0), ROLLBACK)[0]
    assert isinstance(warning, Warn)
    assert "ROLLBACK" in warning.text


def test_commit_finishes_all_batches_since_the_last_one() -> None:
    """Auto-commit off: SUCCESS, SUCCESS, COMMIT commits three batches at once."""
    progress = filled(0, 5)
    assert end(progress, progress.take(1, 0), SUCCESS, auto_commit=False) == ()
    assert end(progress, progress.take(2, 0), SUCCESS, auto_commit=False) == ()
    assert progress.done_below == 0
    assert end(progress, progress.take(1, 0), COMMIT, auto_commit=False) == ()
    assert progress.done_below == 4


def test_rollback_repeats_all_batches_since_the_last_commit() -> None:
    """Auto-commit off: what was taken before comes again too, after the pause."""
    progress = filled(0, 3)
    end(progress, progress.take(1, 0), COMMIT, auto_commit=False)
    end(progress, progress.take(1, 0), SUCCESS, auto_commit=False)
    assert end(progress, progress.take(1, 0), ROLLBACK, auto_commit=False, suspend_ms=200) == (
        SuspendFor(200),
    )
    again = progress.take(9, 0)
    assert offsets(again) == [1, 2, 3]
    assert [found.redeliveries for found in again] == [0, 0, 0]  # a rollback is no failed attempt


# Suspending.


@pytest.mark.parametrize(
    ("asked", "pause"),
    [
        (None, 1000),
        (-1, 1000),
        (0, 10),
        (9, 10),
        (10, 10),
        (11, 11),
        (29_999, 29_999),
        (30_000, 30_000),
        (30_001, 30_000),
        (10**9, 30_000),
    ],
)
def test_a_pause_is_10_ms_to_30_s(asked: int | None, pause: int) -> None:
    """Whatever the handler asks for; without a wish, and with -1, it is 1 s."""
    assert retry_pause_ms(asked) == pause
    progress = filled(0, 0)
    assert end(progress, progress.take(1, 0), SUSPEND, suspend_ms=asked) == (SuspendFor(pause),)


@pytest.mark.parametrize(("default", "pause"), [(1, 10), (5000, 5000), (60_000, 30_000)])
def test_the_default_pause_is_clamped_too(default: int, pause: int) -> None:
    """The consumer's own default is no exception."""
    assert retry_pause_ms(None, default) == pause


@pytest.mark.parametrize(
    ("asked", "pause"), [(None, 5), (-1, 10), (0, 10), (10, 10), (11, 11), (10**9, 10**9)]
)
def test_a_key_waits_as_long_as_its_handler_asks(asked: int | None, pause: int) -> None:
    """At least 10 ms, without an upper limit; the consumer's default is taken as it is."""
    assert retry_pause_ms(asked, 5, of_key=True) == pause


def test_a_suspended_batch_comes_first_and_counts_its_tries() -> None:
    """Nothing overtakes it, and its handler sees how often it was tried."""
    progress = filled(0, 2)
    for tries in range(3):
        batch = progress.take(1, 0)
        assert [(found.offset, found.redeliveries) for found in batch] == [(0, tries)]
        end(progress, batch, SUSPEND)
    assert progress.lowest == 0


# Attempts.


@pytest.mark.parametrize("attempts", [0, 1, 3, 16])
def test_a_message_is_handled_once_more_than_its_attempts(attempts: int) -> None:
    """As RocketMQ's maxReconsumeTimes: that many tries again, then it is sent back."""
    progress, runs = filled(0, 1), 0
    while True:
        batch, runs = progress.take(1, 0), runs + 1
        steps = end(progress, batch, SUSPEND, attempts=attempts)
        if steps != (SuspendFor(1000),):
            break
    assert runs == attempts + 1
    assert steps == (SendBack(tuple(batch)),)
    assert batch[0].redeliveries == attempts


def test_without_a_limit_a_message_is_tried_for_ever() -> None:
    """Block(): RocketMQ's -1."""
    progress = filled(0, 0)
    for _ in range(1000):
        assert end(progress, progress.take(1, 0), SUSPEND) == (SuspendFor(1000),)


def test_what_the_broker_took_is_done() -> None:
    """The queue goes on at once, behind the dead letter."""
    progress, lease = filled(0, 1), locked()
    batch = progress.take(1, 0)
    found = after_ordered_send_back(progress, lease, batch, {0}, now_ms=0, needs_lock=True)
    assert found == ()
    assert progress.done_below == 1
    assert offsets(progress.take(9, 0)) == [1]


def test_what_the_broker_did_not_take_is_tried_again() -> None:
    """A failed send back is a failed attempt; the queue waits."""
    progress, lease = filled(0, 1), locked()
    batch = progress.take(1, 0)
    found = after_ordered_send_back(
        progress, lease, batch, set(), now_ms=0, needs_lock=True, suspend_ms=50
    )
    assert found == (SuspendFor(50),)
    assert [(one.offset, one.redeliveries) for one in progress.take(9, 0)] == [(0, 1), (1, 0)]


def test_of_a_batch_only_what_was_not_sent_back_comes_again() -> None:
    """O17: RocketMQ repeats those that are dead letters already."""
    progress, lease = filled(0, 3), locked()
    first = progress.take(3, 0)
    end(progress, first, SUSPEND, lease=lease, attempts=1)
    batch = [*progress.take(2, 0)]
    steps = end(progress, batch, SUSPEND, lease=lease, attempts=1)
    assert steps == (SendBack(tuple(batch)),)
    found = after_ordered_send_back(progress, lease, batch, {1}, now_ms=0, needs_lock=True)
    assert found == (SuspendFor(1000),)
    assert offsets(progress.take(9, 0)) == [0, 2, 3]
    assert progress.done_below == 0  # 0 is not done


def test_auto_commit_off_leaves_dead_letters_to_the_next_commit() -> None:
    """Nothing is committed behind the handler's back."""
    progress, lease = filled(0, 1), locked()
    batch = progress.take(1, 0)
    assert (
        after_ordered_send_back(
            progress, lease, batch, {0}, now_ms=0, needs_lock=True, auto_commit=False
        )
        == ()
    )
    assert progress.done_below == 0
    assert end(progress, progress.take(1, 0), COMMIT, auto_commit=False, lease=lease) == ()
    assert progress.done_below == 2


# Starting.


def start(lease: LeaseState, now_ms: int = 0) -> object:
    return before_batch(lease, now_ms=now_ms, began_ms=0, needs_lock=True)


def test_a_handler_starts_under_a_fresh_lock() -> None:
    """Locked, and the lock is not older than 30 s."""
    assert start(locked()) == Run()
    assert start(locked(), 30_000) == Run()


def test_no_handler_starts_when_the_lock_expired() -> None:
    """The queue is dropped: it is locked and read again, not resumed with its messages (O25)."""
    lease = locked()
    assert start(lease, 30_001) == Stop(RevokeReason.LOCK_EXPIRED.value)
    assert lease.dropped is RevokeReason.LOCK_EXPIRED
    lease.renewed(30_001, 30_001)
    assert start(lease, 30_001) == Stop(RevokeReason.LOCK_EXPIRED.value)


@pytest.mark.parametrize("reason", list(RevokeReason))
def test_no_handler_starts_on_a_dropped_queue(reason: RevokeReason) -> None:
    """Whatever the reason."""
    lease = locked()
    lease.drop(reason)
    assert start(lease) == Stop(reason.value)


def test_a_broadcast_needs_no_lock() -> None:
    """Everybody has every queue."""
    lease = LeaseState(QUEUE, now_ms=0)
    assert before_batch(lease, now_ms=0, began_ms=0, needs_lock=False) == Run()


@pytest.mark.parametrize(("handled_ms", "step"), [(60_000, Run()), (60_001, SuspendFor(10))])
def test_a_queue_yields_after_60_s(handled_ms: int, step: object) -> None:
    """Other queues get the thread; the queue goes on 10 ms later."""
    lease = locked(handled_ms)
    assert start(lease, handled_ms) == step
    assert CONTINUOUS_MAX_MS == 60_000


@pytest.mark.parametrize(("handled_ms", "step"), [(5000, Run()), (5001, SuspendFor(10))])
def test_after_how_long_a_queue_yields_is_a_setting(handled_ms: int, step: object) -> None:
    """`consumer.run_max_ms`, RocketMQ's maxTimeConsumeContinuously."""
    found = before_batch(
        locked(handled_ms), now_ms=handled_ms, began_ms=0, needs_lock=True, run_max_ms=5000
    )
    assert found == step


# Ending after the queue is lost or given up.


@pytest.mark.parametrize(
    "reason", [RevokeReason.MOVED, RevokeReason.UNSUBSCRIBED, RevokeReason.STOPPED]
)
def test_a_success_after_a_clean_drop_is_committed(reason: RevokeReason) -> None:
    """O12: RocketMQ throws it away and the next owner repeats it."""
    progress, lease = filled(0, 4), locked()
    batch = progress.take(2, 0)
    lease.drop(reason)
    assert end(progress, batch, SUCCESS, lease=lease) == (Stop(reason.value),)
    assert progress.done_below == 2


def test_a_failure_after_a_clean_drop_is_left_to_the_next_owner() -> None:
    """No pause, no dead letter: the queue is released at once."""
    for attempts in (0, ATTEMPTS_MAX):
        progress, lease = filled(0, 4), locked()
        batch = progress.take(2, 0)
        lease.drop(RevokeReason.MOVED)
        steps = end(progress, batch, SUSPEND, lease=lease, attempts=attempts)
        assert steps == (Stop(RevokeReason.MOVED.value),)
        assert progress.done_below == 0


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("auto_commit", [True, False])
@pytest.mark.parametrize(
    "lose",
    [
        lambda lease: lease.lose(),
        lambda lease: lease.drop(RevokeReason.RESET),
        lambda lease: lease.drop(RevokeReason.OFFSET_ILLEGAL),
        lambda lease: None,  # it just grows old: 30 s without a renewal
    ],
)
def test_nothing_is_committed_without_a_trusted_lock(
    lose: Callable[[LeaseState], None], auto_commit: bool, outcome: Outcome
) -> None:
    """O7, O11, O25: another consumer may have the queue, or an operator set its offset."""
    progress, lease = filled(0, 4), locked()
    batch = progress.take(2, 0)
    lose(lease)
    steps = end(
        progress,
        batch,
        outcome,
        lease=lease,
        auto_commit=auto_commit,
        now_ms=30_001,
        attempts=0,
    )
    assert [type(step) for step in steps] == [Stop]
    assert lease.dropped is not None
    back = after_ordered_send_back(progress, lease, batch, {0, 1}, now_ms=30_001, needs_lock=True)
    assert [type(step) for step in back] == [Stop]
    assert (progress.lowest, progress.done_below) == (0, 0)


def test_a_lock_that_expires_while_a_dead_letter_is_sent_ends_the_ownership() -> None:
    """The dead letter may come twice; the offset does not move under another owner."""
    progress, lease = filled(0, 1), locked()
    batch = progress.take(1, 0)
    found = after_ordered_send_back(progress, lease, batch, {0}, now_ms=30_001, needs_lock=True)
    assert [type(step) for step in found] == [Stop]
    assert lease.dropped is RevokeReason.LOCK_EXPIRED


def test_a_drop_while_a_dead_letter_is_sent_still_commits() -> None:
    """Accepted messages are finished; the next owner gets the others, without a pause."""
    for sent, done_below in (({0}, 1), (set(), 0)):
        progress, lease = filled(0, 1), locked()
        batch = progress.take(1, 0)
        lease.drop(RevokeReason.MOVED)
        found = after_ordered_send_back(progress, lease, batch, sent, now_ms=0, needs_lock=True)
        assert found == (Stop(RevokeReason.MOVED.value),)
        assert progress.done_below == done_below


def test_a_broadcast_commits_without_a_lock() -> None:
    """Its offsets are its own."""
    progress, lease = filled(0, 1), LeaseState(QUEUE, now_ms=0)
    assert end(progress, progress.take(1, 0), SUCCESS, lease=lease, needs_lock=False) == ()
    assert progress.done_below == 1


def test_a_run_without_messages_commits_nothing() -> None:
    """Success of an empty batch has no offset."""
    progress = filled(0, 1)
    assert end(progress, [], SUCCESS) == ()
    assert progress.done_below == 0
    assert Run() == outcomes.RUN
