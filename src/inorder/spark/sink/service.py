"""Rows into a topic, batch or stream, the rows of one key in their order.

    exactly-once    every row is numbered by its origin: a named producer for each source queue, the
                    offset there as its number. A repeated task sends the same numbers, and the
                    broker stores what it does not have. Needs an inorder broker and the columns
                    `source_topic`, `source_broker`, `source_queue`, `source_offset` (`lineage`), or
                    the user's own `producer` and `sequence`
    at-least-once   a repeated task stores its rows again. For Apache RocketMQ, and rows without
                    lineage

Numbers ascend per producer and target queue. The writer checks it: a broker would take rows that a
shuffle put out of order for repetitions and drop them silently. Why: decision 34.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from inorder.errors import ConfigError, InorderError
from inorder.spark.sink.options import EXACTLY_ONCE, LINEAGE, OWN, SinkOptions
from inorder.wire import properties as names
from inorder.wire.extensions import OUR_PREFIX, SOURCE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from inorder.model import Message, TopicQueue
    from inorder.sync.producer import Producer
ROWS_PER_MESSAGE_BITS: Final = 20
BATCH_ROWS: Final = 1000
KEYLESS: Final = ":-"
"""Ends the name of the producer of rows without a key: those of a source queue go to one queue."""


class OutOfOrder(InorderError):
    """Rows came in an order in which the broker would drop some; none of them was sent."""


def lineage(frame: DataFrame) -> DataFrame:
    """Return the rows of the source with their place under the names that the sink wants.

    `topic`, `broker`, `queue` and `offset` become `source_topic` and so on, so that `topic` is free
    to say where a row goes.
    """
    for name in LINEAGE:
        frame = frame.withColumnRenamed(name.removeprefix("source_"), name)
    return frame


class Writer(DataSourceArrowWriter):
    """Writes a batch."""

    def __init__(self, options: SinkOptions) -> None:
        self._wanted = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task; they are stored when this returns."""
        return send_rows(self._wanted, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing is left to do: the rows are stored."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Keep the stored messages: a repetition with exactly-once finds them."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches."""

    def __init__(self, options: SinkOptions) -> None:
        self._wanted = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task; they are stored when this returns."""
        return send_rows(self._wanted, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to do: the rows are stored."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Keep the stored messages: the repetition finds them."""


def send_rows(options: SinkOptions, batches: Iterator[Any]) -> WriterCommitMessage:
    """Send rows in their order; return when all are stored."""
    if "delay_level" in options.columns:
        _send_one_by_one(options, batches)
    else:
        _send_packed(options, batches)
    return WriterCommitMessage()


def _send_packed(options: SinkOptions, batches: Iterator[Any]) -> None:
    from inorder.spark.sink.sender import send_packed

    exact = options.delivery == EXACTLY_ONCE
    for name, topic, rows, numbers in send_packed(options, batches):
        with _producer(options, name if exact else None) as producer:  # it creates the topic
            members = list(zip(rows.to_pylist(), numbers.tolist(), strict=True))
            _send_to(producer, options, topic, members, exact=exact)


def _send_one_by_one(options: SinkOptions, batches: Iterator[Any]) -> None:
    """Send rows that cannot be packed: those with a delay."""
    exact = options.delivery == EXACTLY_ONCE
    numbers = Numbers(options.sink_id)
    producers: dict[str, Producer] = {}
    try:
        for batch in batches:
            rows = batch.to_pylist()
            for start in range(0, len(rows), BATCH_ROWS):
                for name, chosen in _by_producer(rows[start : start + BATCH_ROWS], numbers, exact):
                    producer = producers.get(name)
                    if producer is None:
                        producer = _producer(options, name if exact else None)
                        producers[name] = producer
                    _send(producer, options, chosen, exact)
    finally:
        for producer in producers.values():
            producer.close()


def _producer(options: SinkOptions, name: str | None) -> Producer:
    from inorder.sync.producer import Producer

    servers = options.servers
    return Producer(
        servers.namesrv, id=name, tls=servers.context(), credentials=servers.credentials()
    )


class Numbers:
    """Gives rows their producer and number, and checks that numbers ascend."""

    def __init__(self, sink_id: str) -> None:
        self._sink_id = sink_id
        self._last: dict[str, int] = {}

    def of(self, row: Mapping[str, Any]) -> tuple[str, int]:
        """Return the name of the producer and the number of a row."""
        if row.get("producer") is not None and row.get("sequence") is not None:
            name, number = str(row["producer"]), int(row["sequence"])
            name += "" if row.get("key") else KEYLESS
        else:
            if any(row.get(column) is None for column in LINEAGE):
                raise ConfigError(
                    f"a row does not say where it comes from: {', '.join(LINEAGE)} must not be null"
                )
            place = ":".join(str(row[column]) for column in LINEAGE[:3])
            name = f"spark:{self._sink_id}:{place}" + ("" if row.get("key") else KEYLESS)
            number = int(row["source_offset"]) << ROWS_PER_MESSAGE_BITS
            last = self._last.get(name, -1)
            if last >> ROWS_PER_MESSAGE_BITS == int(row["source_offset"]):
                number = last + 1  # a further row of the same message
        last = self._last.get(name, -1)
        if number <= last:
            raise OutOfOrder(
                f"a row of producer {name} has number {number} after {last}: the rows are not in "
                "the order of their source. Sort them by source_queue and source_offset after a "
                "shuffle, or do without it"
            )
        self._last[name] = number
        return name, number


def _by_producer(
    rows: list[dict[str, Any]], numbers: Numbers, exact: bool
) -> Iterator[tuple[str, list[tuple[dict[str, Any], int]]]]:
    """Group rows by producer; the order within one stays."""
    if not exact:
        yield "", [(row, 0) for row in rows]
        return
    found: dict[str, list[tuple[dict[str, Any], int]]] = {}
    for row in rows:
        name, number = numbers.of(row)
        found.setdefault(name, []).append((row, number))
    yield from found.items()


def _send(
    producer: Any, options: SinkOptions, chosen: list[tuple[dict[str, Any], int]], exact: bool
) -> None:
    by_topic: dict[str, list[tuple[dict[str, Any], int]]] = {}
    for row, number in chosen:
        topic = row.get("topic") or options.topic
        if not topic:
            raise ConfigError("a row has no topic and the sink has no option topic")
        by_topic.setdefault(topic, []).append((row, number))
    for topic, members in by_topic.items():
        _send_to(producer, options, topic, members, exact=exact)


def _send_to(
    producer: Any,
    options: SinkOptions,
    topic: str,
    members: list[tuple[dict[str, Any], int]],
    *,
    exact: bool,
) -> None:
    told = _places(options, exact)
    # A delayed message is a request of its own; the order of the rows stays.
    for (level, source), run in groupby(members, key=lambda member: _kind(member[0], exact)):
        some = list(run)
        choice = {} if source is None else {"selector": _by_source, "arg": source}
        messages = [message_of(topic, row, told) for row, _ in some]
        numbers = [number for _, number in some]
        if not level:
            producer.send_batch(messages, sequences=numbers if exact else None, **choice)
            continue
        for message, number in zip(messages, numbers, strict=True):
            producer.send(
                topic, message.body, key=message.key, tag=message.tag, keys=message.keys,
                properties=message.properties, sequence=number if exact else None,
                delay_level=level, **choice,
            )  # fmt: skip


def _kind(row: Mapping[str, Any], exact: bool) -> tuple[int, int | None]:
    """Return the values that rows of one request share: delay and, without a key, source queue."""
    level, source = row.get("delay_level") or 0, row.get("source_queue")
    if row.get("key") or (source is None and not exact):
        return level, None
    return level, source or 0


def _by_source(queues: Sequence[TopicQueue], _: object, index: int) -> TopicQueue:
    """Choose the queue of rows without a key: the same whenever they are sent again."""
    return sorted(queues)[index % len(queues)]


def _places(options: SinkOptions, exact: bool) -> bool:
    """Return whether messages name their source in a property.

    Not where the producer's name and number say it already.
    """
    told = all(name in options.columns for name in LINEAGE)
    return told and (not exact or all(name in options.columns for name in OWN))


def message_of(topic: str, row: Mapping[str, Any], told: bool = False) -> Message:
    """Return the message of a row; if `told`, it names its source."""
    from inorder.model import Message

    body = row["body"]
    if body is None:
        raise ConfigError("a row has no body; a message needs at least one byte")
    properties = own_properties(row.get("properties"))
    if told and row.get("source_offset") is not None:
        properties[SOURCE] = "|".join(str(row[name]) for name in LINEAGE)
    return Message(
        topic,
        body.encode() if isinstance(body, str) else bytes(body),
        row.get("key") or None,
        row.get("tag") or None,
        tuple((row.get("keys") or "").split()),
        properties,
    )


def own_properties(properties: object) -> dict[str, str]:
    """Return the properties that a user may set: not those that client and broker set."""
    found = dict(properties or ())  # type: ignore[call-overload]
    return {
        name: value
        for name, value in found.items()
        if name not in names.SET_BY_OTHERS and not name.startswith(OUR_PREFIX)
    }
