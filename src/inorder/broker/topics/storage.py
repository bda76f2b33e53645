"""Changes of topics that `topics.json` does not have yet, and directories that inorder cannot read.

The broker saves `topics.json` in a thread (`broker/durability`), and sends do not wait for it. So a
topic may hold acknowledged messages before the file has the topic. A kill would leave the messages
and forget the number of queues, on which the order of keys depends. `TopicNotes` therefore appends
every change to `topics.json.new` at once, as safe as a message is by the flush mode. The next start
applies the changes that `topics.json` lacks. Decision 7 gives the reasons.

`refuse_foreign` looks for unreadable queues of Apache RocketMQ before anything is written. It only
reads, without the lock of the directory. What it cannot read is left to the start itself, which
reports it. The rules are in `broker/topics/rules`.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from inorder.broker.topics.rules import NOT_HERE, TOPICS_SHOWN, problems
from inorder.disk import File, Files
from inorder.errors import RemoteProtocolError, StoreError
from inorder.logs import get_logger
from inorder.wire.requests.topics import TopicTable as TopicTableBody
from inorder.wire.requests.topics import decode_topic_config, encode_topic_config

if TYPE_CHECKING:
    from inorder.broker.topics.rules import TopicChange, TopicTable

log = get_logger(__name__)
NOTES_BYTES_MAX: Final = 64 * 1024 * 1024


_DELETED: Final = b"null"


class _Note(msgspec.Struct):
    counter: int
    name: str
    config: msgspec.Raw


class TopicNotes:
    """The changes of topics since `topics.json` was last saved, one line each.

    A line carries the version of the table after the change. A line whose version is not above that
    of the saved table is old.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._file: File | None = None
        self._size = 0

    def __repr__(self) -> str:
        return f"TopicNotes({str(self._path)!r}, bytes={self._size})"

    def add(self, changes: list[TopicChange], *, covered: bool, durable: bool) -> None:
        """Append changes; `covered`: all earlier changes are in `topics.json`.

        If the disk fails, the next save of `topics.json` has them.
        """
        try:
            self._add(changes, covered=covered, durable=durable)
        except OSError as error:
            log.error("changes of topics are not written file=%s error=%s", self._path, error)

    def _add(self, changes: list[TopicChange], *, covered: bool, durable: bool) -> None:
        if self._file is None:
            self._files.makedirs(self._path.parent)
            self._file = self._files.open(self._path, create=True)
            self._file.truncate(0)
            self._size = 0
            if durable:
                self._files.fsync_dir(self._path.parent)
        elif covered:
            self._file.truncate(0)
            self._size = 0
        text = b"".join([_line(change) for change in changes])
        if self._size + len(text) > NOTES_BYTES_MAX:
            return  # the saves are far behind, so the disk is in trouble
        self._file.pwrite(text, self._size)
        self._size += len(text)
        if durable:
            self._file.fdatasync()

    def close(self, *, remove: bool) -> None:
        """Close the file; remove it after a clean stop."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if remove:
            self._files.remove(self._path)

    def load(self, topics: TopicTable, now_ms: int) -> int:
        """Apply the changes that the saved table lacks; return how many."""
        if not self._files.exists(self._path):
            return 0
        file = self._files.open(self._path)
        try:
            content = file.pread(min(file.size(), NOTES_BYTES_MAX), 0)
        finally:
            file.close()
        saved = topics.data_version.counter
        found = 0
        for line in content.split(b"\n"):
            try:
                note = msgspec.json.decode(line, type=_Note)
                text = bytes(note.config)
                config = None if text == _DELETED else decode_topic_config(text)
            except (msgspec.MsgspecError, UnicodeError, RemoteProtocolError):
                continue  # cut by a crash: nobody relied on an incomplete line
            if note.counter > saved:
                found += 1
                if config is None:
                    topics.delete(note.name, now_ms)
                elif topics.get(note.name) != config:
                    topics.put(config, now_ms)
        if found:
            log.warning("changes of topics after the last save of topics.json: %d", found)
        return found


def _line(change: TopicChange) -> bytes:
    counter, name, config = change
    raw = _DELETED if config is None else encode_topic_config(config)
    return msgspec.json.encode(_Note(counter, name, msgspec.Raw(raw))) + b"\n"


def refuse_foreign(files: Files, root: Path) -> None:
    """Refuse a directory with queues that inorder cannot read.

    Raises:
        StoreError: there are such queues; nothing was changed.
    """
    found = problems(
        _attributes(files, root / "config" / "topics.json"),
        _with_files(files, root / "batchconsumequeue"),
        _with_files(files, root / "compaction" / "compactionLog"),
        ours=files.exists(root / "inorder" / "positions"),
    )
    if found:
        more = "" if len(found) <= TOPICS_SHOWN else f"; and {len(found) - TOPICS_SHOWN} more"
        raise StoreError(
            f"{root} holds queues of Apache RocketMQ that inorder cannot read, and nothing of it "
            f"was changed: {'; '.join(found[:TOPICS_SHOWN])}{more}. Leave the directory to "
            "RocketMQ, or delete these topics there, with their queues, and try again"
        )


def _attributes(files: Files, path: Path) -> dict[str, dict[str, str]]:
    for one in (path, path.with_name(path.name + ".bak")):
        with contextlib.suppress(OSError, RemoteProtocolError):
            content = _read(files, one)
            if not any(value.encode() in content for value in NOT_HERE.values()):
                return {}
            topics = TopicTableBody.decode(content).topics
            return {name: config.attributes for name, config in topics.items()}
    return {}


def _read(files: Files, path: Path) -> bytes:
    file = files.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def _with_files(files: Files, folder: Path) -> list[str]:
    """Return the topics below a folder of `<topic>/<queue id>/<file>` that have a file."""
    return [
        topic
        for topic in files.listdir(folder)
        if files.is_dir(folder / topic)
        and any(
            files.listdir(folder / topic / queue)
            for queue in files.listdir(folder / topic)
            if files.is_dir(folder / topic / queue)
        )
    ]
