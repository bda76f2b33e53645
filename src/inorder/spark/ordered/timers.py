"""`process_in_order(timers=True)`: keys by bucket, their states in Spark, tried again on time.

Keys are spread over buckets by their hash. A bucket is one group of `transformWithState` with one
value: the states of its keys, and the keys that wait. Spark sorts groups by bucket only, and its
sort is not stable when it spills, so the rows of a bucket are sorted again here, by queue and
offset. Each bucket has one timer, for the key that is tried next.

No decision is kept beside Spark's state. A repeated batch calls the handler again with the same
states, messages and time, and the handler must give the same results. Why: decision 35.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from inorder.errors import UsageError
from inorder.model import TopicQueue
from inorder.spark.ordered.deadletters import send_dead_letters
from inorder.spark.ordered.outputs import PRODUCER, SEQUENCE, SOURCES, messages_of_pandas
from inorder.spark.ordered.rules import (
    Keys,
    Line,
    OrderedMessage,
    OutOfOrder,
    Work,
    adapted,
    sequence,
)
from inorder.spark.ordered.service import identity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from inorder.spark.ordered.service import Plan

BUCKET: Final = "inorder_bucket"
STATE: Final = "data binary"


class Bucket(msgspec.Struct, omit_defaults=True):
    """The state of a bucket in Spark. New fields need defaults."""

    states: dict[str, bytes] = {}
    held: list[Line] = []
    behind: list[OrderedMessage] = []
    last: dict[str, int] = {}
    """By queue: the last offset of this bucket's keys."""


def by_bucket(stream: DataFrame, plan: Plan, buckets: int) -> DataFrame:
    """Return the rows of the handler, keys being grouped into buckets."""
    from pyspark.sql import functions as f

    if buckets < 1:
        raise UsageError(f"buckets={buckets}: give 1 or more")
    if BUCKET in stream.columns:
        raise UsageError(f"the column {BUCKET} is made by process_in_order; leave it out")
    bucket = f.pmod(f.xxhash64("key"), f.lit(buckets)).cast("int")
    return (
        stream.withColumn(BUCKET, bucket)
        .groupBy(BUCKET)
        .transformWithStateInPandas(
            statefulProcessor=BucketProcessor(plan),
            outputStructType=plan.rows.spark_schema(),
            outputMode="Append",
            timeMode="ProcessingTime",
        )
    )


class BucketProcessor(StatefulProcessor):
    """Handles the messages of a bucket."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Ask for the state; the driver calls this, too, where there is no task."""
        self._handle = handle
        self._state = handle.getValueState("bucket", STATE)
        self._query, self._batch = "", -1
        self._given: dict[tuple[str, int], int] = {}
        plan = self._plan
        self._call = adapted(plan.handler, plan.columns, plan.state_type)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Handle the new messages of a bucket."""
        messages = [message for frame in rows for message in messages_of_pandas(frame)]
        messages.sort(key=lambda one: (one.topic, one.broker, one.queue, one.offset))
        return self._run(int(key[0]), messages, timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        """Try the keys of a bucket again whose time has come."""
        return self._run(int(key[0]), [], timerValues)

    def close(self) -> None:
        """Nothing is left to do."""

    def _run(self, bucket: int, messages: list[OrderedMessage], timers: Any) -> Iterator[Any]:
        self._query, self._batch = identity()
        now_ms = int(timers.getCurrentProcessingTimeInMs())
        kept = self._state.get()
        known = Bucket() if kept is None else msgspec.msgpack.decode(bytes(kept[0]), type=Bucket)
        held: dict[str | None, Line] = {line.messages[0].key: line for line in known.held}
        keys = Keys(known.states, held, known.behind)
        _check(known.last, messages)
        work = Work(keys, self._call, self._plan.limits, lambda: now_ms)
        work.try_due()
        work.take(messages)
        after = Bucket(keys.states, list(keys.held.values()), keys.behind, known.last)
        self._state.update((msgspec.msgpack.encode(after),))
        self._set_timer(work.next_due_ms(), now_ms)
        self._send(bucket, work)
        if work.rows:
            yield self._frame(bucket, work)

    def _set_timer(self, due_ms: int | None, now_ms: int) -> None:
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        if due_ms is not None:
            self._handle.registerTimer(max(due_ms, now_ms + 1))

    def _send(self, bucket: int, work: Work) -> None:
        plan = self._plan
        if work.letters:
            assert plan.group is not None
            start = self._take("letters", bucket, len(work.letters))
            name = f"letters:{self._query}:bucket:{bucket}"
            send_dead_letters(
                plan.servers, plan.group, name, self._batch, work.letters, start=start
            )

    def _take(self, kind: str, bucket: int, count: int) -> int:
        """Return the first of so many numbers; a bucket may be called twice in a batch."""
        start = self._given.get((kind, bucket), 0)
        self._given[kind, bucket] = start + count
        return start

    def _frame(self, bucket: int, work: Work) -> Any:
        count = len(work.rows)
        first = sequence(self._batch, self._take("rows", bucket, count))
        frame = pa.Table.from_batches([self._plan.rows.batch(work.rows)]).to_pandas()
        places = ((one.topic, one.broker, one.queue, one.offset) for one in work.origins)
        for name, values in zip(SOURCES, zip(*places, strict=True), strict=True):
            frame[name] = values
        frame[PRODUCER] = f"ordered:{self._query}:bucket:{bucket}"
        frame[SEQUENCE] = range(first, first + count)
        return frame


def _check(last: dict[str, int], messages: list[OrderedMessage]) -> None:
    """Check that offsets ascend in every queue, from batch to batch; note the last ones."""
    for message in messages:
        queue = TopicQueue(message.topic, message.broker, message.queue)
        place = f"{queue.topic}/{queue.broker}/{queue.index}"
        before = last.get(place, -1)
        if message.offset <= before:
            raise OutOfOrder(f"{place}: {message.offset} comes after {before} was handled")
        last[place] = message.offset
