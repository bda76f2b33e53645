"""Giving messages other places, by a newer key map: they are known not to be stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inorder.client.sending import Sending, Series
from inorder.errors import KeyMapConflict, UsageError
from inorder.model import TopicQueue
from inorder.ordering.keymap import queue_for_key

if TYPE_CHECKING:
    from inorder.client.delivery import Delivery
    from inorder.client.topiclines import TopicLine


def place_again(delivery: Delivery, topic: TopicLine, sending: Sending) -> None:
    """Bring a message, or the messages of a batch, to where the newer map puts them."""
    if sending.series is not None:
        for queue, one in _divide(delivery, topic, sending, sending.series):
            _place(delivery, topic, queue, one)
        return
    if not delivery.named:
        sending.number = sending.last = -1
    try:
        delivery.place(topic, sending)
    except (UsageError, KeyMapConflict) as error:
        delivery.failed(sending, error)


def _divide(
    delivery: Delivery, topic: TopicLine, sending: Sending, series: Series
) -> list[tuple[TopicQueue, Sending]]:
    """Make a request for each queue of a batch's messages; those without a key stay together."""
    groups: dict[TopicQueue, list[int]] = {}
    keyless: list[int] = []
    for place, message in enumerate(sending.messages or ()):
        if message.key is None:
            keyless.append(place)
        else:
            queue = topic.keyed[queue_for_key(message.key, len(topic.keyed))]
            groups.setdefault(queue, []).append(place)
    if keyless:
        queue = next(iter(groups), None) or delivery.round_robin.select(topic.keyed)
        groups[queue] = sorted((*groups.get(queue, ()), *keyless))
    return list(zip(groups, series.divide(sending, list(groups.values())), strict=True))


def _place(delivery: Delivery, topic: TopicLine, queue: TopicQueue, one: Sending) -> None:
    lane = one.lane = delivery.lane(queue)
    one.by_key = any(message.key is not None for message in one.messages or ())
    one.placed = topic.placed if one.by_key else b""
    try:
        if lane.named:
            lane.check_sequence(one)
    except UsageError as error:
        delivery.failed(one, error)
        return
    lane.waiting.append(one)
    lane.link.pump(lane)
