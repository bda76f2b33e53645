"""The fence of a message: a number that grows along its key for ever, and the epoch of its owner.

    sequence   11 bits version of the key map | 12 bits log generation | 40 bits queue offset

fits a signed 64-bit column. A key moves to another queue only with a new version of the map;
offsets of a queue are used again only in a new generation of the log (a power cut under async flush
took the tail; the topic was deleted and made again). A queue's `chapters` say from which offset on
which version and generation hold.

A message that does not lie where the map puts its key has no sequence: its key's others lie in
another queue, and their offsets say nothing about this one's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from inorder.model import Fence, ReceivedMessage, TopicQueue
from inorder.ordering.keymap import KeyMap
from inorder.wire.requests.leases import Chapter

VERSION_BITS: Final = 11
GENERATION_BITS: Final = 12
OFFSET_BITS: Final = 40

_GENERATION_AT: Final = OFFSET_BITS
_VERSION_AT: Final = OFFSET_BITS + GENERATION_BITS
_BEFORE: Final = Chapter(0, 0, 0)
RETRY_PREFIX: Final = "%RETRY%"

KeyOf = Callable[[ReceivedMessage], str | None]


def sequence(version: int, generation: int, offset: int) -> int | None:
    """Return the number of a place; None if one of the parts is too large for its bits."""
    if version >> VERSION_BITS or generation >> GENERATION_BITS or offset >> OFFSET_BITS:
        return None
    return version << _VERSION_AT | generation << _GENERATION_AT | offset


def split(number: int) -> tuple[int, int, int]:
    """Return version, generation and offset of a sequence."""
    return (
        number >> _VERSION_AT,
        number >> _GENERATION_AT & (1 << GENERATION_BITS) - 1,
        number & (1 << OFFSET_BITS) - 1,
    )


def chapter_at(chapters: Sequence[Chapter], offset: int) -> Chapter:
    """Return the chapter that an offset lies in; what lies before the first is version 0 of 0."""
    index = bisect_right(chapters, offset, key=lambda chapter: chapter.from_offset)
    return chapters[index - 1] if index else _BEFORE


class QueueFence:
    """Makes the fences of one queue's messages while it is ours under an epoch."""

    __slots__ = ("_key_map", "_key_of", "_queue", "chapters", "epoch")

    def __init__(
        self,
        queue: TopicQueue,
        epoch: int,
        chapters: Sequence[Chapter],
        *,
        key_map: Callable[[], KeyMap | None] = lambda: None,
        key_of: KeyOf | None = None,
    ) -> None:
        """`key_of` is what tells the handler's keys apart, None: the key a message was sent with.

        `key_map` returns the topic's present map, if it has one.
        """
        self.epoch = epoch
        self.chapters: Sequence[Chapter] = tuple(chapters)
        self._queue = queue
        self._key_map = key_map
        self._key_of = key_of

    def __repr__(self) -> str:
        return f"QueueFence({self._queue}, epoch={self.epoch}, {len(self.chapters)} chapters)"

    def of(self, message: ReceivedMessage) -> Fence:
        """Return the fence of a message of the queue."""
        chapter = chapter_at(self.chapters, message.offset)
        if self._queue.topic.startswith(RETRY_PREFIX) or not self._in_place(message, chapter):
            return Fence(None, self.epoch)
        return Fence(sequence(chapter.version, chapter.generation, message.offset), self.epoch)

    def _in_place(self, message: ReceivedMessage, chapter: Chapter) -> bool:
        """Tell whether the others of the message's key lie in this queue, as far as one can."""
        sent_with = message.key
        key = sent_with if self._key_of is None else self._key_of(message)
        if key is None:
            return True  # it is compared with nobody but its queue
        key_map = self._key_map()
        if key_map is not None and key_map.version == chapter.version:
            return key_map.queue(key) == (self._queue.broker, self._queue.index)
        return key == sent_with
