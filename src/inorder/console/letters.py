"""Dead letters as the console shows them and sends them again. Pure.

A dead letter lies in `%DLQ%group` and names the topic that it came from in a property. Sent again,
it carries its place among the dead letters (`inorder_source`), as those do that the job `inorder
pipeline dead-letters` sends: who comes later finds it in its topic and leaves it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from inorder.console.data import ROW_BYTES_MAX, head
from inorder.model import ReceivedMessage, TopicQueue
from inorder.wire.extensions import DEAD_ERROR, OUR_PREFIX, SOURCE
from inorder.wire.names import DEAD_LETTER_PREFIX
from inorder.wire.properties import SET_BY_OTHERS

ORIGINS: Final = ("RETRY_TOPIC", "DLQ_ORIGIN_TOPIC")


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter, with the beginning of its body."""

    queue: TopicQueue
    offset: int
    origin: str
    """The topic to send it to again; empty: it does not say."""
    key: str
    tag: str
    cause: str
    attempts: int
    stored_at_ms: int
    body: bytes

    @property
    def group(self) -> str:
        """Return the group that gave it up."""
        return self.queue.topic.removeprefix(DEAD_LETTER_PREFIX)

    @property
    def place(self) -> str:
        """Return where it lies, as the message says that it is sent again as."""
        return f"{self.queue.topic}|{self.queue.broker}|{self.queue.index}|{self.offset}"


@dataclass(frozen=True, slots=True)
class Cause:
    """Dead letters with one cause, of one topic."""

    cause: str
    origin: str
    letters: int
    keys: int
    first_ms: int
    last_ms: int


def letter_of(message: ReceivedMessage) -> Letter:
    """Return a message of a dead letter topic as a letter."""
    found = message.properties
    attempts = message.redeliveries
    tried = f"failed {attempts} time{'' if attempts == 1 else 's'}"
    return Letter(
        message.queue, message.offset,
        next((found[name] for name in ORIGINS if found.get(name)), ""),
        message.key or "", message.tag or "", found.get(DEAD_ERROR, tried), attempts,
        message.stored_at_ms, head(message.body, ROW_BYTES_MAX),
    )  # fmt: skip


def causes(letters: Iterable[Letter]) -> list[Cause]:
    """Return the causes of letters, the most frequent first."""
    found: dict[tuple[str, str], list[Letter]] = {}
    for one in letters:
        found.setdefault((one.cause, one.origin), []).append(one)
    rows = [
        Cause(
            cause, origin, len(each), len({one.key for one in each if one.key}),
            min(one.stored_at_ms for one in each), max(one.stored_at_ms for one in each),
        )
        for (cause, origin), each in found.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda one: (-one.letters, one.cause, one.origin))


def in_order(letters: Iterable[Letter]) -> list[Letter]:
    """Return letters in the order in which they died; those of one queue by their offsets."""
    return sorted(letters, key=lambda one: (one.stored_at_ms, one.queue, one.offset))


def properties_again(message: ReceivedMessage) -> dict[str, str]:
    """Return the properties with which a dead letter is sent again: its own, and its place."""
    own = {
        name: value
        for name, value in message.properties.items()
        if name not in SET_BY_OTHERS and name not in ORIGINS and not name.startswith(OUR_PREFIX)
    }
    return {**own, SOURCE: letter_of(message).place}


def places(values: Sequence[str]) -> list[tuple[TopicQueue, int]]:
    """Return the places that a form names; what is none is left out."""
    found = []
    for value in values:
        topic, broker, index, offset = (*value.split("|"), "", "", "", "")[:4]
        if topic and broker and index.isdecimal() and offset.isdecimal():
            found.append((TopicQueue(topic, broker, int(index)), int(offset)))
    return found
