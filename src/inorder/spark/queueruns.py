"""A task of `process_in_order`: the batches of its queues, one after the other.

What a batch of a queue leads to is decided once (`versionfiles.py`): state, rows, dead letters, and
what becomes of parked keys. A batch that is repeated, for a task, a worker or the driver was
killed, gives what was decided, and the sink drops by the rows' numbers what it has. So every effect
takes place once, whatever dies when.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from inorder.errors import UsageError
from inorder.logs import get_logger
from inorder.model import TopicQueue
from inorder.spark.cluster import Cluster
from inorder.spark.letters import send_letters
from inorder.spark.maps import Maps
from inorder.spark.options import DEFAULT_GROUP
from inorder.spark.parking import REDRIVE_S, Parker, paced
from inorder.spark.parkreports import Reports
from inorder.spark.rows import Rows, messages_of
from inorder.spark.servers import Servers
from inorder.spark.state.handling import Handler, adapted
from inorder.spark.state.lines import Handle, Keys, Limits, OutOfOrder, Work, check_run
from inorder.spark.state.messages import Line
from inorder.spark.state.parking import Asides
from inorder.spark.state.versions import Version, following, producer_name
from inorder.spark.versionfiles import Decided, QueueFolder, digest_of

log = get_logger(__name__)

NEEDED: Final = ("topic", "broker", "queue", "offset", "key")


@dataclass(frozen=True, slots=True)
class Plan:
    """What every task knows."""

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
    """What the queues of a task share to speak with the brokers."""

    maps: Maps
    parker: Parker | None
    reports: Reports

    @classmethod
    def of(cls, plan: Plan) -> Tools:
        """Return those of a task."""
        cluster = Cluster(plan.servers, group=plan.group or DEFAULT_GROUP)
        maps = Maps(cluster, plan.state)
        parker = None
        if plan.group is not None:  # what the group has parked stays aside, whatever the policy
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
        """Find what was decided, or what there was before."""
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
        """Begin with what is parked: those keys stay aside, or are handled again first."""
        limits, queue, parker = self._plan.limits, self.queue, self._tools.parker
        assert self._first is not None
        if parker is None:
            return Work(keys, handle, limits, now_ms)
        found = parker.begin(queue, self._first, self._before, self._map_version)
        asides = Asides(
            (queue.broker, queue.index), (one.key for one in found.keys), first=self._first,
            room=lambda: parker.room(queue),
        )  # fmt: skip
        work = Work(keys, handle, limits, now_ms, asides)
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
            send_letters(plan.servers, plan.group, name, self._batch, version.letters)
        if version.asides or version.redone:
            self._set_aside(version)
        name = self._producer("ordered")
        yield from plan.rows.numbered(decided.rows, self.queue, name, self._batch)

    def _set_aside(self, version: Version) -> None:
        """Tell the brokers what became of parked keys; what they do not have is a dead letter."""
        plan, name = self._plan, self._producer("letters")
        gone = self._tools.reports.carry_out(self.queue, version)
        for number, letter in sorted(gone, key=lambda one: one[0]):
            assert plan.group is not None
            start = len(version.letters) + number
            send_letters(plan.servers, plan.group, name, self._batch, [letter], start=start)

    def _decide(self) -> Decided:
        work = self._work
        assert work is not None
        assert self._first is not None
        self._wait(work)
        if work.keys.held:
            log.info("keys wait queue=%s count=%d", self.queue, len(work.keys.held))
        version = following(
            self._before, work.keys, work.letters, work.asides,
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
    """Return the time of this machine; what follows from it is decided once."""
    return int(time.time() * 1000)
