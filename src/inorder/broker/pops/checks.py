"""RocketMQ's checks of requests about pops, in RocketMQ's order, and those that keep order.

A queue with parked keys of the group, or with messages that the group finished above its offset,
cannot be popped: a pop knows neither, and would hand messages of those keys out of turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from inorder.broker.filters.rules import filters_off
from inorder.broker.sends.rules import FAQ
from inorder.errors import (
    BrokerError,
    GroupNotFound,
    IllegalOperation,
    InvalidParameter,
    NoPermission,
    SubscriptionParseFailed,
    TopicNotFound,
)
from inorder.model import PERM_READ, GroupQueue
from inorder.wire.requests.pops import ATTEMPT_CHARS_MAX, POP_MESSAGES_MAX, PopMessage
from inorder.wire.requests.pulls import TAG, parse_subscription

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.filters.compiled import Filter
    from inorder.model import TopicConfig

EXPRESSION_CHARS_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages a pop wants."""

    tags: frozenset[int] | None = None
    """The hashes of the wanted tags; None: no tag filter."""
    filter: Filter | None = None
    """The SQL filter."""


def check_readable(
    broker: Broker, group: str, topic: str, queue_id: int, peer: str, *, verb: str = "peeking"
) -> TopicConfig:
    """Check that a group may read a queue; -1 stands for all. Raises the refusal."""
    host = broker.address.rpartition(":")[0]
    if not broker.config.perm & PERM_READ:
        raise NoPermission(f"the broker[{host}] {verb} message is forbidden")
    found = broker.topics.get(topic)
    if found is None:
        raise TopicNotFound(f"topic[{topic}] not exist, apply first please! \n{FAQ}")
    if not found.readable:
        raise NoPermission(f"the topic[{topic}] peeking message is forbidden")
    if queue_id >= found.read_queues:
        raise InvalidParameter(
            f"queueId[{queue_id}] is illegal, topic:[{topic}] "
            f"topicConfig.readQueueNums:[{found.read_queues}] consumer:[/{peer}]"
        )
    config = broker.find_group(group)
    if config is None:
        raise GroupNotFound(f"subscription group [{group}] does not exist, {FAQ}")
    if not config.consume_enable:
        raise NoPermission(f"subscription group no permission, {group}")
    return found


def check_pop(broker: Broker, request: PopMessage, peer: str) -> TopicConfig:
    """Check a pop; return its topic. Raises the refusal."""
    host = broker.address.rpartition(":")[0]
    if broker.config.perm & PERM_READ and request.max_messages > POP_MESSAGES_MAX:
        raise InvalidParameter(f"the broker[{host}] pop message's num is greater than 32")
    topic = check_readable(
        broker, request.consumer_group, request.topic, request.queue_id, peer, verb="pop"
    )
    if request.max_messages <= 0:
        raise InvalidParameter(f"maxMsgNums {request.max_messages} is not above 0")
    check_time(broker, request.invisible_ms, order=request.order, least=1)
    if len(request.attempt_id or "") > ATTEMPT_CHARS_MAX:
        raise InvalidParameter(f"an attemptId has at most {ATTEMPT_CHARS_MAX} characters")
    info = broker.members.group(request.consumer_group)
    if info is not None and info.broadcasting:
        raise NoPermission(
            f"the consumer group[{request.consumer_group}] consumes by broadcast; it cannot pop"
        )
    return topic


def check_time(broker: Broker, invisible_ms: int, *, order: bool, least: int = 0) -> None:
    """Check for how long messages are to be invisible."""
    longest = (
        broker.config.pop_order_invisible_max_ms
        if order
        else broker.config.store.timer_max_delay_sec * 1000
    )
    if not least <= invisible_ms <= longest:
        how = "in order " if order else ""
        raise InvalidParameter(
            f"an invisible time of {invisible_ms} ms: popped {how}it may be {least} to {longest} ms"
        )


def wanted_of(broker: Broker, request: PopMessage) -> Wanted:
    """Return the filter that a pop carries. Raises SubscriptionParseFailed."""
    expression, kind = request.expression or "", request.expression_type or TAG
    if not expression:
        return Wanted()
    if kind != TAG:
        if not broker.config.property_filter:
            raise filters_off(kind)
        return Wanted(filter=broker.filters.compiled(kind, expression))
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise SubscriptionParseFailed("parse the consumer's subscription failed: too long")
    try:
        found = parse_subscription(request.topic, expression)
    except BrokerError:
        raise SubscriptionParseFailed("parse the consumer's subscription failed") from None
    return Wanted(tags=None if found.matches_all else found.tag_hashes)


def check_unmixed(broker: Broker, key: GroupQueue, offset: int) -> None:
    """Refuse a queue that the group has handled by key, and not to its end.

    Raises:
        IllegalOperation: it says what to do.
    """
    group, topic, queue_id = key
    parked = broker.parking.table.places.get(key)
    if parked is not None and parked.keys:
        raise IllegalOperation(
            f"{topic} {queue_id} has parked keys of group {group}, which a pop would pass over: "
            "redrive or drop them first (`inorder parked`, `inorder redrive`)"
        )
    if broker.commits.finished(key, offset):
        raise IllegalOperation(
            f'group {group} has handled messages of {topic} {queue_id} by key (order="key") above '
            f"its offset {offset}, and a pop would hand them out again: let a consumer with "
            f'order="key" finish first, or set the offset (`inorder offset reset`)'
        )
