"""The story of a key: all that happened to its messages, in one timeline. Pure.

    sent -> stored -> delivered -> failed -> retried … -> parked -> moved -> redriven -> committed

The steps come from what brokers and clients keep: the records of the topic's queues, the records
and notes of %PARK% topics, records of retry and dead letter topics, clients' traces, the key map's
versions and the groups' offsets. Every step names its source. A step is `derived` if no event of
its own is kept: the producer's clock stands for the time of a send that nobody traced, the time of
a move lies between two records, and a commit is known by the present offset, without its time.

Clocks differ. The order of a message's own steps counts more than the times: a step never stands
before the step that it follows from. What the console tells and from where: decision 57.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from math import inf
from typing import Final

from inorder.broker.parking import records as parking
from inorder.checker import (
    Event,
    Handled,
    HandledResult,
    Handling,
    Report,
    Rules,
    Stored,
    check,
    queue_name,
)
from inorder.client.rules.traces import TraceView
from inorder.model import ReceivedMessage, TopicQueue
from inorder.ordering.keymap import KeyMap

_MS_NS: Final = 1_000_000


class Kind(StrEnum):
    """The kinds of steps."""

    SENT = "sent"
    SEND_FAILED = "send failed"
    STORED = "stored"
    MOVED = "moved"
    DELIVERED = "delivered"
    RETRIED = "retried"
    FAILED = "failed"
    HANDLED = "handled"
    RETURNED = "returned"
    DEAD = "dead letter"
    PARKED = "parked"
    JOINED = "joined"
    REDRIVE = "redrive ordered"
    CANCELLED = "redrive cancelled"
    REDRIVEN = "redriven"
    DROPPED = "dropped"
    LIVE = "live again"
    FORGOTTEN = "list forgotten"
    COMMITTED = "committed"


class Source(StrEnum):
    """Where a step is known from."""

    RECORD = "the record in the queue"
    TRACE = "the trace topic"
    PARK = "%PARK% topic"
    RETRY = "the retry topic"
    DEAD = "the dead letter topic"
    MAP = "the key map"
    OFFSET = "the group's offset"


_RANK: Final = {
    kind: rank
    for rank, kinds in enumerate(
        (
            (Kind.SENT, Kind.SEND_FAILED),
            (Kind.MOVED,),
            (Kind.STORED,),
            (Kind.DELIVERED, Kind.RETRIED),
            (Kind.FAILED, Kind.HANDLED),
            (Kind.RETURNED, Kind.DEAD, Kind.PARKED),
            (Kind.JOINED,),
            (Kind.REDRIVE, Kind.CANCELLED),
            (Kind.REDRIVEN, Kind.DROPPED, Kind.FORGOTTEN),
            (Kind.LIVE,),
            (Kind.COMMITTED,),
        )
    )
    for kind in kinds
}  # fmt: skip
"""The order of steps of one millisecond."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a key."""

    kind: Kind
    at_ms: int | None
    """None: the time is not kept."""
    text: str
    source: Source
    queue: TopicQueue | None = None
    offset: int | None = None
    message_id: str = ""
    group: str = ""
    derived: bool = False
    version: int = 0
    """The key map version of the message; 0: not known."""
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the topic's key map; `ends` says where it ended, empty for the present one."""

    number: int
    map: KeyMap
    ends: Mapping[TopicQueue, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ParkEvent:
    """An event of a %PARK% topic, from the broker that stored it."""

    group: str
    broker: str
    at_ms: int
    event: parking.Event
    message_id: str = ""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a message in a retry or dead letter topic."""

    group: str
    dead: bool
    message: ReceivedMessage


@dataclass(frozen=True, slots=True)
class Progress:
    """The committed offset of a group on a queue."""

    group: str
    queue: TopicQueue
    committed: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known about a key."""

    topic: str
    key: str
    messages: Sequence[ReceivedMessage] = ()
    versions: Sequence[Version] = ()
    traces: Mapping[str, Sequence[TraceView]] = field(default_factory=dict)
    parked: Sequence[ParkEvent] = ()
    copies: Sequence[Copy] = ()
    progress: Sequence[Progress] = ()
    not_known: Sequence[str] = ()
    """What is left out, each with its reason."""
    scanned: int = 0
    cut: str = ""
    """Why the scan ended early; empty: it was whole."""

    def for_group(self, group: str) -> Evidence:
        """Return the evidence about one group; sends and stored messages stay."""
        return Evidence(
            self.topic,
            self.key,
            self.messages,
            self.versions,
            {
                id_: [one for one in views if one.kind == "Pub" or one.group == group]
                for id_, views in self.traces.items()
            },
            [one for one in self.parked if one.group == group],
            [one for one in self.copies if one.group == group],
            [one for one in self.progress if one.group == group],
            self.not_known,
            self.scanned,
            self.cut,
        )

    @property
    def groups(self) -> list[str]:
        """Return the groups that the evidence names."""
        found = {one.group for one in self.progress} | {one.group for one in self.parked}
        for views in self.traces.values():
            found.update(one.group for one in views if one.kind != "Pub")
        return sorted(found)


def version_of(message: ReceivedMessage, versions: Sequence[Version]) -> int:
    """Return the key map version under which a message was stored; 0 if not known."""
    for version in sorted(versions, key=lambda one: one.number):
        end = version.ends.get(message.queue)
        if end is not None and message.offset < end:
            return version.number
    return max((one.number for one in versions), default=0)


@dataclass(frozen=True, slots=True)
class _Placed:
    """A step with its place in time, which keeps what follows behind what it follows from."""

    order_ms: float
    step: Step
    number: int

    @property
    def place(self) -> tuple[float, int, int]:
        return self.order_ms, _RANK[self.step.kind], self.number


class _Timeline:
    """Collects steps."""

    def __init__(self) -> None:
        self._placed: list[_Placed] = []

    def add(self, step: Step, order_ms: float) -> None:
        self._placed.append(_Placed(order_ms, step, len(self._placed)))

    def sorted(self) -> list[Step]:
        return [one.step for one in sorted(self._placed, key=lambda one: one.place)]


def tell(evidence: Evidence) -> list[Step]:
    """Return the steps of a key, in order."""
    line = _Timeline()
    _moves(evidence, line)
    for message in _in_order(evidence.messages):
        _message(evidence, message, line)
    _parking(evidence, line)
    for copy in evidence.copies:
        _copy(copy, line)
    steps = line.sorted()
    return [*steps, *_commits(evidence)]


def _in_order(messages: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
    return sorted(messages, key=lambda one: (one.stored_at_ms, one.queue, one.offset))


def _message(evidence: Evidence, message: ReceivedMessage, line: _Timeline) -> None:
    """Add the steps of one message: sent, stored, and each call of a handler."""
    number = version_of(message, evidence.versions)
    views = evidence.traces.get(message.message_id, ())
    where = {"queue": message.queue, "offset": message.offset, "message_id": message.message_id}
    stored_ms = message.stored_at_ms
    sends = [one for one in views if one.kind == "Pub"]
    for one in sends:
        kind = Kind.SENT if one.success else Kind.SEND_FAILED
        text = f"by {one.group}, answered after {one.spent_ms} ms"
        line.add(
            Step(kind, one.at_ms, text, Source.TRACE, version=number, **where),  # type: ignore[arg-type]
            min(one.at_ms, stored_ms),
        )
    if not any(one.success for one in sends):
        text = "made by the producer, by its clock; no client traced the send"
        line.add(
            Step(
                Kind.SENT, message.born_at_ms, text, Source.RECORD, derived=True,
                version=number, **where,  # type: ignore[arg-type]
            ),
            min(message.born_at_ms, stored_ms),
        )  # fmt: skip
    tag = f", tag {message.tag}" if message.tag else ""
    line.add(
        Step(
            Kind.STORED, stored_ms, f"{len(message.body):,} bytes{tag}", Source.RECORD,
            version=number, **where,  # type: ignore[arg-type]
        ),
        stored_ms,
    )  # fmt: skip
    _calls(views, message, number, line)


def _calls(
    views: Sequence[TraceView], message: ReceivedMessage, number: int, line: _Timeline
) -> None:
    """Add each call of a handler with a message; from the second on it is a retry."""
    attempts: dict[str, int] = defaultdict(int)
    orders: dict[str, int] = defaultdict(lambda: message.stored_at_ms)
    ends = {one.call_id: one for one in views if one.kind == "SubAfter"}
    for begun in sorted((one for one in views if one.kind == "SubBefore"), key=lambda v: v.at_ms):
        attempts[begun.group] += 1
        attempt = attempts[begun.group]
        order_ms = orders[begun.group] = max(orders[begun.group], begun.at_ms)
        kind = Kind.DELIVERED if attempt == 1 else Kind.RETRIED
        line.add(
            Step(
                kind, begun.at_ms, f"a handler of {begun.group} begins, attempt {attempt}",
                Source.TRACE, message.queue, message.offset, message.message_id, begun.group,
                version=number, attempt=attempt,
            ),
            order_ms,
        )  # fmt: skip
        end = ends.get(begun.call_id)
        if end is None:
            continue
        order_ms = max(order_ms, end.at_ms or begun.at_ms + end.spent_ms)
        orders[begun.group] = order_ms
        text = f"after {end.spent_ms} ms, attempt {attempt}"
        line.add(
            Step(
                Kind.HANDLED if end.success else Kind.FAILED, end.at_ms or None, text,
                Source.TRACE, message.queue, message.offset, message.message_id, begun.group,
                version=number, attempt=attempt,
            ),
            order_ms,
        )  # fmt: skip


def _moves(evidence: Evidence, line: _Timeline) -> None:
    """Add a step for each version of the key map but the first one."""
    versions = sorted(evidence.versions, key=lambda one: one.number)
    for before, after in pairwise(versions):
        old, new = (TopicQueue(evidence.topic, *one.map.queue(evidence.key))
                    for one in (before, after))  # fmt: skip
        later = [
            _first_ms(evidence, one)
            for one in evidence.messages
            if version_of(one, versions) >= after.number
        ]
        counts = f"resized {len(before.map.queues)} → {len(after.map.queues)} queues"
        goes = (
            f"the key stays in {_short(new)}"
            if old == new
            else f"the key moves {_short(old)} → {_short(new)}"
        )
        text = f"{counts}: {goes} at version {after.number}"
        step = Step(Kind.MOVED, None, text, Source.MAP, new, derived=True, version=after.number)
        # Brokers keep no time of a resize: it lies in front of what was sent under the version,
        # or, if that is nothing, behind all that is known.
        line.add(step, min(later) - 0.5 if later else inf)


def _first_ms(evidence: Evidence, message: ReceivedMessage) -> int:
    """Return the time of a message's first step."""
    sends = [
        one.at_ms
        for one in evidence.traces.get(message.message_id, ())
        if one.kind == "Pub" and one.success
    ]
    return min([message.stored_at_ms, *(sends or [message.born_at_ms])])


def _parking(evidence: Evidence, line: _Timeline) -> None:
    """Add the events of %PARK% topics; a list's events follow each other."""
    stored = {(one.queue, one.offset): one for one in evidence.messages}
    latest: dict[tuple[str, str], float] = defaultdict(float)
    for one in evidence.parked:
        kind, text, offset = _park_text(one.event)
        queue = TopicQueue(one.event.topic, one.broker, one.event.queue)
        place = (one.group, one.broker)
        message = stored.get((queue, offset)) if offset is not None else None
        order_ms = max(latest[place], one.at_ms, message.stored_at_ms if message else 0)
        latest[place] = order_ms
        line.add(
            Step(
                kind, one.at_ms, text, Source.PARK, queue, offset,
                one.message_id, one.group,
                version=version_of(message, evidence.versions) if message else 0,
            ),
            order_ms,
        )  # fmt: skip


def _park_text(event: parking.Event) -> tuple[Kind, str, int | None]:
    """Return the kind, the text and the offset of an event."""
    match event:
        case parking.Parked():
            if event.error:
                return Kind.PARKED, f"after {event.tries} attempts: {event.error}", event.offset
            return Kind.JOINED, "set aside unhandled behind its parked key", event.offset
        case parking.Redriving():
            rate = f", at most {event.rate}/s" if event.rate else ""
            return Kind.REDRIVE, f"an operator wants the key handled again{rate}", None
        case parking.Cancelled():
            return Kind.CANCELLED, "an operator took the redrive back", None
        case parking.Redriven():
            done = ", ".join(map(str, event.done)) or "none"
            if event.older:
                where = f"{event.older.broker}/{event.older.queue_id}"
                return Kind.REDRIVEN, f"its older list in {where} is redriven", None
            if event.error:
                return Kind.FAILED, f"the redrive failed (handled: {done}): {event.error}", None
            return Kind.REDRIVEN, f"handled in the redrive: offsets {done}", None
        case parking.Dropped():
            by = f" by {event.by}" if event.by else ""
            what = ", ".join(map(str, event.offsets)) or "all"
            return Kind.DROPPED, f"thrown away{by} ({event.reason}): offsets {what}", None
        case parking.Unparked():
            return Kind.LIVE, "the list is empty: the key is handled as it comes", None
        case parking.Moved(to=None):
            return Kind.MOVED, "its parked list is back in this queue", None
        case parking.Moved(to=to):
            where = f"{to.broker}/{to.queue_id}" if to else ""
            return Kind.MOVED, f"its parked list goes on in {where}: the key moved there", None
        case parking.Installed(older=older):
            where = f"{older.broker}/{older.queue_id}"
            return Kind.MOVED, f"parked here too: its list in {where} comes first", None
        case parking.Forgotten():
            return Kind.FORGOTTEN, "the group's offset was reset", None


def _copy(copy: Copy, line: _Timeline) -> None:
    message = copy.message
    kind = Kind.DEAD if copy.dead else Kind.RETURNED
    text = (
        f"given up after {message.redeliveries} deliveries"
        if copy.dead
        else f"given back by the consumer, delivery {message.redeliveries + 1}"
    )
    source = Source.DEAD if copy.dead else Source.RETRY
    line.add(
        Step(
            kind, message.stored_at_ms, text, source, message.queue, message.offset,
            message.message_id, copy.group,
        ),
        message.stored_at_ms,
    )  # fmt: skip


def _commits(evidence: Evidence) -> list[Step]:
    """Return what offsets say: how much of the key each group has committed, without times."""
    found = []
    by_queue: dict[TopicQueue, list[int]] = defaultdict(list)
    for message in evidence.messages:
        by_queue[message.queue].append(message.offset)
    for one in sorted(evidence.progress, key=lambda one: (one.group, one.queue)):
        offsets = by_queue.get(one.queue)
        if not offsets:
            continue
        done = sum(1 for offset in offsets if offset < one.committed)
        if not done:
            continue
        share = "all" if done == len(offsets) else f"{done} of"
        text = (
            f"the group's offset is {one.committed} by now: {share} {len(offsets)} messages "
            "of the key here lie below it"
        )
        found.append(
            Step(
                Kind.COMMITTED, None, text, Source.OFFSET, one.queue, max(
                    offset for offset in offsets if offset < one.committed
                ), group=one.group, derived=True,
            )
        )  # fmt: skip
    return found


def _short(queue: TopicQueue) -> str:
    return f"{queue.broker}/{queue.index}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the order checker says of a key and a group."""

    group: str
    stored: int
    handled: int
    report: Report | None
    """None: no client of the group traced its handlers, so there is nothing to judge."""
    below_offset: int
    """How many of the key's messages lie below the group's offset."""

    @property
    def in_order(self) -> bool | None:
        """Return whether order was kept; None: not known."""
        return None if self.report is None else not self.report.by_kind


def judge(evidence: Evidence, group: str) -> Verdict:
    """Hand the stored messages and a group's traced calls to the order checker."""
    own = evidence.for_group(group)
    events = account(own)
    runs = [one for one in events if isinstance(one, Handled)]
    committed = {one.queue: one.committed for one in own.progress}
    below = sum(1 for one in own.messages if one.offset < committed.get(one.queue, 0))
    done = {one.id for one in runs if one.result == HandledResult.DONE}
    report = None
    if runs:
        rules = Rules(
            handling=Handling.KEY, dense=False, one_queue_per_key=False, acknowledged_min=0,
            complete_stored=False, complete_handled=False,
        )  # fmt: skip
        report = check(events, rules=rules)
    return Verdict(group, len(own.messages), len(done), report, below)


def account(evidence: Evidence) -> list[Event]:
    """Return the evidence about one group as events of the order checker."""
    events: list[Event] = []
    for message in evidence.messages:
        name, id_ = queue_name(message.queue), message.message_id
        events.append(Stored(name, message.offset, id_, evidence.key))
        views = evidence.traces.get(id_, ())
        ends = {one.call_id: one for one in views if one.kind == "SubAfter"}
        for begun in views:
            if begun.kind != "SubBefore":
                continue
            end = ends.get(begun.call_id)
            result = None if end is None else (
                HandledResult.DONE if end.success else HandledResult.FAILED
            )  # fmt: skip
            end_ns = None if end is None else max(end.at_ms, begun.at_ms) * _MS_NS
            events.append(
                Handled(
                    begun.group, name, message.offset, id_, evidence.key,
                    begun.at_ms * _MS_NS, end_ns, result,
                )
            )  # fmt: skip
    return events
