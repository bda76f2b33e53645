"""What follows when the handler of an ordered queue ends: MessageListenerOrderly's table.

`before_batch` says whether a handler may start. `after_batch` turns what the handler said into
steps, in the order in which they are to be done:

    outcome       auto-commit on               auto-commit off
    SUCCESS       commit                       nothing: it stays taken
    COMMIT        commit, with a warning       commit all that is taken
    ROLLBACK      commit, with a warning       put all that is taken back, suspend
    SUSPEND       put the batch back, suspend  put the batch back, suspend
    any error     as SUSPEND                   as SUSPEND

A message that was put back as often as the policy allows is sent back instead: `after_send_back`
says what follows then. What is not under a trusted lock is not committed, and ends the tenure. What
ends after the queue was allocated to another consumer *is* committed, before the queue is released
(O12).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from inorder.client.policies import Outcome
from inorder.client.state.processqueue import ProcessQueue
from inorder.client.state.tenure import DropReason, Tenure
from inorder.model import ReceivedMessage

SUSPEND_DEFAULT_MS: Final = 1000
SUSPEND_MIN_MS: Final = 10
SUSPEND_MAX_MS: Final = 30_000
CONTINUOUS_MAX_MS: Final = 60_000
YIELD_MS: Final = 10
"""The pause of a queue that was handled for CONTINUOUS_MAX_MS: others get the thread."""


@dataclass(frozen=True, slots=True)
class Run:
    """Take a batch and call the handler."""


@dataclass(slots=True)
class Commit:
    """Everything below the offset is done."""

    offset: int


@dataclass(frozen=True, slots=True)
class SuspendFor:
    """Start no handler of this queue for a while; what was put back comes first then."""

    ms: int


@dataclass(frozen=True, slots=True)
class SendBack:
    """Send these to the retry topic (the broker dead-letters them), then ask `after_send_back`."""

    messages: tuple[ReceivedMessage, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """Start no further handler in this tenure; `reason` is for the log."""

    reason: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Start no handler until the broker has confirmed the lease; then ask again."""


@dataclass(frozen=True, slots=True)
class Warn:
    """Say this in the log."""

    text: str


Step = Run | Commit | SuspendFor | SendBack | Stop | Hold | Warn
Before = Run | SuspendFor | Stop | Hold

RUN: Final = Run()
HOLD: Final = Hold()


def before_batch(
    tenure: Tenure,
    *,
    now_ms: int,
    began_ms: int,
    needs_lock: bool,
    run_max_ms: int = CONTINUOUS_MAX_MS,
) -> Before:
    """Tell whether a handler may start now; `began_ms`: since when the queue is handled in one go.

    An ordered queue whose lock is lost or in doubt is dropped here: it begins anew with a new lock.
    One whose lease is in doubt waits.
    """
    if tenure.dropped is not None:
        return Stop(tenure.dropped.value)
    if needs_lock and not tenure.check_lock(now_ms):
        return HOLD if tenure.epoch else Stop(DropReason.LOCK_EXPIRED.value)
    if now_ms - began_ms > run_max_ms:
        return SuspendFor(YIELD_MS)
    return RUN


def after_batch(
    cache: ProcessQueue,
    tenure: Tenure,
    batch: Sequence[ReceivedMessage],
    outcome: Outcome,
    *,
    now_ms: int,
    needs_lock: bool,
    auto_commit: bool = True,
    suspend_ms: int | None = None,
    redeliveries_max: int,
    default_suspend_ms: int = SUSPEND_DEFAULT_MS,
) -> tuple[Step, ...]:
    """Return the steps after a handler; the cache is changed accordingly.

    `suspend_ms` is what the handler asked for; an exception is Outcome.SUSPEND without it. Steps
    end with Stop if no further handler may start; with none of Stop, SuspendFor and SendBack the
    next batch may follow at once.
    """
    if not tenure.may_commit(now_ms, needs_lock=needs_lock):
        if tenure.dropped is None:
            tenure.check_lock(now_ms)
        assert tenure.dropped is not None
        return (Stop(f"a result is not committed: {tenure.dropped.value}"),)
    pause = SuspendFor(suspend_for(suspend_ms, default_suspend_ms))
    steps: list[Step]
    if outcome is Outcome.SUSPEND:
        spent = tuple(message for message in batch if message.redeliveries >= redeliveries_max)
        if spent and tenure.dropped is None:
            return (SendBack(spent),)
        cache.make_again(map(_again, batch))
        steps = [pause]
    elif auto_commit:
        steps = []
        if outcome is not Outcome.SUCCESS:
            steps.append(
                Warn(f"{outcome.name} means nothing with auto-commit on; taken as success")
            )
        steps += _commit(cache)
    elif outcome is Outcome.COMMIT:
        steps = _commit(cache)
    elif outcome is Outcome.ROLLBACK:
        cache.rollback()
        steps = [pause]
    else:
        steps = []
    if tenure.dropped is not None:
        steps = [step for step in steps if not isinstance(step, SuspendFor)]
        steps.append(Stop(tenure.dropped.value))
    return tuple(steps)


def after_send_back(
    cache: ProcessQueue,
    tenure: Tenure,
    batch: Sequence[ReceivedMessage],
    sent: Collection[int],
    *,
    now_ms: int,
    needs_lock: bool,
    auto_commit: bool = True,
    suspend_ms: int | None = None,
    default_suspend_ms: int = SUSPEND_DEFAULT_MS,
) -> tuple[Step, ...]:
    """Return the steps after a SendBack; `sent` holds the offsets that the broker took.

    Those are done and never handled again (O17); the rest of the batch is put back. All sent: the
    queue goes on at once, and commits.
    """
    if not tenure.may_commit(now_ms, needs_lock=needs_lock):
        if tenure.dropped is None:
            tenure.check_lock(now_ms)
        assert tenure.dropped is not None
        return (Stop(f"a result is not committed: {tenure.dropped.value}"),)
    rest = [message for message in batch if message.offset not in sent]
    cache.make_again(map(_again, rest))
    steps: list[Step] = []
    gone = [message for message in batch if message.offset in sent]
    if auto_commit and gone:
        offset = cache.remove(gone, now_ms)
        steps += [] if offset is None else [Commit(offset)]
    if tenure.dropped is not None:
        steps.append(Stop(tenure.dropped.value))
    elif rest:
        steps.append(SuspendFor(suspend_for(suspend_ms, default_suspend_ms)))
    return tuple(steps)


def is_failure(outcome: Outcome, *, auto_commit: bool = True) -> bool:
    """Tell whether a batch with this outcome comes again; with auto-commit on ROLLBACK does not."""
    return outcome is Outcome.SUSPEND or (outcome is Outcome.ROLLBACK and not auto_commit)


def suspend_for(asked_ms: int | None, default_ms: int = SUSPEND_DEFAULT_MS) -> int:
    """Return how long a queue is suspended: 10 ms to 30 s, whoever said how long."""
    wanted = default_ms if asked_ms is None or asked_ms == -1 else asked_ms
    return max(SUSPEND_MIN_MS, min(wanted, SUSPEND_MAX_MS))


def _commit(cache: ProcessQueue) -> list[Step]:
    offset = cache.commit()
    return [] if offset is None else [Commit(offset)]


def _again(message: ReceivedMessage) -> ReceivedMessage:
    return replace(message, redeliveries=message.redeliveries + 1)
