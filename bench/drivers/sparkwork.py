"""What the workers of Spark run in `python -m bench spark`: rows from nothing, state, a stop-watch.

The synthetic source gives the same rows as our own without a broker and without decoding: what
Spark and its Arrow interface allow at best.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from inorder.spark.source.options import arrow_schema, chosen, spark_schema

BODY_BYTES = 200
KEYS = 1000
BATCH_ROWS = 8192
_made: dict[int, dict[str, Any]] = {}


def key_of(number: int) -> str:
    """Return the key of a message."""
    return f"order-{number % KEYS:04d}"


def body_of(number: int) -> bytes:
    """Return the body of a message: 200 bytes, no two alike."""
    return f"{number:012d}".encode() + b"x" * (BODY_BYTES - 12)


def _columns(queue: int) -> dict[str, Any]:
    """Return the columns of a batch but for the offsets, made once in a process."""
    found = _made.get(queue)
    if found is None:
        numbers = range(queue, queue + BATCH_ROWS)
        now_us = int(time.time() * 1e6)
        times = pa.array([now_us] * BATCH_ROWS, pa.timestamp("us", tz="UTC"))
        ids = [f"{number:032X}" for number in numbers]
        found = _made[queue] = {
            "topic": pa.repeat("bench", BATCH_ROWS),
            "broker": pa.repeat("broker-a", BATCH_ROWS),
            "queue": pa.repeat(pa.scalar(queue, pa.int32()), BATCH_ROWS),
            "key": pa.array([key_of(number) for number in numbers]),
            "tag": pa.nulls(BATCH_ROWS, pa.string()),
            "keys": pa.nulls(BATCH_ROWS, pa.string()),
            "body": pa.array([body_of(number) for number in numbers]),
            "properties": pa.array(
                [[("UNIQ_KEY", ids[at]), ("__SHARDINGKEY", key_of(number)), ("WAIT", "true")]
                 for at, number in enumerate(numbers)],
                pa.map_(pa.string(), pa.string()),
            ),
            "born_at": times,
            "stored_at": times,
            "message_id": pa.array(ids),
            "redeliveries": pa.repeat(pa.scalar(0, pa.int32()), BATCH_ROWS),
        }  # fmt: skip
    return found


class Slice(InputPartition):
    """Rows of some queues."""

    def __init__(self, queues: list[int], start: int, end: int, names: tuple[str, ...]) -> None:
        super().__init__(None)
        self.queues, self.start, self.end, self.names = queues, start, end, names


def read_slice(part: Slice) -> Iterator[pa.RecordBatch]:
    """Give the rows of a slice."""
    schema = arrow_schema(part.names)
    for queue in part.queues:
        columns = _columns(queue)
        for start in range(part.start, part.end, BATCH_ROWS):
            count = min(BATCH_ROWS, part.end - start)
            offsets = pa.array(np.arange(start, start + count))
            arrays = [
                offsets if name == "offset" else columns[name].slice(0, count)
                for name in schema.names
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class SyntheticSource(DataSource):
    """`format("synthetic")`: rows, queues, tasks and columns are options."""

    @classmethod
    def name(cls) -> str:
        """Return what stands in `format(...)`."""
        return "synthetic"

    def schema(self) -> str:
        """Return the columns of our source."""
        return spark_schema(chosen(self.options.get("columns")))

    def reader(self, schema: Any) -> DataSourceReader:
        """Return the reader of a batch."""
        return SyntheticReader(dict(self.options))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        return SyntheticStream(dict(self.options))


def _slices(options: dict[str, str], start: int, end: int) -> list[InputPartition]:
    queues, tasks = int(options["queues"]), int(options["tasks"])
    names = chosen(options.get("columns"))
    return [Slice(list(range(at, queues, tasks)), start, end, names) for at in range(tasks)]


class SyntheticReader(DataSourceReader):
    """All rows in one go."""

    def __init__(self, options: dict[str, str]) -> None:
        self._wanted = options

    def partitions(self) -> list[InputPartition]:
        """Return the slices."""
        return _slices(self._wanted, 0, int(self._wanted["rows"]) // int(self._wanted["queues"]))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the rows of a slice."""
        assert isinstance(partition, Slice)
        yield from read_slice(partition)


class SyntheticStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """All rows in one micro-batch."""

    def __init__(self, options: dict[str, str]) -> None:
        self._wanted = options

    def initialOffset(self) -> dict[str, Any]:
        """Return the beginning."""
        return {"n": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """Nothing moves here."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end."""
        return {"n": int(self._wanted["rows"]) // int(self._wanted["queues"])}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the slices of a micro-batch."""
        return _slices(self._wanted, start["n"], end["n"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the rows of a slice."""
        if isinstance(partition, Slice):
            yield from read_slice(partition)


STATE_OUT = "queue int, offset bigint, key string, number bigint"
_STATE_SCHEMA = pa.schema(
    [("queue", pa.int32()), ("offset", pa.int64()), ("key", pa.string()), ("number", pa.int64())]
)


def ordered_state(
    folder: str,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for mapInArrow: each message gets its number within its key.

    Its state is kept per queue and saved at the end of the task; order is asserted. Columns: queue,
    offset, key.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        states: dict[int, dict[str, int]] = {}
        last: dict[int, int] = {}
        for batch in batches:
            queues = batch["queue"].to_pylist()
            offsets = batch["offset"].to_pylist()
            keys = batch["key"].cast(pa.string()).to_pylist()
            numbers = []
            for queue, offset, key in zip(queues, offsets, keys, strict=True):
                state = states.setdefault(queue, {})
                assert offset > last.get(queue, -1), "out of order"
                last[queue] = offset
                number = state[key] = state.get(key, 0) + 1
                numbers.append(number)
            yield pa.RecordBatch.from_arrays(
                [batch["queue"].cast(pa.int32()), batch["offset"], pa.array(keys, pa.string()),
                 pa.array(numbers, pa.int64())],
                schema=_STATE_SCHEMA,
            )  # fmt: skip
        for queue, state in states.items():
            draft = Path(folder) / f".{queue}.{os.getpid()}"
            draft.write_bytes(pickle.dumps(state))
            draft.replace(Path(folder) / str(queue))

    return run


class StopWatch(DataSource):
    """`format("stopwatch")`: a sink that notes how old rows are when they come."""

    @classmethod
    def name(cls) -> str:
        """Return what stands in `format(...)`."""
        return "stopwatch"

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer."""
        return StopWatchWriter(self.options["folder"])


class StopWatchWriter(DataSourceStreamArrowWriter):
    """Writes ages in ms to a file for each task."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Note the ages of the rows of a task."""
        found = []
        for batch in iterator:
            now_us = time.time() * 1e6
            found.append(now_us - batch["at"].cast(pa.int64()).to_numpy(False))
        if found:
            ages = np.concatenate(found) / 1000
            np.save(Path(self._folder) / f"{time.time_ns()}-{os.getpid()}.npy", ages)
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to do."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to do."""
