"""Signs of life: which members of a group that hold leases have fallen silent.

A frozen process keeps its connection and so its place in the list of members, and nobody else is
given its queues. Our clients say every fraction of a second that they are there. Who has begun to
and says nothing for the length of its leases is left out of the list until it speaks again.
Time is monotonic.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)


class SignsOfLife(Generic[C]):
    """(group, connection) to when it must have spoken again."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, C], tuple[int, int]] = {}  # deadline, span
        # One entry per member, made again when it is popped too early.
        self._deadlines: list[tuple[int, int, tuple[str, C]]] = []
        self._serial = 0

    def __repr__(self) -> str:
        return f"SignsOfLife({len(self._until)} members)"

    def __len__(self) -> int:
        return len(self._until)

    def note(self, group: str, connection: C, now_ms: int, span_ms: int | None = None) -> bool:
        """Note a sign; tell whether it is the first one, or the first after a silence.

        Without `span_ms` only who has given one before is noted.
        """
        member = (group, connection)
        known = self._until.get(member)
        if known is None:
            if span_ms is None:
                return False
            self._push(now_ms + span_ms, member)
        span = known[1] if span_ms is None and known is not None else span_ms
        assert span is not None, "it is known or given"
        self._until[member] = (now_ms + span, span)
        return known is None

    def forget(self, matches: Callable[[str, C], bool]) -> None:
        """Expect nothing more of members that went."""
        for member in [one for one in self._until if matches(*one)]:
            del self._until[member]

    def silent(self, now_ms: int, is_unread: Callable[[C], bool]) -> list[tuple[str, C]]:
        """Take out who has been silent for too long, unless we do not read its connection."""
        found = []
        kept = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, _, member = heapq.heappop(self._deadlines)
            known = self._until.get(member)
            if known is None:
                continue
            if known[0] > now_ms:
                kept.append((known[0], member))
            elif is_unread(member[1]):
                kept.append((now_ms + known[1] // 8 + 1, member))
            else:
                del self._until[member]
                found.append(member)
        for deadline, member in kept:
            self._push(deadline, member)
        return found

    def is_due(self, now_ms: int) -> bool:
        """Tell whether somebody is silent; deadlines of those that spoke are put off."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_ms:
            member = deadlines[0][2]
            known = self._until.get(member)
            if known is None:
                heapq.heappop(deadlines)
            elif known[0] > now_ms:
                heapq.heappop(deadlines)
                self._push(known[0], member)
            else:
                return True
        return False

    def next_deadline_ms(self) -> int | None:
        """Return when `silent` may find somebody, or None."""
        return self._deadlines[0][0] if self._deadlines else None

    def _push(self, deadline_ms: int, member: tuple[str, C]) -> None:
        self._serial += 1
        heapq.heappush(self._deadlines, (deadline_ms, self._serial, member))
