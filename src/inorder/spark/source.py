"""`format("inorder")`: ordered messages as a batch or a stream of rows.

Driver and executors meet only in the partitions: whatever a task needs to know is in its Portion.
Offsets in Spark's checkpoint are `{"v": 1, "init": places, "q": places}`. `init` is where the
stream began: Spark asks for it again when it repeats the first batch, and "latest" has moved by
then, so it travels with every offset.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from inorder.errors import ConfigError, GroupNotFound
from inorder.model import TopicQueue
from inorder.spark import filters as filters_to
from inorder.spark.options import SourceOptions, parse
from inorder.spark.planning import (
    DataLoss,
    Places,
    Range,
    finished,
    from_json,
    lost,
    pack,
    pack_by_queue,
    ranges,
    share,
    split,
    to_json,
    unread,
    withheld,
)
from inorder.spark.schema import spark_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from inorder.spark.plans import Plans
    from inorder.spark.reading import Portion

ROUTES_AGE_S = 5.0


class InorderSource(DataSource):
    """Messages of a broker of ours, or of Apache RocketMQ."""

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
        from inorder.spark import sink

        if overwrite:
            raise ConfigError('a topic cannot be overwritten; write with mode("append")')
        return sink.Writer(sink.parse(dict(self.options), schema.names))

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer of a stream."""
        from inorder.spark import sink

        if overwrite:
            raise ConfigError('a topic cannot be overwritten; use outputMode("append")')
        return sink.StreamWriter(sink.parse(dict(self.options), schema.names))


class MessagePartition(InputPartition):
    """The portion of one task."""

    def __init__(self, portion: Portion) -> None:
        super().__init__(None)
        self.portion = portion


class Reader(DataSourceReader):
    """Reads what is there when the batch is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._wanted = options

    def partitions(self) -> list[InputPartition]:
        """Return the portions: whole queues, unless order was given up."""
        from inorder.spark.plans import Plans

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
        from inorder.spark.reading import read

        if isinstance(partition, MessagePartition):
            yield from read(partition.portion)


class PushingReader(Reader):
    """Uses what the query asks for to read less. Spark checks every row again."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Note what narrows the reading; return all filters."""
        self._filters = [*getattr(self, "_filters", []), *filters]
        tags = filters_to.tags(self._filters)
        if tags is not None and self._wanted.tag in ("*", ""):
            self._wanted = replace(self._wanted, tag=" || ".join(tags))
        keys = filters_to.values(self._filters, "key")
        if keys and not self._wanted.keys and all(isinstance(key, str) and key for key in keys):
            self._wanted = replace(self._wanted, keys=tuple(sorted(keys)))
        return filters

    def _queues(self, plans: Plans) -> list[TopicQueue]:
        allowed = {
            name: filters_to.values(getattr(self, "_filters", []), name)
            for name in filters_to.QUEUE_COLUMNS
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
        low, high = filters_to.bounds(getattr(self, "_filters", []), "offset")
        since, until = filters_to.bounds(getattr(self, "_filters", []), "stored_at")
        spans = super()._spans(plans, queues)
        kept = [span.queue for span in spans]
        first = plans.cluster.at_time(kept, filters_to.time_ms(since)) if since is not None else {}
        last = (
            plans.cluster.at_time(kept, filters_to.time_ms(until) + 1) if until is not None else {}
        )
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
    """Reads what comes, in micro-batches."""

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
        """Note the end: what comes later is for the next run."""
        self._ends = self._target = self._the_plans().cluster.ends(self._all_queues())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next micro-batch ends."""
        begin, init = _places(start, "q"), _places(start, "init")
        self._report(begin)
        ends = self._poll(begin) if self._target is None else self._target
        oldest = self._the_plans().cluster.oldest(ends)
        # Asked behind the ends: what they hold of a new version is known to be that.
        chapters = self._the_plans().chapters()
        over = {**_places(start, "over"), **finished(begin, ends, chapters)}
        over |= self._taken_away(unread({**over, **begin}, ends, chapters))
        begin = {queue: offset for queue, offset in begin.items() if queue not in over}
        _judge(begin, oldest, ends, self._wanted)
        full = {queue: begin.get(queue, oldest[queue]) for queue in ends}
        ends = withheld({**over, **full}, ends, chapters)
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
        from inorder.spark.reading import read

        if isinstance(partition, MessagePartition):
            yield from read(partition.portion)

    def commit(self, end: dict[str, Any]) -> None:
        """Tell the broker how far the group is."""
        self._report(_places(end, "q"))

    # Inside.

    def _the_plans(self) -> Plans:
        if self._plans is None:
            from inorder.spark.plans import Plans

            self._plans = Plans(self._wanted)
        return self._plans

    def _all_queues(self) -> list[TopicQueue]:
        now_s = time.monotonic()
        if not self._queues or now_s - self._queues_at_s > ROUTES_AGE_S:
            self._queues = self._the_plans().queues()
            self._queues_at_s = now_s
        return self._queues

    def _taken_away(self, hidden: Places) -> Places:
        """Return which of these queues nobody serves any more. Raises DataLoss unless allowed."""
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
        """Tell whether to wait for more, by minOffsetsPerTrigger and maxTriggerDelay."""
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
                    return  # the first pull makes it; what is done is told then
                self._reported[queue] = offset


def _offset(init: Places, queues: Places, over: Places | None = None) -> dict[str, Any]:
    """Return an offset for the checkpoint; `over` are queues that a resize took away."""
    found = {"v": 1, "init": to_json(init), "q": to_json(queues)}
    return {**found, "over": to_json(over)} if over else found


def _places(offset: dict[str, Any] | str, part: str) -> Places:
    value = json.loads(offset) if isinstance(offset, str) else offset
    return from_json(value.get(part, {}), "checkpoint")


def _partitions(
    options: SourceOptions, packed: Iterable[tuple[Range, ...]]
) -> list[InputPartition]:
    from inorder.spark.reading import Portion

    return [MessagePartition(Portion(options, spans)) for spans in packed]


def _judge(
    start: Mapping[TopicQueue, int],
    oldest: Mapping[TopicQueue, int],
    ends: Mapping[TopicQueue, int],
    options: SourceOptions,
) -> None:
    """Refuse to go on over messages that are gone, unless the options say that this is fine."""
    if options.fail_on_data_loss:
        complaints = lost(start, oldest, ends)
        if complaints:
            raise DataLoss(
                f"{complaints[0]} ({len(complaints)} queues); failOnDataLoss=false reads what "
                "there is"
            )
