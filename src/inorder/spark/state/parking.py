"""Keys that `process_in_order` sets aside, and takes back: what a batch decides about them.

    parked    a message failed too often: it and what follows of its key go to %PARK%<group>
    redriven  somebody asked for it: the key's list is handled from its beginning, with its state
    live      all of the list is done: what follows in the batch is handled as ever

Which keys are parked is the broker's knowledge, asked for when a batch begins. What happens to them
in the batch is decided with it, and then told to the broker, as often as the batch is repeated: it
knows each message by its queue and offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from inorder.spark.state.messages import CAUSE_CHARS_MAX, OrderedMessage
from inorder.wire.requests.parking import KEY_CHARS_MAX

Home = tuple[str, int]
"""A queue of the topic: broker and number."""

_NO_KEY: Final = "a message without a key cannot be set aside"
_LONG_KEY: Final = f"a key of more than {KEY_CHARS_MAX} characters cannot be set aside"
_MOVED: Final = "its topic was resized while it waited, so it cannot be set aside"


class Aside(msgspec.Struct, array_like=True, frozen=True):
    """A message of the batch's queue that is set aside."""

    offset: int
    key: str
    tries: int = 0
    error: str | None = None
    """How its last try failed; None: its key is parked, and it joins it."""
    message: OrderedMessage | None = None
    """The message itself if it waited since an earlier batch: its broker may have removed it."""


class Drained(msgspec.Struct, array_like=True):
    """What was handled of one list of a key; a key has older lists in the queues it lived in."""

    home: Home
    heir: Home | None
    """Whose older list it is; None: it is the key's present one."""
    done: list[int] = []
    closed: bool = False
    """All of it was handled."""
    stale: bool = False
    """There was no such list any more: it is only forgotten."""


class Redone(msgspec.Struct, array_like=True):
    """What became of a key in its redrive."""

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
    heir: Home | None
    messages: list[OrderedMessage]
    whole: bool = True
    stale: bool = False


class Asides:
    """The parked keys of a queue in one batch."""

    def __init__(
        self,
        home: Home = ("", -1),
        keys: Iterable[str] = (),
        *,
        first: int = 0,
        room: Callable[[], str] = str,
    ) -> None:
        """`first` is the first offset of the batch; `room` says why there is none."""
        self.keys: set[str | None] = set(keys)
        self.items: list[Aside] = []
        self.redone: dict[str, Redone] = {}
        self._home = home
        self._first = first
        self._room = room
        self._full: str | None = None

    def why_not(self, message: OrderedMessage) -> str:
        """Return why a message cannot be set aside; empty if it can."""
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
        """Set a message aside that failed too often, and with it its key."""
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
        self.items.append(Aside(message.offset, message.key, tries, error, kept))

    def begin_redrive(self, key: str, end: int) -> Redone:
        """Note that a key is handled again."""
        found = self.redone[key] = Redone(key, end, [])
        return found

    def go_live(self, redone: Redone) -> None:
        """Note that all of a key's messages are handled."""
        redone.live = True
        self.keys.discard(redone.key)
