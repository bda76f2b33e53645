"""`format("inorder")`: ordered messages as a batch or a stream of rows.

    Plans                  where to begin and to end, asked of the cluster by the driver's readers
    Portion, read          what a task needs to know, and reading it on an executor
    filter_values, bounds  what the filters of a query say about what to read
    InorderSource          Spark's entry: readers and writers

Driver and executors share only the partitions. Offsets in Spark's checkpoint are
`{"v": 1, "init": places, "q": places}`. `init` is where the stream began. Spark asks for it again
when it repeats the first batch, and "latest" has moved by then, so every offset carries it. Why:
decision 33.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from inorder.errors import ConfigError, CorruptRecord, GroupNotFound
from inorder.model import TopicQueue
from inorder.spark.cluster import Cluster
from inorder.spark.sink.options import parse as parseBody
from inorder.spark.sink.service import StreamWriter, Writer
from inorder.spark.source.columns import BODY_BYTES_MAX, PROPERTY_OF, Records
from inorder.spark.source.options import SourceOptions, Where, parse, spark_schema
from inorder.spark.source.rules import (
    EARLIEST,
    DataLoss,
    Places,
    Range,
    SourceSpan,
    finished,
    from_json,
    lost,
    pack,
    pack_by_queue,
    ranges,
    resolve,
    share,
    split,
    to_json,
    unread,
    withheld,
)
from inorder.wire.codes import ResponseCode
from inorder.wire.compression import decompress_body
from inorder.wire.record import decode
from inorder.wire.requests.pulls import parse_subscription


class Plans:
    """The queues of the topics that an option names, and places in them."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.cluster = Cluster(options.servers, group=options.group)

    def queues(self) -> list[TopicQueue]:
        """Return all queues of all topics, as they are now."""
        queues = [queue for topic in self.topics() for queue in self.cluster.queues(topic)]
        if self.options.sql is not None:
            self.cluster.require_filter(queues, self.options.sql)
        return queues

    def topics(self) -> tuple[str, ...]:
        """Return the topics that are named, or that match now."""
        if self.options.pattern is None:
            return self.options.topics
        wanted = re.compile(self.options.pattern)
        return tuple(name for name in self.cluster.topics() if wanted.fullmatch(name))

    def spans(self) -> list[SourceSpan]:
        """Return the past versions of the topics' key maps, with their ends."""
        found = []
        for topic in self.topics():
            ends: dict[int, Places] = {}
            for view in self.cluster.versions(topic):
                over = [(past.version, past.ends) for past in view.past]
                if view.ends is not None:  # stopped here; elsewhere the next one may be open
                    over.append((view.version, view.ends))
                for version, noted in over:
                    ends.setdefault(version, {}).update(
                        {TopicQueue(topic, view.broker, at): end for at, end in noted.items()}
                    )
            found += [SourceSpan(topic, version, places) for version, places in ends.items()]
        return found

    def start(self, queues: list[TopicQueue], *, default: str) -> Places:
        """Return where reading begins."""
        return self._places(queues, self.options.starting or default, "startingOffsets")

    def end(self, queues: list[TopicQueue]) -> Places:
        """Return where a batch ends."""
        wanted = self._places(queues, self.options.ending or "latest", "endingOffsets")
        ends = self.cluster.ends(queues)
        return {queue: min(offset, ends[queue]) for queue, offset in wanted.items()}

    def _places(self, queues: list[TopicQueue], where: Where, option: str) -> Places:
        cluster = self.cluster
        if where == "earliest":
            return cluster.oldest(queues)
        if where == "latest":
            return cluster.ends(queues)
        if isinstance(where, datetime):
            return cluster.at_time(queues, int(where.timestamp() * 1000))
        if where == "group":
            oldest = cluster.oldest(queues)
            return {
                queue: oldest[queue] if found is None else found
                for queue, found in ((queue, cluster.committed(queue)) for queue in queues)
            }
        assert isinstance(where, dict), f"{where!r} was checked when the options were read"
        unknown = sorted(set(where) - set(queues))
        if unknown:
            queue = unknown[0]
            raise ConfigError(
                f"{option}: there is no queue {queue.index} of topic {queue.topic} at broker "
                f"{queue.broker}"
            )
        given = {queue: where.get(queue, EARLIEST) for queue in queues}
        return resolve(given, cluster.oldest(queues), cluster.ends(queues))


ROWS_MIN = 2000


@dataclass(frozen=True, slots=True)
class Portion:
    """The work of one task: whole queues, front to back."""

    options: SourceOptions
    ranges: tuple[Range, ...]


def read(portion: Portion) -> Iterator[pa.RecordBatch]:
    """Return the messages of a portion as Arrow batches, each queue in order and without a gap.

    Raises:
        DataLoss: some are gone, and the options do not allow it.
    """
    cluster = Cluster(portion.options.servers, group=portion.options.group)
    yield from joined(
        batch for span in portion.ranges for batch in _read_range(cluster, portion.options, span)
    )


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches, in their order: of many queues, or of a broker that gives 32 at a time.

    Each costs Spark about as much as a thousand rows.
    """
    waiting: list[pa.RecordBatch] = []
    rows = 0
    try:
        for batch in batches:
            waiting.append(batch)
            rows += batch.num_rows
            if rows >= ROWS_MIN:
                yield _one(waiting)
                waiting, rows = [], 0
    except CorruptRecord:
        if waiting:  # it hides none before it
            yield _one(waiting)
        raise
    if waiting:
        yield _one(waiting)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (found,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return found


def _read_range(cluster: Cluster, options: SourceOptions, span: Range) -> Iterator[pa.RecordBatch]:
    queue, at = span.queue, span.start
    for pulled in cluster.read(queue, span.start, span.end, options.tag, options.sql):
        if pulled.code == ResponseCode.PULL_OFFSET_MOVED and pulled.next_offset != at:
            _lost(options, span, at, pulled.next_offset)
        if pulled.data:
            damage: CorruptRecord | None = None
            try:
                batch = _decoded(pulled.data, at, options, span)
            except CorruptRecord as error:
                whole = whole_bytes(pulled.data, check_crc=options.check_crc)
                reached = _reached(whole, at)
                batch = _decoded(whole, at, options, span) if whole else None
                damage = error if reached < span.end else None
            if batch is not None and batch.num_rows:
                yield batch
            if damage is not None:
                raise CorruptRecord(
                    f"queue {queue.broker}/{queue.index} of topic {queue.topic}: the message at "
                    f"offset {reached}, or the next one with a wanted tag, is damaged: {damage}; "
                    "read up to it and from behind it"
                ) from damage
        at = pulled.next_offset
    if at < span.end:
        _lost(options, span, at, span.end)


def _decoded(data: bytes, at: int, options: SourceOptions, span: Range) -> pa.RecordBatch:
    """Return the messages of one answer that belong to the range."""
    records = Records(data, check_crc=options.check_crc and not options.keys)
    _check_order(records.offsets, at, span, filtered=options.filtered)
    if options.keys:
        records = records.with_keys(options.keys)
        if options.check_crc and records.count:
            records.check_crc()
    batch = records.batch(options.columns, broker=span.queue.broker)
    return _wanted(batch, records, options, span)


def whole_bytes(data: bytes, *, check_crc: bool) -> bytes:
    """Return the records of a reply before the first damaged one."""
    at = 0
    while at < len(data):
        try:
            record = decode(data, at, check_crc=check_crc)
            decompress_body(record.sys_flag, record.body, limit=BODY_BYTES_MAX)
        except CorruptRecord:
            break
        at += record.size
    return data[:at]


def _reached(data: bytes, at: int) -> int:
    """Return the offset after the last record, `at` if there is none."""
    return int(Records(data, check_crc=False).offsets[-1]) + 1 if data else at


def _wanted(
    batch: pa.RecordBatch, records: Records, options: SourceOptions, span: Range
) -> pa.RecordBatch:
    """Leave out messages after the range, and tags that only share a hash with the wanted."""
    if not batch.num_rows:
        return batch
    beyond = int(np.searchsorted(records.offsets, span.end))
    if beyond < batch.num_rows:
        batch = batch.slice(0, beyond)
    if options.tag in ("*", ""):
        return batch
    tags: Any = records.property_values(PROPERTY_OF["tag"])[:beyond]
    wanted = parse_subscription(span.queue.topic, options.tag).tags
    return batch.filter(pc.is_in(tags, pa.array(wanted, pa.string())))


def _check_order(offsets: Any, at: int, span: Range, *, filtered: bool) -> None:
    """Check that a queue is read in order and, if all of it is wanted, without a gap."""
    steps = np.diff(offsets)
    in_order = int(offsets[0]) >= at and bool((steps > 0).all())
    whole = filtered or (int(offsets[0]) == at and bool((steps == 1).all()))
    if not in_order or not whole:
        raise DataLoss(
            f"queue {span.queue.broker}/{span.queue.index} of topic {span.queue.topic} was not "
            f"answered in order from {at} on: {offsets[:5].tolist()}…; read it again"
        )


def _lost(options: SourceOptions, span: Range, start: int, end: int) -> None:
    if options.fail_on_data_loss:
        queue = span.queue
        raise DataLoss(
            f"messages {start} to {end} of queue {queue.broker}/{queue.index} of topic "
            f"{queue.topic} are gone: removed by retention, or the topic was made again. "
            "failOnDataLoss=false reads what there is"
        )


QUEUE_COLUMNS: Final = ("topic", "broker", "queue")


def filter_values(filters: Iterable[Filter], column: str) -> set[Any] | None:
    """Return the only values that a column may have, None if any."""
    found: set[Any] | None = None
    for each in filters:
        if isinstance(each, EqualTo) and each.attribute == (column,):
            allowed = {each.value}
        elif isinstance(each, In) and each.attribute == (column,):
            allowed = set(each.value)
        else:
            continue
        found = allowed if found is None else found & allowed
    return found


def filter_tags(filters: Iterable[Filter]) -> list[str] | None:
    """Return the tags to ask the broker for; None if any will do, or it cannot filter them."""
    wanted = filter_values(filters, "tag")
    if not wanted or not all(isinstance(value, str) and value.strip() for value in wanted):
        return None
    if any("|" in value or value != value.strip() for value in wanted):
        return None
    return sorted(wanted)


def bounds(filters: Iterable[Filter], column: str) -> tuple[Any, Any]:
    """Return the lowest and highest value that a column may have, None where there is no bound."""
    low: Any = None
    high: Any = None
    for each in filters:
        if getattr(each, "attribute", None) != (column,):
            continue
        if isinstance(each, GreaterThan | GreaterThanOrEqual | EqualTo):
            low = each.value if low is None else max(low, each.value)
        if isinstance(each, LessThan | LessThanOrEqual | EqualTo):
            high = each.value if high is None else min(high, each.value)
    return low, high


def time_ms(value: datetime) -> int:
    """Return a time as the broker counts it."""
    return int(value.timestamp() * 1000)


ROUTES_AGE_S = 5.0


class InorderSource(DataSource):
    """Messages of an inorder or an Apache RocketMQ broker."""

    @classmethod
    def name(cls) -> str:
        """Return what stands in `format(...)`."""
        return "inorder"

    def _options(self) -> SourceOptions:
        return parse(dict(self.options))

    def schema(self) -> str:
        """Return the columns."""
        return spark_schema(self._options().columns)

    def reader(self, schema: Any) -> DataSourceReader:
        """Return the reader of a batch."""
        options = self._options()
        return PushingReader(options) if options.pushdown else Reader(options)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        return StreamReader(self._options())

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a batch; messages are only ever added."""

        if overwrite:
            raise ConfigError('a topic cannot be overwritten; write with mode("append")')
        return Writer(parseBody(dict(self.options), schema.names))

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer of a stream."""

        if overwrite:
            raise ConfigError('a topic cannot be overwritten; use outputMode("append")')
        return StreamWriter(parseBody(dict(self.options), schema.names))


class MessagePartition(InputPartition):
    """The portion of one task."""

    def __init__(self, portion: Portion) -> None:
        super().__init__(None)
        self.portion = portion


class Reader(DataSourceReader):
    """Reads the messages that are stored when the batch is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._wanted = options

    def partitions(self) -> list[InputPartition]:
        """Return the portions: whole queues, unless order was given up."""

        options = self._wanted
        plans = Plans(options)
        queues = self._queues(plans)
        spans = self._spans(plans, queues)
        if not options.ordered and options.records_per_partition_max:
            packed = split(spans, options.records_per_partition_max)
        else:
            packed = pack(spans, options.partitions_max or os.cpu_count() or 1)
        return _partitions(options, packed)

    def _queues(self, plans: Plans) -> list[TopicQueue]:
        return plans.queues()

    def _spans(self, plans: Plans, queues: list[TopicQueue]) -> list[Range]:
        start, end = plans.start(queues, default="earliest"), plans.end(queues)
        oldest = plans.cluster.oldest(queues)
        _judge(start, oldest, plans.cluster.ends(queues), self._wanted)
        clipped = {queue: max(offset, oldest[queue]) for queue, offset in start.items()}
        return ranges(clipped, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a portion."""

        if isinstance(partition, MessagePartition):
            yield from read(partition.portion)


class PushingReader(Reader):
    """Uses the filters of a query to read less. Spark checks every row again."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Note the filters that narrow the reading; return all filters."""
        self._filters = [*getattr(self, "_filters", []), *filters]
        tags = filter_tags(self._filters)
        if tags is not None and not self._wanted.filtered:
            self._wanted = replace(self._wanted, tag=" || ".join(tags))
        keys = filter_values(self._filters, "key")
        if keys and not self._wanted.keys and all(isinstance(key, str) and key for key in keys):
            self._wanted = replace(self._wanted, keys=tuple(sorted(keys)))
        return filters

    def _queues(self, plans: Plans) -> list[TopicQueue]:
        allowed = {
            name: filter_values(getattr(self, "_filters", []), name) for name in QUEUE_COLUMNS
        }
        return [
            queue
            for queue in plans.queues()
            if all(
                values is None or value in values
                for values, value in (
                    (allowed["topic"], queue.topic),
                    (allowed["broker"], queue.broker),
                    (allowed["queue"], queue.index),
                )
            )
        ]

    def _spans(self, plans: Plans, queues: list[TopicQueue]) -> list[Range]:
        low, high = bounds(getattr(self, "_filters", []), "offset")
        since, until = bounds(getattr(self, "_filters", []), "stored_at")
        spans = super()._spans(plans, queues)
        kept = [span.queue for span in spans]
        first = plans.cluster.at_time(kept, time_ms(since)) if since is not None else {}
        last = plans.cluster.at_time(kept, time_ms(until) + 1) if until is not None else {}
        narrowed = [
            Range(
                span.queue,
                max(span.start, low or 0, first.get(span.queue, 0)),
                min(
                    span.end,
                    span.end if high is None else high + 1,
                    last.get(span.queue, span.end),
                ),
            )
            for span in spans
        ]
        return [span for span in narrowed if span.count > 0]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads new messages, in micro-batches."""

    def __init__(self, options: SourceOptions) -> None:
        self._wanted = options
        self._plans: Plans | None = None
        self._init: Places | None = None
        self._ends: Places = {}
        self._ends_at_s = 0.0
        self._queues: list[TopicQueue] = []
        self._queues_at_s = 0.0
        self._target: Places | None = None
        self._held_since_s: float | None = None
        self._reported: Places = {}

    def initialOffset(self) -> dict[str, Any]:
        """Return where the stream begins, the same as long as this process lives."""
        if self._init is None:
            self._init = self._the_plans().start(self._all_queues(), default="latest")
        return _offset(self._init, self._init)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return how much one micro-batch takes."""
        limit = self._wanted.offsets_per_trigger_max
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Note the end: later messages are for the next run."""
        self._ends = self._target = self._the_plans().cluster.ends(self._all_queues())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next micro-batch ends."""
        begin, init = _places(start, "q"), _places(start, "init")
        self._report(begin)
        ends = self._poll(begin) if self._target is None else self._target
        oldest = self._the_plans().cluster.oldest(ends)
        # Asked after the ends, so every version of the messages before them is known.
        spans = self._the_plans().spans()
        over = {**_places(start, "over"), **finished(begin, ends, spans)}
        over |= self._taken_away(unread({**over, **begin}, ends, spans))
        begin = {queue: offset for queue, offset in begin.items() if queue not in over}
        _judge(begin, oldest, ends, self._wanted)
        full = {queue: begin.get(queue, oldest[queue]) for queue in ends}
        ends = withheld({**over, **full}, ends, spans)
        if self._too_few(full, ends):
            return _offset(init, full, over)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return _offset(init, ends if rows is None else share(full, ends, rows), over)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return where the queues end, for the query's progress."""
        return {"v": 1, "q": to_json(self._ends)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the portions of a micro-batch."""
        options = self._wanted
        init = _places(end, "init")
        begin = _places(start, "q") if start["init"] == end["init"] else init
        missing = [queue for queue in _places(end, "q") if queue not in begin]
        oldest = self._the_plans().cluster.oldest(missing) if missing else {}
        spans = ranges(begin, _places(end, "q"), oldest)
        return _partitions(
            options, pack_by_queue(spans, options.partitions_max or os.cpu_count() or 1)
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a portion."""

        if isinstance(partition, MessagePartition):
            yield from read(partition.portion)

    def commit(self, end: dict[str, Any]) -> None:
        """Tell the broker how far the group is."""
        self._report(_places(end, "q"))

    # Inside.

    def _the_plans(self) -> Plans:
        if self._plans is None:
            self._plans = Plans(self._wanted)
        return self._plans

    def _all_queues(self) -> list[TopicQueue]:
        now_s = time.monotonic()
        if not self._queues or now_s - self._queues_at_s > ROUTES_AGE_S:
            self._queues = self._the_plans().queues()
            self._queues_at_s = now_s
        return self._queues

    def _taken_away(self, hidden: Places) -> Places:
        """Return which of these queues no broker serves now. Raises DataLoss unless allowed."""
        if not hidden:
            return {}
        self._queues_at_s = float("-inf")
        served = set(self._all_queues())
        gone = {queue: end for queue, end in hidden.items() if queue not in served}
        if gone and self._wanted.fail_on_data_loss:
            queue, end = min(gone.items())
            raise DataLoss(
                f"{queue.topic} {queue.broker}/{queue.index} was taken away by a resize before it "
                f"was read to its end, {end} ({len(gone)} queues); failOnDataLoss=false goes on"
            )
        return gone

    def _poll(self, begin: Places) -> Places:
        """Ask for the ends; wait a little if nothing is new: Spark asks 80 times a second."""
        deadline_s = time.monotonic() + self._wanted.idle_poll_ms / 1000
        while True:
            self._ends = self._the_plans().cluster.ends(self._all_queues())
            if any(begin.get(queue, 0) < end for queue, end in self._ends.items()):
                return self._ends
            if time.monotonic() >= deadline_s:
                return self._ends
            time.sleep(min(0.02, self._wanted.idle_poll_ms / 1000))

    def _too_few(self, begin: Places, ends: Places) -> bool:
        """Return whether to wait for more, by minOffsetsPerTrigger and maxTriggerDelay."""
        least = self._wanted.offsets_per_trigger_min
        if least is None or self._target is not None:
            return False
        backlog = sum(max(0, end - begin[queue]) for queue, end in ends.items())
        if backlog == 0:
            self._held_since_s = None
            return False
        now_s = time.monotonic()
        if self._held_since_s is None:
            self._held_since_s = now_s
        waited_ms = (now_s - self._held_since_s) * 1000
        if backlog < least and waited_ms < self._wanted.trigger_delay_ms_max:
            return True
        self._held_since_s = None
        return False

    def _report(self, done: Places) -> None:
        if not self._wanted.report_offsets:
            return
        for queue, offset in done.items():
            if self._reported.get(queue) != offset:
                try:
                    self._the_plans().cluster.commit(queue, offset)
                except GroupNotFound:
                    return  # the first pull creates the group; the offset is set then
                self._reported[queue] = offset


def _offset(init: Places, queues: Places, over: Places | None = None) -> dict[str, Any]:
    """Return an offset for the checkpoint; `over` are queues that a resize removed."""
    found = {"v": 1, "init": to_json(init), "q": to_json(queues)}
    return {**found, "over": to_json(over)} if over else found


def _places(offset: dict[str, Any] | str, part: str) -> Places:
    value = json.loads(offset) if isinstance(offset, str) else offset
    return from_json(value.get(part, {}), "checkpoint")


def _partitions(
    options: SourceOptions, packed: Iterable[tuple[Range, ...]]
) -> list[InputPartition]:

    return [MessagePartition(Portion(options, spans)) for spans in packed]


def _judge(
    start: Mapping[TopicQueue, int],
    oldest: Mapping[TopicQueue, int],
    ends: Mapping[TopicQueue, int],
    options: SourceOptions,
) -> None:
    """Refuse to skip messages that are gone, unless the options allow it."""
    if options.fail_on_data_loss:
        complaints = lost(start, oldest, ends)
        if complaints:
            raise DataLoss(
                f"{complaints[0]} ({len(complaints)} queues); failOnDataLoss=false reads what "
                "there is"
            )
