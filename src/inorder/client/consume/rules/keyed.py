"""Order by key: many handlers per queue, while the messages of one key run one after the other.

    waiting   an earlier message of its key is unfinished, or a barrier stands in front of it
    ready     the first unfinished message of a key that is free; handed out in queue order
    running   handed to a handler
    delayed   a failed or postponed message; its key waits until a time, the other keys go on

A message without a key is a barrier: it is handed out when everything before it is finished, and
nothing after it is handed out until the barrier is finished. With `keyless="concurrent"` such a
message is a key of its own.

Messages of a parked key are handed out in their order like others, but marked `parked`: they join
the key at the broker and never reach the handler. `rules/queue.py` holds the unfinished messages
of the queue and decides what is committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from itertools import islice
from typing import Final, Literal

from inorder.model import ReceivedMessage

KeyOf = Callable[[ReceivedMessage], str | None]
Keyless = Literal["barrier", "concurrent"]

OrderKey = str | int | None
"""A key; the offset of a message that is a key of its own; None for a barrier."""
_BARRIER: Final = None
_FREE_MAX: Final = 1000
PARK_MAX: Final = 64
"""Messages of a parked key that join it in one request."""


@dataclass(slots=True, eq=False)
class Work:
    """Messages of one key, in order, for one worker. Only KeyOrder changes it."""

    key: str | None
    messages: tuple[ReceivedMessage, ...]
    order_key: OrderKey
    parked: bool = False
    """The key is parked: these messages join it, after those that are parked already."""


class _State(Enum):
    WAITING = "waiting"
    READY = "ready"
    RUNNING = "running"
    DELAYED = "delayed"


# A member read from its class costs a call in Python 3.11.
_WAITING: Final = _State.WAITING
_READY: Final = _State.READY
_RUNNING: Final = _State.RUNNING
_DELAYED: Final = _State.DELAYED


@dataclass(slots=True, eq=False)
class _Backlog:
    """The unfinished messages of one key, in order."""

    messages: deque[ReceivedMessage]
    state: _State = _WAITING
    running: int = 0
    maybe_parked: bool = False
    """The broker may have parked the first messages: a request to park them has no answer yet."""


class KeyOrder:
    """The order in which the unfinished messages of one queue are handed out, by key."""

    def __init__(self, key_of: KeyOf, *, keyless: Keyless = "barrier") -> None:
        self._key_of = key_of
        self._keyless = keyless
        self._backlogs: dict[OrderKey, _Backlog] = {}
        self._ready: list[int] = []  # heap of the offsets of the first messages
        self._ready_keys: dict[int, OrderKey] = {}  # theirs
        self._free: list[_Backlog] = []  # empty ones, for the next keys
        self._delayed: list[tuple[int, int, OrderKey]] = []
        self._behind: deque[tuple[OrderKey, ReceivedMessage]] = deque()  # from a barrier on
        self.parked: Collection[str] = ()
        """The parked keys of the queue."""

    def __repr__(self) -> str:
        return f"KeyOrder({len(self._backlogs)} keys, {len(self._behind)} messages behind barriers)"

    @property
    def ready(self) -> int:
        """Return how many keys are ready."""
        return len(self._ready)

    def put(self, messages: Iterable[ReceivedMessage]) -> None:
        """Add the next messages of the queue."""
        key_of, concurrent = self._key_of, self._keyless == "concurrent"
        for message in messages:
            key: OrderKey = key_of(message)
            if key is None and concurrent:
                key = message.offset
            if self._behind or _BARRIER in self._backlogs or (key is _BARRIER and self._backlogs):
                self._behind.append((key, message))
            else:
                self._enter(key, message)

    def take(self, now_ms: int, *, batch: int = 1) -> Work | None:
        """Hand out up to `batch` messages of the next ready key; None if no key is ready."""
        if self._delayed:
            self._wake(now_ms)
        if not self._ready:
            return None
        key = self._ready_keys.pop(heappop(self._ready))
        backlog = self._backlogs[key]
        assert backlog.state is _READY, f"{key} is {backlog.state}"
        name = key if isinstance(key, str) else None
        parked = name is not None and (backlog.maybe_parked or name in self.parked)
        waiting = backlog.messages
        count = min(PARK_MAX if parked else batch, len(waiting))
        backlog.state, backlog.running = _RUNNING, count
        messages = (waiting[0],) if count == 1 else tuple(islice(waiting, count))
        return Work(name, messages, key, parked)

    def done(self, work: Work, count: int | None = None) -> None:
        """Finish the first `count` messages of a `Work` (default: all); the others are free."""
        backlog = self._stop(work)
        backlog.maybe_parked = False
        self._leave(backlog, work.messages if count is None else work.messages[:count])
        self._go_on(work.order_key, backlog)

    def narrow(self, work: Work, done: int, keep: int) -> None:
        """Finish the first `done` messages of a `Work`; the next `keep` stay in it, no others."""
        backlog = self._backlogs[work.order_key]
        assert backlog.state is _RUNNING, f"{work.order_key} is {backlog.state}"
        assert 0 < keep <= len(work.messages) - done, "something stays"
        self._leave(backlog, work.messages[:done])
        work.messages = work.messages[done : done + keep]
        backlog.running = keep

    def again(
        self,
        work: Work,
        at_ms: int,
        messages: Sequence[ReceivedMessage] = (),
        *,
        maybe_parked: bool = False,
    ) -> None:
        """Take a `Work` back: its key waits until `at_ms` and then begins with the same message.

        `messages` are copies of the work's messages with another number of redeliveries. With
        `maybe_parked` the broker may have parked them already. They stay away from the handler
        until the broker has answered, even if the key goes live meanwhile.
        """
        backlog = self._stop(work)
        backlog.maybe_parked = maybe_parked
        for index, message in enumerate(messages):
            assert message.offset == backlog.messages[index].offset, (
                "copies have the offsets of the originals"
            )
            backlog.messages[index] = message
        backlog.state = _DELAYED
        heappush(self._delayed, (at_ms, backlog.messages[0].offset, work.order_key))

    def next_due_ms(self) -> int | None:
        """Return when the next delayed key is ready again; None if no key is delayed."""
        return self._delayed[0][0] if self._delayed else None

    # Inside.

    def _enter(self, key: OrderKey, message: ReceivedMessage) -> None:
        backlog = self._backlogs.get(key)
        if backlog is None:
            backlog = self._backlogs[key] = self._free.pop() if self._free else _Backlog(deque())
            backlog.messages.append(message)
            self._make_ready(key, backlog)
        else:
            backlog.messages.append(message)

    def _make_ready(self, key: OrderKey, backlog: _Backlog) -> None:
        backlog.state = _READY
        offset = backlog.messages[0].offset
        self._ready_keys[offset] = key
        heappush(self._ready, offset)

    def _wake(self, now_ms: int) -> None:
        while self._delayed and self._delayed[0][0] <= now_ms:
            _, _, key = heappop(self._delayed)
            self._make_ready(key, self._backlogs[key])

    def _stop(self, work: Work) -> _Backlog:
        backlog = self._backlogs[work.order_key]
        assert backlog.state is _RUNNING, f"{work.order_key} is {backlog.state}"
        assert backlog.running == len(work.messages)
        backlog.running = 0
        return backlog

    def _leave(self, backlog: _Backlog, messages: Iterable[ReceivedMessage]) -> None:
        for message in messages:
            first = backlog.messages.popleft()
            assert first is message, "a key's messages leave in order"

    def _go_on(self, key: OrderKey, backlog: _Backlog) -> None:
        if backlog.messages:
            self._make_ready(key, backlog)
            return
        del self._backlogs[key]
        if len(self._free) < _FREE_MAX:
            self._free.append(backlog)
        # A barrier enters when no other message is in; what follows enters when it has left.
        while self._behind:
            behind, message = self._behind[0]
            if (behind is _BARRIER and self._backlogs) or _BARRIER in self._backlogs:
                return
            self._behind.popleft()
            self._enter(behind, message)
