"""All queues of a directory compared with its log, without changing anything.

It may run beside a broker: entries below the noted ends change no more. Of a directory without
notes of ours, the log says where queues end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from inorder.disk import Files
from inorder.errors import StoreError
from inorder.store.ends import EndsFile
from inorder.store.intact import LIGHT_PREFIX
from inorder.store.layout import Layout
from inorder.store.mending import Mended, Wanted, mend
from inorder.store.positions import PositionsFile
from inorder.store.segments import Segments

SEGMENT_BYTES: Final = 1024 * 1024 * 1024
QUEUE_FILE_BYTES: Final = 6_000_000


@dataclass(slots=True)
class Comparison:
    """What was compared, and what differs."""

    queues: int = 0
    entries: int = 0
    log_bytes: int = 0
    problems: list[str] = field(default_factory=list)
    """What is wrong beside queues."""
    differing: list[Mended] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Tell whether nothing differs."""
        return not self.problems and not self.differing


def compare(files: Files, root: Path, delays_ms: Sequence[int]) -> Comparison:
    """Compare the queues of a data directory with its log.

    Raises:
        StoreError: it is no data directory, or its log has a hole.
    """
    layout = Layout(root)
    if not files.is_dir(layout.commitlog):
        raise StoreError(f"{root} is no data directory of a broker: it has no commitlog")
    positions = PositionsFile(files, layout)
    written, synced = positions.load()
    positions.close()
    known = written or synced
    segments = Segments(files, layout, known.segment_bytes if known else SEGMENT_BYTES)
    segments.load(short_allowed=False)
    notes = EndsFile(files, layout).load()
    found = Comparison(log_bytes=sum(one.size for one in segments.items))
    if notes is not None and notes.damaged:
        found.problems.append(notes.damaged)
    if notes is not None and segments.min_position > notes.kept:
        low, high = notes.kept, segments.min_position - 1
        found.problems.append(f"positions {low} to {high} of the log are missing")
    ends = {} if notes is None else {key: noted.end for key, noted in notes.ends.items()}
    dropped = {} if notes is None else notes.dropped
    keys = {*_on_disk(files, layout), *ends}
    wanted = [
        Wanted(topic, queue_id, ends.get((topic, queue_id)), dropped.get(topic, 0))
        for topic, queue_id in sorted(keys)
        if not topic.startswith(LIGHT_PREFIX)
    ]
    log_end = segments.items[-1].end if segments.items else 0
    if notes is not None:  # behind it nothing is noted yet
        log_end = min(log_end, max(notes.position, known.queues if known else 0))
    try:
        done = mend(
            files, layout, segments, wanted, delays_ms,
            log_end=log_end,
            queue_file_bytes=known.queue_file_bytes if known else QUEUE_FILE_BYTES,
            dry=True,
        )  # fmt: skip
    finally:
        segments.close()
    found.queues = len(done)
    found.entries = sum(one.end - one.first for one in done)
    found.differing = [one for one in done if one.changed or one.lost]
    return found


def _on_disk(files: Files, layout: Layout) -> set[tuple[str, int]]:
    return {
        (topic, int(name))
        for topic in files.listdir(layout.consumequeue)
        for name in files.listdir(layout.consumequeue / topic)
        if name.isascii() and name.isdigit()
    }
