"""Timers: when a message wants to be delivered, and which one is next among those that wait.

All timers wait in one queue, in the order of their arrival. A *point* is (code, offset): the code
of the queue entry holds the time (`wire/timers.py`), the offset its place in the queue. Timers are
delivered in the order of points.

    points   0 ─────── frontier ─────── horizon ────────────────────────▶
             delivered          in memory        in the queue's files, and of
                                (`window`)       each chunk of the queue the lowest point's code

Memory holds the points up to the horizon, `WINDOW_MAX` of them or a few more, and a number for each
chunk of 4096 entries that holds later ones. When the time comes near the horizon, a *pass* reads
those chunks that hold points of the next minute; it goes chunk by chunk, and meanwhile others are
delivered.

So a timer still waits if its point is at or above the frontier. There are two exceptions, and both
are lists: *late* ones arrived below the frontier, because the clock was set back; `done` are
delivered ones above it. What `snapshot` returns is enough to go on after a restart, with the marks
that lie in the log after it. Why: decision 52.
"""

from __future__ import annotations

import heapq
import struct
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from inorder.errors import MessageIllegal, SystemError_
from inorder.model import DataVersion
from inorder.wire.names import TIMER_TOPIC
from inorder.wire.timers import RECALLED_KEY, code_of, due_of

CHUNK: Final = 4096
WINDOW_MAX: Final = 32_768
LATE_MAX: Final = 16_384
SPAN_MS: Final = 60_000
"""How far beyond the present a pass reads."""
LEAD_MS: Final = 10_000
"""How long before the first point of a pass is due the pass begins."""
NAMES: Final = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
"""The properties that ask for a time, in RocketMQ's order: the first that is there counts."""
VERSION_STEP: Final = 200

_SECOND_MS: Final = 1000
_INT64_DIGITS: Final = 19
_INT64_MAX: Final = 2**63 - 1
_ENTRY: Final = struct.Struct(">qiq")
_FILLER_BYTES: Final = 0x7FFFFFFF

Point = tuple[int, int]
"""(code, offset)."""

NOWHERE: Final[Point] = (0, 0)


# What a send asks for.


def wanted_ms(found: dict[str, str], topic: str, now_ms: int, max_delay_sec: int) -> int | None:
    """Return when a message wants to be delivered; None: at once.

    As in RocketMQ a time that has passed means at once, and a message that has been a timer
    already (TIMER_OUT_MS) is none.

    Raises:
        MessageIllegal: the time is too far away or no number, or a recall comes too late.
    """
    name = next((name for name in NAMES if name in found), None)
    if name is None or "TIMER_OUT_MS" in found or topic == TIMER_TOPIC:
        return None
    number = _number(found[name])
    if number is None:
        raise _illegal(max_delay_sec, f"{name}={found[name][:32]} is no number")
    due = number
    if name != "TIMER_DELIVER_MS":
        due = now_ms + number * (_SECOND_MS if name == "TIMER_DELAY_SEC" else 1)
    if due <= now_ms:
        if RECALLED_KEY in found:
            raise _illegal(max_delay_sec, "it is too late for a recall")
        return None
    if due - now_ms > max_delay_sec * _SECOND_MS:
        raise _illegal(max_delay_sec, f"{name}={number} is {due - now_ms} ms from now")
    return due


def asks_for_a_time(found: dict[str, str]) -> bool:
    """Tell whether properties ask for a time, whatever it is."""
    return any(name in found for name in NAMES)


def _number(text: str) -> int | None:
    """Return a number as Java reads it."""
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _INT64_DIGITS):
        return None
    number = int(text)
    return number if -_INT64_MAX <= number <= _INT64_MAX else None


def _illegal(max_delay_sec: int, why: str) -> MessageIllegal:
    return MessageIllegal(
        "timer message illegal, the delay time should not be bigger than the max delay "
        f"{max_delay_sec * _SECOND_MS}ms; or if set del msg, the delay time should be bigger than "
        f"the current time ({why}; nothing was stored)"
    )


def not_enabled() -> SystemError_:
    """Return RocketMQ's refusal of timers that are switched off."""
    return SystemError_("accurate timer message is not enabled, timerWheelEnable is false")


def too_many(count: int, limit: int) -> SystemError_:
    """Return the refusal of a timer because too many wait."""
    return SystemError_(
        f"timer message is under flow control, max num limit is {limit} and {count} wait "
        "(timers_max); nothing was stored"
    )


def too_many_late() -> SystemError_:
    """Return the refusal of a timer for a time that is over, before the clock was set back."""
    return SystemError_(
        f"timer message is under flow control, max num limit is {LATE_MAX}: the clock was set "
        "back, and so many wait for times that had passed already; nothing was stored"
    )


def too_long(limit: int) -> MessageIllegal:
    """Return the refusal of a timer whose properties leave no room for those of its delivery."""
    return MessageIllegal(
        f"a message with a time may have {limit} bytes of properties, because its delivery adds "
        "some; nothing was stored"
    )


def waiting_properties(found: dict[str, str], topic: str, queue_id: int, due: int) -> None:
    """Turn the properties of a message into those of a timer for a queue."""
    found["TIMER_OUT_MS"] = str(due - 1)
    found["TIMER_DELIVER_MS"] = str(due)
    found["REAL_TOPIC"] = topic
    found["REAL_QID"] = str(queue_id)


# Which one is next.


class Counted(NamedTuple):
    """How many timers of a topic wait, and when that last changed."""

    waiting: int
    changed_ms: int


@dataclass(slots=True)
class Saved:
    """What a restart needs besides the queue."""

    frontier: Point = NOWHERE
    end: int = 0
    """Timers from this offset on count as waiting, whatever their point."""
    done: dict[int, int] = field(default_factory=dict)
    chunks: dict[int, int] = field(default_factory=dict)
    recalled: dict[str, int] = field(default_factory=dict)
    counts: dict[str, Counted] = field(default_factory=dict)
    counted_to: int = 0
    """Timers from this offset on are not in the counts."""
    floor: int = 0
    """Timers before this offset are over."""
    version: DataVersion = field(default_factory=DataVersion)


@dataclass(slots=True)
class Pass:
    """Chunks to be read, one after another."""

    bound: Point
    chunks: list[int]


class TimerTable:
    """The timers of the queue that still wait."""

    def __init__(self, *, now_ms: int) -> None:
        self.frontier: Point = NOWHERE
        self.horizon: Point = NOWHERE
        self.next_offset = 0
        self.passing: Pass | None = None
        self.recalled: dict[str, int] = {}
        """Messages that must not be delivered, and when they are due."""
        self.counts: dict[str, Counted] = {}
        self.total = 0
        self.version = DataVersion(timestamp_ms=now_ms)
        self.revision = 0
        self._reach: Point = NOWHERE
        self._window: list[Point] = []
        self._chunks: dict[int, int] = {}
        self._late: dict[int, int] = {}
        self._done: dict[int, int] = {}
        self._done_max = 256
        self._taken: dict[int, int] = {}
        self._floor = 0
        self._looked_to: Point = NOWHERE  # the latest point that was due when somebody looked

    def __repr__(self) -> str:
        return (
            f"TimerTable({self.total} wait, {len(self._window)} in memory, "
            f"{len(self._chunks)} chunks, frontier {self.frontier})"
        )

    # Restart.

    def snapshot(self) -> Saved:
        """Return what a restart needs."""
        chunks = dict(self._chunks)
        for code, offset in self._window:
            if offset not in self._late:
                _lower(chunks, offset, code)
        for offset, code in self._taken.items():
            if offset not in self._late:
                _lower(chunks, offset, code)
        return Saved(
            self.frontier, self.first_late, dict(self._done), chunks, dict(self.recalled),
            dict(self.counts), self.next_offset, self._floor, replace(self.version),
        )  # fmt: skip

    def restore(self, saved: Saved) -> None:
        """Fill an empty table; the entries from `saved.end` on are noted by the caller."""
        self.frontier = self.horizon = self._reach = saved.frontier
        self.next_offset = saved.end
        self._floor = saved.floor
        self._done = dict(saved.done)
        self._chunks = dict(saved.chunks)
        self.recalled = dict(saved.recalled)
        self.counts = dict(saved.counts)
        self.total = sum(one.waiting for one in self.counts.values())
        self.version = replace(saved.version)

    def was_delivered(self, offset: int, code: int) -> bool:
        """Record a delivery found in the log; tell whether the table lacked it."""
        if (
            offset < self._floor
            or offset in self._done
            or ((code, offset) < self.frontier and offset < self.next_offset)
        ):
            return False
        self._done[offset] = code
        self.revision += 1
        return True

    def is_done(self, offset: int) -> bool:
        """Tell whether a delivery is on the list of those above the frontier."""
        return offset in self._done

    # Arrival.

    def note(self, offset: int, code: int) -> None:
        """Record a timer at the end of the queue."""
        # hot: 0.6 us
        self.next_offset = offset + 1
        self.revision += 1
        if offset in self._done:
            return
        point = (code, offset)
        if point < self.frontier:
            self._late[offset] = code
            heapq.heappush(self._window, point)
        elif point < self._reach:
            heapq.heappush(self._window, point)
            if len(self._window) > 2 * WINDOW_MAX:
                self._shrink()
        else:
            _lower(self._chunks, offset, code)

    def take_up(self, offset: int, code: int) -> None:
        """Record a timer that was in the queue before a restart."""
        if (code, offset) < self.frontier:
            self._late[offset] = code
            heapq.heappush(self._window, (code, offset))
        else:
            _lower(self._chunks, offset, code)
        self.revision += 1

    def count(self, topic: str, change: int, now_ms: int) -> None:
        """Count a timer of a topic in or out."""
        before = self.counts.get(topic)
        count = max(0, (0 if before is None else before.waiting) + change)
        self.total += count - (0 if before is None else before.waiting)
        self.revision += 1
        if self.revision % VERSION_STEP == 0:
            self.version.next(now_ms)
        if count:
            self.counts[topic] = Counted(count, now_ms)
        else:
            self.counts.pop(topic, None)

    @property
    def late_count(self) -> int:
        """Return how many timers arrived for a time that had passed."""
        return len(self._late)

    @property
    def first_late(self) -> int:
        """Return the offset from which on timers below the frontier may wait."""
        return min(self._late) if self._late else self.next_offset

    @property
    def waiting(self) -> bool:
        """Return whether any timer waits."""
        return bool(self._window or self._chunks or self._taken)

    def is_over(self, due: int) -> bool:
        """Return whether timers of a time are delivered, or being delivered."""
        return due < due_of(self.frontier[0])

    # Delivery.

    def take(self, now_ms: int, limit: int) -> list[Point]:
        """Return the next timers that are due, in their order; the caller delivers them."""
        window, taken, done = self._window, self._taken, self._done
        last = code_of(now_ms)
        self._looked_to = max(self._looked_to, (last + 1, 0))
        found: list[Point] = []
        while window and len(found) < limit:
            point = window[0]
            code, offset = point
            if code > last or (point >= self.horizon and offset not in self._late):
                break
            heapq.heappop(window)
            if offset in taken:
                continue  # it was read twice
            if offset in done:
                self._late.pop(offset, None)
                continue
            taken[offset] = code
            found.append(point)
        return found

    def give_back(self, points: list[Point]) -> None:
        """Take timers up again that were not delivered."""
        for point in points:
            del self._taken[point[1]]
            heapq.heappush(self._window, point)

    def move(self, point: Point, code: int) -> None:
        """Take up a taken timer for another time, because its queue entry named a wrong one."""
        offset = point[1]
        del self._taken[offset]
        self._late.pop(offset, None)
        moved = (code, offset)
        if moved < self.frontier:
            self._late[offset] = code
        if moved < self._reach:
            heapq.heappush(self._window, moved)
        else:
            _lower(self._chunks, offset, code)
        self.revision += 1

    def settle(self, points: list[Point]) -> None:
        """Record that timers are delivered for good, or need not be."""
        for code, offset in points:
            del self._taken[offset]
            self._late.pop(offset, None)
            self._done[offset] = code
        self.revision += 1
        self._advance()

    def _advance(self) -> None:
        """Move the frontier up to the first timer that waits."""
        bounds = [self.horizon, self._looked_to]
        if self._taken:
            bounds.append(min((code, offset) for offset, code in self._taken.items()))
        if self._window:
            bounds.append(self._window[0])
        self.frontier = max(self.frontier, min(bounds))
        if len(self._done) > self._done_max:
            end = self.first_late
            self._done = {
                offset: code
                for offset, code in self._done.items()
                if (code, offset) >= self.frontier or offset >= end
            }
            self._done_max = 2 * len(self._done) + 256
        if self.recalled:
            now = due_of(self.frontier[0])
            self.recalled = {key: due for key, due in self.recalled.items() if due >= now}

    def wake_ms(self) -> int | None:
        """Return when there is something to do next; None: nothing waits."""
        times = []
        if self._window:
            code, offset = self._window[0]
            if (code, offset) < self.horizon or offset in self._late:
                times.append(due_of(code))
        if self._chunks and self.passing is None and len(self._window) <= WINDOW_MAX // 2:
            times.append(due_of(min(self._chunks.values())) - LEAD_MS)
        return min(times) if times else None

    # Passes.

    def begin_pass(self, now_ms: int) -> bool:
        """Begin to read the timers of the next minute, if it is time; tell whether it is."""
        if self.passing is not None or not self._chunks or len(self._window) > WINDOW_MAX // 2:
            return False
        first = due_of(min(self._chunks.values()))
        if first - LEAD_MS > now_ms:
            return False
        bound = (code_of(max(first, now_ms) + SPAN_MS), 0)
        self.passing = Pass(
            bound, sorted(chunk for chunk, code in self._chunks.items() if code < bound[0])
        )
        self._reach = bound
        return True

    def next_chunk(self) -> int | None:
        """Return the first offset of the next chunk to read; None: the pass is over."""
        passing = self.passing
        if passing is not None and passing.chunks:
            return passing.chunks[0] * CHUNK
        if passing is not None:
            self.passing = None
            self.horizon = min(passing.bound, self._reach)
            self._reach = self.horizon
        return None

    def read_chunk(self, first: int, entries: bytes | bytearray) -> None:
        """Take the points of a chunk from its queue entries, which begin at `first`."""
        # hot: 0.2 us an entry
        passing = self.passing
        assert passing is not None, "chunks are read in a pass"
        chunk = passing.chunks.pop(0)
        end, horizon, done = self.next_offset, self.horizon, self._done
        floor = self._floor
        lowest = 0
        for offset, (_, size, code) in enumerate(_ENTRY.iter_unpack(entries), first):
            if offset >= end:
                break
            point = (code, offset)
            if point < horizon or offset in done or offset < floor or not 0 < size < _FILLER_BYTES:
                continue
            if point < self._reach:
                self._window.append(point)
            elif not lowest or code < lowest:
                lowest = code
        if lowest:
            self._chunks[chunk] = lowest
        else:
            self._chunks.pop(chunk, None)
        heapq.heapify(self._window)
        if len(self._window) > 2 * WINDOW_MAX:
            self._shrink()

    def _shrink(self) -> None:
        """Keep the first points in memory; the others are read again later."""
        points = sorted(self._window)
        kept, dropped = points[:WINDOW_MAX], points[WINDOW_MAX:]
        self._window = kept  # sorted, so it is a heap
        self._reach = dropped[0]
        self.horizon = min(self.horizon, self._reach)
        for code, offset in dropped:
            _lower(self._chunks, offset, code)

    def first_chunk(self) -> int | None:
        """Return the first offset of the oldest chunk that may hold a waiting timer."""
        offsets = [offset for _, offset in self._window]
        offsets += self._taken
        first = min(offsets) // CHUNK if offsets else None
        if self._chunks:
            other = min(self._chunks)
            first = other if first is None else min(first, other)
        return None if first is None else first * CHUNK

    def still_waits(self, offset: int, code: int) -> bool:
        """Tell whether the timer at an offset waits, by its point."""
        if offset in self._done or offset < self._floor:
            return False
        return (code, offset) >= self.frontier or offset in self._late


def _lower(chunks: dict[int, int], offset: int, code: int) -> None:
    chunk = offset // CHUNK
    before = chunks.get(chunk)
    if before is None or code < before:
        chunks[chunk] = code
