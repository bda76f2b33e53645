"""What the owner of a queue knows of its parked keys.

    parked     the broker holds the key's messages; new ones join them, in order
    redriven   an operator wants the key handled: the owner reads its list from the beginning and
               hands one message after the other to the handler; new messages still join the list
    live       the list is empty and the broker has agreed; it refuses if the list grew meanwhile

The broker's table decides. `ParkedView` is a copy of one version of it. Every answer names the
version before and after a change, so an owner that changed the table itself need not load it again.
Who parks and who releases a key: decision 22; how parked keys are stored: decision 21.
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
_PARK_PROPERTIES: Final = frozenset(
    (
        extensions.PARK_TOPIC, extensions.PARK_QUEUE, extensions.PARK_OFFSET,
        extensions.PARK_KEY, extensions.PARK_TRIES,
        extensions.PARK_ERROR, extensions.PARK_FENCE, extensions.PARK_TIME, extensions.PARK_UNTIL,
    )
)  # fmt: skip
MILLI: Final = 1000


class ParkedView:
    """The owner's copy of the parked keys of one queue."""

    def __init__(self, version: int = 0) -> None:
        """Begin with the version that came with the lease; 0 means that nothing is parked."""
        self.version = 0 if version == 0 else UNKNOWN
        """The version that this is a copy of; UNKNOWN: the keys must be loaded."""
        self.is_loaded = False
        """The keys were loaded at least once."""
        self.keys: dict[str, OwnedKey] = {}
        self._over: dict[str, int] = {}  # the last redrive of each key that has failed

    def __repr__(self) -> str:
        return f"ParkedView({len(self.keys)} keys, version {self.version})"

    def load(self, found: QueueParking) -> None:
        """Replace the copy by the broker's table."""
        self.version, self.is_loaded = found.version, True
        self.keys = {one.key: one for one in found.keys}
        self._over = {key: last for key, last in self._over.items() if key in self.keys}

    def answered(self, before: int, version: int) -> None:
        """Follow the table over a request of this owner, which made `version` of `before`."""
        self.version = version if self.version == before else UNKNOWN

    def park(self, key: str, offset: int) -> None:
        """Note that a message joined a key."""
        known = self.keys.get(key, OwnedKey(key, -1))
        if offset > known.end or key not in self.keys:
            self.keys[key] = msgspec.structs.replace(known, end=max(offset, known.end))

    def go_live(self, key: str) -> None:
        """Note that a key is no longer parked."""
        self.keys.pop(key, None)
        self._over.pop(key, None)

    def wanted(self, running: Collection[str]) -> list[OwnedKey]:
        """Return the keys whose redrive should start; `running` are those that are redriven now."""
        return [
            one
            for key, one in self.keys.items()
            if one.redrive
            and one.home
            and key not in running
            and self._over.get(key) != one.redrive
        ]

    def goes_on(self, key: str, redrive: int) -> bool:
        """Return whether a redrive is still wanted: no operator has cancelled it."""
        known = self.keys.get(key)
        return known is not None and known.redrive == redrive and known.home

    def end(self, key: str, redrive: int) -> None:
        """Note that a redrive has failed; its key stays parked."""
        if key in self.keys:
            self._over[key] = redrive


class RedrivePace:
    """A rate limit in messages per 1,000 s, spread evenly."""

    def __init__(self) -> None:
        self._next_ms = 0.0

    def wait_ms(self, rate: int, now_ms: int) -> int:
        """Return how long to wait before the next message, and count that message."""
        if rate <= 0:
            return 0
        begin_ms = max(self._next_ms, float(now_ms))
        self._next_ms = begin_ms + MILLI * MILLI / rate
        return round(begin_ms - now_ms)


def rate_of(messages_per_second: float, queues: int) -> int:
    """Return one queue's share of a rate, in messages per 1,000 s; 0 means no limit."""
    return 0 if messages_per_second <= 0 else max(1, round(messages_per_second * MILLI / queues))


def restore(message: ReceivedMessage, epoch: int | None) -> ReceivedMessage:
    """Return a message of %PARK%group as it was before it was parked, with its fence."""
    properties = message.properties
    topic = properties[extensions.PARK_TOPIC]
    sequence = properties.get(extensions.PARK_FENCE)
    return replace(
        message,
        topic=topic,
        queue=TopicQueue(topic, message.queue.broker, int(properties[extensions.PARK_QUEUE])),
        offset=int(properties[extensions.PARK_OFFSET]),
        properties={
            name: value for name, value in properties.items() if name not in _PARK_PROPERTIES
        },
        fencing=Fence(None if sequence is None else int(sequence), epoch),
    )


def key_to_park(key: str | None, message: ReceivedMessage) -> str | None:
    """Return the key under which a message is parked; None if it cannot be parked.

    A message without a key gets a key of its own.
    """
    if key is None:
        return f"(no key) {message.queue.broker} {message.queue.index} {message.offset}"
    return key if 0 < len(key) <= KEY_CHARS_MAX else None


def error_text(error: BaseException | None) -> str:
    """Return why an attempt failed, as text of a bounded length."""
    text = failed_text(error)
    return text if len(text) <= ERROR_CHARS_MAX else text[: ERROR_CHARS_MAX - 1] + "…"
