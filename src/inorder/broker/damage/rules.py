"""Where queues end, judged by all that a start can read, before anything is cut back.

A queue whose files were damaged ends where the highest evidence says: its noted end and the log
(`store/recovery.py`), commits that came under an epoch, and the ends that a resize noted. Commits
of stock clients are no evidence: they may say anything. If the log does not hold the message before
that end, and no clean stop noted it, more offsets may have been given out than is known: from the
end on the queue is in a new generation, it alone, before it gives out one more.

If the end of the log is lost, or may be, none of this applies: `broker/leases/storage.py` cuts all
back to what is left, and begins a new generation for all queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from inorder.model import GroupQueue

if TYPE_CHECKING:
    from inorder.broker.offsets.rules import Committed
    from inorder.broker.resizing.rules import Versions


Ends = dict[tuple[str, int], int]


def evidence(
    commits: Iterable[tuple[GroupQueue, Committed]], resizes: Iterable[tuple[str, Versions]]
) -> Ends:
    """Return the highest offset of each queue that owners or resizes speak of."""
    found: Ends = {}

    def take(topic: str, queue_id: int, end: int) -> None:
        found[topic, queue_id] = max(end, found.get((topic, queue_id), 0))

    for key, last in commits:
        if last.number > 0:  # else an operator set it
            take(key.topic, key.queue_id, last.offset)
    for topic, now in resizes:
        for ends in (now.ends or {}, *(chapter.ends for chapter in now.past)):
            for queue_id, end in ends.items():
                take(topic, queue_id, end)
    return found


def beyond(found: Ends, end_of: Callable[[str, int], int]) -> Ends:
    """Return those that lie behind what is there of their queues."""
    return {key: end for key, end in found.items() if end > end_of(*key)}
