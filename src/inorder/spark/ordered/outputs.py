"""Between Arrow and a handler: rows of a stream as messages, a handler's rows as Arrow batches.

How ordered processing survives kills: decision 35.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from inorder.errors import UsageError
from inorder.logs import get_logger
from inorder.model import TopicQueue
from inorder.spark.ordered.rules import BadResult, OrderedMessage, sequence

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = get_logger(__name__)

PRODUCER: Final = "producer"
SEQUENCE: Final = "sequence"
SOURCES: Final = ("source_topic", "source_broker", "source_queue", "source_offset")
"""Where the message was that a row was made of; the sink tells it, the audit asks for it."""

MADE: Final = (*SOURCES, PRODUCER, SEQUENCE)
_PLACES: Final = (pa.field(SOURCES[1], pa.string()), pa.field(SOURCES[2], pa.int32()))
_OFFSET: Final = pa.field(SOURCES[3], pa.int64())
BATCH_ROWS: Final = 10_000

# The fields of a message in their order, and the column that each comes from.
_COLUMNS: Final = (
    ("topic", ""), ("broker", ""), ("queue", 0), ("offset", 0), ("key", None), ("body", b""),
    ("tag", None), ("keys", None), ("properties", None), ("message_id", ""), ("born_at", 0),
    ("stored_at", 0), ("redeliveries", 0),
)  # fmt: skip
_PROPERTIES_AT: Final = 8


def messages_of(batch: pa.RecordBatch, queue: TopicQueue) -> list[OrderedMessage]:
    """Return the rows of a queue as messages."""
    # hot: 0.8 us a message without properties.
    names = set(batch.schema.names)
    known = {"topic": queue.topic, "broker": queue.broker, "queue": queue.index}
    columns: list[Any] = []
    for name, absent in _COLUMNS:
        if name in known or name not in names:
            columns.append([known.get(name, absent)] * batch.num_rows)
        elif name in ("born_at", "stored_at"):
            columns.append(_times_ms(batch.column(name)))
        else:
            columns.append(batch.column(name).to_pylist())
    columns[4] = [key or None for key in columns[4]]
    if "properties" in names:
        columns[_PROPERTIES_AT] = [dict(pairs or ()) for pairs in columns[_PROPERTIES_AT]]
    else:
        columns[_PROPERTIES_AT] = [{} for _ in range(batch.num_rows)]
    return list(map(OrderedMessage, *columns))


def messages_of_pandas(frame: Any) -> list[OrderedMessage]:
    """Return the rows of a pandas frame as messages; missing values are NaN or None there."""
    columns: list[Any] = []
    for name, absent in _COLUMNS:
        if name not in frame:
            columns.append([absent] * len(frame))
        elif name in ("born_at", "stored_at"):
            columns.append([int(value.timestamp() * 1000) for value in frame[name]])
        elif name == "properties":
            columns.append([dict(value or ()) for value in frame[name]])
        else:
            columns.append([value if value == value else None for value in frame[name]])  # noqa: PLR0124
    columns[2:4] = [[int(value) for value in column] for column in columns[2:4]]
    columns[4] = [key or None for key in columns[4]]
    columns[12] = [int(value) for value in columns[12]]
    if "properties" not in frame:
        columns[_PROPERTIES_AT] = [{} for _ in range(len(frame))]
    return list(map(OrderedMessage, *columns))


def _times_ms(column: Any) -> list[int]:
    micros = column.cast(pa.int64()).to_pylist()
    return [0 if value is None else value // 1000 for value in micros]


def _arrow_schema(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    # Its word for "times are UTC" changed with Spark 4.3.
    known = inspect.signature(to_arrow_schema).parameters
    utc: dict[str, Any] = {"timezone": "UTC"} if "timezone" in known else {"timestamp_utc": True}
    return to_arrow_schema(schema, **utc)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that a handler gives."""

    ddl: str
    columns: tuple[str, ...]
    schema: pa.Schema

    @classmethod
    def of(cls, schema: str | StructType) -> Rows:
        """Read a schema as users write it."""
        from pyspark.sql.types import DataType
        from pyspark.sql.types import StructType as Struct

        found: Any = DataType.fromDDL(schema) if isinstance(schema, str) else schema
        if not isinstance(found, Struct):
            raise UsageError(f"{schema!r} is no schema of rows; write 'key string, total bigint'")
        taken = [name for name in found.names if name in MADE]
        if taken:
            raise UsageError(f"the column {taken[0]} is made by process_in_order; leave it out")
        ddl = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in found)
        return cls(ddl, tuple(found.names), _arrow_schema(found))

    def spark_schema(self) -> str:
        """Return the columns of the result, in Spark's words."""
        return (
            f"{self.ddl}, source_topic string, source_broker string, source_queue int, "
            f"source_offset bigint, `{PRODUCER}` string, `{SEQUENCE}` bigint"
        )

    def encode(
        self,
        rows: Sequence[tuple[object, ...]],
        origins: Sequence[OrderedMessage],
        queue: TopicQueue,
    ) -> bytes:
        """Return the rows of a queue as bytes, to be kept with their version.

        A key that changed its queue brings messages along that came from another one.
        """
        if not rows:
            return b""
        sink = pa.BufferOutputStream()
        here = (queue.broker, queue.index)
        moved = any((one.broker, one.queue) != here for one in origins)
        places = [*_PLACES, _OFFSET] if moved else [_OFFSET]
        kept_schema = pa.schema([*self.schema, *places])
        with pa.ipc.new_stream(sink, kept_schema) as writer:
            for start in range(0, len(rows), BATCH_ROWS):
                batch = self.batch(rows[start : start + BATCH_ROWS])
                some = origins[start : start + BATCH_ROWS]
                columns = [*batch.columns]
                if moved:
                    columns.append(pa.array([one.broker for one in some], pa.string()))
                    columns.append(pa.array([one.queue for one in some], pa.int32()))
                columns.append(pa.array([one.offset for one in some], pa.int64()))
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=kept_schema))
        kept: bytes = sink.getvalue().to_pybytes()
        return kept

    def batch(self, rows: Sequence[tuple[object, ...]]) -> pa.RecordBatch:
        """Return rows as a batch. Raises BadResult for rows that do not fit the schema."""
        columns = []
        for field, values in zip(self.schema, zip(*rows, strict=True), strict=True):
            try:
                columns.append(pa.array(values, field.type))
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                raise BadResult(f"column {field.name} of a row: {error}") from None
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def numbered(
        self, data: bytes, queue: TopicQueue, producer: str, batch: int
    ) -> Iterator[pa.RecordBatch]:
        """Return kept rows with their numbers; as Spark knows them now.

        Columns that were added to the schema since are null, columns that are gone are left out.
        """
        if not data:
            return
        at = sequence(batch, 0)
        for found in pa.ipc.open_stream(data):
            count = found.num_rows
            columns = [self._column(found, field) for field in self.schema]
            columns.append(pa.repeat(pa.scalar(queue.topic, pa.string()), count))
            if found.schema.get_field_index(SOURCES[1]) >= 0:
                columns += [found.column(name) for name in SOURCES[1:3]]
            else:
                columns.append(pa.repeat(pa.scalar(queue.broker, pa.string()), count))
                columns.append(pa.repeat(pa.scalar(queue.index, pa.int32()), count))
            columns.append(found.column(SOURCES[3]))
            columns.append(pa.repeat(pa.scalar(producer, pa.string()), count))
            columns.append(pa.array(range(at, at + count), pa.int64()))
            at += count
            yield pa.RecordBatch.from_arrays(columns, [*self.columns, *MADE])

    @staticmethod
    def _column(found: pa.RecordBatch, field: pa.Field) -> pa.Array:
        index = found.schema.get_field_index(field.name)
        if index < 0:
            return pa.nulls(found.num_rows, field.type)
        return found.column(index).cast(field.type)
