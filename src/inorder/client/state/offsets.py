"""How far a consumer is in each of its queues, and what the store does not know of it yet.

RocketMQ's offset stores: an offset is noted here when messages are done and saved every 5 s, with
pulls, and when a queue is released. Unlike there only what changed is saved, so that an old number
cannot come late over a newer one of somebody else (O11).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inorder.client.state.startoffset import NOT_STORED
from inorder.model import TopicQueue


@dataclass(slots=True)
class _Progress:
    offset: int
    saved: int | None
    frozen: bool = False


class OffsetTable:
    """Noted offsets by queue."""

    __slots__ = ("_table",)

    def __init__(self) -> None:
        self._table: dict[TopicQueue, _Progress] = {}

    def __repr__(self) -> str:
        return f"OffsetTable({len(self._table)} queues, {len(self.unsaved())} unsaved)"

    def __len__(self) -> int:
        return len(self._table)

    def begin(self, queue: TopicQueue, offset: int, *, stored: bool) -> None:
        """Start a queue: at what the store said (`stored`), or at what it does not know yet."""
        self._table[queue] = _Progress(offset, offset if stored else None)

    def note(self, queue: TopicQueue, offset: int, *, only_up: bool = True) -> bool:
        """Note that everything below is done; tell whether that is news.

        With `only_up` a lower number is ignored. A frozen queue does not move.
        """
        found = self._table.get(queue)
        if found is None:
            self._table[queue] = _Progress(offset, None)
            return True
        if found.frozen or offset == found.offset or (only_up and offset < found.offset):
            return False
        found.offset = offset
        return True

    def freeze(self, queue: TopicQueue, offset: int) -> None:
        """Set an offset and let nothing move it until the queue is forgotten."""
        saved = self._table[queue].saved if queue in self._table else None
        self._table[queue] = _Progress(offset, saved, frozen=True)

    def get(self, queue: TopicQueue) -> int:
        """Return the noted offset, or NOT_STORED."""
        found = self._table.get(queue)
        return NOT_STORED if found is None else found.offset

    def is_unsaved(self, queue: TopicQueue) -> bool:
        """Tell whether the store does not know the noted offset yet."""
        found = self._table.get(queue)
        return found is not None and found.saved != found.offset

    def unsaved(self, queues: Iterable[TopicQueue] | None = None) -> dict[TopicQueue, int]:
        """Return what is to be saved (of these queues; default: of all)."""
        chosen = self._table if queues is None else queues
        return {queue: self._table[queue].offset for queue in chosen if self.is_unsaved(queue)}

    def saved(self, queue: TopicQueue, offset: int) -> None:
        """Note that the store took an offset."""
        found = self._table.get(queue)
        if found is not None:
            found.saved = offset

    def forget(self, queue: TopicQueue) -> None:
        """Drop a queue that was released."""
        self._table.pop(queue, None)

    def items(self) -> list[tuple[TopicQueue, int]]:
        """Return all offsets, sorted by queue."""
        return sorted((queue, found.offset) for queue, found in self._table.items())
