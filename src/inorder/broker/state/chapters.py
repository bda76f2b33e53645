"""From which offset on the messages of a queue belong to which key-map version and log generation.

A fence is (version, generation, offset), compared in this order: it has to grow along a key for
ever. Offsets of a queue grow by themselves, but

- a resize moves keys to queues whose offsets are lower: from its noted end on a queue is in the
  next version (`state/resizing.py` knows those);
- a power cut takes the end of the log, and its offsets are given out again: from the recovered ends
  on every queue is in the next generation (`lost_tail`);
- a topic that is deleted and made again begins at offset 0: in the next generation (`retire`);
- a queue was damaged, and nobody knows for certain where it ended: from the highest end that is
  known on it, and it alone, is in the next generation (`begin_at`).

A queue of which nothing is written is new, or was lost as a whole: it is in the generation of the
last loss, or of its topic's last deletion if that was later, else in 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from inorder.errors import RemoteProtocolError
from inorder.wire.requests.leases import CHAPTERS_MAX, Chapter

GENERATION_BITS: Final = 12
"""What a fence has room for."""


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
        """Begin a generation at the end of one queue: what is stored keeps its own."""
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
            raise RemoteProtocolError(f"not chapters: {error}") from None
        for topic, queues in content.generations.items():
            for queue_id, found in queues.items():
                if not found or sorted(found) != found:
                    raise RemoteProtocolError(f"chapters of {topic} {queue_id} are not in order")
        self._table, self._retired = content.generations, content.retired
        self._floor = content.floor


def merge(
    versions: Sequence[tuple[int, int]], generations: Sequence[tuple[int, int]], *, first: int = 0
) -> list[Chapter]:
    """Return the chapters of a queue whose oldest message has the offset `first`."""
    starts = sorted({start for start, _ in (*versions, *generations)})
    chapters = [Chapter(start, _at(versions, start), _at(generations, start)) for start in starts]
    old = sum(one.from_offset <= first for one in chapters[1:])
    return chapters[old:][-CHAPTERS_MAX:]


def _at(steps: Sequence[tuple[int, int]], offset: int) -> int:
    return max((value for start, value in steps if start <= offset), default=0)
