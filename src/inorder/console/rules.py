"""What the console decides: who may ask, what a page shows of many rows, what needs attention.

Pure. A finding is a sentence: what, which object, and where to look.
"""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Generic, TypeVar
from urllib.parse import quote, urlsplit

from inorder.model import TopicQueue

if TYPE_CHECKING:
    from inorder.client.admin import ParkedKey, QueueLag, QueueLock

T = TypeVar("T")

PAGE_ROWS: Final = 50
PAGE_ROWS_MAX: Final = 200
WAITS_MS: Final = 60_000
"""A group whose oldest message waits longer needs somebody."""
DISK_RATIO: Final = 0.85
PACE_MIN: Final = 3
PACE_SHARE: Final = 0.02
"""A lag that changes by less neither grows nor shrinks."""
HISTORY_POINTS: Final = 300
SEGMENTS_MAX: Final = 64
QUEUES_WATCHED_MAX: Final = 5_000
GROUPS_WATCHED_MAX: Final = 2_000


# Who may ask.


def host_is_ours(host: str, names: Iterable[str]) -> bool:
    """Tell whether a Host header names this console.

    A page of another site can point its own name at a loopback address (DNS rebinding). Its
    requests carry that name, so only addresses and known names are served.
    """
    name = _name_of(host)
    if name is None:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost" or name in {one.lower() for one in names}
    return True


def _name_of(host: str) -> str | None:
    try:
        parts = urlsplit(f"//{host}")
        if parts.path or parts.query or parts.fragment or parts.username is not None:
            return None
        parts.port  # noqa: B018 - raises if it is no port
        return parts.hostname
    except ValueError:
        return None


def origin_is_ours(origin: str | None, fetch_site: str | None, host: str) -> bool:
    """Tell whether a request that changes something comes from a page of this console."""
    if fetch_site not in (None, "same-origin"):
        return False
    if not origin:
        return False
    parts = urlsplit(origin)
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def path_is_local(path: str) -> bool:
    """Tell whether a path to go back to leads to this console."""
    return path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()


class Attempts:
    """Counts failed sign-ins: after some in a minute nobody may try."""

    MOST: Final = 10
    WITHIN_MS: Final = 60_000

    def __init__(self) -> None:
        self._failed: deque[int] = deque(maxlen=self.MOST)

    def failed(self, now_ms: int) -> None:
        """Count one."""
        self._failed.append(now_ms)

    def may_try(self, now_ms: int) -> bool:
        """Return whether there is room for another attempt."""
        return len(self._failed) < self.MOST or now_ms - self._failed[0] >= self.WITHIN_MS


# Many rows.


@dataclass(frozen=True, slots=True)
class Rows(Generic[T]):
    """A page of rows."""

    rows: Sequence[T]
    total: int
    """How many there are with this filter."""
    page: int
    pages: int
    word: str = ""


def page_of(
    items: Sequence[T], page: int, *, word: str = "", name: Callable[[T], str] = str,
    size: int = PAGE_ROWS,
) -> Rows[T]:  # fmt: skip
    """Return a page of the items whose name contains a word; a page beyond the last is the last."""
    wanted = word.casefold()
    found = [one for one in items if wanted in name(one).casefold()] if wanted else items
    pages = max(1, -(-len(found) // size))
    at = min(max(1, page), pages)
    return Rows(found[(at - 1) * size : at * size], len(found), at, pages, word)


# How values are shown.


def age(span_ms: float) -> str:
    """Return a span of time in one or two words: `850 ms`, `4 min`, `2 h`."""
    span_ms = max(0, span_ms)
    if span_ms < 1000:
        return f"{int(span_ms)} ms"
    seconds = span_ms / 1000
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def size(count: float) -> str:
    """Return a number of bytes."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError


def path(*parts: str | int, **query: str | int | None) -> str:
    """Return the path of a page; names are percent-encoded."""
    text = "/" + "/".join(quote(str(one), safe="") for one in parts)
    given = [
        f"{name.rstrip('_')}={quote(str(value), safe='')}"
        for name, value in query.items()
        if value not in (None, "")
    ]
    return f"{text}?{'&'.join(given)}" if given else text


# What needs attention.


class Level(StrEnum):
    """How much a finding matters."""

    BAD = "bad"
    WARN = "warn"
    OK = "ok"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence, and the page that shows more."""

    level: Level
    text: str
    link: str = ""


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """A broker as it answered last; `error` says why there is no answer."""

    name: str
    address: str
    cluster: str
    broker_id: int
    runtime: Mapping[str, str] = field(default_factory=dict)
    error: str = ""

    def rate(self, name: str) -> float | None:
        """Return the first of a rate's numbers: that of the last ten seconds."""
        words = self.runtime.get(name, "").split()
        try:
            return float(words[0]) if words else None
        except ValueError:
            return None

    @property
    def disk_ratio(self) -> float | None:
        """Return how full the disk of the log is."""
        return self.rate("commitLogDiskRatio")

    @property
    def version(self) -> str:
        """Return the version that the broker tells."""
        return self.runtime.get("brokerVersionDesc", "")


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group as it was seen last."""

    name: str
    seen_ms: int
    lag: int
    oldest_ms: int
    """When the oldest message to do was stored; 0: there is none, or it is not known."""
    members: int
    queues: int
    topics: tuple[str, ...]
    error: str = ""


def clear_in(points: Sequence[tuple[int, int]], members: int) -> str:
    """Return how long the work of a group lasts, from samples (time, lag).

    `never` if it grows, or nobody works; `keeps pace` if it neither grows nor shrinks much.
    """
    if not points or points[-1][1] == 0:
        return "–"
    if not members:
        return "never"
    if len(points) < 2 or points[-1][0] - points[0][0] < 2_000:
        return "not known yet"
    (begin_ms, before), (end_ms, after) = points[0], points[-1]
    done = before - after
    if abs(done) <= max(PACE_MIN, before * PACE_SHARE):
        return "keeps pace"
    return "never" if done < 0 else age(after * (end_ms - begin_ms) / done)


def attention(
    brokers: Iterable[BrokerRow],
    groups: Iterable[GroupRow],
    parked: Sequence[ParkedKey],
    full: Mapping[tuple[str, str], str],
    now_ms: int,
) -> list[Finding]:
    """Return what needs somebody, the worst first."""
    found = []
    for one in brokers:
        if one.error:
            text = f"broker {one.name} ({one.address}) does not answer: {one.error}"
            found.append(Finding(Level.BAD, text, path("brokers")))
        elif one.disk_ratio is not None and one.disk_ratio >= DISK_RATIO:
            text = f"the disk of broker {one.name} is {one.disk_ratio:.0%} full"
            found.append(Finding(Level.WARN, text, path("brokers")))
    for row in groups:
        waits = now_ms - row.oldest_ms if row.oldest_ms else 0
        link = path("groups", row.name)
        if row.lag and not row.members:
            text = f"group {row.name} has {row.lag:,} messages to do and no member"
            found.append(Finding(Level.BAD, text, link))
        elif waits >= WAITS_MS:
            text = f"the oldest message of group {row.name} waits for {age(waits)}"
            found.append(Finding(Level.BAD, text, link))
    for (group, broker), why in sorted(full.items()):
        text = f"group {group} can park no more keys at {broker}, failing keys block: {why}"
        found.append(Finding(Level.BAD, text, path("parked", group=group)))
    for name in sorted({one.group for one in parked}):
        own = [one for one in parked if one.group == name]
        oldest = age(now_ms - min(one.since_ms for one in own))
        count = f"{len(own)} keys" if len(own) > 1 else f"key {own[0].key}"
        verb = "are" if len(own) > 1 else "is"
        text = f"{count} of group {name} {verb} parked, the oldest for {oldest}"
        found.append(Finding(Level.WARN, text, path("parked", group=name)))
    order = list(Level)
    return sorted(found, key=lambda one: order.index(one.level))


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about a group that may stand still. None: the broker does not tell."""

    members: int
    differences: int
    enabled: bool
    queues: Sequence[QueueLag]
    locks: Sequence[QueueLock] | None
    parked: Sequence[ParkedKey] | None
    full: Mapping[tuple[str, str], str]
    waits_for_version: Sequence[str]
    """Topics of which the group must finish an older version first."""
    silent: Sequence[str]
    """Brokers that do not answer."""
    orderly: bool = True
    """Whether the members own queues: groups without order have no owners."""


def why(group: str, facts: Facts) -> list[Finding]:
    """Return what does and what does not keep a group from its work; causes come first."""
    found = [
        _members(facts),
        _subscriptions(facts),
        _enabled(facts),
        _owners(group, facts),
        _parked(group, facts),
        _versions(facts),
        _silent(facts),
    ]
    order = [Level.BAD, Level.WARN, Level.UNKNOWN, Level.OK]
    return sorted(found, key=lambda one: order.index(one.level))


def _members(facts: Facts) -> Finding:
    if facts.members:
        count = "1 member is" if facts.members == 1 else f"{facts.members} members are"
        return Finding(Level.OK, f"{count} connected")
    if any(one.lag for one in facts.queues):
        return Finding(Level.BAD, "nobody consumes: no member of the group is connected")
    return Finding(Level.WARN, "no member of the group is connected; there is nothing to do either")


def _subscriptions(facts: Facts) -> Finding:
    if facts.differences:
        text = "members subscribe differently: messages are skipped or stand still"
        return Finding(Level.BAD, text)
    return Finding(Level.OK, "all members subscribe alike")


def _enabled(facts: Facts) -> Finding:
    if not facts.enabled:
        return Finding(Level.BAD, "the group is disabled: brokers give it nothing")
    return Finding(Level.OK, "the group may consume")


def _owners(group: str, facts: Facts) -> Finding:
    if facts.locks is None:
        text = "owners are not known: Apache RocketMQ does not tell who holds its locks"
        return Finding(Level.UNKNOWN, text)
    held = {one.queue: one for one in facts.locks}
    link = path("groups", group, "owners")
    recalled = [one for one in facts.locks if one.recalled]
    if recalled:
        return Finding(Level.BAD, f"{len(recalled)} queues are recalled by a rewind", link)
    gone = [one for one in facts.locks if not one.connected and one.holder]
    if gone:
        text = f"{len(gone)} queues belong to members whose connection is closed"
        return Finding(Level.WARN, text, link)
    work = [one for one in facts.queues if one.lag]
    alone = [one for one in work if one.queue not in held]
    if work and facts.locks and alone:
        return Finding(Level.WARN, f"{len(alone)} queues with work have no owner", link)
    if not facts.locks:
        return Finding(Level.OK, "no queue is owned; groups without order own none", link)
    return Finding(Level.OK, f"{len(facts.locks)} queues have an owner", link)


def _parked(group: str, facts: Facts) -> Finding:
    link = path("parked", group=group)
    if facts.full:
        return Finding(Level.BAD, f"no more keys can be parked: {next(iter(facts.full.values()))}",
                       link)  # fmt: skip
    if facts.parked is None:
        return Finding(Level.UNKNOWN, "Apache RocketMQ keeps no parked keys")
    if facts.parked:
        text = f"{len(facts.parked)} keys are parked; they wait for a redrive, others flow"
        return Finding(Level.WARN, text, link)
    return Finding(Level.OK, "no key is parked")


def _versions(facts: Facts) -> Finding:
    if facts.waits_for_version:
        names = ", ".join(facts.waits_for_version)
        text = f"the group must finish what is older than a resize of {names}"
        return Finding(Level.WARN, text, path("topics", facts.waits_for_version[0], "resize"))
    return Finding(Level.OK, "no resize holds the group back")


def _silent(facts: Facts) -> Finding:
    if facts.silent:
        return Finding(Level.BAD, f"no answer from {', '.join(facts.silent)}", path("brokers"))
    return Finding(Level.OK, "all brokers answer")


# Members and owners over time, as far as this console has looked.


@dataclass(slots=True)
class Segment:
    """A time during which one member owned a queue; `until_ms` is when it was seen last."""

    holder: str
    epoch: int
    since_ms: int
    until_ms: int


class History:
    """What was seen of groups: lag and members, and who owned which queue. Bounded."""

    def __init__(self) -> None:
        self._points: dict[str, deque[tuple[int, int, int]]] = {}
        self._owners: dict[tuple[str, TopicQueue], deque[Segment]] = {}

    def note_group(self, row: GroupRow) -> None:
        """Remember a sample of a group."""
        points = self._points.get(row.name)
        if points is None:
            if len(self._points) >= GROUPS_WATCHED_MAX:
                del self._points[next(iter(self._points))]
            points = self._points[row.name] = deque(maxlen=HISTORY_POINTS)
        if not points or row.seen_ms > points[-1][0]:
            points.append((row.seen_ms, row.lag, row.members))

    def note_owners(self, locks: Iterable[QueueLock], now_ms: int) -> None:
        """Remember who owns which queue now."""
        for one in locks:
            place = (one.group, one.queue)
            segments = self._owners.get(place)
            if segments is None:
                if len(self._owners) >= QUEUES_WATCHED_MAX:
                    del self._owners[next(iter(self._owners))]
                segments = self._owners[place] = deque(maxlen=SEGMENTS_MAX)
            last = segments[-1] if segments else None
            if last is not None and (last.holder, last.epoch) == (one.holder, one.epoch):
                last.until_ms = now_ms
            else:
                since = max(now_ms - one.age_ms, last.until_ms if last else 0)
                segments.append(Segment(one.holder, one.epoch, since, now_ms))

    def lags(self, group: str) -> list[tuple[int, int]]:
        """Return the samples (time, lag) of a group."""
        return [(at_ms, lag) for at_ms, lag, _ in self._points.get(group, ())]

    def members(self, group: str) -> list[tuple[int, int]]:
        """Return the samples (time, members) of a group."""
        return [(at_ms, members) for at_ms, _, members in self._points.get(group, ())]

    def owners(self, group: str) -> dict[TopicQueue, list[Segment]]:
        """Return who owned which queue of a group."""
        return {
            queue: list(segments)
            for (name, queue), segments in sorted(self._owners.items(), key=lambda item: item[0])
            if name == group
        }


# A reset, before it is done.


@dataclass(frozen=True, slots=True)
class ResetRow:
    """What a reset does to one queue."""

    queue: TopicQueue
    now: int
    to: int
    end: int

    @property
    def effect(self) -> str:
        """Return the effect in words."""
        if self.to < self.now:
            return f"{self.now - self.to:,} again"
        if self.to > self.now:
            return f"{self.to - self.now:,} skipped"
        return "none"


def again(rows: Iterable[ResetRow]) -> int:
    """Return how many messages would be handled again."""
    return sum(max(0, one.now - one.to) for one in rows)


def skipped(rows: Iterable[ResetRow]) -> int:
    """Return how many messages would not be handled."""
    return sum(max(0, one.to - one.now) for one in rows)


def still_true(seen: Mapping[str, int], rows: Iterable[ResetRow]) -> bool:
    """Tell whether a preview still holds: no target moved, and no group's offset went back."""
    return all(
        seen.get(f"{one.queue}:to") == one.to and seen.get(f"{one.queue}:now", 0) <= one.now
        for one in rows
    )
