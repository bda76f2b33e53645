"""Looking at single records in the log without trusting the position that led to them."""

from __future__ import annotations

from inorder.store.commitlog import CommitLog
from inorder.wire.record import ScannedRecord, scan


def record_at(log: CommitLog, position: int, *, check_crc: bool = False) -> ScannedRecord | None:
    """Return the head of the record that begins exactly at `position`, None if none does."""
    segment = log.segments.find(position)
    if segment is None or not 0 <= position < log.end_position:
        return None
    found = scan(
        segment.view(),
        position - segment.position,
        min(segment.end, log.end_position) - segment.position,
        position_of_at=position,
        check_crc=check_crc,
    )
    return next(found, None)


def record_matches(
    log: CommitLog, position: int, size: int, *, topic: str, queue_id: int, queue_offset: int
) -> bool:
    """Tell whether a queue entry names the record that it should."""
    record = record_at(log, position)
    return record is not None and (
        (record.size, record.topic, record.queue_id, record.queue_offset)
        == (size, topic, queue_id, queue_offset)
    )
