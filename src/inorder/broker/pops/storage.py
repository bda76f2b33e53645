"""What is popped, over restarts: the records of POP in the lease journal.

A start replays them, unless another broker has saved the offsets since: then that broker's offsets
count, and what is in flight is handed out again from there. What lies beyond the recovered end of
the log is forgotten, since new messages will be stored there. Why: decision 54.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from inorder.broker.pops.records import replay
from inorder.logs import get_logger

if TYPE_CHECKING:
    from inorder.broker.broker import Broker

log = get_logger(__name__)


def restore(broker: Broker, records: Iterable[object]) -> None:
    """Restore what was popped from the records of the journal, and the offsets that follow."""
    table, same_boot = broker.pop_table, broker.lease_journal.start.same_boot
    replay(records, table, now_ms=broker.clock.monotonic_ms(), same_boot=same_boot)
    for key, queue in table.queues.items():
        if (queue.cursor or queue.points) and broker.offsets.query(*key) < queue.floor():
            broker.offsets.put(*key, queue.floor(), broker.clock.now_ms())
    if table.points:
        log.info("popped messages in flight=%d check_points=%d", table.messages, table.points)


def cut(broker: Broker) -> None:
    """Forget what is popped beyond the recovered log."""
    for key in broker.pop_table.clamp(broker.store.end_offset):
        log.warning("popped messages beyond the recovered log are forgotten queue=%s", key)
