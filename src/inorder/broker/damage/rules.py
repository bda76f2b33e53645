"""Where a damaged queue ends, judged from everything that a start can read.

A queue whose files are damaged ends at the highest offset for which there is evidence:

- its recorded end and the log (`store/recovery.py`);
- commits under an epoch (commits of RocketMQ clients are no evidence, since they may name any
  offset);
- ends that a resize recorded.

If the log does not hold the message before that end, and no clean stop recorded the end, the queue
may have assigned more offsets than is known. Then this queue alone begins a new generation at the
end, before it assigns another offset.

If the end of the log is lost, or may be, none of this applies: `broker/leases/storage.py` lowers
everything to what is left, and begins a new generation for all queues. Why: decision 45.
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
    """Return the highest offset of each queue that a commit under an epoch or a resize names."""
    found: Ends = {}

    def take(topic: str, queue_id: int, end: int) -> None:
        found[topic, queue_id] = max(end, found.get((topic, queue_id), 0))

    for key, last in commits:
        if last.number > 0:  # otherwise an operator set it
            take(key.topic, key.queue_id, last.offset)
    for topic, now in resizes:
        for ends in (now.ends or {}, *(past.ends for past in now.past)):
            for queue_id, end in ends.items():
                take(topic, queue_id, end)
    return found


def beyond(found: Ends, end_of: Callable[[str, int], int]) -> Ends:
    """Return the ends that lie beyond the present end of their queue."""
    return {key: end for key, end in found.items() if end > end_of(*key)}
