"""The files of an archive, on any file system that Arrow knows: local, S3, HDFS and others.

A file is written under a hidden name and moved into place whole. The drafts of a killed task are
never read, and the next run sweeps them away.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from inorder.spark.jobs.rules import ArchiveFile, parse_name

ROW_GROUP_ROWS: Final = 131_072
_DICTIONARY: Final = ["topic", "broker", "key", "tag", "properties.key_value.key"]
_STATISTICS: Final = ["queue", "offset", "key", "stored_at", "born_at"]


class Folder:
    """A folder of an archive. Safe to pickle: the file system is opened where it is used.

    A relative path counts from the driver's directory; workers run elsewhere.
    """

    def __init__(self, path: str) -> None:
        self.path = path if "://" in path else os.path.abspath(path)

    def open(self) -> tuple[Any, str]:
        """Return the file system and the path there."""
        if "://" in self.path:
            found: tuple[Any, str] = pafs.FileSystem.from_uri(self.path)
            return found
        return pafs.LocalFileSystem(), self.path

    def files(self, topics: Iterable[str] | None = None) -> list[ArchiveFile]:
        """Return all files of the archive, or those of some topics."""
        wanted = None if topics is None else set(topics)
        found = (parse_name(name, size_bytes) for name, size_bytes in self._listed())
        return [
            one
            for one in found
            if one is not None and (wanted is None or one.queue.topic in wanted)
        ]

    def url(self, file: ArchiveFile) -> str:
        """Return where Spark finds a file."""
        return f"{self.path.rstrip('/')}/{file.name}"

    def has(self, file: ArchiveFile) -> bool:
        """Return whether a file is there."""
        system, root = self.open()
        (info,) = system.get_file_info([f"{root}/{file.name}"])
        return bool(info.type == pafs.FileType.File)

    def remove(self, files: Iterable[ArchiveFile]) -> None:
        """Remove files; missing ones are no error."""
        system, root = self.open()
        for one in files:
            try:
                system.delete_file(f"{root}/{one.name}")
            except FileNotFoundError:
                continue  # another run removed it

    def sweep(self) -> int:
        """Remove drafts that killed tasks left; return how many."""
        system, root = self.open()
        stale = [name for name, _ in self._listed() if name.rpartition("/")[2].startswith(".part-")]
        for name in stale:
            system.delete_file(f"{root}/{name}")
        return len(stale)

    @contextmanager
    def reading(self, file: ArchiveFile) -> Iterator[Any]:
        """Give a file as Parquet."""
        system, root = self.open()
        with pq.ParquetFile(f"{root}/{file.name}", filesystem=system) as opened:
            yield opened

    def _listed(self) -> Iterator[tuple[str, int]]:
        system, root = self.open()
        selector = pafs.FileSelector(root, recursive=True, allow_not_found=True)
        for info in system.get_file_info(selector):
            if info.type == pafs.FileType.File:
                yield info.path[len(root) :].lstrip("/"), info.size


class Draft:
    """A file that is being written."""

    def __init__(self, folder: Folder, file: ArchiveFile, schema: Any) -> None:
        self._system, root = folder.open()
        self._root, self._directory = root, f"{root}/{file.folder}"
        self._system.create_dir(self._directory, recursive=True)
        host, label = socket.gethostname(), f"{file.queue.index}-{file.start}"
        self._path = f"{self._directory}/.part-{host}-{os.getpid()}-{label}"
        self._schema = schema
        self._stream = self._system.open_output_stream(self._path)
        names = set(schema.names)
        self._writer = pq.ParquetWriter(
            self._stream, schema, compression="zstd",
            use_dictionary=[name for name in _DICTIONARY if name.split(".")[0] in names],
            write_statistics=[name for name in _STATISTICS if name in names],
        )  # fmt: skip
        self._waiting: list[Any] = []
        self._rows = 0

    def add(self, batch: Any) -> None:
        """Take rows."""
        self._waiting.append(batch)
        self._rows += batch.num_rows
        if self._rows >= ROW_GROUP_ROWS:
            self._write()

    def finish(self, file: ArchiveFile) -> None:
        """Put the file in its place, durably, over one of the same name."""
        self._write()
        self._writer.close()
        self._stream.close()
        if isinstance(self._system, pafs.LocalFileSystem):
            _sync(self._path)
        self._system.move(self._path, f"{self._root}/{file.name}")
        if isinstance(self._system, pafs.LocalFileSystem):
            _sync(self._directory)

    def drop(self) -> None:
        """Remove the draft."""
        self._writer.close()
        self._stream.close()
        self._system.delete_file(self._path)

    def _write(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, self._schema)
            self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
            self._waiting, self._rows = [], 0


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
