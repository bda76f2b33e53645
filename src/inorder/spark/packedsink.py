"""The exactly-once sink over whole batches of rows: numbers, queues and requests column by column.

The same rules as row by row (`sink.py`): a producer for each source queue, the offset there as the
number, a sub-index for further rows of one message; numbers ascend, or the task fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inorder.accelerated import native
from inorder.errors import ConfigError, TopicNotRouted
from inorder.ordering.keymap import queue_for_key
from inorder.spark import packing
from inorder.spark.packing import Array, Chunk, as_column, join_properties, pack_some
from inorder.spark.sending import Rows, Sender, Targets
from inorder.spark.sink import (
    KEYLESS,
    LINEAGE,
    OUR_PREFIX,
    OWN,
    ROWS_PER_MESSAGE_BITS,
    SET_BY_OTHERS,
    SOURCE,
    OutOfOrder,
    SinkOptions,
)

NAME_CHARS_MAX: Final = 120
"""Of the 128 that a producer's name may have; the version of the target's key map is added."""
_KEYS_KNOWN_MAX: Final = 100_000


class Unsent(NamedTuple):
    """Rows of one producer that are to be sent in another way, under these numbers."""

    name: str
    topic: str
    rows: pa.RecordBatch
    numbers: Array


class PackedSink:
    """Sends the rows of one task."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._sender = Sender(options.servers)
        self._last: dict[str, int] = {}
        self._places: dict[tuple[str, int], int] = {}
        self._shift = 0

    def finish(self) -> None:
        """Return when everything sent is stored."""
        self._sender.finish()

    def close(self) -> None:
        """Let go."""
        self._sender.close()

    def send(self, batch: pa.RecordBatch) -> Iterator[Unsent]:
        """Send rows; give those back that are for a topic that nobody knows yet.

        What was sent is stored when `finish` has returned.
        """
        if not batch.num_rows:
            return
        if set(OWN) <= set(batch.schema.names):
            mine = pc.and_(*(batch[name].is_valid() for name in OWN))
            if 0 < pc.sum(mine).as_py() < batch.num_rows:  # some have numbers, some a place only
                yield from self.send(batch.filter(mine))
                yield from self.send(batch.filter(pc.invert(mine)))
                return
        own = self._own_properties(batch)
        for name, topic, rows, numbers in list(self._groups(batch)):  # judged before any is sent
            try:
                self._sender.find(topic)
            except TopicNotRouted:
                self._sender.finish()
                self._sender.close()  # somebody else speaks for this producer now
                yield Unsent(name, topic, batch.take(pa.array(rows)), numbers)
            else:
                self._sender.send(self._rows(batch, own, name, topic, rows, numbers))

    def _own_properties(self, batch: pa.RecordBatch) -> Any | None:
        names = set(batch.schema.names)
        found = None
        if "properties" in names:
            found = join_properties(batch["properties"], SET_BY_OTHERS, OUR_PREFIX)
        if set(LINEAGE) <= names and set(OWN) <= names:
            parts = [batch[name].cast(pa.string()).cast(pa.binary()) for name in LINEAGE]
            places = pc.binary_join_element_wise(*parts, b"|")
            told = pc.binary_join_element_wise(f"{SOURCE}\x01".encode(), places, b"\x02", b"")
            told = pc.fill_null(told, b"")
            found = told if found is None else pc.binary_join_element_wise(found, told, b"")
        return found

    # Who sends a row, and under which number.

    def _groups(self, batch: pa.RecordBatch) -> Iterator[tuple[str, str, Array, Array]]:
        """Return name of the producer, topic, rows and numbers, of each producer and topic."""
        names, codes, numbers = self._named(batch)
        has_key = self._has_key(batch)
        topics, topic_codes = self._topics(batch)
        if len(names) == len(topics) == 1 and bool(has_key.all()):  # as a source gives them
            name = _checked_name(names[0])
            yield name, topics[0], np.arange(batch.num_rows), self._ascending(name, numbers)
            return
        kinds = (codes * 2 + ~has_key) * len(topics) + topic_codes
        numbered = np.empty(batch.num_rows, np.int64)
        for kind in np.unique(codes * 2 + ~has_key):
            rows = np.flatnonzero(codes * 2 + ~has_key == kind)
            name = _checked_name(names[kind // 2] + (KEYLESS if kind % 2 else ""))
            numbered[rows] = self._ascending(name, numbers[rows])
            for topic_code in np.unique(topic_codes[rows]):
                chosen = np.flatnonzero(kinds == kind * len(topics) + topic_code)
                yield name, topics[topic_code], chosen, numbered[chosen]

    def _named(self, batch: pa.RecordBatch) -> tuple[list[str], Array, Array]:
        """Return the producers' names, the producer of each row, and numbers without sub-index."""
        columns = set(batch.schema.names)
        if set(OWN) <= columns and not any(batch[name].null_count for name in OWN):
            encoded = batch["producer"].cast(pa.string()).dictionary_encode()
            numbers = batch["sequence"].cast(pa.int64()).to_numpy(False)
            self._shift = 0
            return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(False), numbers
        if not set(LINEAGE) <= columns or any(batch[name].null_count for name in LINEAGE):
            raise ConfigError(
                f"a row does not say where it comes from: {', '.join(LINEAGE)} must not be null"
            )
        codes = np.zeros(batch.num_rows, np.int64)
        words: list[list[str]] = []
        for name in LINEAGE[:3]:
            column = batch[name]
            if pc.all(pc.equal(column, column[0])).as_py():  # all of one place, as most are
                words.append(column.slice(0, 1).cast(pa.string()).to_pylist())
                continue
            encoded = column.cast(pa.string()).dictionary_encode()
            codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy(False)
            words.append(encoded.dictionary.to_pylist())
        kinds, codes = np.unique(codes, return_inverse=True) if codes.any() else ([0], codes)
        sizes = [len(part) for part in words]
        names = []
        for kind in map(int, kinds):
            rest, queue = divmod(kind, sizes[2])
            topic, broker = divmod(rest, sizes[1])
            place = f"{words[0][topic]}:{words[1][broker]}:{words[2][queue]}"
            names.append(f"spark:{self._options.sink_id}:{place}")
        self._shift = ROWS_PER_MESSAGE_BITS
        return names, codes, batch["source_offset"].cast(pa.int64()).to_numpy(False)

    def _ascending(self, name: str, numbers: Array) -> Array:
        """Return the numbers of a producer's rows with their sub-index; assert that they ascend."""
        last = self._last.get(name, -1)
        found = numbers
        if self._shift:
            found = numbers << self._shift
            same = np.concatenate(([last >= 0 and last >> self._shift == numbers[0]],
                                   numbers[1:] == numbers[:-1]))  # fmt: skip
            if same.any():
                found = found + _sub_index(same, last & ((1 << self._shift) - 1))
        before = np.concatenate(([last], found[:-1]))
        wrong = np.flatnonzero(found <= before)
        if len(wrong):
            at = int(wrong[0])
            raise OutOfOrder(
                f"a row of producer {name} has number {found[at]} behind {before[at]}: the rows "
                "are not in the order of their source. Sort them by source_queue and "
                "source_offset after a shuffle, or do without it"
            )
        self._last[name] = int(found[-1])
        return found

    def _has_key(self, batch: pa.RecordBatch) -> Array:
        if "key" not in batch.schema.names:
            return np.zeros(batch.num_rows, bool)
        there: Array = pc.fill_null(pc.not_equal(batch["key"], ""), False).to_numpy(False)
        return there

    def _topics(self, batch: pa.RecordBatch) -> tuple[list[str], Array]:
        given = self._options.topic
        if "topic" not in batch.schema.names:
            return [given or ""], np.zeros(batch.num_rows, np.int64)
        column = batch["topic"].cast(pa.string())
        if given:
            column = pc.fill_null(pc.if_else(pc.equal(column, ""), given, column), given)
        elif column.null_count or pc.any(pc.equal(column, "")).as_py():
            raise ConfigError("a row has no topic and the sink has no option topic")
        encoded = column.dictionary_encode()
        return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(False)

    # To which queue it goes.

    def _rows(  # noqa: PLR0917 - made in one place
        self, batch: pa.RecordBatch, own: Any, name: str, topic: str, rows: Array, numbers: Array
    ) -> Rows:
        is_keyed = not name.endswith(KEYLESS)

        def packed(producer: str, wanted: Array, before: int) -> list[Chunk]:
            by = packing.Sender(name, producer)
            return pack_some(batch, own, rows[wanted], by, numbers[wanted], before)

        def place(targets: Targets) -> Array:
            if is_keyed:
                return self._by_key(batch["key"], rows, len(targets.queues))
            if "source_queue" not in batch.schema.names:
                return np.zeros(len(numbers), np.int64)
            values = batch["source_queue"].take(pa.array(rows)).cast(pa.int64())
            queues: Array = values.fill_null(0).to_numpy(False)
            return queues % len(targets.queues)

        return Rows(name, topic, numbers, place, packed)

    def _by_key(self, keys: Any, rows: Array, count: int) -> Array:
        texts = keys.cast(pa.string())
        if native is not None:
            wanted = np.ascontiguousarray(rows, np.int64)
            found = native.queues_of_keys(as_column(b"", texts), wanted, count)
            if found is not None:
                return np.frombuffer(found, np.int64)
        encoded = texts.take(pa.array(rows)).dictionary_encode()
        if len(self._places) > _KEYS_KNOWN_MAX:
            self._places.clear()
        known = self._places
        table = np.empty(len(encoded.dictionary), np.int64)
        for at, key in enumerate(encoded.dictionary.to_pylist()):
            place = known.get((key, count))
            if place is None:
                place = known[key, count] = queue_for_key(key, count)
            table[at] = place
        placed: Array = table[encoded.indices.to_numpy(False)]
        return placed


def _sub_index(same: Array, last: int) -> Array:
    """Return 0 for the first row of a message and 1, 2, … for those behind it."""
    places = np.arange(len(same))
    firsts = np.where(same, 0, places)
    begin = np.maximum.accumulate(firsts)
    found = places - begin
    if same[0]:  # goes on behind the last batch
        run = int(np.argmin(same)) if not same.all() else len(same)
        found[:run] = np.arange(last + 1, last + 1 + run)
    return found


def _checked_name(name: str) -> str:
    if len(name) > NAME_CHARS_MAX or not (name.isascii() and name.isprintable()):
        raise ConfigError(
            f"{name!r} is no name of a producer: at most {NAME_CHARS_MAX} printable ASCII "
            "characters; choose a shorter sinkId"
        )
    return name


def send_packed(options: SinkOptions, batches: Iterable[pa.RecordBatch]) -> Iterator[Unsent]:
    """Send rows; give those back that this cannot send: of a topic that is not there yet."""
    sink = PackedSink(options)
    try:
        for batch in batches:
            yield from sink.send(batch)
        sink.finish()
    finally:
        sink.close()
