"""Restoring a backup into an empty directory, which a broker then opens like its own.

    1. `restoring` is written: no broker starts here until it is gone (`broker/damage/storage`)
    2. everything is copied and compared with its checksum
    3. the store makes queues and index from the log, and is closed cleanly
    4. `start.json` takes numbers above all that the broker has given out since the backup, and says
       that the end of the log is lost: the first start begins a new generation in every queue, and
       nobody resumes a lease. Key maps are raised if the caller says so
    5. `restoring` is removed

A restore that is killed is begun again from the start. Why: decision 58.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from inorder.backups import rules
from inorder.backups.copying import Advance, copy, read_whole, write_durably
from inorder.backups.maps import Maps
from inorder.backups.rules import Manifest, SegmentFile, StateFile
from inorder.backups.taking import LAST, MANIFEST, SEGMENTS, STATE, complete, manifest_at
from inorder.broker.leases.storage import Start
from inorder.clock import Clock
from inorder.config import StoreConfig
from inorder.disk import Files
from inorder.errors import StoreError
from inorder.store import ends
from inorder.store.faults import NO_ROOM
from inorder.store.layout import RESTORING, Layout, file_name
from inorder.store.store import Store

IGNORED: Final = ("lost+found",)
RUN: Final = "inorder restored"
"""Stands in `abort` and in the noted ends of queues, so that they count."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the caller says of the time since the backup."""

    above_version: int | None = None
    keep_versions: bool = False
    above_generation: int | None = None


@dataclass(frozen=True, slots=True)
class Restored:
    """A restored directory."""

    path: Path
    manifest: Manifest
    messages: int
    """How many messages the queues hold."""
    start: int
    generation: int
    """The one that the first start begins."""
    versions: dict[str, int]
    """The key maps that were raised."""
    problems: list[str]


def find(files: Files, source: Path) -> Path:
    """Return the folder of a backup: `source` itself, or the last complete one in it.

    Raises:
        StoreError: there is no complete backup.
    """
    if files.exists(source / MANIFEST):
        return source
    names = complete(files, source)
    if names:
        return source / names[-1]
    raise StoreError(f"{source} holds no complete backup")


class Restoring:
    """One restore."""

    def __init__(
        self,
        files: Files,
        clock: Clock,
        source: Path,
        root: Path,
        config: StoreConfig,
        *,
        wanted: Wanted,
        advance: Advance = lambda _more: None,
        rebuilding: Callable[[], None] = lambda: None,
    ) -> None:
        """`advance` hears of copied bytes; `rebuilding` is called when queues are made."""
        self._files = files
        self._clock = clock
        self._source = find(files, source)
        self._root = root
        self._wanted = wanted
        self._advance = advance
        self._rebuilding = rebuilding
        self.manifest = manifest_at(files, self._source)
        self._config = replace(
            config,
            segment_bytes=self.manifest.segment_bytes,
            queue_file_bytes=self.manifest.queue_file_bytes,
        )

    def run(self) -> Restored:
        """Restore; the directory is on disk and complete when this returns.

        Raises:
            StoreError: the backup is incomplete or damaged, or the directory is not empty.
            UsageError: the options do not fit the backup.
        """
        manifest, wanted, files = self.manifest, self._wanted, self._files
        rules.check_versions(manifest.maps, wanted.above_version, keep=wanted.keep_versions)
        generation = rules.next_generation(manifest.generation, wanted.above_generation)
        self._check_complete()
        try:
            self._begin()
            self._copy_all()
            self._make_notes()
            self._rebuilding()
            store = Store.open(self._root, self._config, files, self._clock)
            try:
                restored = self._finish(store, generation)
            finally:
                store.abandon()
            files.remove(self._root / RESTORING)
            files.fsync_dir(self._root)
            return restored
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise StoreError(
                f"{self._root} is full: {error}. The restore is not finished, and no broker starts "
                "there; make room and restore again"
            ) from error

    def _check_complete(self) -> None:
        """Raise StoreError if a file of the backup is missing or has another size."""
        for path, size in self._sources():
            try:
                found = self._files.info(path).size
            except FileNotFoundError:
                raise StoreError(f"{self._source} is not complete: {path} is missing") from None
            if found != size:
                raise StoreError(f"{path} has {found} bytes, not {size}: the backup is damaged")

    def _sources(self) -> list[tuple[Path, int]]:
        manifest = self.manifest
        return [(self._of_segment(one), one.size) for one in manifest.segments] + [
            (self._source / STATE / one.path, one.size) for one in manifest.files
        ]

    def _of_segment(self, one: SegmentFile) -> Path:
        return (
            self._source / LAST if one.name == LAST else self._source.parent / SEGMENTS / one.name
        )

    def _begin(self) -> None:
        files, root = self._files, self._root
        files.makedirs(root)
        names = [name for name in files.listdir(root) if name not in IGNORED]
        if names and RESTORING not in names:
            raise StoreError(f"{root} is not empty: restore into a new directory")
        if RESTORING not in names:
            write_durably(files, root / RESTORING, str(self._source).encode())
            for folder in (root, root.parent):
                files.fsync_dir(folder)
        for name in names:
            if name != RESTORING:
                path = root / name
                (files.remove_tree if files.is_dir(path) else files.remove)(path)
        free = files.usage(root).free
        if free < self.manifest.size:
            raise StoreError(
                f"{root} has {free} bytes of room and the backup {self.manifest.size}: make room, "
                "or choose another directory"
            )

    def _copy_all(self) -> None:
        files, root = self._files, self._root
        for folder in ("commitlog", "config", "inorder"):
            files.makedirs(root / folder)
        for segment in self.manifest.segments:
            target = Layout(root).commitlog / file_name(segment.position)
            self._copy(self._of_segment(segment), segment, target, size=self._config.segment_bytes)
        folders: dict[Path, None] = {root: None, root / "commitlog": None}
        for one in self.manifest.files:
            target = root / one.path
            files.makedirs(target.parent)
            self._copy(self._source / STATE / one.path, one, target, size=one.size)
            folders[target.parent] = None
        for written in folders:
            files.fsync_dir(written)

    def _copy(self, path: Path, one: SegmentFile | StateFile, target: Path, *, size: int) -> None:
        file = self._files.open(path)
        try:
            digest = copy(self._files, file, one.size, target, size=size, advance=self._advance)
        finally:
            file.close()
        if digest != one.sha256:
            raise StoreError(
                f"{path} is damaged: its checksum is wrong. Restore another backup; {self._root} "
                "is not finished, and no broker starts there"
            )

    def _make_notes(self) -> None:
        """Let the noted ends of queues count for the log that was copied, as after a kill."""
        files, layout, token = self._files, Layout(self._root), self.manifest.token
        file = ends.EndsFile(files, layout)
        notes = file.load()
        if notes is None:
            return
        if notes.token == token if token else notes.clean:
            file.begin(notes, ends.Begun(RUN, self._config.queue_file_bytes), (), 0)
            write_durably(files, layout.abort, RUN.encode())
        file.close()
        files.fsync_dir(self._root)

    def _finish(self, store: Store, generation: int) -> Restored:
        manifest, wanted = self.manifest, self._wanted
        if store.log.end_position != manifest.end:
            raise StoreError(
                f"the log of the backup ends at position {store.log.end_position} and not at "
                f"{manifest.end}: it is damaged; restore another backup"
            )
        versions = {}
        if wanted.above_version is not None:
            maps = Maps(self._files, self._root)
            for topic, now in maps.topics().items():
                found = {queue.queue_id: queue.visible_offset for queue in store.queues_of(topic)}
                raised = rules.raised(now, wanted.above_version, found)
                maps.put(topic, raised)
                versions[topic] = raised.version
            if versions:
                maps.save()
        start = self._save_start(generation)
        queues = [one for topic in store.queues.topics() for one in store.queues_of(topic)]
        messages = sum(one.visible_offset - one.min_offset for one in queues)
        problems = [*store.recovery.problems, *map(str, store.recovery.losses)]
        store.close()
        return Restored(self._root, manifest, messages, start, generation, versions, problems)

    def _save_start(self, generation: int) -> int:
        """Take numbers above all that the broker has given out; return that of the starts."""
        folder = self._root / "inorder"
        before = msgspec.json.decode(read_whole(self._files, folder / "start.json"), type=Start)
        start = rules.next_start(before.start, self._clock.now_ms())
        # Not clean, and of no boot: the next start takes the end of the log for lost, which
        # begins the generation after this one.
        after = msgspec.structs.replace(
            before, start=start, boot_id="", clean=False, generation=generation - 1
        )
        self._files.remove(folder / "start.json.bak")
        write_durably(self._files, folder / "start.json", msgspec.json.encode(after))
        self._files.fsync_dir(folder)
        return start
