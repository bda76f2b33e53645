"""Beside the lanes: a thread may send a message by itself, over a connection of its own.

That is for a lone blocking send, for which two switches of threads cost more than everything
else. It is allowed only while the lane of the queue is empty, and it is numbered under an id of its
own. If its outcome is not known, the message comes into a lane of that id here, and the queue's own
lane waits behind it: the hello on the link's connection shuts the other connection out, the broker
tells what it has, and the message is brought to its end like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from inorder.client.queuelane import QueueLane
from inorder.client.state.lane import UNKNOWN
from inorder.model import TopicQueue
from inorder.ordering.keymap import queue_for_key

if TYPE_CHECKING:
    from inorder.client.delivery import Delivery
    from inorder.client.sending import Sending


class Target(NamedTuple):
    """Where a message may go past the lanes."""

    queue: TopicQueue
    placed: bytes
    """What the send says of how its queue was chosen."""
    address: str


def target(delivery: Delivery, name: str, key: str | None, turn: int) -> Target | None:
    """Return where a message may be sent to now; None: by its lane. Called from other threads.

    `turn` counts those without a key. It only reads; whatever a caller's own thread has handed over
    before is in the lane, or in the portal's inbox, where the caller has looked.
    """
    topic, session = delivery.topics.get(name), delivery.session
    if (
        topic is None
        or topic.route is None
        or topic.early
        or topic.previous
        or session.known_route(name) is not topic.route
        or session.key_map(name) is not topic.key_map
    ):
        return None
    lanes = topic.lanes if key is None else topic.keyed_lanes
    if not lanes:
        return None
    lane = lanes[turn % len(lanes) if key is None else queue_for_key(key, len(lanes))]
    if lane is None or lane.sent or lane.waiting or lane.moved or lane.behind or not lane.ready:
        return None
    connection = lane.link.connection
    if connection is None or not lane.numbered:
        return None
    return Target(lane.queue, b"" if key is None else topic.placed, connection.address)


def take_over(delivery: Delivery, sending: Sending, where: Target, producer_id: str) -> None:
    """Bring a message to its end that was sent under `sending.number`, with an unknown outcome."""
    lane = delivery.lane(where.queue)
    link = lane.link
    doubt = QueueLane(
        link, where.queue, delivery.template(where.queue), producer_id, window=1, named=False,
        backoff=delivery.backoff(),
    )  # fmt: skip
    sending.lane, sending.state = doubt, UNKNOWN
    sending.by_key, sending.placed = sending.key is not None, where.placed
    doubt.sent.append(sending)
    doubt.unknown = 1
    doubt.tail, doubt.confirmed = sending.number, sending.number - 1
    while lane.behind is not None:
        lane = lane.behind
    lane.behind, doubt.before = doubt, lane
    number = delivery.next_doubt(sending.deadline_ms)
    link.lanes[TopicQueue(where.queue.topic, where.queue.broker, -number)] = doubt
    link.pump(doubt)
