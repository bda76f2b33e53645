"""The numbers of a handler's rows: by batch, so that a message that waited is not taken for old."""

from __future__ import annotations

import pytest

pa = pytest.importorskip("pyarrow")

from inorder.model import TopicQueue  # noqa: E402 - after the look for pyarrow
from inorder.spark.ordered.outputs import Rows  # noqa: E402

QUEUE = TopicQueue("orders", "broker-a", 0)


def numbers(batch: int, offsets: list[int]) -> list[int]:
    """Return the numbers of rows that were made of the messages at these offsets."""
    schema = pa.schema([("key", pa.string())])
    kept = pa.schema([*schema, pa.field("source_offset", pa.int64())])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, kept) as writer:
        columns = [pa.array(["k"] * len(offsets)), pa.array(offsets, pa.int64())]
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=kept))
    rows = Rows("key string", ("key",), schema)
    found = rows.numbered(sink.getvalue().to_pybytes(), QUEUE, "p", batch)
    return [number for one in found for number in one.column("sequence").to_pylist()]


def test_a_row_of_a_message_that_waited_is_above_those_written_before():
    """A12: offset 100 is retried later; batch 3 writes 101 to 200, batch 4 the row of 100."""
    before = numbers(3, list(range(101, 201)))
    after = numbers(4, [100, 201, 100])
    assert before == sorted(set(before))
    assert after == sorted(set(after))
    assert min(after) > max(before), "or the sink would take it for one that it has"
