"""An archive into a topic: every message once, each key in its order, at a limited rate.

The archive is a stream of ranges. A task sends its range of each queue from front to back through
the sink: the queue is a named producer, the offset is the sequence number. A range that is repeated
after a kill finds its messages stored. Spark's checkpoint holds the ranges that are done, so a run
continues where the last one stopped. Apache RocketMQ has no idempotent producers: there a repeated
range is stored again (`at-least-once`). How the jobs know what is done: decision 36.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from inorder.errors import ConfigError, StoreError
from inorder.spark.cluster import NOBODY, Login, Servers, Tls, chosen_servers, read_tls
from inorder.spark.jobs.files import Folder
from inorder.spark.jobs.progress import Watch, follow, unwatched
from inorder.spark.jobs.rules import ArchiveFile, ends, sift, starts, within
from inorder.spark.sink.options import AT_LEAST_ONCE, EXACTLY_ONCE, LINEAGE, SinkOptions
from inorder.spark.sink.service import send_rows
from inorder.spark.source.rules import (
    Places,
    Range,
    from_json,
    pack_by_queue,
    ranges,
    share,
    to_json,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_MESSAGES: Final = 200_000
CHUNK_MESSAGES: Final = 8192
_ROW: Final = pa.schema([("queue", pa.string()), ("messages", pa.int64())])
_COLUMNS: Final = [
    "key", "tag", "keys", "body", "properties", "topic", "broker", "queue", "offset",
]  # fmt: skip
_RENAMED: Final = ["key", "tag", "keys", "body", "properties", *LINEAGE]


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay."""

    path: str
    topic: str
    replay_id: str
    delivery: str
    replayed: int
    batches: int
    total: int


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The messages to replay, the target and the delivery; each task gets all of it."""

    path: str
    namesrv: str
    topic: str
    source: str
    replay_id: str
    delivery: str = EXACTLY_ONCE
    messages_per_s: float | None = None
    partitions_max: int = 2
    batch: int = BATCH_MESSAGES
    tls: Tls | None = None
    login: Login = NOBODY


def replay(
    spark: SparkSession,
    *,
    path: str,
    namesrv: str | None = None,
    topic: str,
    source: str | None = None,
    replay_id: str | None = None,
    delivery: str = EXACTLY_ONCE,
    messages_per_s: float | None = None,
    batch: int | None = None,
    checkpoint: str | None = None,
    watch: Watch = unwatched,
    tls: Tls | None = None,
    credentials_file: str | None = None,
) -> Replayed:
    """Send the messages of an archive to a topic, those of a key in their order.

    `source` is the archived topic, where the archive holds several. `replay_id` names the replay: a
    run with the same name goes on, or does nothing if it is done; another name sends all again.
    """
    folder = Folder(path)
    path = folder.path
    files, _ = sift(folder.files())
    options = _options(
        files, path=path, namesrv=chosen_servers(namesrv), topic=topic, source=source,
        replay_id=replay_id, delivery=delivery, messages_per_s=messages_per_s, batch=batch,
        partitions_max=spark_parallelism(spark), tls=tls, login=Login.of(credentials_file),
    )  # fmt: skip
    files = [file for file in files if file.queue.topic == options.source]
    spark.dataSource.register(ReplaySource)
    where = checkpoint or f"{path.rstrip('/')}/_replay/{options.replay_id}"
    words = {name: str(value) for name, value in _words(options).items() if value is not None}
    query = (
        spark.readStream.format("inorder-replay").options(**words).load()
        .writeStream.format("noop").option("checkpointLocation", where)
        .trigger(availableNow=True).start()
    )  # fmt: skip
    followed = follow(query, watch)
    total = sum(ends(files).values()) - sum(starts(files).values())
    return Replayed(
        path, topic, options.replay_id, delivery, followed.done, followed.batches, total
    )


def spark_parallelism(spark: SparkSession) -> int:
    """Return how many tasks run at a time; 2 where a session does not say."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # Spark Connect has no context and says so in its own way
        return 2


def _words(options: ReplayOptions) -> dict[str, Any]:
    own = [name for name in ReplayOptions.__slots__ if name not in {"tls", "login"}]
    words = {name: getattr(options, name) for name in own}
    return {**words, **Servers(options.namesrv, options.tls, options.login).options()}


def _options(files: list[ArchiveFile], **given: Any) -> ReplayOptions:
    topics = sorted({file.queue.topic for file in files})
    source = given.pop("source") or (topics[0] if len(topics) == 1 else None)
    if source not in topics:
        held = ", ".join(topics) or "no topic at all"
        raise ConfigError(f"{given['path']} holds {held}; say which with source")
    if given["delivery"] not in (EXACTLY_ONCE, AT_LEAST_ONCE):
        raise ConfigError(
            f"delivery: {given['delivery']!r} is neither {EXACTLY_ONCE} nor {AT_LEAST_ONCE}"
        )
    rate = given["messages_per_s"]
    if rate is not None and rate <= 0:
        raise ConfigError(f"{rate} messages/s would never end; give a number above 0")
    given["replay_id"] = given["replay_id"] or f"replay-{given['topic']}"
    # With a rate, a batch takes a few seconds: a kill repeats little.
    given["batch"] = given["batch"] or (BATCH_MESSAGES if rate is None else max(1, int(rate * 10)))
    return ReplayOptions(source=source, **given)


class ReplaySource(DataSource):
    """A stream of ranges: reading it sends them."""

    @classmethod
    def name(cls) -> str:
        """Return what stands in `format(...)`."""
        return "inorder-replay"

    def schema(self) -> str:
        """Return the columns: a row is a range that was sent."""
        return "queue string, messages bigint"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Return the reader that sends."""
        given = {name.lower(): value for name, value in self.options.items()}
        rate = given.get("messages_per_s")
        return ReplayReader(
            ReplayOptions(
                path=given["path"], namesrv=given["namesrv"], topic=given["topic"],
                source=given["source"], replay_id=given["replay_id"], delivery=given["delivery"],
                messages_per_s=None if rate is None else float(rate),
                partitions_max=int(given["partitions_max"]), batch=int(given["batch"]),
                tls=read_tls(given), login=Login.of(given.get("credentials_file")),
            )
        )  # fmt: skip


class RangesPartition(InputPartition):
    """Ranges of one task, and how fast it may send."""

    def __init__(self, spans: tuple[Range, ...], messages_per_s: float | None) -> None:
        super().__init__(None)
        self.spans = spans
        self.messages_per_s = messages_per_s


class ReplayReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the ranges of an archive and sends them."""

    def __init__(self, options: ReplayOptions) -> None:
        self._wanted = options
        self._known: list[ArchiveFile] | None = None

    def _files(self) -> list[ArchiveFile]:
        if self._known is None:
            folder = Folder(self._wanted.path)
            self._known, _ = sift(folder.files([self._wanted.source]))
        return self._known

    def initialOffset(self) -> dict[str, Any]:
        """Return where the archive begins."""
        first = starts(self._files())
        return _offset(first, first)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return how much one micro-batch takes."""
        return ReadMaxRows(self._wanted.batch)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read the list of files once: later files are for the next run."""
        self._files()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next micro-batch ends."""
        begin, last = from_json(start["q"], "checkpoint"), ends(self._files())
        first = starts(self._files())
        full: Places = {queue: max(begin.get(queue, 0), first[queue]) for queue in last}
        if isinstance(limit, ReadAllAvailable) or not isinstance(limit, ReadMaxRows):
            return _offset(first, last)
        return _offset(first, share(full, last, limit.max_rows))

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return where the archive ends, for the query's progress."""
        return _offset(starts(self._files()), ends(self._files()))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the ranges of a micro-batch; all together keep to the rate."""
        spans = ranges(
            from_json(start["q"], "checkpoint"), from_json(end["q"], "checkpoint"),
            starts(self._files()),
        )  # fmt: skip
        packed = pack_by_queue(spans, self._wanted.partitions_max)
        whole, rate = sum(span.count for span in spans), self._wanted.messages_per_s
        return [
            RangesPartition(
                chosen,
                None if rate is None else rate * sum(span.count for span in chosen) / whole,
            )
            for chosen in packed
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Send the ranges of a task."""
        if not isinstance(partition, RangesPartition):
            return
        pace = Pace(partition.messages_per_s)
        for span in partition.spans:
            count = send_range(self._wanted, span, pace)
            name = f"{span.queue.broker}/{span.queue.index}"
            yield pa.RecordBatch.from_pydict({"queue": [name], "messages": [count]}, schema=_ROW)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is left to do: the ranges are stored."""


class Pace:
    """Holds a sender back so that it keeps to a rate."""

    def __init__(self, messages_per_s: float | None) -> None:
        self._rate = messages_per_s
        self._began_s = time.monotonic()
        self._sent = 0

    @property
    def chunk(self) -> int:
        """Return how many to send at a time: of a slow rate a tenth of a second."""
        if self._rate is None:
            return CHUNK_MESSAGES
        return max(1, min(CHUNK_MESSAGES, int(self._rate / 10)))

    def sent(self, count: int) -> None:
        """Wait until so many more may have been sent."""
        self._sent += count
        if self._rate is not None:
            ahead_s = self._sent / self._rate - (time.monotonic() - self._began_s)
            if ahead_s > 0:
                time.sleep(ahead_s)


def send_range(options: ReplayOptions, span: Range, pace: Pace) -> int:
    """Send the messages of one range in their order; return how many there were."""
    count = [0]

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in _batches(Folder(options.path), span, pace.chunk):
            yield batch
            # The sink asks for the next batch when this one is stored.
            count[0] += batch.num_rows
            pace.sent(batch.num_rows)

    sink = SinkOptions(
        options.namesrv,
        options.topic,
        options.delivery,
        options.replay_id,
        tuple(_RENAMED),
        options.tls,
        options.login,
    )
    send_rows(sink, batches())
    return count[0]


def _batches(folder: Folder, span: Range, chunk: int) -> Iterator[pa.RecordBatch]:
    """Return the messages of a range in order, so many at a time, as the sink wants them."""
    files, _ = sift(folder.files([span.queue.topic]))
    last = -1
    for file in within((one for one in files if one.queue == span.queue), span.start, span.end):
        with folder.reading(file) as opened:
            for batch in opened.iter_batches(batch_size=chunk, columns=_COLUMNS):
                offsets = batch["offset"].to_numpy(False)
                inside = (offsets >= span.start) & (offsets < span.end)
                if not inside.any():
                    continue
                if int(offsets[0]) <= last or (np.diff(offsets) <= 0).any():
                    raise StoreError(f"{file.name} is not in order at {offsets[0]}")
                last = int(offsets[-1])
                found = batch.filter(pa.array(inside)).select(_COLUMNS)
                yield found.rename_columns(_RENAMED)


def _offset(first: Places, places: Places) -> dict[str, Any]:
    return {"v": 1, "init": to_json(first), "q": to_json(places)}
