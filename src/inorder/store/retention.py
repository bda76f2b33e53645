"""What may be deleted: a pure decision from ages and free disk space, and the code that deletes.

RocketMQ's rules: segments go oldest first, never the last one, at most ten a run. In the hours of
`delete_when`, when the disk is fuller than `disk_used_ratio_max`, or when an operator asks for it,
expired segments go (by the time of their last change). Above `disk_clean_forcibly_ratio` segments
go whether they are expired or not. Above `disk_full_ratio` writes are refused until usage is below
the forcible ratio again.

inorder adds two rules. A segment stays until the queue entries of its records are on disk, because
after the segment is gone only the entries say at which offset a queue continues. And it stays while
something still has to read it (`Store.keep_from`), such as producers' sequence numbers that are in
the log and not yet in a snapshot, timers that wait and halves that are pending. Neither rule yields
to a full disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from inorder.config import StoreConfig
from inorder.disk import DiskUsage
from inorder.logs import get_logger

if TYPE_CHECKING:
    from inorder.store.store import Store

log = get_logger(__name__)

SEGMENTS_PER_RUN: Final = 10
HOUR_MS: Final = 3_600_000
FULL_RATIO_RANGE: Final = (0.35, 0.90)
FORCIBLY_RATIO_RANGE: Final = (0.30, 0.85)


@dataclass(frozen=True, slots=True)
class CleanReport:
    """The files that a run deleted, and whether the disk is too full for writes."""

    segments: int = 0
    queue_files: int = 0
    index_files: int = 0
    disk_full: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """How many of the oldest segments to delete, and why writes are refused, if they are."""

    segments: int
    disk_full: str | None


def decide(
    ages_ms: Sequence[int],
    *,
    config: StoreConfig,
    local_hour: int,
    used_ratio: float,
    full_before: str | None,
    asked: bool = False,
) -> Decision:
    """Decide by the ages of the segments that may go, oldest first (the last is not among them)."""
    full_ratio = _clamp(config.disk_full_ratio, FULL_RATIO_RANGE)
    forcibly_ratio = _clamp(config.disk_clean_forcibly_ratio, FORCIBLY_RATIO_RANGE)
    full = full_before
    if used_ratio > full_ratio:
        full = f"the disk is {used_ratio:.0%} full, above diskSpaceWarningLevelRatio={full_ratio}"
    elif used_ratio <= forcibly_ratio:
        full = None
    at_once = used_ratio > forcibly_ratio
    due = (
        asked or at_once or used_ratio > config.disk_used_ratio_max or local_hour in _hours(config)
    )
    count = 0
    if due:
        for age_ms in ages_ms[:SEGMENTS_PER_RUN]:
            if not at_once and age_ms < config.retention_hours * HOUR_MS:
                break
            count += 1
    return Decision(count, full)


def _clamp(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])


def _hours(config: StoreConfig) -> set[int]:
    return {int(hour) for hour in config.delete_when.split(";") if hour.strip().isdigit()}


def clean(
    store: Store, now_ms: int, local_hour: int, usage: DiskUsage, *, asked: bool = False
) -> CleanReport:
    """Decide and remove segments, then queue files and index files that only point below them."""
    segments = store.log.segments
    needed_from = store.flushed_position
    if store.keep_from is not None:
        needed_from = min(needed_from, store.keep_from)
    candidates = [segment for segment in segments.items[:-1] if segment.end <= needed_from]
    decision = decide(
        [now_ms - store.modified_ms(segment.path) for segment in candidates[:SEGMENTS_PER_RUN]],
        config=store.config,
        local_hour=local_hour,
        used_ratio=usage.used_ratio,
        full_before=store.disk_trouble,
        asked=asked,
    )
    if decision.segments:  # noted first: after a kill the files would look lost otherwise
        store.note_taken(segments.items[decision.segments].position)
    for _ in range(decision.segments):
        dropped = segments.drop_first()
        log.info("dropped segment=%s", dropped.path.name)
    if not decision.segments:
        return CleanReport(disk_full=decision.disk_full)
    segments.sync_directory()
    queue_files, index_files = follow_log(store)
    store.note_taken(segments.min_position)
    return CleanReport(decision.segments, queue_files, index_files, decision.disk_full)


def follow_log(store: Store) -> tuple[int, int]:
    """Begin queues and index where the log begins; return how many files of each were deleted.

    A queue that was not used since the start follows when it is used.
    """
    queue_files = 0
    for queue in store.queues.loaded():
        before = queue.first_file
        store.queues.set_min_offset(queue)
        queue_files += (queue.first_file - before) // store.config.queue_file_bytes
    return queue_files, store.keys.drop_before(store.log.min_position)
