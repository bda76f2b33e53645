"""What a consumer did: counts for its user, and per topic for whoever asks by the broker."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class TopicCounts:
    """What was done of one topic."""

    handled: int = 0
    failed: int = 0
    handling_ms: int = 0
    pulled: int = 0
    pulls: int = 0
    pulling_ms: int = 0


@dataclass(slots=True)
class Counts:
    """What was done of all topics; `since_ms` is the clock's at the start."""

    handled: int = 0
    failed: int = 0
    sent_back: int = 0
    dead_lettered: int = 0
    parked: int = 0
    dropped: int = 0
    pulled: int = 0
    outlived: int = 0
    since_ms: int = 0
    topics: dict[str, TopicCounts] = field(default_factory=dict)

    def of(self, topic: str) -> TopicCounts:
        """Return the counts of a topic."""
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = TopicCounts()
        return found

    def ended(self, topic: str, handled: int, failed: int, spent_ms: int) -> None:
        """Count what handlers did."""
        self.handled += handled
        self.failed += failed
        counts = self.of(topic)
        counts.handled += handled
        counts.failed += failed
        counts.handling_ms += spent_ms

    def dead(self, count: int) -> None:
        """Count messages that were dead-lettered."""
        self.dead_lettered += count

    def arrived(self, topic: str, count: int, spent_ms: int) -> None:
        """Count a pull that found messages."""
        self.pulled += count
        counts = self.of(topic)
        counts.pulled += count
        counts.pulls += 1
        counts.pulling_ms += spent_ms
