"""Reading queues by offset: pull, iterate to the end, commit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum

from inorder.client.session import Session
from inorder.client.state.routes import subscribe_queues
from inorder.errors import NotFound
from inorder.model import ReceivedMessage, Subscription, TopicQueue
from inorder.wire import properties as names
from inorder.wire.codes import ResponseCode
from inorder.wire.compression import decompress_body
from inorder.wire.ids import offset_message_id
from inorder.wire.properties import parse
from inorder.wire.record import Record
from inorder.wire.requests.pull import PULL_SUBSCRIPTION, PULL_SUSPEND, PullMessage
from inorder.wire.subscription import parse_subscription


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


class PullConsumer:
    """Reads queues over a session; the caller keeps the offsets."""

    def __init__(self, session: Session, *, group: str) -> None:
        self._session = session
        self._group = group

    async def queues(self, topic: str) -> list[TopicQueue]:
        """Return the queues of a topic, as the name server knows them now."""
        return subscribe_queues(await self._session.refresh_route(topic), topic)

    async def pull(
        self,
        queue: TopicQueue,
        offset: int,
        *,
        tag: str = "*",
        messages_max: int | None = None,
        suspend_ms: int = 0,
    ) -> PullResult:
        """Ask for messages from an offset on; wait up to `suspend_ms` for the first one."""
        config = self._session.config
        subscription = parse_subscription(queue.topic, tag)
        request = PullMessage(
            self._group,
            queue.topic,
            queue.index,
            offset,
            config.pull_messages_max if messages_max is None else messages_max,
            PULL_SUBSCRIPTION | (PULL_SUSPEND if suspend_ms else 0),
            0,
            suspend_ms,
            0,
            tag,
            "TAG",
        )
        api = await self._session.reader_of(queue)
        timeout_ms = suspend_ms + config.request_timeout_ms
        pulled = await api.pull_message(request, timeout_ms=timeout_ms)
        found = (self._receive(queue.broker, record) for record in pulled.records())
        reply = pulled.reply
        return PullResult(
            PullStatus(pulled.code),
            tuple(message for message in found if _wanted(message, subscription)),
            reply.next_begin_offset,
            reply.min_offset,
            reply.max_offset,
        )

    async def pull_all(
        self, queue: TopicQueue, start: int | None = None, *, tag: str = "*"
    ) -> AsyncIterator[ReceivedMessage]:
        """Return the messages of a queue from `start` (default: the oldest) to its present end."""
        api = await self._session.reader_of(queue)
        end = await api.max_offset(queue)
        offset = await api.min_offset(queue) if start is None else start
        while offset < end:
            result = await self.pull(queue, offset, tag=tag)
            for message in result.messages:
                if message.offset < end:
                    yield message
            if result.status is PullStatus.NOTHING_NEW:
                return
            offset = result.next_offset

    async def committed(self, queue: TopicQueue) -> int | None:
        """Return how far the group is; None if it never said."""
        api = await self._session.reader_of(queue)
        try:
            return await api.query_offset(self._group, queue, set_zero_if_not_found=False)
        except NotFound:
            return None

    async def commit(self, queue: TopicQueue, offset: int) -> None:
        """Say that everything below an offset is done, and wait for the answer."""
        await (await self._session.reader_of(queue)).update_offset(self._group, queue, offset)

    def _receive(self, broker: str, record: Record) -> ReceivedMessage:
        limit = self._session.config.message_bytes_max
        properties = parse(record.properties)
        return ReceivedMessage(
            record.topic,
            TopicQueue(record.topic, broker, record.queue_id),
            record.queue_offset,
            decompress_body(record.sys_flag, record.body, limit=limit),
            properties,
            properties.get(names.UNIQ_KEY) or offset_message_id(record.store_host, record.position),
            record.born_at_ms,
            record.stored_at_ms,
            record.redeliveries,
            record.position,
        )

    def __repr__(self) -> str:
        return f"PullConsumer({self._group!r})"


def _wanted(message: ReceivedMessage, subscription: Subscription) -> bool:
    """Compare the tag itself: brokers compare hashes only."""
    return subscription.matches_all or message.tag in subscription.tags
