"""Finding the route of a topic for those who stand in its line."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from inorder.client.topiclines import BatchCall, TopicLine
from inorder.errors import InorderError, NoWritableQueue

if TYPE_CHECKING:
    from inorder.client.delivery import Delivery


async def find_route(delivery: Delivery, topic: TopicLine) -> None:
    """Ask for a route, again and again; then give all in the line their places, in order."""
    backoff = delivery.backoff()
    try:
        while topic.early:
            try:
                await _look(delivery, topic)
                place_early(delivery, topic)
                return
            except InorderError as error:
                topic.error = error
                if not error.retriable:
                    while topic.early:
                        delivery.fail_early(topic.early.popleft(), error)
                    return
            delivery.retries += 1
            await asyncio.sleep(backoff.next_ms() / 1000)
            if isinstance(topic.error, NoWritableQueue):
                await delivery.session.try_refresh_route(topic.name)
    finally:
        topic.finding = False


async def _look(delivery: Delivery, topic: TopicLine) -> None:
    route = await delivery.session.route_for_send(topic.name)
    if not delivery.is_known(topic):
        delivery.adopt(topic, route)  # that of the template: a send makes the topic
    if not topic.keyed:
        raise NoWritableQueue(
            f"topic {topic.name} has no queue that may be written to; give it write permission, "
            "or start its broker"
        )


def place_early(delivery: Delivery, topic: TopicLine) -> None:
    """Give all in the line their places, in order; a batch waits until queues are drained."""
    topic.error = None
    while topic.early:
        if topic.draining and isinstance(topic.early[0], BatchCall):
            return  # its keys may have left several queues: it goes on when all are drained
        early = topic.early.popleft()
        try:
            if isinstance(early, BatchCall):
                delivery.place_batch(topic, early)
            elif early.wanted:
                delivery.place(topic, early)
            else:
                delivery.failed(early, asyncio.CancelledError())
        except Exception as error:
            # Also what the caller's selector raises: whoever waits for the send gets it.
            delivery.fail_early(early, error)
