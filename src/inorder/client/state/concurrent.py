"""What follows when a concurrent handler ends: MessageListenerConcurrently's table.

A batch has an ack index: messages up to it are done, those behind it failed. Failed ones of a
cluster are sent back to the broker; what cannot be sent back is tried again here in 5 s and holds
the offset meanwhile. Failed ones of a broadcast are dropped, and said so. What is committed is the
lowest offset that is not done. What ends after the queue was given up is thrown away: its next
owner begins at the offset that was committed then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from inorder.client.policies import Handled
from inorder.client.state.processqueue import ProcessQueue
from inorder.client.state.tenure import Tenure
from inorder.model import ReceivedMessage

LOCAL_RETRY_MS: Final = 5000
EXPIRED_SCAN_MS: Final = 15 * 60 * 1000
RUN_CALLS_MAX: Final = 64
RUN_MS: Final = 10
"""How long the calls of one run may take together, by the average of those before."""
CALLS_SEEN_MIN: Final = 100
"""Fewer calls say nothing of the average."""


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


def batches(messages: Sequence[ReceivedMessage], size: int) -> Iterator[Sequence[ReceivedMessage]]:
    """Cut what was taken into batches for one call of the handler each."""
    for start in range(0, len(messages), size):
        yield messages[start : start + size]


def calls_of_run(*, calls: int, spent_ms: int, waiting: int, workers: int) -> int:
    """Return how many calls one worker makes before it comes back for more.

    The step between threads costs more than a short handler does, so short ones are called several
    times; but never so often that another worker would have nothing to do.
    """
    if calls < CALLS_SEEN_MIN:
        return 1
    fitting = RUN_CALLS_MAX if spent_ms == 0 else RUN_MS * calls // spent_ms
    return max(1, min(fitting, RUN_CALLS_MAX, waiting // max(1, workers)))


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
