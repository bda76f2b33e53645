"""How many messages groups were given in the last minute, hour and day; and lowest offsets.

`Deliveries` counts what pulls return, group by group. A sample every ten seconds keeps the totals
of the groups that were given something since the one before, so an idle group costs nothing. What
topics were sent is not counted at all: the log knows when each message was stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from inorder.wire.requests.statistics import StatsData, WindowStats

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000
SAMPLE_MS: Final = 10_000
GROUPS_MAX: Final = 10_000
"""Pairs of topic and group that are counted; further ones have no statistics."""
NOT_BEHIND: Final = (1 << 63) - 1
"""RocketMQ's offset for a queue on which the compared group is behind all others."""

# (length of a window, time between the samples that are kept for it)
_WINDOWS: Final = ((MINUTE_MS, SAMPLE_MS), (HOUR_MS, 600_000), (DAY_MS, HOUR_MS))

Pair = tuple[str, str]


class _History:
    """The totals of one group on one topic, and samples of them for each window."""

    __slots__ = ("bytes", "changed_ms", "messages", "pulls", "samples")

    def __init__(self, now_ms: int) -> None:
        self.messages = self.pulls = self.bytes = 0
        self.changed_ms = now_ms
        self.samples = tuple(deque([(now_ms, 0, 0)]) for _ in _WINDOWS)

    def add(self, messages: int, pulls: int, size: int, before_ms: int, now_ms: int) -> None:
        """Count what was given between two samples."""
        for kept, (window_ms, every_ms) in zip(self.samples, _WINDOWS, strict=True):
            if before_ms - kept[-1][0] >= every_ms:
                kept.append((before_ms, self.messages, self.pulls))
            while len(kept) > 1 and kept[1][0] <= now_ms - window_ms:
                kept.popleft()
        self.messages += messages
        self.pulls += pulls
        self.bytes += size
        self.changed_ms = now_ms

    def window(self, index: int, now_ms: int, fresh: tuple[int, int]) -> WindowStats:
        """Return what was given in a window, with what was not sampled yet."""
        window_ms = _WINDOWS[index][0]
        start = (self.changed_ms, self.messages, self.pulls)
        if self.changed_ms > now_ms - window_ms:
            start = self.samples[index][0]
            for sample in self.samples[index]:
                if sample[0] > now_ms - window_ms:
                    break
                start = sample
        messages = self.messages + fresh[0] - start[1]
        pulls = self.pulls + fresh[1] - start[2]
        return window_of(messages, min(now_ms - start[0], window_ms), pulls)


def window_of(messages: int, span_ms: int, requests: int) -> WindowStats:
    """Return the statistics of a span of time."""
    rate = messages * 1000 / span_ms if span_ms > 0 else 0.0
    return WindowStats(messages, rate, messages / requests if requests else 0.0)


class Deliveries:
    """Messages given to groups, by topic and group."""

    def __init__(self) -> None:
        self.fresh: dict[Pair, list[int]] = {}
        """Messages, pulls, bytes since the last sample; whoever answers a pull counts here."""
        self._known: dict[Pair, _History] = {}
        self._before_ms = 0

    def count(self, topic: str, group: str, messages: int, size: int) -> None:
        """Count the messages of one answer and their bytes."""
        # hot: 0.2 us an answered pull
        found = self.fresh.get((topic, group))
        if found is None:
            self.fresh[topic, group] = [messages, 1, size]
        else:
            found[0] += messages
            found[1] += 1
            found[2] += size

    def sample(self, now_ms: int) -> None:
        """Keep the totals of the groups that were given something; call it every ten seconds."""
        fresh, self.fresh = self.fresh, {}
        before_ms, self._before_ms = self._before_ms, now_ms
        for pair, (messages, pulls, size) in fresh.items():
            history = self._known.get(pair)
            if history is None:
                if len(self._known) >= GROUPS_MAX:
                    continue
                history = self._known[pair] = _History(before_ms)
            history.add(messages, pulls, size, before_ms, now_ms)

    def totals(self) -> Iterator[tuple[Pair, int, int]]:
        """Return how many messages and bytes each topic gave each group since the start."""
        for pair in list(self._known):
            history, fresh = self._known.get(pair), self.fresh.get(pair)
            if history is not None:
                messages, _, size = (0, 0, 0) if fresh is None else fresh
                yield pair, history.messages + messages, history.bytes + size
        for pair in [one for one in self.fresh if one not in self._known]:
            fresh = self.fresh.get(pair)
            if fresh is not None:
                yield pair, fresh[0], fresh[2]

    def of(self, topic: str, group: str, now_ms: int) -> StatsData | None:
        """Return the statistics of a group on a topic; None: it was given nothing."""
        pair = (topic, group)
        history, fresh = self._known.get(pair), self.fresh.get(pair)
        if history is None:
            if fresh is None:
                return None
            history = _History(self._before_ms)
        more = (0, 0) if fresh is None else (fresh[0], fresh[1])
        return StatsData(*(history.window(index, now_ms, more) for index in range(3)))

    def forget(self, *, topic: str = "", group: str = "") -> None:
        """Forget a topic or a group that was deleted."""
        for table in (self._known, self.fresh):
            for pair in [one for one in table if topic == one[0] or group == one[1]]:
                del table[pair]


def correction_offsets(
    offsets: Iterable[tuple[str, Mapping[int, int]]],
    firsts: Mapping[int, int],
    *,
    compare: Mapping[int, int],
    left_out: Iterable[str],
) -> dict[int, int]:
    """Return the lowest offset of each queue over all groups, without those that are left out.

    Offsets below the first message of a queue do not count. A queue on which the compared group is
    behind all others has NOT_BEHIND, as in RocketMQ.
    """
    ignored = set(left_out)
    lowest: dict[int, int] = {}
    for group, queues in offsets:
        if group in ignored:
            continue
        for queue_id, offset in queues.items():
            if offset >= firsts.get(queue_id, 0):
                lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
    for queue_id, offset in compare.items():
        if lowest.get(queue_id, NOT_BEHIND) > offset:
            lowest[queue_id] = NOT_BEHIND
    return lowest
