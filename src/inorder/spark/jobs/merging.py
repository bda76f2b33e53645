"""Small files of an archive into large ones, in the order of their messages.

A merged file is put in its place first, then those that it holds are removed: whoever reads the
archive through `read_archive` sees every message once at any time. Others may, for that moment, see
some twice, never one less.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from inorder.spark.jobs.files import Draft, Folder
from inorder.spark.jobs.layout import ArchiveFile, merged_name, parse_name, sift, to_merge
from inorder.spark.schema import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_BYTES_MAX: Final = 256 << 20
TASKS_MAX: Final = 8
_ROW: Final = pa.schema([("file", pa.string()), ("files", pa.int64())])


def merge(
    spark: SparkSession,
    *,
    path: str,
    topics: tuple[str, ...] | None = None,
    bytes_max: int = FILE_BYTES_MAX,
) -> int:
    """Merge neighbours into files of at most `bytes_max`; return how many files went away."""
    folder = Folder(path)
    files, superseded = sift(folder.files(topics))
    folder.remove(superseded)
    groups = list(to_merge(files, bytes_max=bytes_max))
    if not groups:
        return 0
    spark.dataSource.register(MergeSource)
    names = ["|".join(one.name for one in group) for group in groups]
    frame = (
        spark.read.format("inorder-merge").options(path=folder.path, files="\n".join(names)).load()
    )
    return sum(row.files - 1 for row in frame.collect())


class MergeSource(DataSource):
    """A table of merged files: reading it merges them."""

    @classmethod
    def name(cls) -> str:
        """Return what stands in `format(...)`."""
        return "inorder-merge"

    def schema(self) -> str:
        """Return the columns: a row is a file that was made."""
        return "file string, files bigint"

    def reader(self, schema: Any) -> DataSourceReader:
        """Return the reader that merges."""
        groups = [line.split("|") for line in self.options["files"].split("\n")]
        return MergeReader(self.options["path"], groups)


class GroupPartition(InputPartition):
    """Groups of files, each to become one."""

    def __init__(self, groups: list[list[str]]) -> None:
        super().__init__(None)
        self.groups = groups


class MergeReader(DataSourceReader):
    """Merges groups of files."""

    def __init__(self, path: str, groups: list[list[str]]) -> None:
        self._path = path
        self._groups = groups

    def partitions(self) -> list[InputPartition]:
        """Return the groups, shared out."""
        tasks = min(TASKS_MAX, len(self._groups))
        return [GroupPartition(self._groups[at::tasks]) for at in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Merge the groups of a task."""
        if not isinstance(partition, GroupPartition):
            return
        folder = Folder(self._path)
        for names in partition.groups:
            files = [file for file in map(parse_name, names) if file is not None]
            made = merge_files(folder, files)
            yield pa.RecordBatch.from_pydict(
                {"file": [made.name], "files": [len(files)]}, schema=_ROW
            )


def merge_files(folder: Folder, files: list[ArchiveFile]) -> ArchiveFile:
    """Make one file of neighbours, then remove them."""
    made = merged_name(files)
    if folder.has(made):  # by an attempt that was killed when it had begun to remove
        folder.remove(files)
        return made
    draft = Draft(folder, made, arrow_schema())
    try:
        for one in files:
            with folder.reading(one) as opened:
                for batch in opened.iter_batches():
                    draft.add(batch)
    except BaseException:
        draft.drop()
        raise
    draft.finish(made)
    folder.remove(files)
    return made
