"""The rules of `process_in_order`, pure: which messages of a queue are handled now, and which wait.

A message is handled at once unless its key has a *line*: messages that wait until the first of them
is tried again. A message of such a key joins the line; other keys go on. A message without a key is
a barrier: it waits until no key waits, and every message after it waits for it.

    handler says          its message                           its key
    done                  done: state and rows are taken        goes on
    again (Retry, error)  first of the line, tried again later  waits
    again, too often      a dead letter                         goes on
    again, with Park      parked, with the messages behind it   is parked, until it is redriven

An attempt that failed leaves no trace in the state: the handler gets a copy each time.

    return state, [row, …]     done; the key's state is `state` from now on, None forgets it
    return None                done; the state stays as it is, no rows
    raise Retry(after=30)      again later, before anything else of this key
    raise anything else        a failed attempt: again later; after too many, a dead letter, or
                               the key is parked

States are msgpack: dicts, lists, strings, bytes, numbers, datetimes; or a dataclass or a
msgspec.Struct whose type is given. A type that gains fields with defaults reads older states.

What a batch decides about parked keys:

    parked    a message failed too often: it and later messages of its key go to %PARK%<group>
    redriven  on request: the key's list is handled from its beginning, with the key's state
    live      the whole list is done: later messages in the batch are handled normally

The broker knows which keys are parked and is asked when a batch begins. The decisions are part of
the batch and are told to the broker as often as the batch is repeated. Why: decision 35.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from inorder.client.consume.rules.outcomes import Retry
from inorder.errors import InorderError, UsageError
from inorder.wire.requests.parking import KEY_CHARS_MAX

CAUSE_CHARS_MAX: Final = 500


class OrderedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message as a handler gets it. Columns that the stream does not have are empty."""

    topic: str
    broker: str
    queue: int
    offset: int
    key: str | None = None
    body: bytes = b""
    tag: str | None = None
    keys: str | None = None
    properties: dict[str, str] = {}
    message_id: str = ""
    born_at_ms: int = 0
    stored_at_ms: int = 0
    redeliveries: int = 0

    @property
    def attempt(self) -> int:
        """Return which time it is handed to the handler, the first being 1."""
        return self.redeliveries + 1


class Line(msgspec.Struct, array_like=True):
    """The messages of a key that waits; the first one was tried and comes first."""

    messages: list[OrderedMessage]
    due_ms: int
    cause: str
    left_in: int = 0
    """The version of the key map in which its key left this queue; 0: it is here."""


class Letter(msgspec.Struct, array_like=True, frozen=True):
    """A message that is given up, and why."""

    message: OrderedMessage
    cause: str


Home = tuple[str, int]
"""A queue of the topic: broker and number."""

_NO_KEY: Final = "a message without a key cannot be parked"
_LONG_KEY: Final = f"a key of more than {KEY_CHARS_MAX} characters cannot be parked"
_MOVED: Final = "its topic was resized while it waited, so it cannot be parked"


class ParkedMessage(msgspec.Struct, array_like=True, frozen=True):
    """A message of the batch's queue that is parked."""

    offset: int
    key: str
    tries: int = 0
    error: str | None = None
    """How its last try failed; None: its key is parked, and it joins it."""
    message: OrderedMessage | None = None
    """The message itself if it waited since an earlier batch: its broker may have removed it."""


class Drained(msgspec.Struct, array_like=True):
    """The handled part of one list of a key. A key has older lists in its former queues."""

    home: Home
    successor: Home | None
    """The queue that this older list precedes; None: it is the key's present list."""
    done: list[int] = []
    closed: bool = False
    """All of it was handled."""
    stale: bool = False
    """The list no longer exists and is only forgotten."""


class Redone(msgspec.Struct, array_like=True):
    """The result of a key's redrive."""

    key: str
    end: int
    """The highest offset of its present list, as the broker said."""
    lists: list[Drained] = []
    error: str | None = None
    """How it failed again: the redrive is over, the key stays parked."""
    live: bool = False


class ParkedList(msgspec.Struct):
    """Messages of a parked key from one queue, the first ones or all."""

    home: Home
    successor: Home | None
    messages: list[OrderedMessage]
    whole: bool = True
    stale: bool = False


class ParkedKeys:
    """The parked keys of a queue in one batch."""

    def __init__(
        self,
        home: Home = ("", -1),
        keys: Iterable[str] = (),
        *,
        first: int = 0,
        room: Callable[[], str] = str,
    ) -> None:
        """`first` is the first offset of the batch; `room` returns why nothing can be parked."""
        self.keys: set[str | None] = set(keys)
        self.items: list[ParkedMessage] = []
        self.redone: dict[str, Redone] = {}
        self._home = home
        self._first = first
        self._room = room
        self._full: str | None = None

    def why_not(self, message: OrderedMessage) -> str:
        """Return why a message cannot be parked; empty if it can."""
        if message.key is None:
            return _NO_KEY
        if len(message.key) > KEY_CHARS_MAX:
            return _LONG_KEY
        if (message.broker, message.queue) != self._home:
            return _MOVED
        if self._full is None:
            self._full = self._room()
        return self._full

    def park(self, message: OrderedMessage, cause: str) -> None:
        """Park a message that failed too often, and with it its key."""
        assert message.key is not None, "why_not was asked"
        self.keys.add(message.key)
        redone = self.redone.get(message.key)
        if redone is not None:  # it was live for a moment
            redone.live, redone.error = False, cause[:CAUSE_CHARS_MAX]
        self._add(message, message.attempt, cause[:CAUSE_CHARS_MAX] or "unknown")

    def join(self, message: OrderedMessage) -> None:
        """Let a message join its parked key."""
        self._add(message, 0, None)

    def _add(self, message: OrderedMessage, tries: int, error: str | None) -> None:
        assert message.key is not None, "why_not was asked"
        kept = message if message.offset < self._first else None
        self.items.append(ParkedMessage(message.offset, message.key, tries, error, kept))

    def begin_redrive(self, key: str, end: int) -> Redone:
        """Note that a key is handled again."""
        found = self.redone[key] = Redone(key, end, [])
        return found

    def go_live(self, redone: Redone) -> None:
        """Note that all of a key's messages are handled."""
        redone.live = True
        self.keys.discard(redone.key)


ROWS_BITS: Final = 32


class OutOfOrder(InorderError):
    """Rows came in an order in which keys would overtake themselves; none of them was kept."""


class Hole(InorderError):
    """Messages of a queue are missing between two that arrived."""


class TooManyWait(InorderError):
    """Too many messages wait for their keys; nothing of the batch was kept."""


@dataclass(slots=True)
class Done:
    """The message is done. `state` is the key's new state, None for none; `keep`: as it was."""

    state: bytes | None = None
    rows: Sequence[tuple[object, ...]] = ()
    keep: bool = False


@dataclass(slots=True)
class Again:
    """The message is to be tried again: after so long, or after the usual pause."""

    after_ms: int | None
    cause: str
    failed: bool = True
    """It is a failed attempt; with Park, `Retry` is none."""


Handle = Callable[[OrderedMessage, bytes | None], Done | Again]


@dataclass(slots=True)
class Keys:
    """The keys of one queue: states, lines and the barrier."""

    states: dict[str, bytes] = field(default_factory=dict)
    held: dict[str | None, Line] = field(default_factory=dict)
    behind: list[OrderedMessage] = field(default_factory=list)
    """The messages that wait behind a barrier, in order."""
    next_offset: int | None = None
    changed: set[str] = field(default_factory=set)
    """Keys whose state is another than in the last version."""

    @property
    def waiting(self) -> int:
        """Return how many messages wait."""
        return sum(len(line.messages) for line in self.held.values()) + len(self.behind)


@dataclass(slots=True)
class Limits:
    """How failures are treated; `redeliveries_max` as RocketMQ counts: tries after the first."""

    redeliveries_max: int
    pause_ms: int = 1000
    waiting_max: int = 10_000
    parks: bool = False
    """A key is parked whose message failed too often."""


class Work:
    """One batch of a queue: takes its messages in order, collects rows and dead letters."""

    def __init__(
        self,
        keys: Keys,
        handle: Handle,
        limits: Limits,
        clock: Callable[[], int],
        parked: ParkedKeys | None = None,
    ) -> None:
        self.keys = keys
        self.parked = ParkedKeys() if parked is None else parked
        self.rows: list[tuple[object, ...]] = []
        self.origins: list[OrderedMessage] = []
        """For each row the message that it was made of."""
        self.letters: list[Letter] = []
        self._handle = handle
        self._limits = limits
        self._now_ms = clock
        self._waiting = keys.waiting

    def take(self, messages: Iterable[OrderedMessage]) -> None:
        """Handle messages as they come; those whose key waits join its line."""
        keys, parked = self.keys, self.parked.keys
        for message in messages:
            if keys.held or keys.behind or parked:
                self._admit(message)
            else:
                self._attempt(message)
            keys.next_offset = message.offset + 1

    def try_due(self) -> bool:
        """Try the keys again that are due; return whether there was one."""
        now_ms = self._now_ms()
        due = [key for key, line in self.keys.held.items() if line.due_ms <= now_ms]
        for key in due:
            self._try_line(key)
        return bool(due)

    def next_due_ms(self) -> int | None:
        """Return when the next key is to be tried again, None if none waits."""
        return min((line.due_ms for line in self.keys.held.values()), default=None)

    def redrive(
        self, key: str, lists: Sequence[ParkedList], end: int, pace: Callable[[], bool]
    ) -> None:
        """Handle the lists of a parked key, the oldest first; the key is live if all is done.

        `pace` waits before each message, and says whether there is time for it. A failure ends the
        redrive; after `Retry`, or when the time is over, it goes on with the next batch.
        """
        redone = self.parked.begin_redrive(key, end)
        for one in lists:
            drained = Drained(one.home, one.successor, [], stale=one.stale)
            redone.lists.append(drained)
            for message in one.messages:
                if not pace():
                    return
                outcome = self._handle(message, self.keys.states.get(key))
                if isinstance(outcome, Again):
                    redone.error = outcome.cause[:CAUSE_CHARS_MAX] if outcome.failed else None
                    return
                self._done(message, key, outcome)
                drained.done.append(message.offset)
            if not one.whole:
                return
            drained.closed = True
        self.parked.go_live(redone)

    # Inside.

    def _admit(self, message: OrderedMessage) -> None:
        keys = self.keys
        line = keys.held.get(message.key)
        if keys.behind or None in keys.held or (message.key is None and keys.held):
            keys.behind.append(message)
        elif line is not None:
            line.messages.append(message)
        else:
            self._begin(message)
            return
        self._waiting += 1
        if self._waiting > self._limits.waiting_max:
            first = next(iter(keys.held.values()))
            raise TooManyWait(
                f"{self._waiting} messages of queue {message.broker}/{message.queue} of topic "
                f"{message.topic} wait for their keys, more than held_max allows; the first failed "
                f"with: {first.cause}"
            )

    def _begin(self, message: OrderedMessage) -> bool:
        """Handle a message that nothing holds, or let it join its parked key; False: it waits."""
        if message.key not in self.parked.keys:
            return self._attempt(message)
        why = self.parked.why_not(message)
        if why:
            self._hold(message, Again(None, f"its key is parked; {why}"))
            return False
        self.parked.join(message)
        return True

    def _attempt(self, message: OrderedMessage) -> bool:
        """Handle a message that nothing holds; return whether its key goes on."""
        # hot: 0.4 us beside the handler.
        name = message.key or ""
        outcome = self._handle(message, self.keys.states.get(name))
        if type(outcome) is Done:
            self._done(message, name, outcome)
            return True
        assert isinstance(outcome, Again)
        if self._limits.parks and not outcome.failed:
            self._hold(message, outcome)
            return False
        if message.redeliveries >= self._limits.redeliveries_max:
            if not self._limits.parks:
                self.letters.append(Letter(message, outcome.cause[:CAUSE_CHARS_MAX]))
                return True
            why = self.parked.why_not(message)
            if not why:
                self.parked.park(message, outcome.cause)
                return True
            outcome.cause = f"{outcome.cause}; {why}"
        self._hold(msgspec.structs.replace(message, redeliveries=message.redeliveries + 1), outcome)
        return False

    def _done(self, message: OrderedMessage, name: str, outcome: Done) -> None:
        # hot: each message
        if outcome.rows:
            self.rows.extend(outcome.rows)
            self.origins.extend([message] * len(outcome.rows))
        if outcome.keep:
            return
        if outcome.state is not None:
            self.keys.states[name] = outcome.state
            self.keys.changed.add(name)
        elif self.keys.states.pop(name, None) is not None:
            self.keys.changed.add(name)

    def _hold(self, message: OrderedMessage, outcome: Again) -> None:
        pause_ms = self._limits.pause_ms if outcome.after_ms is None else outcome.after_ms
        due_ms, cause = self._now_ms() + pause_ms, outcome.cause[:CAUSE_CHARS_MAX]
        self.keys.held[message.key] = Line([message], due_ms, cause)
        self._waiting += 1

    def _try_line(self, key: str | None) -> None:
        line = self.keys.held.pop(key)
        self._waiting -= len(line.messages)
        for index, message in enumerate(line.messages):
            if not self._begin(message):
                rest = line.messages[index + 1 :]
                self.keys.held[key].messages += rest
                self._waiting += len(rest)
                return
        self._pass_barrier()

    def _pass_barrier(self) -> None:
        """Handle the messages behind a barrier, as far as they may go now."""
        keys = self.keys
        while keys.behind:
            first = keys.behind[0]
            if None in keys.held or (first.key is None and keys.held):
                return
            del keys.behind[0]
            line = keys.held.get(first.key)
            if line is not None:
                line.messages.append(first)
            else:
                self._waiting -= 1
                self._begin(first)


def check_run(
    place: str, expected: int | None, offsets: Sequence[int], *, holes_allowed: bool
) -> int:
    """Check that offsets of a queue ascend without a gap from `expected` on; count the missing.

    Raises:
        OutOfOrder: they do not ascend, or begin before what was handled.
        Hole: some are missing, and the options do not allow it.
    """
    if not offsets:
        return 0
    first, last = offsets[0], offsets[-1]
    start = first if expected is None else expected
    if first == start and last - first + 1 == len(offsets) and _is_row(offsets, first, last):
        return 0
    before = start - 1
    for offset in offsets:
        if offset <= before:
            raise OutOfOrder(
                f"{place}: {offset} comes after {before} was handled. A shuffle (repartition, "
                "groupBy, orderBy) stands between the source and process_in_order, or the topic "
                "was made again"
            )
        if offset != before + 1 and not holes_allowed:
            raise Hole(
                f"{place}: {offset} follows {before}. Those between were left out by a filter "
                "(tag=, .filter(…)), or were removed by retention before they were read "
                "(failOnDataLoss=false); if that is meant, say holes=True"
            )
        before = offset
    return last - start + 1 - len(offsets)


def _is_row(offsets: Sequence[int], first: int, last: int) -> bool:
    return list(offsets) == list(range(first, last + 1))


def sequence(batch: int, index: int) -> int:
    """Return the number of a row: ascending with the batch, and within it."""
    if not 0 <= index < 1 << ROWS_BITS or not 0 <= batch < 1 << (63 - ROWS_BITS):
        raise ValueError(f"row {index} of batch {batch} has no number")
    return batch << ROWS_BITS | index


Handler = Callable[[OrderedMessage, Any], Any]

_SAYS = "a handler returns (state, rows) or None"


class BadResult(UsageError):
    """The handler returned a value that cannot be stored; the query stops."""


def adapted(handler: Handler, columns: Sequence[str], state_type: Any = Any) -> Handle:
    """Return the handler as the rules call it: states are bytes, rows are tuples in order."""
    encode = msgspec.msgpack.Encoder().encode
    decode = msgspec.msgpack.Decoder(state_type).decode
    known = frozenset(columns)
    wide = len(columns)
    kept = Done(keep=True)

    def row(value: Any) -> tuple[object, ...]:
        if type(value) is tuple and len(value) == wide:
            return value
        if isinstance(value, dict):
            if not value.keys() <= known:
                unknown = sorted(value.keys() - known)[0]
                raise BadResult(f"a row has no column {unknown!r}; there are {', '.join(columns)}")
            return tuple(map(value.get, columns))
        if not isinstance(value, tuple | list) or len(value) != wide:
            raise BadResult(
                f"{str(value)[:80]!r} is no row: give a dict or a tuple of {', '.join(columns)}"
            )
        return tuple(value)

    def handle(message: OrderedMessage, state: bytes | None) -> Done | Again:
        # hot: 0.8 us beside the handler.
        try:
            result = handler(message, None if state is None else decode(state))
        except Retry as retry:
            return Again(retry.after_ms, str(retry), failed=False)
        except Exception as error:  # the handler is the user's
            return Again(None, f"{type(error).__name__}: {error}")
        if result is None:
            return kept
        if type(result) is not tuple or len(result) != 2:
            raise BadResult(f"{str(result)[:80]!r}: {_SAYS}")
        new, rows = result
        try:
            data = None if new is None else encode(new)
        except (TypeError, ValueError, OverflowError) as error:
            raise BadResult(f"a state cannot be kept: {error}") from None
        return Done(data, [row(one) for one in rows] if rows else ())

    return handle
