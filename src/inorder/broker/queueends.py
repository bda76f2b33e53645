"""Where queues end, judged by all that a start can read, before anything is cut back.

A queue whose files were damaged ends where the highest evidence says: its noted end and the log
(`store/recovery.py`), commits that came under an epoch, and the ends that a resize noted. Commits
of stock clients are no evidence: they may say anything. If the log does not hold the message before
that end, and no clean stop noted it, more offsets may have been given out than is known: from the
end on the queue is in a new generation, it alone, before it gives out one more.

If the end of the log is lost, or may be, none of this applies: `broker/leases/storage.py` cuts all back to
what is left, and begins a new generation for all queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from inorder.logs import get_logger
from inorder.store.mending import Loss

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.offsets.rules import Committed, QueueKey
    from inorder.broker.resizing.rules import Versions

log = get_logger(__name__)

Ends = dict[tuple[str, int], int]


def evidence(
    commits: Iterable[tuple[QueueKey, Committed]], resizes: Iterable[tuple[str, Versions]]
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


def settle(broker: Broker) -> None:
    """Let damaged queues end where the evidence says, and begin generations where it is not sure.

    Both are on disk when `OwnersFile.begin` has returned.
    """
    recovery, start = broker.store.recovery, broker.owners_file.start
    uncertain = list(recovery.uncertain)
    if not start.may_have_lost and broker.owners_file.commits_count:
        uncertain += _extend(broker)
    for loss in recovery.losses:
        broker.losses.report(loss)
    if start.may_have_lost or not uncertain:
        return
    generation = start.next_generation()
    for topic, queue_id, end in uncertain:
        log.warning(
            "nobody knows for certain where a damaged queue ended: new generation topic=%s "
            "queue=%d from=%d generation=%d", topic, queue_id, end, generation,
        )  # fmt: skip
        broker.generations.begin_at(topic, queue_id, end, generation)


def _extend(broker: Broker) -> list[tuple[str, int, int]]:
    store, commits = broker.store, broker.commits

    def end_of(topic: str, queue_id: int) -> int:
        queue = store.find_queue(topic, queue_id)
        return 0 if queue is None else queue.visible_offset

    keys = commits.keys()
    known = ((key, last) for key in keys if (last := commits.get(key)) is not None)
    found = beyond(evidence(known, broker.resizing.topics.items()), end_of)
    extended = []
    for (topic, queue_id), end in found.items():
        if topic not in broker.topics:
            continue
        before = store.extend(topic, queue_id, end)
        broker.losses.report(
            Loss(topic, queue_id, before, end, "neither the queue nor the log has them")
        )
        extended.append((topic, queue_id, end))
    return extended
