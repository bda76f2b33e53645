"""Finding the route of a topic for those who stand in its line."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from inorder.client.sending import Sending
from inorder.client.state.routes import publish_queues
from inorder.client.topiclines import BatchCall, TopicLine
from inorder.errors import InorderError, NoWritableQueue, RequestTimeout, TopicNotRouted
from inorder.wire.requests.routes import TopicRoute

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
    route = await _route(delivery, topic.name)
    if not delivery.is_known(topic):
        delivery.adopt(topic, route)  # that of the template: a send makes the topic
    if not topic.keyed:
        raise NoWritableQueue(
            f"topic {topic.name} has no queue that may be written to; give it write permission, "
            "or start its broker"
        )


async def _route(delivery: Delivery, name: str) -> TopicRoute:
    """Return the route of a topic, which is made if nobody knows it or it is half made."""
    session = delivery.session
    try:
        route = await session.route(name)
        if publish_queues(route, name) or session.key_map(name) is not None:
            return route
    except TopicNotRouted:
        pass
    if await session.make_topic(name):
        return await session.route(name)
    return await session.route_for_send(name)  # perhaps that of the template: a send makes it


def place_early(delivery: Delivery, topic: TopicLine) -> None:
    """Give all in the line their places, in order; a batch waits until queues are drained."""
    topic.error = None
    while topic.early:
        if topic.draining and not isinstance(topic.early[0], Sending):
            return  # its keys may have left several queues: it goes on when all are drained
        early = topic.early.popleft()
        try:
            if not isinstance(early, Sending):
                if not place_turn(delivery, topic, early):
                    return
            elif early.wanted:
                delivery.place(topic, early)
            else:
                delivery.failed(early, asyncio.CancelledError())
        except Exception as error:
            # Also what the caller's selector raises: whoever waits for the send gets it.
            delivery.fail_early(early, error)


def place_turn(delivery: Delivery, topic: TopicLine, call: BatchCall) -> bool:
    """Give some messages of a batch their places; True if those were the last.

    A large batch takes several turns of the loop. Meanwhile it stands first in the line of its
    topic, so that nothing that was called later comes between.
    """
    if not call.wanted:
        call.fail(asyncio.CancelledError())
        return True
    delivery.place_batch(topic, call)
    if call.placed:
        return True
    topic.early.appendleft(call)
    topic.error = RequestTimeout(
        f"a batch before it to topic {topic.name} took all the time; nothing was sent"
    )
    call.resume = lambda: _go_on(delivery, topic)
    if not call.stalled:
        delivery.loop.call_soon(call.resume)
    return False


def _go_on(delivery: Delivery, topic: TopicLine) -> None:
    if delivery.closed or topic.finding or topic.draining or not topic.early:
        return  # whoever finds the route or drains the queue goes on by itself
    if delivery.is_known(topic):
        place_early(delivery, topic)
    else:
        delivery.find(topic)
