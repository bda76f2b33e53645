"""One flush of the derived files, prepared by the owner of the store and run in any thread.

The order is the promise: the log first, then queues and index, then the notes that say so. A plan
only carries values and opens files of its own, so the store goes on meanwhile.

After a kill nobody knows which queue files the process before had written and not synced: `walk`
is the part of the log whose records tell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inorder.disk import Files
from inorder.errors import NoDescriptors, StoreFailed
from inorder.store.checkpoint import Checkpoint
from inorder.store.commitlog import CommitLog
from inorder.store.faults import NO_DESCRIPTORS, NO_ROOM, Kind, Meaning, Step, judge
from inorder.store.layout import ENTRY_BYTES, Layout, file_name
from inorder.store.logscan import LogScan
from inorder.store.positions import Positions, PositionsFile

WRITE_BACK_FILES: Final = 64


@dataclass(slots=True)
class FlushPlan:
    """What to sync, and what is true afterwards."""

    files: Files
    layout: Layout
    log: CommitLog
    positions_file: PositionsFile
    paths: list[Path]
    directories: list[Path]
    positions: Positions
    checkpoint: Checkpoint
    walk: tuple[int, int] | None = None
    queue_file_bytes: int = 0
    sync_ends: Callable[[], None] = lambda: None
    done: bool = False

    def run(self) -> None:
        """Sync everything, then note it. May run in any thread, one plan at a time.

        Raises:
            StoreFailed: a sync failed; the store takes no more writes.
            NoDescriptors: not all files could be opened; the next plan has them, too.
        """
        self.finish(self.log.sync())

    def finish(self, durable: int) -> None:
        """Sync the derived files and note it: the log has been synced up to `durable`."""
        try:
            self._sync_files()
            self.sync_ends()
        except OSError as error:
            self._fail("syncing queues and index", error)
        self.positions = self.positions.moved(log=durable)
        try:
            self.positions_file.write_synced(self.positions)
            self.checkpoint.save(self.files, self.layout)
        except OSError as error:
            if error.errno in NO_ROOM | NO_DESCRIPTORS:  # the notes stay behind for now
                return
            self._fail("writing the checkpoint", error)
        self.done = True

    def _sync_files(self) -> None:
        if self.walk is not None:
            self._add_walked(*self.walk)
        if len(self.paths) > WRITE_BACK_FILES:
            self.files.write_back()
        for path in self.paths:
            try:
                file = self.files.open(path)
            except FileNotFoundError:  # dropped since
                continue
            try:
                file.fdatasync()
            finally:
                file.close()
        for directory in self.directories:
            if self.files.is_dir(directory):
                self.files.fsync_dir(directory)

    def _add_walked(self, start: int, end: int) -> None:
        """Add the queue files and directories of the records in a part of the log."""
        size = self.queue_file_bytes
        seen: dict[tuple[str, int, int], None] = {}
        for record in LogScan(self.log.segments, start):
            if record.position >= end:
                break
            at = record.queue_offset * ENTRY_BYTES
            seen[record.topic, record.queue_id, at - at % size] = None
        directories = dict.fromkeys(self.directories)
        for topic, queue_id, base in seen:
            directory = self.layout.queue(topic, queue_id)
            self.paths.append(directory / file_name(base))
            directories[directory] = directories[directory.parent] = None
        directories[self.layout.consumequeue] = directories[self.layout.index] = None
        self.directories = list(directories)

    def _fail(self, name: str, error: OSError) -> None:
        if judge(Kind.LOG, Step.SYNC, error.errno) is Meaning.RETRY:
            raise NoDescriptors(f"{name} is not done yet: {error}") from error
        self.log.fail(f"{name} failed: {error}; restart to recover")
        raise StoreFailed(self.log.failed) from error
