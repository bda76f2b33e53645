"""`process_in_order`: a key's messages through a handler, one after the other, with its state.

The messages of a queue stay in the task that reads them. There is no shuffle, so they come in
order, and a key that lives in one queue has all of its state there. Users call `process_in_order`;
`run_task` takes the batches of a task, and a `QueueRun` those of one queue.

What a batch of a queue leads to is decided once (`spark/ordered/storage.py`): state, rows, dead
letters and parked keys. If a task, a worker or the driver is killed, the repeated batch gives what
was decided, and the sink drops the rows that it has by their sequence numbers. So every effect
takes place once, whatever is killed, and when. Why: decision 35.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from inorder.client.consume.rules.outcomes import Block, Park, Policy, redeliveries_max
from inorder.client.rules.routes import Duration, to_ms
from inorder.errors import UsageError
from inorder.logs import get_logger
from inorder.model import TopicQueue
from inorder.spark.cluster import Cluster, Servers, Tls
from inorder.spark.ordered.deadletters import send_dead_letters
from inorder.spark.ordered.maps import Maps
from inorder.spark.ordered.outputs import Rows, messages_of
from inorder.spark.ordered.parking import REDRIVE_S, Parker, Reports, paced
from inorder.spark.ordered.records import Version, following, producer_name
from inorder.spark.ordered.rules import (
    Handle,
    Handler,
    Keys,
    Limits,
    Line,
    OutOfOrder,
    ParkedKeys,
    Work,
    adapted,
    check_run,
)
from inorder.spark.ordered.storage import Decided, QueueFolder, digest_of, folders
from inorder.spark.source.options import DEFAULT_GROUP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

log = get_logger(__name__)

NEEDED: Final = ("topic", "broker", "queue", "offset", "key")


@dataclass(frozen=True, slots=True)
class Plan:
    """The arguments of a query, for every task."""

    handler: Handler
    columns: tuple[str, ...]
    rows: Rows
    state: str
    servers: Servers
    group: str | None
    limits: Limits
    patience_ms: int
    holes: bool
    state_type: Any
    given: tuple[str, ...]
    """The columns of the stream."""


def run_task(plan: Plan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run one task: its queues one after the other."""
    query, batch_id = identity()
    tools = Tools.of(plan)
    done: set[TopicQueue] = set()
    current: QueueRun | None = None
    for batch in batches:
        for queue, piece in pieces(batch):
            if current is None or current.queue != queue:
                if queue in done:
                    raise OutOfOrder(
                        f"rows of queue {queue.broker}/{queue.index} of topic {queue.topic} come "
                        "between those of others: a shuffle stands before process_in_order"
                    )
                if current is not None:
                    yield from current.finish()
                done.add(queue)
                current = QueueRun(plan, tools, query, queue, batch_id)
            current.take(piece)
    if current is not None:
        yield from current.finish()


def identity() -> tuple[str, int]:
    """Return the query's id, the same over restarts, and the number of the micro-batch."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "this runs in a task"
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    if query is None or batch is None:
        raise UsageError("process_in_order runs in streaming queries only")
    return query, int(batch)


def pieces(batch: pa.RecordBatch) -> Iterator[tuple[TopicQueue, pa.RecordBatch]]:
    """Cut a batch where the queue changes."""
    columns = [batch.column(name) for name in NEEDED[:3]]
    if not batch.num_rows:
        return
    if all(pc.all(pc.equal(column, column[0])).as_py() for column in columns):
        yield TopicQueue(*(column[0].as_py() for column in columns)), batch
        return
    places = list(zip(*(column.to_pylist() for column in columns), strict=True))
    start, rows = 0, batch.num_rows
    for end in range(1, rows + 1):
        if end == rows or places[end] != places[start]:
            yield TopicQueue(*places[start]), batch.slice(start, end - start)
            start = end


@dataclass(frozen=True, slots=True)
class Tools:
    """The key maps, parked keys and reports that the queues of a task share."""

    maps: Maps
    parker: Parker | None
    reports: Reports

    @classmethod
    def of(cls, plan: Plan) -> Tools:
        """Return the tools of a task."""
        cluster = Cluster(plan.servers, group=plan.group or DEFAULT_GROUP)
        maps = Maps(cluster, plan.state)
        parker = None
        if plan.group is not None:  # parked keys stay parked, whatever the policy
            parker = Parker(cluster, maps, plan.given, required=plan.limits.parks)
        return cls(maps, parker, Reports(cluster))


class QueueRun:
    """The batch of one queue."""

    def __init__(self, plan: Plan, tools: Tools, query: str, queue: TopicQueue, batch: int) -> None:
        self.queue = queue
        self._plan = plan
        self._tools = tools
        self._maps = tools.maps
        self._batch = batch
        self._query = query
        self._folder = QueueFolder(plan.state, query, queue)
        self._first: int | None = None
        self._last = -1
        self._missing = 0
        self._decided: Decided | None = None
        self._before: Version | None = None
        self._map_version = 0
        self._left: list[Line] = []
        self._work: Work | None = None

    def take(self, piece: pa.RecordBatch) -> None:
        """Take more rows of the queue."""
        offsets = piece.column("offset").to_pylist()
        if self._first is None:
            self._begin(offsets[0])
        self._last = offsets[-1]
        if self._work is None:
            return
        queue, expected = self.queue, self._work.keys.next_offset
        place = f"queue {queue.broker}/{queue.index} of topic {queue.topic}"
        self._missing += check_run(place, expected, offsets, holes_allowed=self._plan.holes)
        self._work.take(messages_of(piece, queue))

    def _begin(self, first: int) -> None:
        """Find the decided version of this batch, or the version before it."""
        plan, self._first = self._plan, first
        self._decided = self._folder.decided(self._batch)
        if self._decided is not None:
            return
        self._before, keys = self._folder.before(self._batch)
        self._map_version = self._maps.version_at(self.queue, first)
        self._left = self._maps.move(
            self.queue, self._before, keys, query=self._query, batch=self._batch,
            version=self._map_version,
        )  # fmt: skip
        handle = adapted(plan.handler, plan.columns, plan.state_type)
        self._work = self._begin_work(keys, handle)
        self._work.try_due()

    def _begin_work(self, keys: Keys, handle: Handle) -> Work:
        """Begin with the parked keys: they stay parked, or are redriven first."""
        limits, queue, parker = self._plan.limits, self.queue, self._tools.parker
        assert self._first is not None
        if parker is None:
            return Work(keys, handle, limits, now_ms)
        found = parker.begin(queue, self._first, self._before, self._map_version)
        parked_keys = ParkedKeys(
            (queue.broker, queue.index), (one.key for one in found.keys), first=self._first,
            room=lambda: parker.room(queue),
        )  # fmt: skip
        work = Work(keys, handle, limits, now_ms, parked_keys)
        until_s = time.monotonic() + REDRIVE_S
        for one in found.keys:
            if one.redrive and not one.moved:
                pace = paced(self._plan.group or "", queue, one.rate, until_s)
                work.redrive(one.key, parker.lists(queue, one), one.end, pace)
        return work

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Decide the batch, send its dead letters, and return its rows."""
        decided = self._decided or self._decide()
        version, plan = decided.version, self._plan
        if (version.first, version.last) != (self._first, self._last):
            raise OutOfOrder(
                f"batch {self._batch} of queue {self.queue.broker}/{self.queue.index} of topic "
                f"{self.queue.topic} went from {version.first} to {version.last} before, now from "
                f"{self._first} to {self._last}: another query uses the same state, or the filter "
                "before process_in_order was changed within a batch"
            )
        if version.letters:
            assert plan.group is not None
            name = self._producer("letters")
            send_dead_letters(plan.servers, plan.group, name, self._batch, version.letters)
        if version.asides or version.redone:
            self._report_parked(version)
        name = self._producer("ordered")
        yield from plan.rows.numbered(decided.rows, self.queue, name, self._batch)

    def _report_parked(self, version: Version) -> None:
        """Report parked keys to the brokers; messages that they cannot park are dead letters."""
        plan, name = self._plan, self._producer("letters")
        gone = self._tools.reports.carry_out(self.queue, version)
        for number, letter in sorted(gone, key=lambda one: one[0]):
            assert plan.group is not None
            start = len(version.letters) + number
            send_dead_letters(plan.servers, plan.group, name, self._batch, [letter], start=start)

    def _decide(self) -> Decided:
        work = self._work
        assert work is not None
        assert self._first is not None
        self._wait(work)
        if work.keys.held:
            log.info("keys wait queue=%s count=%d", self.queue, len(work.keys.held))
        version = following(
            self._before, work.keys, work.letters, work.parked,
            batch=self._batch, first=self._first, last=self._last, missing=self._missing,
            map_version=self._map_version, left=self._left,
        )  # fmt: skip
        rows = self._plan.rows.encode(work.rows, work.origins, self.queue)
        decided = self._folder.decide(version, rows)
        if decided.version is version:
            self._folder.keep(version, work.keys)
            self._folder.clean(version, self._before)
        return decided

    def _wait(self, work: Work) -> None:
        """Try keys again whose time comes within the patience of the batch."""
        end_ms = now_ms() + self._plan.patience_ms
        while (due_ms := work.next_due_ms()) is not None and due_ms <= end_ms:
            time.sleep(max(0, due_ms - now_ms()) / 1000)
            work.try_due()

    def _producer(self, kind: str) -> str:
        queue = self.queue
        place = f"{queue.topic}:{queue.broker}:{queue.index}"
        return producer_name(kind, self._query, place, digest_of(queue))


def now_ms() -> int:
    """Return the time of this machine; decisions from it are made once."""
    return int(time.time() * 1000)


BUCKETS: Final = 32


def process_in_order(
    stream: DataFrame,
    handler: Handler,
    *,
    schema: str | StructType,
    namesrv: str | None = None,
    state: str | None = None,
    state_type: Any = None,
    group: str | None = None,
    on_failure: Policy | None = None,
    pause: Duration = 1.0,
    patience: Duration = 0.0,
    held_max: int = 10_000,
    holes: bool = False,
    timers: bool = False,
    buckets: int = BUCKETS,
    tls: Tls | None = None,
    credentials_file: str | None = None,
) -> DataFrame:
    """Give each key's messages to a handler, in order, with the key's state; return its rows.

    `handler(message, state)` returns `(new state, rows)`, or None if nothing changes; it raises
    `inorder.Retry(after=seconds)` to get the message again later, before anything else of its key.
    Any other exception is a failed attempt, treated by `on_failure`: `Block()`, `Block(attempts=n)`
    or `DeadLetter(attempts=n)`; dead letters go to `%DLQ%<group>`. `Park(attempts=n)` parks the key
    in `%PARK%<group>`, as with a consumer, until it is redriven. `namesrv` is where the
    stream comes from, `tls` how it is spoken to, `credentials_file` who signs.

    The rows have the columns of `schema`; `source_topic`, `source_broker`, `source_queue` and
    `source_offset`, where the message was; and `producer` and `sequence`, by which the sink stores
    each row once. `state` is a folder that all executors see, used by this query alone. A key that
    waits is tried again with the next messages of its queue; a batch waits up to `patience` for
    keys whose time comes. `holes` says that offsets may be missing: the stream is filtered.

    `timers` keeps states in Spark instead (`transformWithState`, by `buckets` of keys): keys may
    then span queues, and are tried again on time, at the cost of a shuffle.
    """
    plan = _plan(
        stream, handler, schema, state, state_type,
        Servers.of(namesrv, tls, credentials_file), group,
        on_failure or Block(), pause, patience, held_max, holes, timers,
    )  # fmt: skip
    if timers:
        from inorder.spark.ordered.timers import by_bucket

        return by_bucket(stream, plan, buckets)
    wanted = plan.rows.spark_schema()

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run_task(plan, batches)

    return stream.mapInArrow(run, wanted)


def _plan(  # noqa: PLR0917 - the arguments of process_in_order, by place
    stream: DataFrame,
    handler: Handler,
    schema: str | StructType,
    state: str | None,
    state_type: Any,
    servers: Servers,
    group: str | None,
    on_failure: Policy,
    pause: Duration,
    patience: Duration,
    held_max: int,
    holes: bool,
    timers: bool,
) -> Plan:
    if not stream.isStreaming:
        raise UsageError(
            "process_in_order works on streams: use spark.readStream, and "
            "trigger(availableNow=True) for what is there now"
        )
    missing = [name for name in NEEDED if name not in stream.columns]
    if missing:
        raise UsageError(
            f"process_in_order needs the column {missing[0]}; the stream has "
            f"{', '.join(stream.columns)}"
        )
    parks = isinstance(on_failure, Park)
    if parks and timers:
        raise UsageError(
            "keys are parked by queue, and timers=True lets them span queues: use "
            "DeadLetter(attempts=…), or do without timers"
        )
    if on_failure.attempts is not None and group is None:
        where = "parked keys go to %PARK%<group>" if parks else "dead letters go to %DLQ%<group>"
        raise UsageError(f"{where}: give process_in_order group= as well")
    if state is None and not timers:
        raise UsageError(
            "process_in_order needs state=, a folder for the keys' states that all executors see"
        )
    rows = Rows.of(schema)
    return Plan(
        handler, rows.columns, rows, state or "", servers, group,
        Limits(redeliveries_max(on_failure), to_ms(pause), held_max, parks), to_ms(patience), holes,
        Any if state_type is None else state_type, tuple(stream.columns),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Waiting:
    """A key that waits to be tried again."""

    queue: TopicQueue
    key: str | None
    messages: int
    offset: int
    attempts: int
    due_ms: int
    cause: str


def waiting(state: str) -> list[Waiting]:
    """Return the keys that wait, according to the state folder of a query."""
    found = []
    for _, queue, folder in folders(state):
        keys: Keys = folder.before(1 << 31)[1]
        found += [
            Waiting(
                queue, key, len(line.messages), line.messages[0].offset,
                line.messages[0].redeliveries, line.due_ms, line.cause,
            )
            for key, line in keys.held.items()
        ]  # fmt: skip
    return found
