"""One pull: the request, the records checked and unpacked, the tags compared."""

from __future__ import annotations

from dataclasses import dataclass

from inorder.client.receiving import receive_from
from inorder.client.session import Session
from inorder.client.state.pulldecisions import PullStatus
from inorder.model import ReceivedMessage, Subscription, TopicQueue
from inorder.wire.codes import ResponseCode
from inorder.wire.requests.pulls import PULL_SUBSCRIPTION, PULL_SUSPEND, PullMessage

__all__ = ["PullResult", "PullStatus", "pull"]


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

    Raises CorruptRecord if the first message that came is not what was stored; those before a
    damaged one are returned.
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
    reply = pulled.reply
    found: tuple[ReceivedMessage, ...] = ()
    next_offset = reply.next_begin_offset
    if pulled.code == ResponseCode.SUCCESS:
        found, next_offset = receive_from(
            queue, offset, pulled.body, next_offset, body_bytes_max=config.message_bytes_max
        )
    if not subscription.matches_all:
        found = tuple(message for message in found if _wanted(message, subscription))
    return PullResult(
        PullStatus(pulled.code),
        found,
        next_offset,
        reply.min_offset,
        reply.max_offset,
    )


def _wanted(message: ReceivedMessage, subscription: Subscription) -> bool:
    """Compare the tag itself: brokers compare hashes only."""
    return message.tag in subscription.tags
