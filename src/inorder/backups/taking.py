"""Taking a backup: a folder that counts once its last file, the manifest, is there.

    TARGET/segments/<position>.<checksum>   whole files of the log; all backups share them
    TARGET/000003/state/...                 tables and journals
    TARGET/000003/last                      the last file of the log, up to the end
    TARGET/000003/manifest.json             what belongs to it, with checksums
    TARGET/000004/state/...                 without a manifest: a backup that is being taken, or
                                            that was killed; the next one removes it

A whole file of the log never changes, so a later backup into the same target copies only the new
ones, also after one that was killed. Files that no backup names go after the next. The directory
itself is only read; how the state of one moment is found: `state.py`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from inorder.backups.copying import (
    Advance,
    copy,
    read,
    read_whole,
    write_durably,
)
from inorder.backups.maps import versions_of
from inorder.backups.rules import FORMAT, Manifest, SegmentFile, StateFile, decode, encode
from inorder.backups.state import (
    Head,
    LogFiles,
    Moved,
    check_unchanged,
    copy_state,
    notes_of,
    read_head,
)
from inorder.broker.leases.storage import Start
from inorder.clock import Clock
from inorder.disk import File, Files
from inorder.errors import RemoteProtocolError, StoreError
from inorder.ordering.fence import Generations
from inorder.store.faults import NO_ROOM
from inorder.store.layout import Layout
from inorder.wire.record import BLANK, scan

TRIES_MAX: Final = 200
SAMPLE_BYTES: Final = 64 * 1024
MANIFEST: Final = "manifest.json"
LAST: Final = "last"
STATE: Final = "state"
SEGMENTS: Final = "segments"
PART: Final = ".part"
LOCK: Final = "lock"
NUMBER: Final = re.compile(r"\d{6,}")
SHARED: Final = re.compile(r"(\d{20})\.([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Taken:
    """A backup that was taken, and how many bytes of it were copied."""

    path: Path
    manifest: Manifest
    copied_bytes: int


@dataclass(frozen=True, slots=True)
class _Captured:
    head: Head
    files: list[StateFile]


class Taking:
    """One backup."""

    def __init__(
        self,
        files: Files,
        clock: Clock,
        root: Path,
        target: Path,
        *,
        made_by: str,
        advance: Advance = lambda _more: None,
    ) -> None:
        """`made_by` names the release; `advance` hears of bytes that are done."""
        self._files = files
        self._clock = clock
        self._root = root
        self._layout = Layout(root)
        self._target = target
        self._made_by = made_by
        self._copied = 0
        self._advance = advance

    def run(self) -> Taken:
        """Take the backup; it is on disk when this returns.

        Raises:
            StoreError: it could not be taken; nothing of it counts.
        """
        files, target = self._files, self._target
        self._refuse_own_folder()
        with contextlib.suppress(Moved):  # a start or a stop, which `_capture` waits for
            read_head(files, self._layout)
        part: Path | None = None
        try:
            files.makedirs(target / SEGMENTS)
            with files.lock(target / LOCK, b"backup"):
                self._sweep()
                part = target / f"{1 + max(map(int, complete(files, target)), default=0):06d}"
                taken = self._take(part)
                self._prune()
                return taken
        except BlockingIOError:
            raise StoreError(f"another backup to {target} is being taken") from None
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            if part is not None:
                self._sweep()
                self._prune()
            raise StoreError(
                f"{target} is full: {error}. The unfinished backup was removed, and the directory "
                "of the broker is as it was; make room, or choose another target"
            ) from error

    def _refuse_own_folder(self) -> None:
        root, target = self._root.absolute(), self._target.absolute()
        if root == target or root in target.parents:
            raise StoreError(f"{target} lies in the data directory: choose another target")
        if self._files.exists(target / "commitlog"):
            raise StoreError(f"{target} is a data directory: choose another target")

    def _sweep(self) -> None:
        """Remove what killed backups have left."""
        files, target = self._files, self._target
        for name in files.listdir(target):
            if NUMBER.fullmatch(name) and not files.exists(target / name / MANIFEST):
                files.remove_tree(target / name)
        for name in files.listdir(target / SEGMENTS):
            if name.endswith(PART):
                files.remove(target / SEGMENTS / name)

    def _prune(self) -> None:
        """Remove the files of the log that no backup names."""
        files, target = self._files, self._target
        manifests = [manifest_at(files, target / one) for one in complete(files, target)]
        named = {one.name for manifest in manifests for one in manifest.segments}
        for name in files.listdir(target / SEGMENTS):
            if name not in named:
                files.remove(target / SEGMENTS / name)

    def _take(self, part: Path) -> Taken:
        files, target = self._files, self._target
        log = LogFiles(files, self._layout)
        try:
            captured = self._capture(part, log)
            segments = self._copy_log(part, captured.head, log)
        finally:
            log.close()
        manifest = self._manifest(part, captured, segments)
        for folder in (part / STATE, part, target / SEGMENTS, target):
            files.fsync_dir(folder)
        for parent in target.absolute().parents:  # this backup may have made some of them
            with contextlib.suppress(PermissionError):
                files.fsync_dir(parent)
        draft = part / f"{MANIFEST}{PART}"
        write_durably(files, draft, encode(manifest))
        files.rename(draft, part / MANIFEST)
        files.fsync_dir(part)
        return Taken(part, manifest, self._copied)

    def _capture(self, part: Path, log: LogFiles) -> _Captured:
        """Copy the state of one moment."""
        why = ""
        for _ in range(TRIES_MAX):
            self._files.remove_tree(part)
            self._files.makedirs(part / STATE)
            log.close()
            try:
                return self._capture_once(part, log)
            except Moved as moved:
                why = str(moved)
        raise StoreError(
            f"the state of {self._root} changed {TRIES_MAX} times while it was read, last because "
            f"{why}: try again when there is less to do, or start the broker on it once"
        )

    def _capture_once(self, part: Path, log: LogFiles) -> _Captured:
        files, root = self._files, self._root
        before = read_head(files, self._layout)
        log.take()
        noted = notes_of(files, root)
        copied = copy_state(files, root, part / STATE, self._done)
        head = read_head(files, self._layout)
        check_unchanged(files, root, copied)
        now = notes_of(files, root)
        if (noted.dropped, noted.token, noted.clean) != (now.dropped, now.token, now.clean):
            raise Moved("a topic was deleted, or the broker stopped or started")
        if read_head(files, self._layout).token != head.token or before.token != head.token:
            raise Moved("the broker stopped or started")
        log.take()
        return _Captured(head, copied)

    def _done(self, count: int) -> None:
        self._copied += count
        self._advance(count)

    # -- the log ---------------------------------------------------------------------------------

    def _copy_log(self, part: Path, head: Head, log: LogFiles) -> list[SegmentFile]:
        shared = self._shared()
        found = []
        size = head.segment_bytes
        expected = min(log.open, default=0)
        for position in sorted(log.open):
            if position >= head.end:
                break
            if position != expected:
                raise StoreError(f"{self._layout.commitlog} has no file for position {expected}")
            expected += size
            file = log.open[position]
            if position + size <= head.end:
                same = self._same(file, position, size, shared.get(position, ()))
                found.append(same or self._share(file, position, size))
                continue
            length = head.end - position
            digest = copy(self._files, file, length, part / LAST, size=length, advance=self._done)
            found.append(SegmentFile(position, length, digest, LAST))
            self._check_records(part / LAST, position, length)
        if head.end != (found[-1].position + found[-1].size if found else 0):
            raise StoreError(
                f"{self._layout.commitlog} ends before position {head.end}, up to which messages "
                "were acknowledged; start the broker once, then back it up"
            )
        return found

    def _shared(self) -> dict[int, list[str]]:
        """Return the checksums of the whole files of the log that the target has, by position."""
        found: dict[int, list[str]] = {}
        for name in self._files.listdir(self._target / SEGMENTS):
            match = SHARED.fullmatch(name)
            if match is not None:
                found.setdefault(int(match[1]), []).append(match[2])
        return found

    def _same(
        self, file: File, position: int, size: int, digests: Iterable[str]
    ) -> SegmentFile | None:
        """Return a file that the target has, if it begins and ends with the same bytes."""
        for digest in digests:
            name = _shared_name(position, digest)
            shared = self._files.open(self._target / SEGMENTS / name)
            try:
                if shared.size() == size and self._looks_same(file, shared, size):
                    self._advance(size)
                    return SegmentFile(position, size, digest, name)
            finally:
                shared.close()
        return None

    @staticmethod
    def _looks_same(one: File, other: File, size: int) -> bool:
        count = min(SAMPLE_BYTES, size)
        return all(read(one, count, at) == read(other, count, at) for at in (0, size - count))

    def _share(self, file: File, position: int, size: int) -> SegmentFile:
        folder = self._target / SEGMENTS
        draft = folder / f"{position:020d}{PART}"
        digest = copy(self._files, file, size, draft, size=size, advance=self._done)
        name = _shared_name(position, digest)
        self._files.rename(draft, folder / name)
        return SegmentFile(position, size, digest, name)

    def _check_records(self, path: Path, position: int, length: int) -> None:
        """Raise StoreError unless the copied end of the log is record after record."""
        file = self._files.open(path)
        try:
            at, window = 0, 1 << 20
            while at < length:
                data = read(file, min(window, length - at), at)
                before = at
                found = scan(data, 0, len(data), position_of_at=position + at)
                for record in found:
                    at = record.position + record.size - position
                if found.reason == BLANK:
                    at = length
                elif at == before:
                    need = int.from_bytes(data[:4], "big", signed=True)
                    if not len(data) < need <= length - at:
                        raise StoreError(
                            f"{self._layout.commitlog} has no valid record at position "
                            f"{position + at}, and messages up to {position + length} were "
                            "acknowledged; start the broker once, then back it up"
                        )
                    window = need
                    continue
                window = 1 << 20
        finally:
            file.close()

    def _manifest(self, part: Path, captured: _Captured, segments: list[SegmentFile]) -> Manifest:
        files, head = self._files, captured.head
        state = part / STATE
        try:
            start = msgspec.json.decode(
                read_whole(files, state / "inorder" / "start.json"), type=Start
            )
        except (FileNotFoundError, msgspec.MsgspecError) as error:
            raise StoreError(
                f"{self._root}/inorder/start.json cannot be read ({error}): start the broker on "
                "the directory once, then back it up"
            ) from None
        generations = Generations()
        chapters = state / "inorder" / "chapters.json"
        if files.exists(chapters):
            generations.decode(read_whole(files, chapters))
        return Manifest(
            FORMAT, self._made_by, self._clock.now_ms(),
            segments[0].position if segments else head.end, head.end,
            head.segment_bytes, head.queue_file_bytes, head.token, start.start,
            max(start.generation, generations.highest), versions_of(files, state),
            captured.files, segments,
        )  # fmt: skip


def _shared_name(position: int, digest: str) -> str:
    return f"{position:020d}.{digest}"


def complete(files: Files, target: Path) -> list[str]:
    """Return the names of the complete backups, oldest first."""
    names = [name for name in files.listdir(target) if NUMBER.fullmatch(name)]
    return sorted((one for one in names if files.exists(target / one / MANIFEST)), key=int)


def manifest_at(files: Files, path: Path) -> Manifest:
    """Return the manifest of a backup.

    Raises:
        StoreError: it cannot be read.
    """
    try:
        return decode(read_whole(files, path / MANIFEST))
    except FileNotFoundError:
        raise StoreError(f"{path} is no complete backup: it has no {MANIFEST}") from None
    except RemoteProtocolError as error:
        raise StoreError(f"{path / MANIFEST} cannot be used: {error}") from None
