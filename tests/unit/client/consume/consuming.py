"""Messages and queues for the tests of consuming."""

from __future__ import annotations

from inorder.client.consume.rules.leases import LeaseState
from inorder.client.consume.rules.queue import QueueProgress
from inorder.model import ReceivedMessage, TopicQueue

QUEUE = TopicQueue("orders", "broker-a", 0)


def message(
    offset: int,
    *,
    body: bytes = b"body",
    tag: str | None = None,
    redeliveries: int = 0,
    topic: str = "orders",
    **properties: str,
) -> ReceivedMessage:
    """Return a message of the queue."""
    if tag is not None:
        properties["TAGS"] = tag
    return ReceivedMessage(
        topic, QUEUE, offset, body, properties, f"id-{offset}", 0, 0, redeliveries, offset * 100
    )


def filled(first: int, last: int) -> QueueProgress:
    """Return the progress of a queue with messages from first to last, all waiting."""
    progress = QueueProgress(first)
    progress.put([message(offset) for offset in range(first, last + 1)], last + 1)
    return progress


def locked(now_ms: int = 0) -> LeaseState:
    """Return the lease state of the queue under a fresh lock."""
    return LeaseState(QUEUE, now_ms=now_ms, lock_sent_ms=now_ms)


def offsets(messages: object) -> list[int]:
    """Return the offsets of messages."""
    return [found.offset for found in messages]  # type: ignore[attr-defined]
