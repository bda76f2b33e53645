"""A topic into Parquet files by day and queue, each message once; and the way back to rows.

    archive        a streaming query. A task pulls its range of a queue, writes the files of that
                   range and gives Spark one row per file, so no message passes the JVM. The
                   checkpoint lies in the archive and says which ranges are done. A repeated range
                   writes the same files again (`spark/jobs/rules.py`). Without its checkpoint, an
                   archive continues after its last files.
    read_archive   the archive as rows, each message once, also while files are being merged
    merge          small files into large ones, in the order of their messages. The merged file is
                   put in place first, and its parts are removed then: `read_archive` sees every
                   message once at any time. Other readers may see some twice for that moment, and
                   never miss one.

How the jobs know what is done: decision 36.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from inorder.errors import ConfigError
from inorder.spark.cluster import Servers, Tls
from inorder.spark.jobs.files import Draft, Folder
from inorder.spark.jobs.progress import Watch, follow, unwatched
from inorder.spark.jobs.rules import (
    ArchiveFile,
    ends,
    holes,
    merged_name,
    parse_name,
    sift,
    to_merge,
)
from inorder.spark.source.options import SourceOptions, arrow_schema, parse, spark_schema
from inorder.spark.source.rules import EARLIEST, Range, to_json
from inorder.spark.source.service import MessagePartition, Portion, StreamReader, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE_ROWS: Final = 1 << 20
BATCH_MESSAGES: Final = 2_000_000
DAY_US: Final = 86_400_000_000
_WRITTEN_ROW: Final = pa.schema([("file", pa.string()), ("messages", pa.int64())])


@dataclass(frozen=True, slots=True)
class Archived:
    """The messages that an archive job wrote, and the content of the archive."""

    topics: tuple[str, ...]
    path: str
    archived: int
    batches: int
    files: int
    size_bytes: int
    holds: dict[str, dict[str, dict[str, int]]]
    holes: int
    merged: int


def archive(
    spark: SparkSession,
    *,
    namesrv: str | None = None,
    topic: str,
    path: str,
    group: str | None = None,
    tag: str = "*",
    batch: int = BATCH_MESSAGES,
    every_s: float | None = None,
    fail_on_data_loss: bool = True,
    merge: bool = True,
    checkpoint: str | None = None,
    watch: Watch = unwatched,
    tls: Tls | None = None,
    credentials_file: str | None = None,
) -> Archived:
    """Write the messages of a topic that the archive lacks to Parquet files below `path`.

    `topic` may name several, separated by commas. `every_s` goes on for ever, with a batch every so
    many seconds. `group` shows the progress in every tool. `batch` bounds the messages of a
    micro-batch, so what is read twice after a kill. `merge` joins small files at the end.
    """
    folder = Folder(path)
    path = folder.path
    options = {
        **Servers.of(namesrv, tls, credentials_file).options(),
        "topic": topic, "tag": tag, "maxOffsetsPerTrigger": str(batch),
        "failOnDataLoss": str(fail_on_data_loss).lower(), "archivePath": path,
        **({} if group is None else {"group": group}),
    }  # fmt: skip
    topics = parse({key: options[key] for key in options if key != "archivePath"}).topics
    files, superseded = sift(folder.files(topics))
    folder.remove(superseded)
    folder.sweep()
    options["startingOffsets"] = _start(options, files)
    spark.dataSource.register(ArchiveSource)
    where = checkpoint or f"{path.rstrip('/')}/_checkpoint/{'+'.join(topics)}"
    stream = spark.readStream.format("inorder-archive").options(**options).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", where)
    writer = (
        writer.trigger(availableNow=True)
        if every_s is None
        else writer.trigger(processingTime=f"{every_s} seconds")
    )
    followed = follow(writer.start(), watch)
    merged = _merge(spark, folder, topics) if merge else 0
    files, _ = sift(folder.files(topics))
    return Archived(
        topics, path, followed.done, followed.batches, len(files),
        sum(file.size_bytes for file in files), to_json(ends(files)), len(holes(files)), merged,
    )  # fmt: skip


def _merge(spark: SparkSession, folder: Folder, topics: tuple[str, ...]) -> int:

    return merge(spark, path=folder.path, topics=topics)


def _start(options: dict[str, str], files: list[ArchiveFile]) -> str:
    """Return where an archive without a checkpoint continues. A checkpoint has precedence."""
    from inorder.spark.source.service import Plans

    if not files:
        return "earliest"
    plans = Plans(parse({key: options[key] for key in options if key != "archivePath"}))
    known = ends(files)
    return json.dumps(to_json({queue: known.get(queue, EARLIEST) for queue in plans.queues()}))


class ArchiveSource(DataSource):
    """A stream of files: reading it writes them."""

    @classmethod
    def name(cls) -> str:
        """Return what stands in `format(...)`."""
        return "inorder-archive"

    def schema(self) -> str:
        """Return the columns: a row is a file."""
        return "file string, messages bigint"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Return the reader that writes."""
        given = dict(self.options)
        path = given.pop("archivepath", None) or given.pop("archivePath", None)
        if not path:
            raise ConfigError("the option archivePath is missing: the folder of the archive")
        return ArchiveReader(parse(given), path)


class ArchiveReader(StreamReader):
    """Reads as a stream does; its rows are the files that it wrote."""

    def __init__(self, options: SourceOptions, path: str) -> None:
        super().__init__(options)
        self._path = path

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Write the files of a portion."""
        if not isinstance(partition, MessagePartition):
            return
        portion = partition.portion
        for span in portion.ranges:
            written = list(write_range(Folder(self._path), portion.options, span))
            yield pa.RecordBatch.from_pydict(
                {"file": [one.name for one, _ in written], "messages": [n for _, n in written]},
                schema=_WRITTEN_ROW,
            )


def write_range(
    folder: Folder, options: SourceOptions, span: Range
) -> Iterator[tuple[ArchiveFile, int]]:
    """Write the messages of a range; return the files and how many each holds."""
    schema = arrow_schema()
    draft: Draft | None = None
    begun: ArchiveFile | None = None
    last = count = 0
    try:
        for batch in read(Portion(options, (span,))):
            for piece, day in _pieces(batch):
                first, final = (int(piece["offset"][at].as_py()) for at in (0, -1))
                bucket = first // FILE_ROWS
                if begun is not None and (begun.day, begun.start // FILE_ROWS) != (day, bucket):
                    assert draft is not None
                    done = ArchiveFile(span.queue, begun.start, last + 1, begun.day)
                    draft.finish(done)
                    draft, begun, count, written = None, None, 0, count
                    yield done, written
                if draft is None or begun is None:
                    begun = ArchiveFile(span.queue, first, first + 1, day)
                    draft = Draft(folder, begun, schema)
                draft.add(piece)
                last, count = final, count + piece.num_rows
        if draft is not None and begun is not None:
            done = ArchiveFile(span.queue, begun.start, last + 1, begun.day)
            draft.finish(done)
            draft = None
            yield done, count
    finally:
        if draft is not None:
            draft.drop()


def _pieces(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, str]]:
    """Cut a batch where a day or a file ends, at offsets that do not depend on the batches."""
    days = batch["stored_at"].cast(pa.int64()).to_numpy(False) // DAY_US
    buckets = batch["offset"].to_numpy(False) // FILE_ROWS
    cuts = np.flatnonzero((np.diff(days) != 0) | (np.diff(buckets) != 0)) + 1
    bounds = [0, *cuts.tolist(), batch.num_rows]
    for start, end in pairwise(bounds):
        yield batch.slice(start, end - start), str(np.datetime64(int(days[start]), "D"))


def read_archive(spark: SparkSession, path: str, topic: str | None = None) -> DataFrame:
    """Return the messages of an archive, with the columns of `format("inorder")`.

    Rows of one file are in order; sort by `queue` and `offset` where that matters.
    """
    folder = Folder(path)
    files, _ = sift(folder.files(None if topic is None else [topic]))
    if not files:
        of = "" if topic is None else f" of topic {topic}"
        raise ConfigError(f"{path} holds no archive{of}; `inorder pipeline archive` makes one")
    return spark.read.schema(spark_schema()).parquet(*(folder.url(file) for file in files))


FILE_BYTES_MAX: Final = 256 << 20
TASKS_MAX: Final = 8
_MERGED_ROW: Final = pa.schema([("file", pa.string()), ("files", pa.int64())])


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
                {"file": [made.name], "files": [len(files)]}, schema=_MERGED_ROW
            )


def merge_files(folder: Folder, files: list[ArchiveFile]) -> ArchiveFile:
    """Make one file of neighbours, then remove them."""
    made = merged_name(files)
    if folder.has(made):  # by an attempt that was killed while it removed files
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
