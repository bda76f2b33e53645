"""Deletes topics with their queues, offsets, parked keys and sequence numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from inorder.broker.broker import Broker


class Dropped(NamedTuple):
    """What a deleted topic had."""

    queues: bool = False
    numbered: int = 0
    """Idempotent producers that had stored messages in it."""

    def __or__(self, other: Dropped) -> Dropped:
        return Dropped(self.queues or other.queues, self.numbered + other.numbered)


def drop(broker: Broker, topic: str) -> Dropped:
    """Delete a topic and everything that depends on it; `settle` makes it safe."""
    known = broker.topics.delete(topic, broker.clock.now_ms()) is not None
    if known:
        broker.save_topics()
    broker.offset_service.forget(topic=topic)
    broker.parking.topic_gone(topic)
    numbered = broker.producers.drop_topic(topic)
    queues = bool(broker.store.queues_of(topic))
    if queues:
        broker.store.drop_topic(topic, flush=False)
    if known:
        broker.topic_gone(topic)
    return Dropped(queues, numbered)


async def settle(broker: Broker, topic: str, version: int, dropped: Dropped) -> None:
    """Return when no power cut can bring the topic back, or reuse its key map versions."""
    await broker.resizing.delete(topic, version)
    await broker.housekeeping.flush_now()
    if dropped.numbered:
        await broker.producer_snapshot.save_now()
