"""The fence of a message: a number that grows along its key for ever, and the epoch of its owner.

    sequence   11 bits version of the key map | 12 bits log generation | 40 bits queue offset

The sequence fits a signed 64-bit column. It is compared as (version, generation, offset). Offsets
of a queue grow, but they start again or are used again in these cases:

- A resize moves keys to queues whose offsets are lower. From the queue's noted end on, its messages
  belong to the next version (`broker/resizing/rules.py`).
- A power cut under async flush takes the end of the log, and its offsets are given out again. From
  the recovered ends on, every queue belongs to the next generation (`lost_tail`).
- A topic that is deleted and created again begins at offset 0, in the next generation (`retire`).
- A queue was damaged, and its true end is unknown. From its highest known end on, this queue alone
  belongs to the next generation (`begin_at`).

A version span says from which offset on a version and a generation hold. A queue without a span is
new, or was lost as a whole: its generation is that of the last loss, or of its topic's last
deletion if that was later, else 0.

A message that does not lie in the queue that the map chooses for its key has no sequence: the other
messages of its key lie in another queue, whose offsets cannot be compared. What a fence is made of:
decision 19.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from inorder.errors import RemoteProtocolError
from inorder.model import Fence, ReceivedMessage, TopicQueue
from inorder.ordering.keymap import KeyMap
from inorder.wire.names import RETRY_PREFIX
from inorder.wire.requests.leases import CHAPTERS_MAX, VersionSpan

VERSION_BITS: Final = 11
GENERATION_BITS: Final = 12
OFFSET_BITS: Final = 40

_GENERATION_AT: Final = OFFSET_BITS
_VERSION_AT: Final = OFFSET_BITS + GENERATION_BITS
_BEFORE: Final = VersionSpan(0, 0, 0)

KeyOf = Callable[[ReceivedMessage], str | None]


def sequence(version: int, generation: int, offset: int) -> int | None:
    """Return the sequence of (version, generation, offset); None if a part exceeds its bits."""
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


def span_at(spans: Sequence[VersionSpan], offset: int) -> VersionSpan:
    """Return the span of an offset; before the first span, version 0 of generation 0."""
    index = bisect_right(spans, offset, key=lambda span: span.from_offset)
    return spans[index - 1] if index else _BEFORE


class QueueFence:
    """Makes the fences of one queue's messages while the consumer owns it under an epoch."""

    __slots__ = ("_key_map", "_key_of", "_queue", "epoch", "spans")

    def __init__(
        self,
        queue: TopicQueue,
        epoch: int,
        spans: Sequence[VersionSpan],
        *,
        key_map: Callable[[], KeyMap | None] = lambda: None,
        key_of: KeyOf | None = None,
    ) -> None:
        """`key_of` returns the handler's key of a message; None: the key that it was sent with.

        `key_map` returns the topic's present map, if it has one.
        """
        self.epoch = epoch
        self.spans: Sequence[VersionSpan] = tuple(spans)
        self._queue = queue
        self._key_map = key_map
        self._key_of = key_of

    def __repr__(self) -> str:
        return f"QueueFence({self._queue}, epoch={self.epoch}, {len(self.spans)} spans)"

    def of(self, message: ReceivedMessage) -> Fence:
        """Return the fence of a message of the queue."""
        span = span_at(self.spans, message.offset)
        if self._queue.topic.startswith(RETRY_PREFIX) or not self._in_place(message, span):
            return Fence(None, self.epoch)
        return Fence(sequence(span.version, span.generation, message.offset), self.epoch)

    def _in_place(self, message: ReceivedMessage, span: VersionSpan) -> bool:
        """Return whether the other messages of this key lie in this queue, as far as is known."""
        sent_with = message.key
        key = sent_with if self._key_of is None else self._key_of(message)
        if key is None:
            return True  # without a key it is compared only with its queue
        key_map = self._key_map()
        if key_map is not None and key_map.version == span.version:
            return key_map.queue(key) == (self._queue.broker, self._queue.index)
        return key == sent_with


class _File(msgspec.Struct):
    generations: dict[str, dict[int, list[tuple[int, int]]]]
    retired: dict[str, int]
    floor: int = 0


class Generations:
    """(topic, queue) to (from offset, generation), oldest first."""

    def __init__(self) -> None:
        self.revision = 0
        """Grows with every change."""
        self._table: dict[str, dict[int, list[tuple[int, int]]]] = {}
        self._retired: dict[str, int] = {}
        self._floor = 0

    def __repr__(self) -> str:
        return f"Generations({len(self._table)} topics, {len(self._retired)} deleted ones)"

    def of(self, topic: str, queue_id: int) -> list[tuple[int, int]]:
        """Return from which offset on a queue is in which generation; at least one."""
        found = self._table.get(topic, {}).get(queue_id)
        return [(0, max(self._floor, self._retired.get(topic, 0)))] if found is None else found

    def lost_tail(self, ends: Iterable[tuple[str, int, int]], generation: int) -> None:
        """Begin a generation at (topic, queue, recovered end); again is the same.

        All queues that are left must be given: those that are not were lost as a whole.
        """
        for topic, queue_id, end in ends:
            found = list(self.of(topic, queue_id))
            while found and found[-1][0] >= end:
                found.pop()  # no message is in it, or none is left
            found.append((end, generation))
            self._table.setdefault(topic, {})[queue_id] = found[-CHAPTERS_MAX:]
        self._floor = generation
        self.revision += 1

    def begin_at(self, topic: str, queue_id: int, end: int, generation: int) -> None:
        """Begin a generation at the end of one queue; stored messages keep theirs."""
        found = list(self.of(topic, queue_id))
        while found and found[-1][0] >= end:
            found.pop()  # no message is in it
        found.append((end, generation))
        self._table.setdefault(topic, {})[queue_id] = found[-CHAPTERS_MAX:]
        self.revision += 1

    @property
    def highest(self) -> int:
        """Return the highest generation of all."""
        found = (
            generation
            for queues in self._table.values()
            for steps in queues.values()
            for _, generation in steps
        )
        return max([self._floor, *self._retired.values(), *found])

    def retire(self, topic: str, generation: int) -> None:
        """Forget the queues of a deleted topic; if made again it begins in this generation."""
        self._table.pop(topic, None)
        self._retired[topic] = generation
        self.revision += 1

    def encode(self) -> bytes:
        """Return the content of `chapters.json`."""
        return msgspec.json.encode(_File(self._table, self._retired, self._floor))

    def decode(self, data: bytes) -> None:
        """Take over the content of `chapters.json`; RemoteProtocolError if it is not that."""
        try:
            content = msgspec.json.decode(data, type=_File)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise RemoteProtocolError(f"not spans: {error}") from None
        for topic, queues in content.generations.items():
            for queue_id, found in queues.items():
                if not found or sorted(found) != found:
                    raise RemoteProtocolError(f"spans of {topic} {queue_id} are not in order")
        self._table, self._retired = content.generations, content.retired
        self._floor = content.floor


def merge(
    versions: Sequence[tuple[int, int]], generations: Sequence[tuple[int, int]], *, first: int = 0
) -> list[VersionSpan]:
    """Return the spans of a queue whose oldest message has the offset `first`."""
    starts = sorted({start for start, _ in (*versions, *generations)})
    spans = [VersionSpan(start, _at(versions, start), _at(generations, start)) for start in starts]
    old = sum(one.from_offset <= first for one in spans[1:])
    return spans[old:][-CHAPTERS_MAX:]


def _at(steps: Sequence[tuple[int, int]], offset: int) -> int:
    return max((value for start, value in steps if start <= offset), default=0)
