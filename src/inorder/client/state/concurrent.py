"""What follows when a concurrent handler ends: MessageListenerConcurrently's table.

A batch has an ack index: messages up to it are done, those behind it failed. Failed ones of a
cluster are sent back to the broker; what cannot be sent back is tried again here in 5 s and holds
the offset meanwhile. Failed ones of a broadcast are dropped, and said so. What is committed is the
lowest offset that is not done. What ends after the queue was given up is thrown away: its next
owner begins at the offset that was committed then. Only what ends while the consumer stops counts:
the queue is still its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from inorder.client.policies import Handled
from inorder.client.state.processqueue import ProcessQueue
from inorder.client.state.tenure import Tenure
from inorder.model import ReceivedMessage

LOCAL_RETRY_MS: Final = 5000
EXPIRED_SCAN_MS: Final = 15 * 60 * 1000
RUN_CALLS_MAX: Final = 64
RUN_US: Final = 1000
"""How long the calls of one run may take together, by the average of those before."""
RUN_ENDS_MS: Final = 10
"""A run whose calls take longer than expected ends then; others get what it did not come to."""
LOOK_MS: Final = 50
"""How often it is seen whether something waits behind a call that takes long."""
HANDOVER_US: Final = 100
"""What it costs to wake a thread: calls that take less together are not divided."""
AHEAD_US: Final = 10_000
"""For how long workers have something to do without a word from the loop."""
AHEAD_MAX: Final = 4
TURN_RUNS_MAX: Final = 8
"""How many runs of one queue are started before it is another one's turn."""
CALLS_SEEN_MIN: Final = 100
"""Fewer calls say nothing of the average."""
CALLS_KEPT_MAX: Final = 2000


@dataclass(frozen=True, slots=True)
class Concluded:
    """What became of a batch."""

    done: tuple[ReceivedMessage, ...] = ()
    send_back: tuple[ReceivedMessage, ...] = ()
    dropped: tuple[ReceivedMessage, ...] = ()
    """Failed messages of a broadcast, gone for good: one log line each."""
    ignored: bool = False
    """The queue was given up meanwhile: nothing is committed, nothing sent back."""
    commit: int | None = None
    """What may be committed now; with `send_back`, ask `after_send_back` instead."""


@dataclass(frozen=True, slots=True)
class AfterSendBack:
    """What is left of a batch after its failed messages were sent back."""

    commit: int | None
    retry: tuple[ReceivedMessage, ...] = ()
    """To be handled again here, after LOCAL_RETRY_MS; redeliveries count up."""


def batches(messages: Sequence[ReceivedMessage], size: int) -> list[Sequence[ReceivedMessage]]:
    """Cut what was taken into batches for one call of the handler each."""
    return [messages[start : start + size] for start in range(0, len(messages), size)]


def runs(
    messages: Sequence[ReceivedMessage], size: int, calls: int
) -> list[Sequence[Sequence[ReceivedMessage]]]:
    """Cut what was taken into runs of so many calls, each call with a batch of that size."""
    cut = batches(messages, size)
    if calls == 1:
        return [(batch,) for batch in cut]
    return [cut[start : start + calls] for start in range(0, len(cut), calls)]


class Pace:
    """How long calls of a handler take: the average of the last ones, older ones counting less."""

    __slots__ = ("_calls", "_spent_ms")

    def __init__(self, calls: int = 0, spent_ms: int = 0) -> None:
        self._calls = calls
        self._spent_ms = spent_ms

    def note(self, calls: int, spent_ms: int) -> None:
        """Count calls that took so long together."""
        self._calls += calls
        self._spent_ms += spent_ms
        if self._calls >= CALLS_KEPT_MAX:
            self._calls //= 2
            self._spent_ms //= 2

    def calls_in(self, span_us: int) -> int:
        """Return how many calls fit into a span of time: 0 for long ones, and if nothing is known;
        no more than a run may have calls for those too short to be timed."""
        if self._calls < CALLS_SEEN_MIN:
            return 0
        if self._spent_ms == 0:
            return RUN_CALLS_MAX
        return span_us * self._calls // (1000 * self._spent_ms)


def calls_of_run(pace: Pace, *, waiting: int, workers: int) -> int:
    """Return how many calls one worker makes before it comes back for more.

    A step between threads costs more than a short handler does, so short ones are called several
    times; but no longer than such a step takes if another worker would have nothing to do, and
    never for long: what waits behind a long one waits although others may become free.
    """
    alone = pace.calls_in(HANDOVER_US)
    return max(1, min(pace.calls_in(RUN_US), max(alone, waiting // max(1, workers)), RUN_CALLS_MAX))


def runs_in_hand(pace: Pace, *, capacity: int) -> int:
    """Return how many runs the workers have, those that wait included.

    Whoever is free takes the next one, so nothing waits for a worker while another one is idle. The
    shorter runs are the more of them wait there: the loop then hears of many at once.
    """
    run_calls = max(1, min(pace.calls_in(RUN_US), RUN_CALLS_MAX))
    return capacity * max(1, min(pace.calls_in(AHEAD_US) // run_calls, AHEAD_MAX))


def is_late(started_ms: int | None, now_ms: int) -> bool:
    """Tell whether what a run has not come to is taken back, for whoever is free."""
    return started_ms is not None and now_ms - started_ms > RUN_ENDS_MS


def tells_loop(ended: int, waiting: int, *, workers: int) -> bool:
    """Tell whether a worker wakes the loop for the runs that have ended.

    It need not while the workers have enough to do; but many at once would hold them all up.
    """
    return waiting <= workers or ended >= workers


def done_count(result: object, batch: int) -> int:
    """Return how many of a batch are done when the handler returned this: all, or as it says."""
    return min(result.count, batch) if isinstance(result, Handled) else batch


def conclude(
    cache: ProcessQueue,
    tenure: Tenure,
    batch: Sequence[ReceivedMessage],
    *,
    done: int,
    broadcasting: bool,
    now_ms: int,
) -> Concluded:
    """Say what follows when the first `done` messages of a batch succeeded (0: it failed)."""
    if tenure.dropped is not None:
        return Concluded(ignored=True)
    succeeded, failed = tuple(batch[:done]), tuple(batch[done:])
    if broadcasting:
        return Concluded(succeeded, dropped=failed, commit=cache.remove(batch, now_ms))
    back = tuple(message for message in failed if message in cache)
    if not back:
        return Concluded(succeeded, commit=cache.remove(batch, now_ms))
    return Concluded(succeeded, send_back=back)


def after_send_back(
    cache: ProcessQueue,
    tenure: Tenure,
    concluded: Concluded,
    sent: Collection[int],
    *,
    now_ms: int,
) -> AfterSendBack:
    """Say what follows when the broker took the messages with these offsets.

    The others stay taken and hold the offset.
    """
    failed = [message for message in concluded.send_back if message.offset not in sent]
    retry = tuple(replace(message, redeliveries=message.redeliveries + 1) for message in failed)
    cache.replace_taken(retry)
    gone = [message for message in concluded.send_back if message.offset in sent]
    commit = cache.remove((*concluded.done, *gone), now_ms)
    if tenure.dropped is not None:
        return AfterSendBack(None)
    return AfterSendBack(commit, retry)
