"""What to read, decided without Spark and without a network: ranges, shares of a limit, partitions.

Places are written as Spark's checkpoint holds them: `{"orders": {"broker-a": {"0": 17}}}`, in
Python a dict from TopicQueue to offset. One task reads a queue from front to back. A queue is not
cut into pieces unless the user gave up order. Many queues share a partition, because a partition
costs about 50 ms in every micro-batch.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from inorder.errors import ConfigError, StoreError
from inorder.model import TopicQueue

Places = dict[TopicQueue, int]

EARLIEST = -2
LATEST = -1


@dataclass(frozen=True, slots=True)
class Range:
    """Messages of one queue, from `start` up to, not including, `end`."""

    queue: TopicQueue
    start: int
    end: int

    @property
    def count(self) -> int:
        """Return how many offsets it spans."""
        return self.end - self.start


class DataLoss(StoreError):
    """Messages were removed before they were read."""


def to_json(places: Mapping[TopicQueue, int]) -> dict[str, dict[str, dict[str, int]]]:
    """Return places as the checkpoint holds them."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(places):
        brokers = found.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker, {})[str(queue.index)] = places[queue]
    return found


def from_json(value: object, option: str) -> Places:
    """Read places; ConfigError names the option if they are none."""
    try:
        return {
            TopicQueue(topic, broker, _index(index)): _offset(offset)
            for topic, brokers in value.items()  # type: ignore[attr-defined]
            for broker, queues in brokers.items()
            for index, offset in queues.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(
            f"{option}: {str(value)[:120]!r} does not say where; write "
            '{"topic": {"broker": {"0": 17}}}, with -2 for the oldest message and -1 for the end'
        ) from None


def _index(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError(text)
    return int(text)


def _offset(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < EARLIEST:
        raise ValueError(value)
    return value


def resolve(wanted: Mapping[TopicQueue, int], oldest: Places, ends: Places) -> Places:
    """Put offsets in place of EARLIEST and LATEST."""
    special = {EARLIEST: oldest, LATEST: ends}
    return {
        queue: special[offset][queue] if offset < 0 else offset
        for queue, offset in wanted.items()
        if queue in ends
    }


def ranges(
    start: Mapping[TopicQueue, int],
    end: Mapping[TopicQueue, int],
    oldest: Mapping[TopicQueue, int] | None = None,
) -> list[Range]:
    """Return the ranges between two places; a queue missing in `start` is read from its oldest.

    Queues that end before they start (a topic was made again) span nothing here.
    """
    first = oldest or {}
    found = [Range(q, start.get(q, first.get(q, 0)), end[q]) for q in sorted(end)]
    return [span for span in found if span.count > 0]


def lost(
    start: Mapping[TopicQueue, int],
    oldest: Mapping[TopicQueue, int],
    ends: Mapping[TopicQueue, int],
) -> list[str]:
    """Return a line for each queue whose unread messages are gone."""
    found = []
    for queue, offset in sorted(start.items()):
        if queue not in ends:
            found.append(f"{queue.topic} {queue.broker}/{queue.index} is gone, read up to {offset}")
        elif offset < oldest[queue]:
            found.append(
                f"{queue.topic} {queue.broker}/{queue.index}: {offset} to {oldest[queue]} were "
                "removed before they were read"
            )
        elif offset > ends[queue]:
            found.append(
                f"{queue.topic} {queue.broker}/{queue.index} ends at {ends[queue]}, yet {offset} "
                "were read: the topic was made again, or the log lost its end"
            )
    return found


@dataclass(frozen=True, slots=True)
class SourceSpan:
    """A past version of a topic's key map: where it ended in each queue."""

    topic: str
    version: int
    ends: Mapping[TopicQueue, int]


def finished(
    start: Mapping[TopicQueue, int],
    ends: Mapping[TopicQueue, int],
    spans: Iterable[SourceSpan],
) -> Places:
    """Return the queues that were read to their end and that a resize then removed."""
    gone = {queue: offset for queue, offset in start.items() if queue not in ends}
    last: Places = {}
    for span in spans:
        for queue, end in span.ends.items():
            last[queue] = max(end, last.get(queue, 0))
    return {queue: offset for queue, offset in gone.items() if offset >= last.get(queue, 1 << 63)}


def unread(
    start: Mapping[TopicQueue, int],
    ends: Mapping[TopicQueue, int],
    spans: Iterable[SourceSpan],
) -> Places:
    """Return the ends of queues that a resize removed before they were read to their end."""
    found: Places = {}
    for span in spans:
        for queue, end in span.ends.items():
            if queue not in ends and start.get(queue, 0) < end:
                found[queue] = max(end, found.get(queue, 0))
    return found


def withheld(
    start: Mapping[TopicQueue, int],
    ends: Mapping[TopicQueue, int],
    spans: Iterable[SourceSpan],
) -> Places:
    """Return how far queues may be read so that no key overtakes itself where a topic was resized.

    A key may lie in another queue in the next span. So all queues are read to the end of a
    span before any is read beyond it.
    """
    found = dict(ends)
    done: set[str] = set()
    for span in sorted(spans, key=lambda one: (one.topic, one.version)):
        if span.topic in done:
            continue
        # A queue that is not known yet has not been read.
        if any(start.get(q, 0) < end for q, end in span.ends.items()):
            done.add(span.topic)
            for queue in ends:
                if queue.topic == span.topic:
                    limit = max(start[queue], span.ends.get(queue, 0))
                    found[queue] = min(found[queue], limit)
    return found


def share(start: Mapping[TopicQueue, int], ends: Mapping[TopicQueue, int], limit: int) -> Places:
    """Return how far each queue may go with at most `limit` messages, by its share of the backlog.

    Every queue with a backlog gets one message at least if the limit allows it: none starves.
    """
    backlog = {q: max(0, end - start.get(q, 0)) for q, end in ends.items()}
    total = sum(backlog.values())
    if total <= limit:
        return dict(ends)
    behind = sorted((q for q in backlog if backlog[q]), key=lambda q: (-backlog[q], q))
    given = dict.fromkeys(behind[:limit], 1)
    rest, weight = limit - len(given), total - len(given)
    for queue in given:
        given[queue] += (backlog[queue] - 1) * rest // weight
    left = limit - sum(given.values())
    for queue in behind:
        more = min(left, backlog[queue] - given.get(queue, 0))
        given[queue] = given.get(queue, 0) + more
        left -= more
    return {q: start.get(q, 0) + given[q] if q in given else end for q, end in ends.items()}


def pack(spans: Iterable[Range], partitions_max: int) -> list[tuple[Range, ...]]:
    """Put whole queues into at most so many partitions of about equal size."""
    found = sorted(spans, key=lambda span: (-span.count, span.queue))
    bins: list[list[Range]] = [[] for _ in range(min(partitions_max, len(found)))]
    sizes = [0] * len(bins)
    for span in found:
        at = min(range(len(bins)), key=lambda index: (sizes[index], index))
        bins[at].append(span)
        sizes[at] += span.count
    return [tuple(sorted(chosen, key=lambda span: span.queue)) for chosen in bins]


def pack_by_queue(spans: Iterable[Range], partitions_max: int) -> list[tuple[Range, ...]]:
    """Put whole queues into partitions by their number: a queue stays with its companions.

    For streams: caches that a task keeps for its queues stay of use from batch to batch. The queues
    of a broker go to one partition after the other; with which it begins is drawn from its name.
    """
    found = sorted(spans, key=lambda span: span.queue)
    if len(found) <= partitions_max:
        return [(span,) for span in found]
    bins: dict[int, list[Range]] = {}
    for span in found:
        first = zlib.crc32(f"{span.queue.topic}/{span.queue.broker}".encode())
        bins.setdefault((first + span.queue.index) % partitions_max, []).append(span)
    return [tuple(bins[at]) for at in sorted(bins)]


def split(spans: Iterable[Range], count_max: int) -> list[tuple[Range, ...]]:
    """Cut ranges into pieces of at most `count_max` messages; there is no order between pieces."""
    return [
        (Range(span.queue, start, min(start + count_max, span.end)),)
        for span in spans
        for start in range(span.start, span.end, count_max)
    ]
