"""The SQL92 filters of groups, by topic, as heartbeats register them.

    a heartbeat          registers the filters of its group; a topic that it does not name dies
    an older version     never replaces a newer one; the same version brings a dead filter back
    a bad expression     is not kept, and removes the one before it: pulls are answered 27
    the last member left the filters of the group die
    a day after death    they are removed

So a pull that relies on the heartbeat of its group gets the filter of the newest version, as in
RocketMQ. A pull that carries its own expression does not ask this table; `compiled` keeps the
filters of both. The table is bounded: of too many filters the one that died first is removed, and
if all live, a further one is not kept. Why: decision 49.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from inorder.broker.filters.records import FilterRecord, decode_filters, encode_filter, join_filters
from inorder.errors import BrokerError, SubscriptionParseFailed, SystemError_
from inorder.filters.compiled import Filter, compile_filter
from inorder.model import Subscription
from inorder.wire.requests.pulls import SQL92, TAG

FILTERS_MAX: Final = 20_000
CHARS_MAX: Final = 8 * 1024 * 1024
"""Characters of all expressions of the table."""
COMPILED_CHARS_MAX: Final = 1024 * 1024
"""Characters of the expressions whose compiled form is kept."""
_CHARS_LEAST: Final = 256
"""A short expression counts as this many characters: its compiled form has a fixed part."""
LOADED_DEAD_MS: Final = 30_000
"""How long before a start the filters of the file count as dead."""


class CompiledFilters:
    """Filters by their text; those that were not used for longest are forgotten first."""

    def __init__(self, chars_max: int = COMPILED_CHARS_MAX) -> None:
        self._chars_max = chars_max
        self._chars = 0
        self._by_text: dict[str, Filter] = {}

    def __len__(self) -> int:
        return len(self._by_text)

    def __contains__(self, text: object) -> bool:
        return text in self._by_text

    def of(self, text: str) -> Filter:
        """Return the filter of an expression. Raises SubscriptionParseFailed if it is none."""
        found = self._by_text.pop(text, None)
        if found is not None:
            self._by_text[text] = found  # now the newest
        else:
            found = self._by_text[text] = compile_filter(text)
            self._chars += max(len(text), _CHARS_LEAST)
            while self._chars > self._chars_max:
                oldest = next(iter(self._by_text))
                del self._by_text[oldest]
                self._chars -= max(len(oldest), _CHARS_LEAST)
        return found


def filters_off(kind: str) -> BrokerError:
    """Return RocketMQ's refusal of filters other than tags; `enablePropertyFilter` allows them."""
    return SystemError_(f"The broker does not support consumer to filter message by {kind}")


def filter_of(compiled: CompiledFilters, kind: str, text: str) -> Filter:
    """Return the filter of an expression of any type. Raises SubscriptionParseFailed."""
    if kind != SQL92:
        raise SubscriptionParseFailed(
            f"there is no filter of the type {kind[:40]!r}; the types are {TAG} and {SQL92}"
        )
    return compiled.of(text)


@dataclass(slots=True)
class GroupFilter:
    """The filter of a group for a topic."""

    record: FilterRecord
    filter: Filter
    text: bytes | None = None
    """Its text in the file, once it was encoded."""


class FilterTable:
    """The filters by topic and group."""

    def __init__(self, compiled: CompiledFilters) -> None:
        self._compiled = compiled
        self._by_topic: dict[str, dict[str, GroupFilter]] = {}
        self._topics_of: dict[str, set[str]] = {}
        self._dead: dict[tuple[str, str], None] = {}
        self._count = 0
        self._chars = 0
        self._not_encoded: dict[tuple[str, str], None] = {}
        self.revision = 0

    def __repr__(self) -> str:
        return f"FilterTable({self._count} filters, {len(self._dead)} dead)"

    def __len__(self) -> int:
        return self._count

    def get(self, topic: str, group: str) -> GroupFilter | None:
        """Return the filter of a group for a topic, dead or alive."""
        return self._by_topic.get(topic, {}).get(group)

    # -- heartbeats ------------------------------------------------------------------------------

    def register(self, group: str, subscriptions: Iterable[Subscription], now_ms: int) -> list[str]:
        """Apply the subscriptions of a heartbeat; return why filters are not kept."""
        problems, named = [], set()
        for subscription in subscriptions:
            named.add(subscription.topic)
            if subscription.expression_type != TAG and subscription.expression:
                problem = self._register(group, subscription, now_ms)
                problems += [f"topic {subscription.topic}: {problem}"] if problem else []
        for topic in self._topics_of.get(group, set()) - named:
            self._die(topic, group, now_ms)
        return problems

    def _register(self, group: str, subscription: Subscription, now_ms: int) -> str:
        topic, version = subscription.topic, subscription.version
        old = self.get(topic, group)
        if old is not None:
            record = old.record
            if version < record.version:
                return ""
            same = (record.kind, record.expression) == (
                subscription.expression_type, subscription.expression,
            )  # fmt: skip
            if version == record.version or same:
                if version != record.version or record.dead:
                    self._revive(old, version)
                return ""
        try:
            found = filter_of(self._compiled, subscription.expression_type, subscription.expression)
        except SubscriptionParseFailed as error:
            if old is not None:
                self._remove(topic, group)
            return error.remark
        if old is not None:
            self._remove(topic, group)
        if not self._make_room(len(found.text)):
            return (
                f"this broker keeps {FILTERS_MAX} filters of {CHARS_MAX} characters in all, and "
                "members of their groups are online"
            )
        self._add(FilterRecord(group, topic, found.text, SQL92, version, now_ms), found)
        return ""

    def _revive(self, one: GroupFilter, version: int) -> None:
        record = one.record
        one.record = FilterRecord(
            record.group, record.topic, record.expression, record.kind, version, record.born_ms
        )
        self._dead.pop((record.topic, record.group), None)
        self._changed(one)

    def group_left(self, group: str, now_ms: int) -> None:
        """Let the filters of a group die: its last member is gone."""
        for topic in self._topics_of.get(group, ()):
            self._die(topic, group, now_ms)

    def clean(self, now_ms: int, keep_ms: int) -> None:
        """Remove the filters that died `keep_ms` ago."""
        while self._dead:
            topic, group = next(iter(self._dead))
            one = self._by_topic[topic][group]
            if now_ms - one.record.dead_ms < keep_ms:
                break
            self._remove(topic, group)

    # -- the table -------------------------------------------------------------------------------

    def _make_room(self, chars: int) -> bool:
        while self._count >= FILTERS_MAX or self._chars + chars > CHARS_MAX:
            if not self._dead:
                return False
            self._remove(*next(iter(self._dead)))
        return True

    def _add(self, record: FilterRecord, found: Filter) -> None:
        one = GroupFilter(record, found)
        self._by_topic.setdefault(record.topic, {})[record.group] = one
        self._topics_of.setdefault(record.group, set()).add(record.topic)
        self._count += 1
        self._chars += len(record.expression)
        if record.dead:
            self._dead[record.topic, record.group] = None
        self._changed(one)

    def _remove(self, topic: str, group: str) -> None:
        groups, topics = self._by_topic[topic], self._topics_of[group]
        self._chars -= len(groups.pop(group).record.expression)
        self._count -= 1
        topics.discard(topic)
        if not groups:
            del self._by_topic[topic]
        if not topics:
            del self._topics_of[group]
        self._dead.pop((topic, group), None)
        self._not_encoded.pop((topic, group), None)
        self.revision += 1

    def _die(self, topic: str, group: str, now_ms: int) -> None:
        one = self._by_topic[topic][group]
        if not one.record.dead:
            one.record = one.record.died(now_ms)
            self._dead[topic, group] = None
            self._changed(one)

    def _changed(self, one: GroupFilter) -> None:
        one.text = None
        self._not_encoded[one.record.topic, one.record.group] = None
        self.revision += 1

    # -- the file --------------------------------------------------------------------------------

    def prepare(self, count: int) -> bool:
        """Encode up to `count` filters that are not encoded yet; return whether all are."""
        for _ in range(min(count, len(self._not_encoded))):
            topic, group = next(iter(self._not_encoded))
            del self._not_encoded[topic, group]
            one = self._by_topic[topic][group]
            one.text = encode_filter(one.record)
        return not self._not_encoded

    def encode(self) -> bytes:
        """Return the content of `consumerFilter.json`."""
        self.prepare(self._count)
        return join_filters(
            {
                topic: [one.text or b"" for one in groups.values()]
                for topic, groups in self._by_topic.items()
            }
        )

    def load(self, data: bytes, now_ms: int) -> list[str]:
        """Load the content of the file; return why filters are left out.

        All count as dead until their groups speak again.

        Raises:
            RemoteProtocolError: the content is malformed.
        """
        problems = []
        dead = [
            one if one.dead else one.died(now_ms - LOADED_DEAD_MS) for one in decode_filters(data)
        ]
        for record in sorted(dead, key=lambda one: one.dead_ms):
            try:
                found = filter_of(self._compiled, record.kind, record.expression)
            except SubscriptionParseFailed as error:
                problems.append(f"group {record.group}, topic {record.topic}: {error.remark}")
                continue
            if self._make_room(len(found.text)) and not self.get(record.topic, record.group):
                self._add(record, found)
        return problems
