"""Reading a partition: the part that runs on executors, knowing nothing but its partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inorder.errors import CorruptRecord
from inorder.spark.cluster import Cluster
from inorder.spark.columns import BODY_BYTES_MAX, PROPERTY_OF, Records
from inorder.spark.options import SourceOptions
from inorder.spark.planning import DataLoss, Range
from inorder.wire.codes import ResponseCode
from inorder.wire.compression import decompress_body
from inorder.wire.record import decode
from inorder.wire.requests.pulls import parse_subscription

ROWS_MIN = 2000


@dataclass(frozen=True, slots=True)
class Portion:
    """What one task reads: whole queues, front to back."""

    options: SourceOptions
    ranges: tuple[Range, ...]


def read(portion: Portion) -> Iterator[pa.RecordBatch]:
    """Return the messages of a portion as Arrow batches, each queue in order and without a gap.

    Raises:
        DataLoss: some are gone, and the options do not say that this is fine.
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
    for pulled in cluster.read(queue, span.start, span.end, options.tag):
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
    _check_order(records.offsets, at, span, filtered=options.tag != "*")
    if options.keys:
        records = records.with_keys(options.keys)
        if options.check_crc and records.count:
            records.check_crc()
    batch = records.batch(options.columns, broker=span.queue.broker)
    return _wanted(batch, records, options, span)


def whole_bytes(data: bytes, *, check_crc: bool) -> bytes:
    """Return the records of an answer before the first that is damaged."""
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
    """Return the offset behind the last record, `at` if there is none."""
    return int(Records(data, check_crc=False).offsets[-1]) + 1 if data else at


def _wanted(
    batch: pa.RecordBatch, records: Records, options: SourceOptions, span: Range
) -> pa.RecordBatch:
    """Leave out what lies behind the range, and tags that only share a hash with the wanted."""
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
    """Assert that a queue is read in order and, if all of it is wanted, without a gap."""
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
