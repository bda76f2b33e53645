"""Telling a log from another: the checksum of the bytes before a position.

What is saved beside the log names the position that it depends on and this checksum, so that a log
that lost its end and grew again, or was put there from elsewhere, is not taken for the same.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from inorder.errors import RemoteProtocolError

if TYPE_CHECKING:
    from inorder.store.commitlog import CommitLog

FINGERPRINT_BYTES: Final = 256


def fingerprint(commit_log: CommitLog, position: int) -> int:
    """Return the checksum of the bytes before a position."""
    segment = commit_log.segments.find(position - 1) if position else None
    if segment is None:
        return 0
    start = max(segment.position, position - FINGERPRINT_BYTES)
    return zlib.crc32(segment.read(position - start, start))


def check_fits(commit_log: CommitLog, depends_on: int, log_crc: int) -> None:
    """Raise RemoteProtocolError unless the log is the one that something depends on."""
    if depends_on > commit_log.end_position:
        raise RemoteProtocolError(
            f"it depends on the log up to {depends_on}, which was lost: it ends at "
            f"{commit_log.end_position}"
        )
    if depends_on > commit_log.min_position and log_crc != fingerprint(commit_log, depends_on):
        raise RemoteProtocolError(f"the log before {depends_on} is another one")
