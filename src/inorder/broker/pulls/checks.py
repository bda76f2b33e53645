"""RocketMQ's checks of a pull in RocketMQ's order; their results are cached.

A pull that carries its subscription depends only on topics, groups and settings, so its result is
cached until one of them changes. A pull that relies on its group's heartbeat is checked every time.
Why: decision 26.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from inorder.broker.filters.rules import filters_off
from inorder.broker.sends.rules import FAQ
from inorder.errors import (
    BrokerError,
    FilterNotFound,
    FilterNotLatest,
    GroupNotFound,
    InvalidParameter,
    NoPermission,
    SubscriptionNotFound,
    SubscriptionNotLatest,
    SubscriptionParseFailed,
    TopicNotFound,
)
from inorder.model import PERM_READ, Subscription
from inorder.wire.requests.pulls import (
    FORBIDDEN_BROADCAST,
    FORBIDDEN_BROKER,
    FORBIDDEN_GROUP,
    FORBIDDEN_SUBSCRIPTION,
    FORBIDDEN_TOPIC,
    PULL_SUBSCRIPTION,
    TAG,
    parse_subscription,
)
from inorder.wire.shapes import I32, I64

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.filters.compiled import Filter
    from inorder.store.consumequeue import QueueIndex

_CACHED_MAX: Final = 20_000
EXPRESSION_KEPT_CHARS: Final = 256
"""Longer expressions are not cached, and few pulls may be held with one."""
_EXPRESSION_CHARS_MAX: Final = 64 * 1024


_Filters = tuple[frozenset[int] | None, "Filter | None"]
"""The hashes of the wanted tags, and the SQL filter; None where there is no such filter."""


class PullFields(
    msgspec.Struct,
    rename={
        "group": "consumerGroup",
        "queue_id": "queueId",
        "offset": "queueOffset",
        "max_messages": "maxMsgNums",
        "sys_flag": "sysFlag",
        "commit_offset": "commitOffset",
        "suspend_timeout_ms": "suspendTimeoutMillis",
        "sub_version": "subVersion",
        "expression_type": "expressionType",
        "only_up": "onlyUp",
    },
):
    """The header of a pull, by its wire names."""

    group: str
    topic: str
    queue_id: I32
    offset: I64
    max_messages: I32
    sys_flag: I32
    commit_offset: I64
    suspend_timeout_ms: I64
    sub_version: I64
    subscription: str | None = None
    expression_type: str | None = None
    bulk: I32 = 0
    epoch: I64 = 0
    only_up: bool = False


@dataclass(slots=True, eq=False)
class CheckedPull:
    """The result of the checks: the queue, the filter, the flags of the reply."""

    queue: QueueIndex
    topic_bytes: bytes
    wanted: frozenset[int] | None
    """The hashes of the tags; None: no tag filter."""
    filter: Filter | None
    """The SQL filter."""
    group_flag: int
    topic_flag: int
    resized: bool
    """The topic has past map versions, or groups that wait for one."""


class PullChecks:
    """Checks pulls, and caches the results."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._cache: dict[tuple[str, str, int, str | None, str | None], CheckedPull] = {}

    def of(self, fields: PullFields, peer: str) -> CheckedPull:
        """Return the result of the checks, cached if only tables decide. Raises the refusal."""
        if not fields.sys_flag & PULL_SUBSCRIPTION:
            return self._check(fields, peer)
        key = (
            fields.group, fields.topic, fields.queue_id, fields.subscription,
            fields.expression_type,
        )  # fmt: skip
        checked = self._cache.get(key)
        if checked is None:
            checked = self._check(fields, peer)
            if checked.filter is None and (
                len(fields.subscription or "") <= EXPRESSION_KEPT_CHARS
            ):  # compiled filters have a cache of their own
                if len(self._cache) >= _CACHED_MAX:
                    self._cache.clear()
                self._cache[key] = checked
        return checked

    def forget(self) -> None:
        """Clear the cache: a topic, a group or a setting changed."""
        self._cache.clear()

    def _check(self, fields: PullFields, peer: str) -> CheckedPull:
        """Apply RocketMQ's checks in its order."""
        broker = self._broker
        if not broker.config.perm & PERM_READ:
            raise _forbidden(
                FORBIDDEN_BROKER, f"the broker[{broker.address}] pulling message is forbidden"
            )
        group = broker.find_group(fields.group)
        if group is None:
            raise GroupNotFound(f"subscription group [{fields.group}] does not exist, {FAQ}")
        if not group.consume_enable:
            raise _forbidden(FORBIDDEN_GROUP, f"subscription group no permission, {fields.group}")
        topic = broker.topics.get(fields.topic)
        if topic is None:
            raise TopicNotFound(f"topic[{fields.topic}] not exist, apply first please! \n{FAQ}")
        if not topic.readable:
            raise _forbidden(
                FORBIDDEN_TOPIC, f"the topic[{fields.topic}] pulling message is forbidden"
            )
        if not 0 <= fields.queue_id < topic.read_queues:
            raise InvalidParameter(
                f"queueId[{fields.queue_id}] is illegal, topic:[{fields.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queues}] "
                f"consumer:[/{peer}]"
            )
        if fields.sys_flag & PULL_SUBSCRIPTION:
            wanted, found = self._carried(fields)
        else:
            wanted, found = self._registered(fields)
        queue = broker.store.queue(fields.topic, fields.queue_id)
        resized = broker.resizing.is_resized(fields.topic)
        return CheckedPull(
            queue, fields.topic.encode(), wanted, found, group.sys_flag, topic.sys_flag,
            resized=resized,
        )  # fmt: skip

    def _registered(self, fields: PullFields) -> _Filters:
        """Return the filter that the heartbeats of the group registered."""
        subscription = self._subscription(fields)
        if subscription.expression_type == TAG:
            return _wanted(subscription), None
        registered = self._broker.filters.get(fields.topic, fields.group)
        if registered is None:
            raise FilterNotFound(
                "The broker's consumer filter data is not exist!Your expression may be wrong!"
            )
        if registered.record.version < fields.sub_version:
            raise FilterNotLatest("the consumer's consumer filter data not latest")
        if not self._broker.config.property_filter:
            raise filters_off(subscription.expression_type)
        return None, registered.filter

    def _subscription(self, fields: PullFields) -> Subscription:
        broker = self._broker
        info = broker.members.group(fields.group)
        if info is None:
            raise SubscriptionNotFound(f"the consumer's group info not exist\n{FAQ}")
        group = broker.groups.get(fields.group)
        if group is not None and not group.consume_broadcast_enable and info.broadcasting:
            raise _forbidden(
                FORBIDDEN_BROADCAST,
                f"the consumer group[{fields.group}] can not consume by broadcast way",
            )
        if broker.groups.is_forbidden(fields.group, fields.topic):
            raise _forbidden(
                FORBIDDEN_SUBSCRIPTION,
                f"the consumer group[{fields.group}] is forbidden for topic[{fields.topic}]",
            )
        found = info.subscriptions.get(fields.topic)
        if found is None:
            raise SubscriptionNotFound(f"the consumer's subscription not exist\n{FAQ}")
        if found.version < fields.sub_version:
            raise SubscriptionNotLatest("the consumer's subscription not latest")
        return found

    def _carried(self, fields: PullFields) -> _Filters:
        """Return the filter that the pull carries itself."""
        expression, kind = fields.subscription or "", fields.expression_type or TAG
        if kind != TAG:
            if not self._broker.config.property_filter:
                raise filters_off(kind)
            return None, self._broker.filters.compiled(kind, expression)
        if len(expression) > _EXPRESSION_CHARS_MAX:
            raise SubscriptionParseFailed("parse the consumer's subscription failed: too long")
        try:
            return _wanted(parse_subscription(fields.topic, expression)), None
        except BrokerError:
            raise SubscriptionParseFailed("parse the consumer's subscription failed") from None


class _Forbidden(NoPermission):
    """A refusal that names the missing permission."""

    fields: dict[str, str]


def _forbidden(kind: int, remark: str) -> _Forbidden:
    error = _Forbidden(remark)
    error.fields = {"forbiddenType": str(kind)}
    return error


def _wanted(subscription: Subscription) -> frozenset[int] | None:
    return None if subscription.matches_all else subscription.tag_hashes
