"""Deletes expired log files, queue files and forgotten queues when an operator asks for it.

What may go is decided where retention decides it (`store/retention.py`): log files that nothing has
to read any more, and queue files that point below the log. A queue whose messages have all expired
keeps its end, so its next message gets the next offset and not 0: fences and offsets stay right.
Why: decision 53.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from inorder.broker.topics import service as topics
from inorder.logs import get_logger

if TYPE_CHECKING:
    from inorder.broker.broker import Broker

log = get_logger(__name__)

TOPICS_AT_ONCE: Final = 64
RUNS_MAX: Final = 20
"""How often retention runs for one request, as in RocketMQ; each run deletes ten log files."""


async def clean_queues(broker: Broker) -> int:
    """Delete the queue files whose messages have expired; return how many."""
    removed = 0
    for number, topic in enumerate(broker.store.queues.topics()):
        removed += broker.store.clean_queues(topic)
        if number % TOPICS_AT_ONCE == TOPICS_AT_ONCE - 1:
            await asyncio.sleep(0)
    broker.store.note_taken(broker.store.log.min_position)
    return removed


async def clean_topics(broker: Broker) -> list[str]:
    """Delete the queues of topics that do not exist; return these topics.

    A topic whose queues hold messages is not deleted: the next start creates it again.
    """
    deleted = []
    for topic in broker.store.queues.topics():
        if topic in broker.topics or broker.topics.is_system(topic):
            continue
        if any(queue.min_offset < queue.next_offset for queue in broker.store.queues_of(topic)):
            log.warning("topic=%s does not exist and holds messages; its queues stay", topic)
            continue
        version = broker.resizing.last_version(topic)
        dropped = topics.drop(broker, topic)
        await topics.settle(broker, topic, version, dropped)
        deleted.append(topic)
    return deleted


async def clean_log(broker: Broker) -> int:
    """Delete expired log files at any hour of the day; return how many."""
    removed = 0
    for _ in range(RUNS_MAX):
        found = broker.housekeeping.clean_now()
        removed += found
        if not found:
            break
        await asyncio.sleep(0)
    return removed
