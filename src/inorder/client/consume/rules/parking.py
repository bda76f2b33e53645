"""What the owner of a queue knows of its parked keys, and how they are handled again.

    parked   the broker has set the key aside; its messages are sent there, in order
    redriven an operator wants it handled: its list is read from its beginning, each message is
             handed to the handler and reported, one after the other; new messages still join it
    live     the list was empty and the broker agreed, which it does not if the list grew meanwhile

The broker's table decides; this is a copy of one version of it. Every answer says which version it
made of which, so an owner that changed the table itself need not ask again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

import msgspec

from inorder.client.consume.rules.outcomes import error_text as failed_text
from inorder.model import Fence, ReceivedMessage, TopicQueue
from inorder.wire import extensions
from inorder.wire.requests.parking import ERROR_CHARS_MAX, KEY_CHARS_MAX, OwnedKey, QueueParking

UNKNOWN: Final = -1
_OURS: Final = frozenset(
    (
        extensions.PARK_TOPIC, extensions.PARK_QUEUE, extensions.PARK_OFFSET,
        extensions.PARK_KEY, extensions.PARK_TRIES,
        extensions.PARK_ERROR, extensions.PARK_FENCE, extensions.PARK_TIME, extensions.PARK_UNTIL,
    )
)  # fmt: skip
MILLI: Final = 1000


class ParkedView:
    """The parked keys of one queue as its owner knows them."""

    def __init__(self, version: int = 0) -> None:
        """`version` is that of the lease: 0, nothing is parked."""
        self.version = 0 if version == 0 else UNKNOWN
        """What it is a copy of; UNKNOWN: of nothing, the broker has to be asked."""
        self.is_loaded = False
        """The broker was asked once."""
        self.keys: dict[str, OwnedKey] = {}
        self._over: dict[str, int] = {}  # the last redrive of each key that ended

    def __repr__(self) -> str:
        return f"ParkedView({len(self.keys)} keys, version {self.version})"

    def load(self, found: QueueParking) -> None:
        """Take over what the broker knows."""
        self.version, self.is_loaded = found.version, True
        self.keys = {one.key: one for one in found.keys}
        self._over = {key: last for key, last in self._over.items() if key in self.keys}

    def answered(self, before: int, version: int) -> None:
        """Take note of what one of our own requests made of the table."""
        self.version = version if self.version == before else UNKNOWN

    def park(self, key: str, offset: int) -> None:
        """Note that a message was parked with a key."""
        known = self.keys.get(key, OwnedKey(key, -1))
        if offset > known.end or key not in self.keys:
            self.keys[key] = msgspec.structs.replace(known, end=max(offset, known.end))

    def go_live(self, key: str) -> None:
        """Note that a key is not parked any more."""
        self.keys.pop(key, None)
        self._over.pop(key, None)

    def wanted(self, running: Collection[str]) -> list[OwnedKey]:
        """Return the keys whose redrive is to be begun."""
        return [
            one
            for key, one in self.keys.items()
            if one.redrive
            and one.home
            and key not in running
            and self._over.get(key) != one.redrive
        ]

    def goes_on(self, key: str, redrive: int) -> bool:
        """Tell whether a redrive is still wanted: nobody has taken it back."""
        known = self.keys.get(key)
        return known is not None and known.redrive == redrive and known.home

    def end(self, key: str, redrive: int) -> None:
        """Note that a redrive is over, though its key is still parked: it failed."""
        if key in self.keys:
            self._over[key] = redrive


class Pace:
    """At most so many messages in 1,000 s, evenly."""

    def __init__(self) -> None:
        self._next_ms = 0.0

    def wait_ms(self, rate: int, now_ms: int) -> int:
        """Return how long to wait before the next message, and count it as begun then."""
        if rate <= 0:
            return 0
        begin_ms = max(self._next_ms, float(now_ms))
        self._next_ms = begin_ms + MILLI * MILLI / rate
        return round(begin_ms - now_ms)


def rate_of(messages_per_second: float, queues: int) -> int:
    """Return the share of a queue in a rate, as it goes over the wire; 0: no limit."""
    return 0 if messages_per_second <= 0 else max(1, round(messages_per_second * MILLI / queues))


def restore(message: ReceivedMessage, epoch: int | None) -> ReceivedMessage:
    """Return a message of %PARK%group as it was when it was parked, with the fence it had."""
    properties = message.properties
    topic = properties[extensions.PARK_TOPIC]
    sequence = properties.get(extensions.PARK_FENCE)
    return replace(
        message,
        topic=topic,
        queue=TopicQueue(topic, message.queue.broker, int(properties[extensions.PARK_QUEUE])),
        offset=int(properties[extensions.PARK_OFFSET]),
        properties={name: value for name, value in properties.items() if name not in _OURS},
        fencing=Fence(None if sequence is None else int(sequence), epoch),
    )


def key_to_park(key: str | None, message: ReceivedMessage) -> str | None:
    """Return the key that a message is parked with; None: it cannot be.

    A message that stands alone has a key of its own.
    """
    if key is None:
        return f"(no key) {message.queue.broker} {message.queue.index} {message.offset}"
    return key if 0 < len(key) <= KEY_CHARS_MAX else None


def error_text(error: BaseException | None) -> str:
    """Return how a try failed, for people."""
    text = failed_text(error)
    return text if len(text) <= ERROR_CHARS_MAX else text[: ERROR_CHARS_MAX - 1] + "…"
