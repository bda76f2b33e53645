"""The sink: rows packed column by column, sent under sequence numbers.

    PackedSink   whole Arrow batches to producers, numbers and queues. The rules are those of
                 `spark/sink/service.py`, which goes row by row: a producer for each source queue,
                 the offset there as the number, a sub-index for further rows of one message.
                 Numbers ascend, or the task fails.
    Sender       exactly once: stores the rows of each producer once
    TaskSender   at least once: numbers the rows of one task as they go

The sender says hello to a broker under the producer's name, then asks for the last number of that
name on a queue. Rows up to it are stored and are left out. The others go in their order, several
requests ahead of their replies. Each request names the number before it, so the broker refuses
requests after one that failed. After any failure the sender asks again for the last number, so no
row is stored twice and none is skipped. The latest hello under a name wins: an attempt that Spark
gave up and that still runs is refused.

Numbers ascend per name and queue, and a resize puts keys into other queues. So each version of the
key map has a name of its own (`spark/sink/rules.py`), and the sender asks for the last numbers of
the versions in which the batch may have run before. Why: decision 34.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inorder.accelerated import native
from inorder.client.identity import Identity, MessageIds, new_id
from inorder.client.rules.receipts import Verdict, verdict
from inorder.client.rules.routes import publish_queues
from inorder.clock import SystemClock
from inorder.errors import (
    BrokerError,
    CodeNotSupported,
    ConfigError,
    InorderError,
    KeyMapChanged,
    OutcomeUnknown,
    ProducerGap,
    ProducerUnknown,
    TopicNotRouted,
    TransportError,
    broker_error,
)
from inorder.model import TopicQueue
from inorder.net.blocking import BlockingConnection, BlockingProducer, Incarnations
from inorder.ordering.keymap import KeyMap, queue_for_key
from inorder.spark.cluster import Cluster, Servers
from inorder.spark.sink import packing
from inorder.spark.sink.options import EXACTLY_ONCE, LINEAGE, OWN, SinkOptions
from inorder.spark.sink.packing import Array, Chunk, as_column, join_properties, pack_some
from inorder.spark.sink.rules import Begun, name_at
from inorder.spark.sink.service import KEYLESS, ROWS_PER_MESSAGE_BITS, OutOfOrder
from inorder.spark.source.options import DEFAULT_GROUP
from inorder.wire.extensions import OUR_PREFIX, SOURCE, STORED
from inorder.wire.header import Command
from inorder.wire.names import AUTO_CREATE_TOPIC
from inorder.wire.properties import SET_BY_OTHERS
from inorder.wire.requests.sendframes import SendTemplate, by_map, json_text

ATTEMPTS: Final = 8
AHEAD_MAX: Final = 8
"""How many requests may wait for replies, each a megabyte at most."""
PAUSE_S: Final = 0.1
_INCARNATION_BITS: Final = 20
_TEMPLATE_QUEUES: Final = 8
_PROPERTIES: Final = json_text("WAIT\x01true\x02")


@dataclass(frozen=True, slots=True)
class Targets:
    """The queues of a topic that keys go to, in their order, and the version of its key map."""

    queues: tuple[TopicQueue, ...]
    version: int
    placed: bytes = b""
    """The fields of a send that name the key map which chose its queue."""


@dataclass(slots=True)
class Rows:
    """Rows of one producer for one topic: their numbers, and how to place and to pack them."""

    name: str
    topic: str
    numbers: Array
    place: Callable[[Targets], Array]
    """Gives each row the index of its queue."""
    pack: Callable[[packing.Sender, Array, int], list[Chunk]]
    """Packs some rows of one queue for a producer, given the number that they come after."""
    stored: Array = field(default_factory=lambda: np.zeros(0, bool))
    unsure: list[tuple[TopicQueue, Array, Array]] = field(default_factory=list)
    """Rows that were given numbers as they went: their queue, the rows and the numbers."""


@dataclass(slots=True)
class _Pending:
    queue: TopicQueue
    rows: Array
    chunks: deque[Chunk]


class _Sent(NamedTuple):
    rows: Rows
    indexes: Array
    connection: BlockingConnection
    number: int


class Sender:
    """Sends rows for one task, by the names and numbers that they bring; used by one thread."""

    _named = True

    def __init__(self, servers: Servers) -> None:
        self._cluster = Cluster(servers, group=DEFAULT_GROUP)
        self._connections: dict[str, BlockingConnection] = {}
        self._producers: dict[tuple[str, str], BlockingProducer] = {}
        self._targets: dict[str, Targets] = {}
        self._past: dict[str, list[Targets]] = {}
        self._begun: dict[tuple[str, str], Begun] = {}
        self._incarnations = Incarnations(_INCARNATION_BITS, _now_ms)
        self._open: deque[_Sent] = deque()

    def find(self, topic: str) -> None:
        """Learn which queues a topic has.

        Raises:
            TopicNotRouted: no name server knows the topic yet.
        """
        self._the_targets(topic)

    def send(self, rows: Rows) -> None:
        """Send rows in their order, each once; they are stored when `finish` has returned.

        Raises:
            ConfigError: the broker knows no named producers.
        """
        rows.stored = np.zeros(len(rows.numbers), bool)
        try:
            self._send(rows, self._the_targets(rows.topic))
        except (TransportError, BrokerError) as error:
            self._send_again(error, rows)

    def finish(self) -> None:
        """Return when everything sent is stored."""
        try:
            self._await(0)
        except (TransportError, BrokerError) as error:
            self._send_again(error)

    def close(self) -> None:
        """Close the connections and forget the state of producers."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._producers.clear()
        self._open.clear()

    def _send_again(self, error: InorderError, *more: Rows) -> None:
        """Send the rows without a reply again, and `more`, without rows that are stored."""
        waiting = {id(rows): rows for rows in (*(sent.rows for sent in self._open), *more)}
        for attempt in range(1, ATTEMPTS):
            if not self._passes(error):
                break
            self.close()
            time.sleep(PAUSE_S * attempt)
            try:
                self._look_back(waiting.values())
                for rows in waiting.values():
                    self._send(rows, self._the_targets(rows.topic, anew=True))
                self._await(0)
                return
            except (TransportError, BrokerError, TopicNotRouted) as again:
                error = again
        raise error

    def _passes(self, error: InorderError) -> bool:
        """Return whether sending again may succeed after asking for the last number."""
        # A broker that restarts is missing in the routes for a moment.
        if isinstance(error, TransportError | ProducerGap | KeyMapChanged | TopicNotRouted):
            return True
        return isinstance(error, BrokerError) and error.retriable

    def _look_back(self, waiting: Iterable[Rows]) -> None:
        """Find out what is stored of rows that are about to be sent again; `_send` does it here."""

    def _the_targets(self, topic: str, *, anew: bool = False) -> Targets:
        found = None if anew else self._targets.get(topic)
        if found is None:
            queues = publish_queues(self._cluster.route(topic, anew=True), topic)
            key_map = self._cluster.key_map(topic, refused=anew)
            if key_map is not None:
                queues = [TopicQueue(topic, broker, index) for broker, index in key_map.queues]
            if not queues:
                raise TopicNotRouted(f"topic {topic} has no queue that may be written")
            version = 0 if key_map is None else key_map.version
            placed = b"" if key_map is None else by_map(version, key_map.digest)
            found = self._targets[topic] = Targets(tuple(queues), version, placed)
            self._past.pop(topic, None)
        return found

    def _the_past(self, topic: str) -> list[Targets]:
        """Return the past versions of a topic's key map, the last one first."""
        found = self._past.get(topic)
        if found is None:
            texts = {past.version: past.map for view in self._cluster.versions(topic)
                     for past in view.past}  # fmt: skip
            maps = [KeyMap.decode(texts[version]) for version in sorted(texts, reverse=True)]
            found = self._past[topic] = [
                Targets(tuple(TopicQueue(topic, *queue) for queue in one.queues), one.version)
                for one in maps
            ]
        return found

    def _settle(self, rows: Rows, targets: Targets, *, over: bool = False) -> list[_Pending]:
        """Mark the rows that are stored under a version; return the others, queue by queue.

        `over`: the version is past, so nothing is sent under its name any more.
        """
        where, name = rows.place(targets), name_at(rows.name, targets.version)
        waiting_queues = []
        begun = self._begun[rows.name, rows.topic]
        for index in np.flatnonzero(np.bincount(where[~rows.stored])).tolist():
            queue = targets.queues[index]
            last = self._find_last(name, queue, hello=not over)
            begun.heard(targets.version, last)
            waiting = np.flatnonzero((where == index) & ~rows.stored)
            there = rows.numbers[waiting] <= last
            rows.stored[waiting[there]] = True
            if not there.all():
                waiting_queues.append(_Pending(queue, waiting[~there], deque()))
        return waiting_queues

    def _settle_past(self, rows: Rows, targets: Targets) -> bool:
        """Mark the rows that were stored before a resize; return whether some were."""
        begun, before = self._begun[rows.name, rows.topic], int(rows.stored.sum())
        if begun.asks_below(targets.version):
            for past in self._the_past(rows.topic):
                if past.version < targets.version and begun.asks(past.version):
                    self._settle(rows, past, over=True)
        return int(rows.stored.sum()) > before

    def _send(self, rows: Rows, targets: Targets) -> None:
        self._begun.setdefault((rows.name, rows.topic), Begun(int(rows.numbers[0])))
        waiting_queues = self._settle(rows, targets)
        if waiting_queues and self._settle_past(rows, targets):
            waiting_queues = self._settle(rows, targets)
        name = name_at(rows.name, targets.version)
        for pending in waiting_queues:
            last = self._producer(name, pending.queue).last[rows.topic, pending.queue.index]
            pending.chunks.extend(rows.pack(packing.Sender(rows.name, name), pending.rows, last))
        self._send_chunks(rows, name, waiting_queues, targets)

    def _send_chunks(
        self, rows: Rows, name: str, waiting_queues: list[_Pending], targets: Targets
    ) -> None:
        """Send the requests of some queues in turn."""
        while waiting_queues:
            for pending in waiting_queues:
                self._await(AHEAD_MAX - 1)
                producer = self._producer(name, pending.queue)
                number = self._send_chunk(producer.connection, pending, targets.placed)
                chunk = pending.chunks.popleft()
                sent = pending.rows[chunk.start : chunk.end]
                self._open.append(_Sent(rows, sent, producer.connection, number))
                producer.last[rows.topic, pending.queue.index] = int(rows.numbers[sent[-1]])
            waiting_queues = [pending for pending in waiting_queues if pending.chunks]

    def _await(self, open_max: int) -> None:
        """Take replies, the oldest first, until at most `open_max` requests wait."""
        while len(self._open) > open_max:
            sent = self._open[0]
            answer = sent.connection.receive(sent.number)
            _check_stored(answer)
            sent.rows.stored[sent.indexes] = True
            self._open.popleft()

    def _send_chunk(self, connection: BlockingConnection, pending: _Pending, placed: bytes) -> int:
        queue, body = pending.queue, pending.chunks[0].body
        template = SendTemplate(
            group=DEFAULT_GROUP, topic=queue.topic, template_topic=AUTO_CREATE_TOPIC,
            template_queues=_TEMPLATE_QUEUES, queue_id=queue.index, broker=queue.broker,
        )  # fmt: skip
        now_ms = _now_ms()
        return connection.send_frame(
            lambda request_id: template.head(
                request_id, _PROPERTIES, len(body), born_at_ms=now_ms, batch=True,
                placed=placed,
            ),
            body,
        )  # fmt: skip

    # The producer of each name at each broker, and its last number on a queue.

    def _find_last(self, name: str, queue: TopicQueue, *, hello: bool) -> int:
        producer = self._producer(name, queue)
        known = producer.last.get((queue.topic, queue.index))
        if known is not None:
            return known
        if hello:
            try:
                producer.hello()
            except CodeNotSupported:
                raise ConfigError(
                    f"broker {queue.broker} knows no named producers, as Apache RocketMQ does not; "
                    "say delivery=at-least-once"
                ) from None
        return producer.find_last(queue.topic, queue.index)

    def _producer(self, name: str, queue: TopicQueue) -> BlockingProducer:
        found = self._producers.get((name, queue.broker))
        if found is None:
            found = self._producers[name, queue.broker] = BlockingProducer(
                self._connection(queue), name, self._incarnations, named=self._named
            )
        return found

    def _connection(self, queue: TopicQueue) -> BlockingConnection:
        address = self._cluster.master_of(queue)
        found = self._connections.get(address)
        if found is None:
            found = self._connections[address] = self._cluster.servers.connect(address)
        return found


def _now_ms() -> int:
    return int(time.time() * 1000)


def _check_stored(answer: Command) -> None:
    """Raise unless the rows of a request are stored. If that is unknown, the sender asks again."""
    said = verdict(answer.code, answer.fields.get(STORED))
    if said is Verdict.UNKNOWN:
        raise OutcomeUnknown(
            f"the broker answered {answer.code}: {answer.remark}; rows may or may not be stored",
            answer.code,
        )
    if said is Verdict.NOT_STORED:
        raise broker_error(answer.code, answer.remark)


class TaskSender(Sender):
    """Sends rows for one task at least once: under an id of its own that no other task knows.

    Rows get numbers as they go, 0, 1, 2, … on each queue, so that a request which is sent again
    after a failure is not stored twice. A repeated task has another id and stores its rows again.
    A broker without sequence numbers, as Apache RocketMQ, gets rows without them. It cannot refuse
    a request that overtook one before it, so each queue has one request at a time there.
    """

    _named = False

    def __init__(self, servers: Servers) -> None:
        super().__init__(servers)
        self._id = new_id(MessageIds(Identity.of_this_process(), SystemClock()))
        self._used: set[TopicQueue] = set()
        self._unnumbered: set[str] = set()
        self._count = 0

    def send(self, rows: Rows) -> None:
        """Send rows in their order; they are stored when `finish` has returned."""
        rows.numbers[:] = np.arange(self._count, self._count + len(rows.numbers))
        self._count += len(rows.numbers)
        super().send(rows)

    def _send(self, rows: Rows, targets: Targets) -> None:
        where = rows.place(targets)
        waiting_queues = []
        for index in np.flatnonzero(np.bincount(where[~rows.stored])).tolist():
            queue = targets.queues[index]
            chosen = np.flatnonzero((where == index) & ~rows.stored)
            last = self._last(queue)
            if last is None:
                by = packing.Sender(self._id, "")
            else:
                by = packing.Sender(f"{self._id}:{queue}", self._id, named=False)
                rows.numbers[chosen] = np.arange(last + 1, last + 1 + len(chosen))
                rows.unsure.append((queue, chosen, rows.numbers[chosen]))
            chunks = deque(rows.pack(by, chosen, -1))
            waiting_queues.append(_Pending(queue, chosen, chunks))
        if any(pending.queue.broker in self._unnumbered for pending in waiting_queues):
            while waiting_queues:
                self._await(0)
                some = [replace(one, chunks=deque([one.chunks[0]])) for one in waiting_queues]
                self._send_chunks(rows, self._id, some, targets)
                for pending in waiting_queues:
                    pending.chunks.popleft()
                waiting_queues = [pending for pending in waiting_queues if pending.chunks]
        else:
            self._send_chunks(rows, self._id, waiting_queues, targets)

    def _last(self, queue: TopicQueue) -> int | None:
        """Return the last number of this task on a queue, None if its broker knows no numbers."""
        if queue.broker in self._unnumbered:
            return None
        producer = self._producer(self._id, queue)
        try:
            producer.hello()
        except CodeNotSupported:
            self._unnumbered.add(queue.broker)
            return None
        if queue not in self._used:  # nothing was ever sent there under this id
            self._used.add(queue)
            producer.last[queue.topic, queue.index] = -1
        return producer.find_last(queue.topic, queue.index)

    def _look_back(self, waiting: Iterable[Rows]) -> None:
        """Mark what is stored, of all rows before any is sent again: then numbers are new."""
        for rows in waiting:
            for queue, chosen, numbers in rows.unsure:
                last = self._last(queue)
                if last is not None:
                    rows.stored[chosen[numbers <= last]] = True
            rows.unsure.clear()

    def _passes(self, error: InorderError) -> bool:
        """Return whether sending again may succeed; a forgotten id begins again."""
        return isinstance(error, ProducerUnknown) or super()._passes(error)


SINK_NAME_CHARS_MAX: Final = 120
"""A producer's name may have 128 characters; the key map version is added to it."""
_KEYS_KNOWN_MAX: Final = 100_000


class Unsent(NamedTuple):
    """Rows of one producer that must be sent row by row, under these numbers."""

    name: str
    topic: str
    rows: pa.RecordBatch
    numbers: Array


class PackedSink:
    """Sends the rows of one task."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._is_exact = options.delivery == EXACTLY_ONCE
        self._sender = (Sender if self._is_exact else TaskSender)(options.servers)
        self._turn = os.getpid()  # tasks without keys begin with different queues
        self._last: dict[str, int] = {}
        self._places: dict[tuple[str, int], int] = {}
        self._shift = 0

    def finish(self) -> None:
        """Return when everything sent is stored."""
        self._sender.finish()

    def close(self) -> None:
        """Close the connections."""
        self._sender.close()

    def send(self, batch: pa.RecordBatch) -> Iterator[Unsent]:
        """Send rows; yield those whose topic does not exist yet.

        What was sent is stored when `finish` has returned.
        """
        if not batch.num_rows:
            return
        if self._is_exact and set(OWN) <= set(batch.schema.names):
            mine = pc.and_(*(batch[name].is_valid() for name in OWN))
            # Some rows have numbers of their own, others only a source place.
            if 0 < pc.sum(mine).as_py() < batch.num_rows:
                yield from self.send(batch.filter(mine))
                yield from self.send(batch.filter(pc.invert(mine)))
                return
        own = self._own_properties(batch)
        # The list: all rows are checked before any is sent.
        for name, topic, rows, numbers in list(self._groups(batch)):
            try:
                self._sender.find(topic)
            except TopicNotRouted:
                self._sender.finish()
                self._sender.close()  # another sender uses this producer name now
                yield Unsent(name, topic, batch.take(pa.array(rows)), numbers)
            else:
                self._sender.send(self._rows(batch, own, name, topic, rows, numbers))

    def _own_properties(self, batch: pa.RecordBatch) -> Any | None:
        names = set(batch.schema.names)
        found = None
        if "properties" in names:
            found = join_properties(batch["properties"], SET_BY_OTHERS, OUR_PREFIX)
        # Where the producer's name and number do not say it.
        if set(LINEAGE) <= names and (not self._is_exact or set(OWN) <= names):
            parts = [batch[name].cast(pa.string()).cast(pa.binary()) for name in LINEAGE]
            places = pc.binary_join_element_wise(*parts, b"|")
            told = pc.binary_join_element_wise(f"{SOURCE}\x01".encode(), places, b"\x02", b"")
            told = pc.fill_null(told, b"")
            found = told if found is None else pc.binary_join_element_wise(found, told, b"")
        return found

    # The producer and number of a row.

    def _groups(self, batch: pa.RecordBatch) -> Iterator[tuple[str, str, Array, Array]]:
        """Return name of the producer, topic, rows and numbers, of each producer and topic."""
        if not self._is_exact:
            yield from self._unnamed(batch)
            return
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

    def _unnamed(self, batch: pa.RecordBatch) -> Iterator[tuple[str, str, Array, Array]]:
        """Return the same where rows have no numbers of their own."""
        topics, topic_codes = self._topics(batch)
        kinds = topic_codes * 2 + ~self._has_key(batch)
        for kind in np.unique(kinds).tolist():
            rows = np.flatnonzero(kinds == kind)
            name = KEYLESS if kind % 2 else ""
            yield name, topics[kind // 2], rows, np.zeros(len(rows), np.int64)

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
            if pc.all(pc.equal(column, column[0])).as_py():  # all of one place, the usual case
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
                f"a row of producer {name} has number {found[at]} after {before[at]}: the rows "
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

    # The queue of a row.

    def _rows(  # noqa: PLR0917 - made in one place
        self, batch: pa.RecordBatch, own: Any, name: str, topic: str, rows: Array, numbers: Array
    ) -> Rows:
        is_keyed = not name.endswith(KEYLESS)
        self._turn += 1
        turn = 0 if self._is_exact else self._turn  # else without order: the next queue

        def packed(by: packing.Sender, wanted: Array, before: int) -> list[Chunk]:
            return pack_some(batch, own, rows[wanted], by, numbers[wanted], before)

        def place(targets: Targets) -> Array:
            if is_keyed:
                return self._by_key(batch["key"], rows, len(targets.queues))
            if "source_queue" not in batch.schema.names:
                return np.full(len(numbers), turn % len(targets.queues), np.int64)
            values = batch["source_queue"].take(pa.array(rows)).cast(pa.int64())
            queues: Array = values.fill_null(turn).to_numpy(False)
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
    """Return 0 for the first row of a message and 1, 2, … for those after it."""
    places = np.arange(len(same))
    firsts = np.where(same, 0, places)
    begin = np.maximum.accumulate(firsts)
    found = places - begin
    if same[0]:  # continues the last batch
        run = int(np.argmin(same)) if not same.all() else len(same)
        found[:run] = np.arange(last + 1, last + 1 + run)
    return found


def _checked_name(name: str) -> str:
    if len(name) > SINK_NAME_CHARS_MAX or not (name.isascii() and name.isprintable()):
        raise ConfigError(
            f"{name!r} is no name of a producer: at most {SINK_NAME_CHARS_MAX} printable ASCII "
            "characters; choose a shorter sinkId"
        )
    return name


def send_packed(options: SinkOptions, batches: Iterable[pa.RecordBatch]) -> Iterator[Unsent]:
    """Send rows; yield those whose topic does not exist yet."""
    sink = PackedSink(options)
    try:
        for batch in batches:
            yield from sink.send(batch)
        sink.finish()
    finally:
        sink.close()
