"""Where a group begins a queue for which it has no offset."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inorder.broker.broker import Broker


def first_offset(broker: Broker, topic: str, queue_id: int) -> int | None:
    """Return where a group without an offset starts; None: where its own setting says."""
    config = broker.topics.get(topic)
    if config is None or not 0 <= queue_id < config.read_queues:
        return None
    store = broker.store
    queue = store.find_queue(topic, queue_id)
    if queue is None:
        return 0
    if queue.min_offset >= queue.visible_offset:
        return queue.visible_offset
    first = queue.entry(0) if queue.min_offset <= 0 else None
    if first is not None and store.log.end_position - first[0] <= store.reader.hot_bytes:
        return 0
    return None
