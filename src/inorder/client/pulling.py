"""One pull: the request, the records checked and unpacked, the tags compared."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from inorder.client.session import Session
from inorder.model import ReceivedMessage, Subscription, TopicQueue
from inorder.wire import properties as names
from inorder.wire.codes import ResponseCode
from inorder.wire.compression import decompress_body
from inorder.wire.ids import offset_message_id
from inorder.wire.properties import parse
from inorder.wire.record import Record
from inorder.wire.requests.pull import PULL_SUBSCRIPTION, PULL_SUSPEND, PullMessage


class PullStatus(Enum):
    """What a pull found."""

    FOUND = ResponseCode.SUCCESS
    NOTHING_NEW = ResponseCode.PULL_NOT_FOUND
    NOTHING_MATCHED = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_MOVED = ResponseCode.PULL_OFFSET_MOVED


@dataclass(frozen=True, slots=True)
class PullResult:
    """Messages, and where to go on."""

    status: PullStatus
    messages: tuple[ReceivedMessage, ...]
    next_offset: int
    min_offset: int
    max_offset: int


async def pull(
    session: Session,
    group: str,
    queue: TopicQueue,
    offset: int,
    *,
    subscription: Subscription,
    messages_max: int | None = None,
    suspend_ms: int = 0,
) -> PullResult:
    """Ask for messages from an offset on; the broker may hold the pull for `suspend_ms`.

    Raises CorruptRecord if what came is not what was stored.
    """
    config = session.config
    request = PullMessage(
        group,
        queue.topic,
        queue.index,
        offset,
        config.pull_messages_max if messages_max is None else messages_max,
        PULL_SUBSCRIPTION | (PULL_SUSPEND if suspend_ms else 0),
        0,
        suspend_ms,
        0,
        subscription.expression,
        "TAG",
    )
    api = await session.reader_of(queue)
    pulled = await api.pull_message(request, timeout_ms=suspend_ms + config.request_timeout_ms)
    limit = config.message_bytes_max
    found = (receive(queue.broker, record, limit) for record in pulled.records())
    reply = pulled.reply
    return PullResult(
        PullStatus(pulled.code),
        tuple(message for message in found if _wanted(message, subscription)),
        reply.next_begin_offset,
        reply.min_offset,
        reply.max_offset,
    )


def receive(broker: str, record: Record, body_bytes_max: int) -> ReceivedMessage:
    """Return a record as a message; its body unpacked, but never beyond the limit."""
    properties = parse(record.properties)
    return ReceivedMessage(
        record.topic,
        TopicQueue(record.topic, broker, record.queue_id),
        record.queue_offset,
        decompress_body(record.sys_flag, record.body, limit=body_bytes_max),
        properties,
        properties.get(names.UNIQ_KEY) or offset_message_id(record.store_host, record.position),
        record.born_at_ms,
        record.stored_at_ms,
        record.redeliveries,
        record.position,
    )


def _wanted(message: ReceivedMessage, subscription: Subscription) -> bool:
    """Compare the tag itself: brokers compare hashes only."""
    return subscription.matches_all or message.tag in subscription.tags
