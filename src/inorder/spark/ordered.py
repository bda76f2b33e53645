"""`process_in_order`: a key's messages through a handler, one after the other, with its state.

The messages of a queue stay in the task that reads them: no shuffle, so they come in order, and a
key that lives in one queue has all of its state there. Here is what users call; what a task does is
in `queueruns.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from inorder.client.consume.rules.outcomes import Block, Park, Policy, redeliveries_max
from inorder.client.rules.routes import Duration, to_ms
from inorder.errors import UsageError
from inorder.model import TopicQueue
from inorder.spark.queueruns import NEEDED, Plan, run_task
from inorder.spark.rows import Rows
from inorder.spark.servers import Servers, Tls
from inorder.spark.state.handling import Handler
from inorder.spark.state.lines import Keys, Limits
from inorder.spark.versionfiles import folders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

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
) -> DataFrame:
    """Give each key's messages to a handler, in order, with the key's state; return its rows.

    `handler(message, state)` returns `(new state, rows)`, or None if nothing changes; it raises
    `inorder.Retry(after=seconds)` to get the message again later, before anything else of its key.
    Any other exception is a failed attempt, treated by `on_failure`: `Block()`, `Block(attempts=n)`
    or `DeadLetter(attempts=n)`; dead letters go to `%DLQ%<group>`. `Park(attempts=n)` sets the key
    aside in `%PARK%<group>`, as with a consumer, until it is redriven. `namesrv` is where the
    stream comes from, `tls` how it is spoken to.

    The rows have the columns of `schema`; `source_topic`, `source_broker`, `source_queue` and
    `source_offset`, where the message was; and `producer` and `sequence`, by which the sink stores
    each row once. `state` is a folder that all executors see, used by this query alone. A key that
    waits is tried again with the next messages of its queue; a batch waits up to `patience` for
    keys whose time comes. `holes` says that offsets may be missing: the stream is filtered.

    `timers` keeps states in Spark instead (`transformWithState`, by `buckets` of keys): keys may
    then span queues, and are tried again on time, at the cost of a shuffle.
    """
    plan = _plan(
        stream, handler, schema, state, state_type, Servers.of(namesrv, tls), group,
        on_failure or Block(), pause, patience, held_max, holes, timers,
    )  # fmt: skip
    if timers:
        from inorder.spark.buckets import by_bucket

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
    """Return the keys that wait, by what the folder of a query's state holds."""
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
