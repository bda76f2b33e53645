"""What a power cut under async flush may take, and no more: the rest is judged as ever.

Nobody promises that a message survives which was acknowledged and not synced when the power went.
So at every cut the messages of that broker behind its synced position are written down, and when it
is back, where its queues end. Excused are those messages alone, if they were acknowledged before
and are not stored. Offsets behind such an end are given out again: what a commit said before the
cut is judged up to there, for below it the queue holds the same messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from inorder.checker import Committed, Event, Stored


@dataclass(frozen=True)
class Cut:
    """One power cut of one broker."""

    broker: str
    back_s: float
    """When it started again."""
    unsynced: frozenset[str]
    """The ids of messages that were not on disk."""
    ends: dict[str, int] = field(default_factory=dict)
    """Where its queues ended then; one that is not here was lost as a whole."""

    def end(self, queue: str) -> int | None:
        """Return where a queue ended, by its name (`queue_name`); None: of another broker."""
        _, broker, _ = queue.rsplit("/", 2)
        return self.ends.get(queue, 0) if broker == self.broker else None


def may_miss(id_: str, acked_s: float, cuts: Iterable[Cut]) -> bool:
    """Tell whether a cut may have taken a message that was acknowledged then."""
    return any(acked_s <= cut.back_s and id_ in cut.unsynced for cut in cuts)


def without_lost(
    events: Sequence[Event], acked: Mapping[str, float], cuts: Sequence[Cut]
) -> list[Event]:
    """Return what is to be judged."""
    stored = {event.id for event in events if isinstance(event, Stored)}
    gone = {id_ for id_, at_s in acked.items() if id_ not in stored and may_miss(id_, at_s, cuts)}
    kept = [event for event in events if getattr(event, "id", None) not in gone]
    return [_shortened(one, cuts) if isinstance(one, Committed) else one for one in kept]


def _shortened(commit: Committed, cuts: Iterable[Cut]) -> Committed:
    """Return what a commit says of messages that no later cut took."""
    ends = (cut.end(commit.queue) for cut in cuts if commit.at_ns < int(cut.back_s * 1e9))
    lowest = min((end for end in ends if end is not None), default=commit.offset)
    return replace(commit, offset=min(commit.offset, lowest))
