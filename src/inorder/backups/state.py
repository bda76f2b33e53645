"""The state of a directory at one moment, read beside a running broker, which is not asked.

A kill of the broker leaves, at any moment, files that fit each other: every table and journal
refers to messages that are in the log already. So the state is read like this:

    1. where the log ends is noted, and all files of the log are opened: what retention deletes
       from now on can still be read
    2. the tables are copied, then the journals as far as they are written
    3. the end of the log is read: it holds every message to which 2 refers
    4. tables and the beginnings of journals are read again. If one of them has changed, this was
       not the state of one moment, and all begins anew

The queues and the key index are made from the log again, and no part of a backup.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inorder.backups.copying import Advance, copy, digest_of
from inorder.backups.rules import StateFile
from inorder.disk import File, Files
from inorder.errors import StoreError
from inorder.store import ends
from inorder.store.checkpoints import (
    FILE_NAME,
    SLOT,
    SYNCED_AT,
    TAIL_AT,
    TAIL_BYTES,
    WRITTEN_AT,
    Checkpoint,
    Positions,
    Tail,
    run_of,
)
from inorder.store.layout import Layout, parse_name
from inorder.store.recovery import read_abort

FOLDERS: Final = ("config", "namesrv", "inorder")
"""The folders with tables and journals; the journals come last."""
OWN: Final = "inorder"
JOURNALS: Final = re.compile(r"inorder/(owners|ends)\.\d{6,}")
"""Files that only grow."""
NOT_COPIED: Final = ("inorder/positions", "inorder/identity.json")
"""What belongs to this directory alone: a restored one is another broker for name servers."""


class Moved(Exception):
    """The state changed while it was read."""


@dataclass(frozen=True, slots=True)
class Head:
    """Who writes the directory, and where its log ends."""

    token: str
    """The content of `abort`; empty after a clean stop."""
    end: int
    segment_bytes: int
    queue_file_bytes: int


def read_head(files: Files, layout: Layout) -> Head:
    """Return the end of the log that the broker has noted.

    Raises:
        StoreError: only a start of the broker can tell where the log ends.
        Moved: the broker is starting or stopping right now.
    """
    path = layout.own / FILE_NAME
    try:
        file = files.open(path)
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(f"{layout.root} is not the data directory of an inorder broker") from None
    try:
        written = Positions.unpack(file.pread(SLOT.size, WRITTEN_AT))
        synced = Positions.unpack(file.pread(SLOT.size, SYNCED_AT))
        tail = Tail.unpack(file.pread(TAIL_BYTES, TAIL_AT))
    finally:
        file.close()
    abort = read_abort(files, layout)
    slot = next((one for one in (written, synced) if one is not None and one.segment_bytes), None)
    if slot is None:
        raise Moved(f"{path} says nothing")
    if abort is None:
        if not slot.clean:
            raise Moved("it was stopped by another broker")
        if slot.checkpoint_crc != Checkpoint.load(files, layout).crc():
            raise _start_first(layout, "another broker has used it since inorder did")
        return Head("", slot.log, slot.segment_bytes, slot.queue_file_bytes)
    if slot.token != abort or tail is None or tail.run != run_of(abort):
        raise Moved("it was not inorder that used it last")
    if slot.boot_id != files.boot_id():
        raise _start_first(layout, "the machine was restarted since its broker ran")
    return Head(abort, tail.position, slot.segment_bytes, slot.queue_file_bytes)


def _start_first(layout: Layout, why: str) -> StoreError:
    return StoreError(f"{layout.root}: {why}; start the broker on it once, then back it up")


class LogFiles:
    """The files of a log, held open: what is deleted meanwhile can still be read."""

    def __init__(self, files: Files, layout: Layout) -> None:
        self._files = files
        self._layout = layout
        self.open: dict[int, File] = {}

    def take(self) -> None:
        """Open the files that are there and not open yet."""
        found = [(name, parse_name(name)) for name in self._files.listdir(self._layout.commitlog)]
        new = [(name, at) for name, at in found if at is not None and at not in self.open]
        if len(new) + len(self.open) > self._files.descriptors_max() - 64:
            raise StoreError(
                f"the log has {len(new)} files and this process may open "
                f"{self._files.descriptors_max()}: raise the limit with `ulimit -n`"
            )
        for name, at in new:
            try:
                self.open[at] = self._files.open(self._layout.commitlog / name)
            except FileNotFoundError:
                raise Moved("retention took a file") from None

    def close(self) -> None:
        """Give the descriptors back."""
        for file in self.open.values():
            file.close()
        self.open.clear()


def state_names(files: Files, root: Path) -> list[str]:
    """Return the paths of all tables, then of the journals."""
    found: list[str] = []

    def look(folder: str) -> None:
        for name in files.listdir(root / folder):
            path = f"{folder}/{name}"
            if files.is_dir(root / path):
                look(path)
            elif not name.endswith((".tmp", ".corrupt")) and path not in NOT_COPIED:
                found.append(path)

    for folder in FOLDERS:
        look(folder)
    return sorted(found, key=lambda path: (JOURNALS.fullmatch(path) is not None, path))


def copy_state(files: Files, root: Path, target: Path, advance: Advance) -> list[StateFile]:
    """Copy all tables and journals below a new folder."""
    copied = []
    for path in state_names(files, root):
        files.makedirs((target / path).parent)
        try:
            file = files.open(root / path)
        except FileNotFoundError:
            raise Moved(f"{path} went") from None
        try:
            size = file.size()
            digest = copy(files, file, size, target / path, size=size, advance=advance)
        except FileNotFoundError:
            raise Moved(f"{path} became shorter") from None
        finally:
            file.close()
        copied.append(StateFile(path, size, digest))
    for folder in {(target / one.path).parent for one in copied}:
        files.fsync_dir(folder)
    return copied


def check_unchanged(files: Files, root: Path, copied: list[StateFile]) -> None:
    """Raise Moved if a table, or the copied part of a journal, is another than when it was read."""
    if state_names(files, root) != [one.path for one in copied]:
        raise Moved("files came or went")
    for one in copied:
        try:
            file = files.open(root / one.path)
        except FileNotFoundError:
            raise Moved(f"{one.path} went") from None
        try:
            size = file.size()
            grows = JOURNALS.fullmatch(one.path) is not None
            if size < one.size or (size > one.size and not grows):
                raise Moved(f"{one.path} has another size")
            if digest_of(file, one.size) != one.sha256:
                raise Moved(f"{one.path} has changed")
        except FileNotFoundError:
            raise Moved(f"{one.path} became shorter") from None
        finally:
            file.close()


def notes_of(files: Files, root: Path) -> ends.Notes:
    """Return the noted ends of queues; Moved if they cannot be read now."""
    try:
        notes = ends.EndsFile(files, Layout(root)).load()
    except FileNotFoundError:
        raise Moved("the noted ends were folded") from None
    return ends.Notes() if notes is None else notes
