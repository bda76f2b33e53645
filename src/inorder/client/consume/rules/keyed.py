"""Order by key: many handlers per queue, yet the messages of one key one after the other.

    waiting   its key has an earlier message that is not done, or a barrier is in front
    ready     it is the head of its key and its key is free; heads are handed out in queue order
    running   handed to a handler
    delayed   a failed or postponed head; its key waits for a time, the others go on

A message without a key is a barrier: it is handed out when everything before it is done, and
nothing behind it is until it is done (`keyless="concurrent"`: it is a key of its own).

What is done out of order is kept in a FinishedMap, so `base` never passes a message that is not
done. Messages further than the map's span above the base are not taken in (`room_to`).

Messages of a parked key are handed out like others, in their order, but marked: they are not for
the handler.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from inorder.model import ReceivedMessage
from inorder.ordering.finished import SPAN_MAX, FinishedMap

KeyOf = Callable[[ReceivedMessage], str | None]
Keyless = Literal["barrier", "concurrent"]

_Key = str | int | None  # a text; the offset of a keyless one that stands alone; None: a barrier
_BARRIER: Final = None
SET_ASIDE_MAX: Final = 64
"""Messages of a parked key that are set aside in one go."""


@dataclass(frozen=True, slots=True)
class Work:
    """Messages of one key, in order, for one call of the handler."""

    key: str | None
    messages: tuple[ReceivedMessage, ...]
    lane: _Key
    parked: bool = False
    """The key is set aside: so are these, behind what lies there."""


class _State(Enum):
    WAITING = "waiting"
    READY = "ready"
    RUNNING = "running"
    DELAYED = "delayed"


@dataclass(slots=True)
class _Lane:
    """The messages of one key that are not done."""

    messages: deque[ReceivedMessage]
    state: _State = _State.WAITING
    running: int = 0
    due_ms: int = 0
    aside: bool = False
    """Its first messages may be set aside already."""


class KeyedQueue:
    """What is not done of one queue."""

    def __init__(
        self,
        base: int,
        *,
        key_of: KeyOf,
        keyless: Keyless = "barrier",
        finished: FinishedMap | None = None,
    ) -> None:
        self.finished = FinishedMap(base) if finished is None else finished
        self._key_of = key_of
        self._keyless = keyless
        self._lanes: dict[_Key, _Lane] = {}
        self._ready: list[tuple[int, _Key]] = []  # heap by the offset of the head
        self._delayed: list[tuple[int, int, _Key]] = []
        self._behind: deque[tuple[_Key, ReceivedMessage]] = deque()  # from a barrier on
        self._end = self.finished.base
        self.messages = 0
        self.size_bytes = 0
        self.running = 0
        self.known_end = 0
        """Below it messages may come that are done."""
        self.parked: Collection[str] = ()
        """The keys that are set aside."""

    def __repr__(self) -> str:
        return f"KeyedQueue({self.messages} of {len(self._lanes)} keys, {self.finished!r})"

    @property
    def base(self) -> int:
        """Return the lowest offset that is not done: what may be committed."""
        return self.finished.base

    @property
    def end(self) -> int:
        """Return the offset up to which messages were put in: where to pull on."""
        return self._end

    @property
    def span(self) -> int:
        """Return how far the newest message lies above the base."""
        return self._end - self.finished.base

    @property
    def room_to(self) -> int:
        """Return the offset from which on messages have to wait: the map reaches no further."""
        return self.finished.base + SPAN_MAX

    def done_elsewhere(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Note that messages from ... up to, not including, ... are done and need not be had.

        Only before any of them is put in.
        """
        for start, end in ranges:
            if end <= self.room_to:
                self.finished.add_range(start, end)
                self.known_end = max(self.known_end, end)

    def done_below(self, offset: int) -> None:
        """Note that nothing below an offset is left to do: it was filtered, or is done."""
        self.finished.add_range(self.finished.base, offset)
        self._end = max(self._end, offset)

    def put(self, messages: Sequence[ReceivedMessage], next_offset: int) -> int:
        """Take what a pull brought; return how many of them are new.

        Everything between the present end and `next_offset` that is not among the messages will
        never come and counts as done. What is done already, by the map, is left out.
        """
        taken, expected = 0, self._end
        for message in messages:
            if message.offset < expected:
                continue
            self.finished.add_range(expected, message.offset)
            expected = message.offset + 1
            if message.offset in self.finished:
                continue
            self._place(message)
            taken += 1
        self.finished.add_range(expected, next_offset)
        self._end = max(self._end, expected, next_offset)
        return taken

    def take(self, now_ms: int, *, batch: int = 1) -> Work | None:
        """Hand out the messages of the next key that is ready, at most `batch`."""
        self._wake(now_ms)
        if not self._ready:
            return None
        _, key = heapq.heappop(self._ready)
        lane = self._lanes[key]
        assert lane.state is _State.READY, f"{key} is {lane.state}"
        name = key if isinstance(key, str) else None
        parked = name is not None and (lane.aside or name in self.parked)
        count = min(SET_ASIDE_MAX if parked else batch, len(lane.messages))
        lane.state, lane.running = _State.RUNNING, count
        self.running += 1
        messages = tuple(lane.messages[index] for index in range(count))
        return Work(name, messages, key, parked)

    def done(self, work: Work, count: int | None = None) -> None:
        """Note that the first `count` messages of a work (default: all) are done for good."""
        lane = self._stop(work)
        lane.aside = False
        for message in work.messages[:count]:
            first = lane.messages.popleft()
            assert first is message, "a key's messages leave in order"
            self.finished.add(message.offset)
            self.messages -= 1
            self.size_bytes -= len(message.body)
        self._go_on(work.lane, lane)

    def again(
        self,
        work: Work,
        at_ms: int,
        messages: Sequence[ReceivedMessage] | None = None,
        *,
        set_aside: bool = False,
    ) -> None:
        """Give a work back: its key waits until a time and begins with the same message.

        `messages` are changed copies (redeliveries) of those of the work. `set_aside`: it may have
        been set aside, nobody knows; until that is known it is not for the handler, whatever
        becomes of its key.
        """
        lane = self._stop(work)
        lane.aside = set_aside
        for index, message in enumerate(messages or ()):
            assert message.offset == lane.messages[index].offset, "copies stand for the same"
            lane.messages[index] = message
        lane.state, lane.due_ms = _State.DELAYED, at_ms
        heapq.heappush(self._delayed, (at_ms, lane.messages[0].offset, work.lane))

    def next_due_ms(self) -> int | None:
        """Return when a delayed key is to be handed out again, None if there is none."""
        return self._delayed[0][0] if self._delayed else None

    def pending(self) -> Iterable[ReceivedMessage]:
        """Return what is not done, in no particular order of keys."""
        for lane in self._lanes.values():
            yield from lane.messages
        for _, message in self._behind:
            yield message

    # Inside.

    def _place(self, message: ReceivedMessage) -> None:
        key: _Key = self._key_of(message)
        if key is None and self._keyless == "concurrent":
            key = message.offset
        self.messages += 1
        self.size_bytes += len(message.body)
        if self._behind or _BARRIER in self._lanes or (key is _BARRIER and self._lanes):
            self._behind.append((key, message))
        else:
            self._enter(key, message)

    def _enter(self, key: _Key, message: ReceivedMessage) -> None:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(deque((message,)))
            self._make_ready(key, lane)
        else:
            lane.messages.append(message)

    def _make_ready(self, key: _Key, lane: _Lane) -> None:
        lane.state = _State.READY
        heapq.heappush(self._ready, (lane.messages[0].offset, key))

    def _wake(self, now_ms: int) -> None:
        while self._delayed and self._delayed[0][0] <= now_ms:
            _, _, key = heapq.heappop(self._delayed)
            self._make_ready(key, self._lanes[key])

    def _stop(self, work: Work) -> _Lane:
        lane = self._lanes[work.lane]
        assert lane.state is _State.RUNNING, f"{work.lane} is {lane.state}"
        assert lane.running == len(work.messages)
        lane.running = 0
        self.running -= 1
        return lane

    def _go_on(self, key: _Key, lane: _Lane) -> None:
        if lane.messages:
            self._make_ready(key, lane)
            return
        del self._lanes[key]
        # A barrier enters alone; what follows it enters when it has left.
        while self._behind:
            behind, message = self._behind[0]
            if (behind is _BARRIER and self._lanes) or _BARRIER in self._lanes:
                return
            self._behind.popleft()
            self._enter(behind, message)
