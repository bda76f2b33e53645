"""RocketMQ's checks of a send in RocketMQ's order, as far as they need the broker's tables.

`admit` finds the topic (and creates it if the broker may), applies the rules of retry topics, and
returns the queue to write to. `rules.py` has the checks that need only the request. A refused
message is never stored. Why: decisions 3 (what is not served) and 41 (is a failed send stored?).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from inorder.broker.sends.rules import (
    FAQ,
    INNER_BATCH_BITS,
    TRANSACTION_BITS,
    describe,
    is_special,
    level_in,
    not_served,
    refuse_special,
    refuse_timed_half,
    unique_key,
    with_separator,
)
from inorder.broker.transactions.records import is_half
from inorder.errors import (
    GroupNotFound,
    InvalidParameter,
    MessageIllegal,
    NoPermission,
    ServiceNotAvailable,
    SystemBusy,
    TopicNotFound,
)
from inorder.model import PERM_WRITE, TopicConfig
from inorder.wire import properties as props
from inorder.wire.extensions import PREDECESSOR, PRODUCER_ID, SEQUENCE
from inorder.wire.names import (
    DEAD_LETTER_PREFIX,
    NOT_SENDABLE_TOPICS,
    PARK_PREFIX,
    RETRY_PREFIX,
    dead_letter_topic,
    validate_topic,
)
from inorder.wire.requests.sends import SendMessage

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.sends.packing import Target
    from inorder.broker.sends.service import Sends
    from inorder.net.accepted import ServerConnection

_MAX_RETRIES_VERSION: Final = 121


def admit(
    broker: Broker, sends: Sends, connection: ServerConnection, request: SendMessage, version: int
) -> tuple[Target, SendMessage]:
    """Check a send and return its queue, or raise the refusal."""
    topic = _topic_for(broker, request)
    if request.queue_id >= max(topic.read_queues, topic.write_queues):
        raise InvalidParameter(
            f"request queueId[{request.queue_id}] is illegal, {describe(topic)} "
            f"Producer: {connection.peer}"
        )
    if request.topic.startswith(RETRY_PREFIX):
        request, topic = _retry(broker, request, topic, version)
    if request.sys_flag & INNER_BATCH_BITS:
        raise not_served("inner batches", request.topic)
    marked = "TRAN_MSG" in (request.properties or "") and not request.batch
    if request.sys_flag & TRANSACTION_BITS and not marked:
        raise not_served("prepared messages without the property TRAN_MSG", request.topic)
    queue_id = request.queue_id
    if queue_id < 0:
        queue_id = broker.random.randrange(max(1, topic.write_queues))
    return sends.target(topic.name, queue_id), request


def _topic_for(broker: Broker, request: SendMessage) -> TopicConfig:
    name = request.topic
    topic = broker.topics.get(name)
    if not broker.config.perm & PERM_WRITE and topic is not None and topic.order:
        raise NoPermission(f"the broker[{broker.address}] sending message is forbidden")
    invalid = validate_topic(name)
    if invalid is not None:
        raise InvalidParameter(invalid)
    if name in NOT_SENDABLE_TOPICS or name.startswith(PARK_PREFIX):
        raise NoPermission(f"Sending message to topic[{name}] is forbidden.")
    if topic is not None:
        return topic
    topic = broker.create_topic_on_send(
        name, request.default_topic, request.default_topic_queues, unit_mode=request.unit_mode
    )
    if topic is None:
        raise TopicNotFound(f"topic[{name}] not exist, apply first please!\n{FAQ}")
    return topic


def _retry(
    broker: Broker, request: SendMessage, topic: TopicConfig, version: int
) -> tuple[SendMessage, TopicConfig]:
    """Apply the rules of a retry topic: after the last attempt a message becomes a dead letter."""
    if request.batch:
        raise MessageIllegal(f"batch request does not support retry group {request.topic}")
    group_name = request.topic[len(RETRY_PREFIX) :]
    group = broker.find_group(group_name)
    if group is None:
        raise GroupNotFound(f"subscription group not exist, {group_name}")
    most = group.retry_max_times
    if version >= _MAX_RETRIES_VERSION and request.redeliveries_max is not None:
        most = request.redeliveries_max
    # A group that holds locks consumes in order. It gives a message back only to get rid of it.
    ordered = broker.locks.holds_any(group_name)
    if (request.redeliveries or 0) <= most and not ordered:
        return request, topic
    dead_letters = broker.ensure_topic(dead_letter_topic(group_name), queues=1)
    kept = props.parse(request.properties or "")
    for name in (PRODUCER_ID, SEQUENCE, PREDECESSOR):  # they belong to the original message
        kept.pop(name, None)
    kept["DELAY"] = "-1"
    request = replace(request, topic=dead_letters.name, queue_id=0, properties=props.join(kept))
    return request, dead_letters


def plain_properties(broker: Broker, request: SendMessage) -> tuple[str, bool]:
    """Return the properties to store, and whether the message is transactional.

    Special properties are refused except a delay and the mark of a transaction.
    """
    text, half = request.properties or "", False
    if is_special(text):
        found = props.parse(text)
        level = level_in(found)
        refuse_special(found, request.topic, delayed=level > 0)
        back = request.topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
        half = not back and is_half(found, level, request.redeliveries)
        if request.sys_flag & TRANSACTION_BITS and not half:
            raise not_served("prepared messages that are no transaction", request.topic)
        if half:
            refuse_timed_half(found, request.topic)
        if found.pop("POP_CK", None) is not None:
            text = props.join(found)
    return with_unique_key(broker, text)[0], half


def with_unique_key(broker: Broker, properties: str) -> tuple[str, str]:
    """Return the properties and their UNIQ_KEY, which is added if there is none."""
    unique = unique_key(properties)
    if unique is not None:
        return properties, unique
    unique = broker.unique_ids.next(broker.clock.now_ms())
    return with_separator(properties) + f"UNIQ_KEY\x01{unique}\x02", unique


def require_writable(broker: Broker) -> None:
    """Refuse a send while the store accepts no writes or too many bytes wait for the disk."""
    reason = broker.unwritable_reason
    if reason is not None:
        raise ServiceNotAvailable(f"service not available now, {reason}")
    if broker.ticks.unsettled_bytes > broker.config.store.pending_bytes_max:
        raise SystemBusy("[OVERLOAD]the broker has too many bytes waiting for the disk, try later")
