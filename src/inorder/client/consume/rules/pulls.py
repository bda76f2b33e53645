"""Decisions of the pull loop: when to pull, what a pull carries, and what its answer means.

A queue has one pull under way at a time. Delays are those of RocketMQ 5.3; where 4.x differs, a
comment says so. `Prefetched` is the buffer of a pull consumer: the messages that were read ahead of
one queue, and the position of its reader. What a pull carries: decision 26.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from inorder.client.consume.rules.leases import LeaseState, RevokeReason
from inorder.client.consume.rules.queue import Limits, QueueProgress
from inorder.errors import UsageError
from inorder.filters.syntax import parse
from inorder.model import MASTER_ID, ReceivedMessage, Subscription, TopicQueue
from inorder.wire import properties
from inorder.wire.codes import ResponseCode
from inorder.wire.names import RETRY_PREFIX
from inorder.wire.requests.pulls import (
    ALL,
    PULL_CLASS_FILTER,
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    SQL92,
    parse_subscription,
)

FLOW_CONTROL_MS: Final = 50
BROKER_FLOW_CONTROL_MS: Final = 20
PLENTY_MS: Final = 5
"""The pause between pulls of a queue that has plenty of messages waiting here."""
PAUSED_MS: Final = 1000
EXCEPTION_MS: Final = 1000  # 4.x: 3000
DENIED_RETRY_MS: Final = 10_000
"""The pause after a refusal by access control: it lasts until somebody changes a right."""
PULL_COUNT_MIN: Final = 32
"""RocketMQ's messages of one pull; its brokers give no more."""
PULL_BYTES: Final = 256 * 1024
"""The bytes of a pull of more messages; RocketMQ's limit of every pull."""


class PullStatus(Enum):
    """What a pull found."""

    FOUND = ResponseCode.SUCCESS
    NOTHING_NEW = ResponseCode.PULL_NOT_FOUND
    NOTHING_MATCHED = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_MOVED = ResponseCode.PULL_OFFSET_MOVED


@dataclass(frozen=True, slots=True)
class PullNow:
    """Pull at this offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class PullLater:
    """Decide again after `ms`; `reason` is for the log."""

    ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Stop pulling: the queue was given up."""


@dataclass(frozen=True, slots=True)
class FixOffset:
    """The broker does not store the offset, so the queue was dropped.

    When its handlers have ended, commit this offset and no other, release the queue and rebalance.
    """

    offset: int


@dataclass(frozen=True, slots=True)
class AfterPull:
    """What follows the answer to a pull."""

    pull: PullNow | PullLater | Forget | FixOffset
    handle: bool = False
    """New messages wait for a handler."""
    passed: bool = False
    """No message is unfinished."""


FORGET: Final = Forget()


def before_pull(
    progress: QueueProgress,
    lease: LeaseState,
    *,
    limits: Limits,
    now_ms: int,
    ordered: bool,
    needs_lock: bool,
    running: bool = True,
    paused: bool = False,
    ahead_max: int = 0,
) -> PullNow | PullLater | Forget:
    """Decide whether to pull now. The call counts as an attempt to pull.

    A pull under a lease is not held back: it carries the epoch, and the broker checks it.
    """
    if lease.dropped is not None:
        return FORGET
    lease.pulled(now_ms)
    if not running:
        return PullLater(EXCEPTION_MS, "the consumer does not run")
    if paused:
        return PullLater(PAUSED_MS, "the consumer is paused")
    full = progress.flow_control(limits, ordered=ordered, ahead_max=ahead_max)
    if full is not None:
        return PullLater(FLOW_CONTROL_MS, full.value)
    if needs_lock and not lease.epoch and not lease.check_trust(now_ms):
        return FORGET
    return PullNow(progress.pulled_to)


def pull_count(progress: QueueProgress, limits: Limits, *, ordered: bool, most: int) -> int:
    """Return how many messages a pull asks for: `most`, but few above the limits of the queue."""
    room = limits.messages_max - progress.count
    if not ordered:
        room = min(room, limits.span_max - progress.span)
    return min(most, max(PULL_COUNT_MIN, room))


def after_pull(
    progress: QueueProgress,
    lease: LeaseState,
    status: PullStatus,
    messages: Sequence[ReceivedMessage],
    next_offset: int,
    *,
    interval_ms: int = 0,
    now_ms: int = 0,
    plenty: int | None = None,
) -> AfterPull:
    """Add the messages of an answer to the progress and decide what follows.

    `messages` are those whose tags match (`wanted`). If more than `plenty` messages wait here, the
    next pull pauses: pulls of all queues without a pause would keep the interpreter from the
    handlers.
    """
    if lease.dropped is not None:
        return AfterPull(FORGET)
    if status is PullStatus.OFFSET_MOVED:
        lease.drop(RevokeReason.OFFSET_ILLEGAL)
        return AfterPull(FixOffset(next_offset))
    handle = progress.put(messages, next_offset)
    passed = not progress.count
    if status is PullStatus.FOUND and messages and interval_ms > 0:
        return AfterPull(PullLater(interval_ms, "the pull interval"), handle, passed)
    if handle and plenty is not None and progress.waiting > plenty:
        wait_ms = turn_in_ms(lease.queue.index, now_ms)
        return AfterPull(PullLater(wait_ms, "plenty waits here"), handle, passed)
    return AfterPull(PullNow(progress.pulled_to), handle, passed)


def turn_in_ms(index: int, now_ms: int) -> int:
    """Return the time until a queue's turn to be pulled; turns repeat every PLENTY_MS."""
    return 1 + (3 * index - now_ms - 1) % PLENTY_MS


def after_failed_pull(
    *, flow_control: bool, denied: bool = False, error_delay_ms: int = EXCEPTION_MS
) -> PullLater:
    """Return when to pull again after an error; `flow_control`: the broker asked for a pause.

    `denied` by access control: somebody must change a right first.
    """
    if denied:
        return PullLater(DENIED_RETRY_MS, "access is denied")
    if flow_control:
        return PullLater(BROKER_FLOW_CONTROL_MS, "the broker controls the flow")
    return PullLater(error_delay_ms, "the pull failed")


@dataclass(frozen=True, slots=True)
class PullFields:
    """The fields of a pull beside its offset."""

    sys_flag: int
    commit_offset: int
    sub_version: int
    subscription: str | None


def pull_fields(
    subscription: Subscription,
    *,
    done_to: int | None,
    clustering: bool,
    to_master: bool = True,
    post_subscription: bool = False,
) -> PullFields:
    """Return the fields of a pull. It commits `done_to` if that is above 0 and a master answers.

    The broker knows the subscription and its version from heartbeats. The pull carries its text
    only with `post_subscription`.
    """
    flag, commit = PULL_SUSPEND, 0
    if clustering and to_master and done_to is not None and done_to > 0:
        flag, commit = flag | PULL_COMMIT_OFFSET, done_to
    text = None
    if post_subscription and not subscription.class_filter_mode:
        flag, text = flag | PULL_SUBSCRIPTION, subscription.expression
    if subscription.class_filter_mode:
        flag |= PULL_CLASS_FILTER
    return PullFields(flag, commit, subscription.version, text)


def subscription_of(
    topic: str, tag: str = ALL, sql: str | None = None, version: int = 0
) -> Subscription:
    """Return the subscription to a topic by tags, or by an SQL92 expression.

    Raises:
        UsageError: both are given.
        SubscriptionParseFailed: the tags or the expression cannot be read; of an expression the
            error marks the place.
    """
    if sql is None:
        return parse_subscription(topic, tag, version)
    if tag not in (ALL, ""):
        raise UsageError(
            f"topic {topic}: give tag={tag!r} or sql=, not both; a tag is the property TAGS, as in "
            "sql=\"TAGS IN ('paid', 'shipped') AND amount > 100\""
        )
    parse(sql)  # the broker compiles it
    return parse_subscription(topic, sql, version, SQL92)


def wanted(message: ReceivedMessage, subscription: Subscription) -> bool:
    """Compare the tag itself: brokers compare only hashes. `*` matches untagged messages too."""
    if not subscription.tags or subscription.class_filter_mode:
        return True
    return message.tag in subscription.tags


def restore_topic(message: ReceivedMessage, group: str) -> ReceivedMessage:
    """Return a message of the group's retry topic with its original topic."""
    if message.topic != RETRY_PREFIX + group:
        return message
    origin = message.properties.get(properties.RETRY_TOPIC)
    return message if origin is None else replace(message, topic=origin)


def for_handlers(
    messages: tuple[ReceivedMessage, ...],
    subscription: Subscription,
    *,
    topic: str,
    group: str | None,
) -> tuple[ReceivedMessage, ...]:
    """Return the messages of a pull that match the subscription.

    With a `group`, messages of its retry topic get their original topic back.
    """
    if group is None or topic != RETRY_PREFIX + group:
        if not subscription.tags or subscription.class_filter_mode:
            return messages
        return tuple(message for message in messages if wanted(message, subscription))
    return tuple(
        restore_topic(message, group) for message in messages if wanted(message, subscription)
    )


class Suggested:
    """The replica that each queue is read from, as the last answer suggested."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: dict[TopicQueue, int] = {}

    def note(self, queue: TopicQueue, broker_id: int) -> None:
        """Store the suggestion of an answer."""
        self._ids[queue] = broker_id

    def of(self, queue: TopicQueue) -> int:
        """Return the broker id to read from next: the master's without a suggestion."""
        return self._ids.get(queue, MASTER_ID)

    def forget(self, queue: TopicQueue) -> None:
        """Read from the master again."""
        self._ids.pop(queue, None)


class _Chunk:
    """The messages of one pull, and the offset after it and after filtered messages."""

    __slots__ = ("at", "messages", "next_offset")

    def __init__(self, messages: Sequence[ReceivedMessage], next_offset: int) -> None:
        self.messages = messages
        self.next_offset = next_offset
        self.at = 0


class Prefetched:
    """Messages in order. The reader gets `position` next; the next pull is at `fetch_offset`."""

    __slots__ = ("_chunks", "fetch_offset", "messages", "position", "size_bytes")

    def __init__(self, offset: int) -> None:
        self.position = offset
        self.fetch_offset = offset
        self.messages = 0
        self.size_bytes = 0
        self._chunks: deque[_Chunk] = deque()

    def add(self, messages: Sequence[ReceivedMessage], next_offset: int) -> None:
        """Append the messages of a pull at `fetch_offset`."""
        self.fetch_offset = next_offset
        if messages:
            self._chunks.append(_Chunk(messages, next_offset))
            self.messages += len(messages)
            self.size_bytes += sum(len(message.body) for message in messages)
        elif self._chunks:
            self._chunks[-1].next_offset = next_offset
        else:
            self.position = next_offset

    def take(self, limit: int) -> list[ReceivedMessage]:
        """Return up to `limit` messages and move the position past them."""
        taken: list[ReceivedMessage] = []
        while self._chunks and len(taken) < limit:
            chunk = self._chunks[0]
            found = chunk.messages[chunk.at : chunk.at + limit - len(taken)]
            taken += found
            chunk.at += len(found)
            if chunk.at == len(chunk.messages):
                self._chunks.popleft()
                self.position = chunk.next_offset
            else:
                self.position = found[-1].offset + 1
        self.messages -= len(taken)
        self.size_bytes -= sum(len(message.body) for message in taken)
        return taken

    def __repr__(self) -> str:
        return f"Prefetched(position={self.position}, messages={self.messages})"
