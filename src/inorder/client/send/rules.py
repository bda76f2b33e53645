"""One lane: the sends of a producer to one queue, in the order of the calls, many in flight.

    waiting ──next──> sent (in flight) ──confirm──> done
       ^                 │      │
       └────── rewind ───┘      └─ lose ─> unknown ── resolve ──> done, or waiting again

A message gets its number when it is first written. The broker stores the numbers of a queue without
a gap, so behind one that was refused everything else is refused too: then the lane holds, waits
until all that is in flight is answered, and goes on behind the last one that is stored. Numbers are
given anew only then: while nothing of the lane is in flight in the current incarnation.

A connection that is lost leaves sends whose outcome nobody knows. They keep their numbers and hold
the lane until the broker has told, on a new connection (which fences the old one), what is stored.

A broker that knows no numbers gets one send at a time; a lost one is sent again: at least once.

Named producers bring their own numbers, which only grow; each send names the one before it.

Which queue a message goes to: by its key, or in turn.

How much a producer takes in that has no outcome yet, in messages and in bytes.

A call comes in while there is any room at all, also if it brings more than fits: so a message or a
batch that is larger than the limit goes too, and what waits exceeds the limits by one call at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from inorder.model import TopicQueue
from inorder.ordering.keymap import queue_for_key

UNSENT: Final = 0
IN_FLIGHT: Final = 1
UNKNOWN: Final = 2
DONE: Final = 3

WINDOW_MAX: Final = 1024
"""A broker remembers the answers of so many messages of a producer and queue."""


class Entry:
    """One request of a lane: a message, or `count` messages of a batch with numbers in a row."""

    __slots__ = (
        "abandoned", "count", "doomed", "in_doubt", "last", "number", "previous", "state", "stored",
    )  # fmt: skip

    def __init__(self, count: int = 1, number: int = -1, last: int = -1) -> None:
        self.state = UNSENT
        self.count = count
        self.number = number  # of its first message; of a named producer: given by the caller
        self.last = last  # of its last message
        self.previous = -1  # named: the number that is stored or written before this one
        self.stored = False  # the broker says so; it is sent again for its receipt
        self.abandoned = False  # nobody waits for it any more
        self.doomed = False  # named: one before it was given up; it is not written again
        self.in_doubt = False  # it was written without numbers, and not answered

    def __repr__(self) -> str:
        state = ("unsent", "in flight", "unknown", "done")[self.state]
        return f"Entry({self.number}..{self.last}, {state})"


E = TypeVar("E", bound=Entry)


@dataclass(slots=True)
class Resolution(Generic[E]):
    """What became clear when the broker told how far it is."""

    lost: tuple[int, int] | None = None
    """Numbers that were acknowledged and are not stored."""
    forgotten: bool = False
    """The broker knows nothing of a producer that it once acknowledged."""
    over: list[E] = field(default_factory=list)
    """Nobody waits for them: they are stored, or never will be."""
    unvouched: list[E] = field(default_factory=list)
    """Somebody waits, and nobody can tell whether they are stored."""
    doomed: list[E] = field(default_factory=list)
    """Somebody waits, and they are not stored, for one before them is not."""


class Lane(Generic[E]):
    """The sends to one queue. Ask `next` what to write, tell it what became of it."""

    __slots__ = (
        "confirmed",
        "held",
        "in_flight",
        "lost",
        "messages",
        "named",
        "numbered",
        "sent",
        "synced",
        "tail",
        "unknown",
        "waiting",
        "window",
    )

    def __init__(self, window: int, *, named: bool = False) -> None:
        if not 1 <= window <= WINDOW_MAX:
            raise ValueError(f"a window has 1 to {WINDOW_MAX} sends, not {window}")
        self.window = window
        self.named = named
        self.numbered = True
        self.waiting: deque[E] = deque()  # unsent, in the order of the calls
        self.sent: deque[E] = deque()  # written and not settled, in the order of their numbers
        self.in_flight = 0
        self.messages = 0  # of the requests in flight
        self.unknown = 0
        self.held = False  # one was refused: nothing is written until all are answered
        self.synced = not named  # False: the broker must tell how far it is before the next write
        self.tail = -1  # the last number written
        self.confirmed = -1  # the last number known to be stored
        self.lost: tuple[int, int] | None = None

    # What to write.

    def add(self, entry: E) -> None:
        """Take a place at the end of the line."""
        self.waiting.append(entry)

    def next(self) -> E | None:
        """Take the entry to write now, with its number; None if there is none or it must wait."""
        # hot: 0.5 us.
        waiting = self.waiting
        while waiting and waiting[0].state == DONE:
            waiting.popleft()
        if not waiting or self.held or self.unknown or not self.synced:
            return None
        if self.in_flight:
            if not self.numbered or self.in_flight >= self.window:
                return None
            if self.messages + waiting[0].count > WINDOW_MAX:
                return None
        entry = waiting.popleft()
        if self.numbered:
            self._number(entry)
        entry.state = IN_FLIGHT
        self.in_flight += 1
        self.messages += entry.count
        self.sent.append(entry)
        return entry

    def _number(self, entry: E) -> None:
        if not entry.stored and not self.named:
            entry.number = self.tail + 1
            entry.last = self.tail + entry.count
        elif self.named:
            entry.previous = self.tail if entry.number > self.tail else -1
        self.tail = max(self.tail, entry.last)

    # Answers in the current incarnation.

    def confirm(self, entry: E) -> None:
        """Note that an entry is stored."""
        # hot: 0.3 us.
        assert entry.state == IN_FLIGHT
        entry.state = DONE
        self.in_flight -= 1
        self.messages -= entry.count
        self.confirmed = max(self.confirmed, entry.last)
        self._trim()

    def refuse(self, entry: E, *, final: bool) -> None:
        """Note that an entry is not stored: it goes (`final`), or stays to be sent again."""
        assert entry.state == IN_FLIGHT
        entry.state = DONE if final or entry.abandoned else UNSENT
        self.in_flight -= 1
        self.messages -= entry.count
        self.held = True
        self._trim()

    def gap(self, entry: E, last: int) -> None:
        """Note that an entry was refused because the broker has stored up to `last` only."""
        if last < self.confirmed:
            self.lost = (last + 1, self.confirmed)
        self.refuse(entry, final=False)

    def doubt(self, entry: E) -> None:
        """Note an answer that does not tell whether the entry is stored."""
        assert entry.state == IN_FLIGHT
        entry.state = UNKNOWN
        self.in_flight -= 1
        self.messages -= entry.count
        self.unknown += 1

    def _trim(self) -> None:
        sent = self.sent
        while sent and sent[0].state == DONE:
            sent.popleft()

    # Callers that give up.

    def abandon(self, entry: E) -> bool:
        """Nobody waits for an entry any more; True if with that it is out of the lane.

        Otherwise it keeps its number until its outcome is known.
        """
        if entry.state in (IN_FLIGHT, UNKNOWN):
            entry.abandoned = True
            return False
        entry.state = DONE
        self._trim()
        return True

    def doom(self, entry: E) -> list[E]:
        """A named producer's caller was told that an entry failed: let nothing behind it be stored.

        It may come again, in another run, and would be taken for a duplicate of what is stored by
        then. Returns those behind it that are not written, which are out of the lane; those that
        are in flight name it as their predecessor, and are not written again when they are refused.
        """
        out = []
        for other in (*self.sent, *self.waiting):
            if other.state == DONE or other.stored or other.number <= entry.number:
                continue
            if other.state == UNSENT:
                other.state = DONE
                out.append(other)
            else:
                other.doomed = True
        self._trim()
        return out

    # Holding and going on.

    @property
    def settled(self) -> bool:
        """Tell whether a lane that held may go on: all is answered, nothing is unknown."""
        return self.held and not self.in_flight and not self.unknown

    @property
    def needs_state(self) -> bool:
        """Tell whether the broker must be asked how far it is."""
        return self.numbered and not self.in_flight and (self.unknown > 0 or not self.synced)

    @property
    def idle(self) -> bool:
        """Tell whether nobody waits for anything here."""
        return not any(entry.state != DONE for entry in self.waiting) and all(
            entry.abandoned or entry.state == DONE for entry in self.sent
        )

    def rewind(self) -> None:
        """Put what was refused in front of the line, in order; go on behind the last stored."""
        assert not self.in_flight
        assert not self.unknown
        back = [entry for entry in self.sent if entry.state == UNSENT]
        self.sent.clear()
        self.waiting.extendleft(reversed(back))
        self.tail = self.confirmed
        self.held = False

    def restart(self) -> list[E]:
        """Begin again with the first number, under a new producer id; after `rewind`.

        Returns entries that are stored, and whose receipts went with the old id.
        """
        assert not self.sent
        self.tail = self.confirmed = -1
        self.lost = None
        stored = [entry for entry in self.waiting if entry.stored]
        for entry in stored:
            entry.state = DONE
        return stored

    # Connections.

    def lose(self) -> None:
        """The connection is gone: whatever was in flight is unknown now."""
        for entry in self.sent:
            if entry.state == IN_FLIGHT:
                entry.state = UNKNOWN
                self.unknown += 1
        self.in_flight = self.messages = 0
        if not self.numbered:
            self._send_again()
        elif self.settled:
            self.rewind()

    def meet(self, *, numbered: bool) -> None:
        """A new connection is there, to a broker that knows numbers or not."""
        assert not self.in_flight
        self.numbered = numbered
        if not numbered:
            self._send_again()

    def _send_again(self) -> None:
        for entry in self.sent:
            if entry.state == UNKNOWN:
                entry.state = DONE if entry.abandoned else UNSENT
                entry.in_doubt = True
        self.unknown = 0
        self.rewind()

    def resolve(self, last: int, *, known: bool, evicted: bool = False) -> Resolution[E]:
        """Take the broker's word: it has stored up to `last` (-1: nothing), or knows nothing.

        To be asked when nothing of this lane is in flight and older connections are fenced. A
        broker that knows nothing has stored nothing, unless it has forgotten producers (`evicted`).
        """
        assert not self.in_flight
        found: Resolution[E] = Resolution()
        found.forgotten = evicted or (not known and self.confirmed >= 0)
        if last < self.confirmed and not found.forgotten:
            found.lost = (last + 1, self.confirmed)
        for entry in self.sent:
            if entry.state == DONE:
                continue
            was_unknown, entry.state = entry.state == UNKNOWN, UNSENT
            stored = was_unknown and entry.number <= last
            if entry.abandoned:
                entry.state = DONE
                found.over.append(entry)
            elif was_unknown and (found.forgotten or (stored and found.lost)):
                entry.state = DONE
                found.unvouched.append(entry)
            elif entry.doomed and not stored:
                entry.state = DONE
                found.doomed.append(entry)
            else:
                entry.stored = stored
        self.unknown = 0
        self.synced = True
        self.confirmed = last
        self.rewind()
        return found

    def __repr__(self) -> str:
        return (
            f"Lane(waiting={len(self.waiting)}, in_flight={self.in_flight}, "
            f"unknown={self.unknown}, tail={self.tail}, confirmed={self.confirmed})"
        )


def select_by_key(queues: Sequence[TopicQueue], key: str) -> TopicQueue:
    """Return the queue of a key; the list must be the topic's full one, sorted."""
    return queues[queue_for_key(key, len(queues))]


class RoundRobin:
    """Takes queues in turn, and passes over brokers that just failed while there are others."""

    __slots__ = ("_next",)

    def __init__(self, start: int = 0) -> None:
        self._next = start

    def select(self, queues: Sequence[TopicQueue], avoid: Collection[str] = ()) -> TopicQueue:
        """Return the next queue; of an avoided broker only if all are."""
        return queues[self.index(queues, avoid)]

    def index(self, queues: Sequence[TopicQueue], avoid: Collection[str] = ()) -> int:
        """Return its place in the list."""
        start, self._next = self._next, self._next + 1
        if avoid:
            for step in range(len(queues)):
                index = (start + step) % len(queues)
                if queues[index].broker not in avoid:
                    self._next = start + step + 1
                    return index
        return start % len(queues)


class FailedBrokers:
    """The brokers that failed a short while ago."""

    __slots__ = ("_until_ms", "avoid_ms")

    def __init__(self, avoid_ms: int) -> None:
        self.avoid_ms = avoid_ms
        self._until_ms: dict[str, int] = {}

    def __bool__(self) -> bool:
        """Tell whether there may be one."""
        return bool(self._until_ms)

    def failed(self, broker: str, now_ms: int) -> None:
        """Avoid a broker for a while, from now on."""
        self._until_ms[broker] = now_ms + self.avoid_ms

    def worked(self, broker: str) -> None:
        """Avoid a broker no more."""
        self._until_ms.pop(broker, None)

    def to_avoid(self, now_ms: int) -> Collection[str]:
        """Return whom to avoid now."""
        if not self._until_ms:
            return ()
        self._until_ms = {b: until for b, until in self._until_ms.items() if until > now_ms}
        return self._until_ms.keys()


class Room:
    """What waits, and the limits of that."""

    __slots__ = ("bytes", "bytes_max", "messages", "messages_max", "refused")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.messages = 0
        self.bytes = 0
        self.refused = 0  # messages that found no room

    @property
    def full(self) -> bool:
        """Tell whether nothing more comes in."""
        return self.messages >= self.messages_max or self.bytes >= self.bytes_max

    @property
    def wide(self) -> bool:
        """Tell whether half of it is free: worth it to wake a thread that waits."""
        return (
            self.messages <= self.messages_max - max(self.messages_max // 2, 1)
            and self.bytes <= self.bytes_max - max(self.bytes_max // 2, 1)
        )  # fmt: skip

    def enter(self, messages: int, bytes_: int) -> bool:
        """Take in what a call brings; False if there is no room."""
        if self.full:
            return False
        self.add(messages, bytes_)
        return True

    def add(self, messages: int, bytes_: int) -> None:
        """Take it in, full or not."""
        self.messages += messages
        self.bytes += bytes_

    def leave(self, messages: int, bytes_: int) -> None:
        """Let go what has its outcome."""
        self.messages -= messages
        self.bytes -= bytes_

    def turn_away(self, messages: int) -> None:
        """Count messages that were refused for want of room."""
        self.refused += messages

    def __str__(self) -> str:
        return (
            f"{self.messages} messages with {self.bytes} bytes have no outcome yet, the limits are "
            f"{self.messages_max} (sends_waiting_max) and {self.bytes_max} "
            "(sends_waiting_bytes_max)"
        )
