"""Sending packed rows under numbers, by code that blocks: the exactly-once sink.

Each producer's name is made known to a broker (hello), which then says how far that name is on a
queue (state). Rows at or below are stored already and are left out; the others go in their order,
several requests ahead of their answers: each says which number it comes behind, so what follows a
request that failed is refused. After whatever went wrong the broker is asked again how far it is:
nothing is sent twice and nothing is passed over. Whoever says hello under a name later has it: an
attempt that was given up and lives on is refused.

Numbers ascend per name and queue, and a resize of the topic puts keys into other queues. So each
version of its key map has a name of its own (`state/mapnames.py`), and what is stored under the
versions in which the batch may have run before is asked there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from inorder.client.rules.receipts import Verdict, verdict
from inorder.client.rules.routes import publish_queues
from inorder.errors import (
    BrokerError,
    CodeNotSupported,
    ConfigError,
    InorderError,
    KeyMapChanged,
    OutcomeUnknown,
    ProducerGap,
    ProducerStale,
    TopicNotRouted,
    TransportError,
    broker_error,
)
from inorder.model import TopicQueue
from inorder.net.blocking import BlockingConnection
from inorder.ordering.keymap import KeyMap
from inorder.spark.cluster import Cluster
from inorder.spark.packing import Array, Chunk
from inorder.spark.servers import Servers
from inorder.spark.state.mapnames import Begun, name_at
from inorder.wire.codes import ResponseCode
from inorder.wire.extensions import PROTOCOL, STORED
from inorder.wire.fields import decode_fields, encode_fields
from inorder.wire.header import Command
from inorder.wire.requests.producers import (
    ProducerHello,
    ProducerState,
    ProducerStateReply,
)
from inorder.wire.requests.sendframes import SendTemplate, by_map, json_text

GROUP: Final = "inorder_spark"
ATTEMPTS: Final = 8
AHEAD_MAX: Final = 8
"""Requests that wait for their answers, of a megabyte each at most."""
PAUSE_S: Final = 0.1
_INCARNATION_BITS: Final = 20
_TEMPLATE_TOPIC: Final = "TBW102"
_TEMPLATE_QUEUES: Final = 8
_PROPERTIES: Final = json_text("WAIT\x01true\x02")


@dataclass(frozen=True, slots=True)
class Targets:
    """The queues of a topic that keys go to, in their order, and the version of its key map."""

    queues: tuple[TopicQueue, ...]
    version: int
    placed: bytes = b""
    """What a send says of the map that chose its queue."""


@dataclass(slots=True)
class Rows:
    """Rows of one producer for one topic: their numbers, and how to place and to pack them."""

    name: str
    topic: str
    numbers: Array
    place: Callable[[Targets], Array]
    """Gives each row the index of its queue."""
    pack: Callable[[str, Array, int], list[Chunk]]
    """Packs some rows of one queue for a producer, given the number that they come behind."""
    stored: Array = field(default_factory=lambda: np.zeros(0, bool))


@dataclass(slots=True)
class _Lane:
    queue: TopicQueue
    rows: Array
    chunks: deque[Chunk]


class _Sent(NamedTuple):
    rows: Rows
    indexes: Array
    connection: BlockingConnection
    number: int


class Sender:
    """Sends rows for one task; made and used by one thread."""

    def __init__(self, servers: Servers) -> None:
        self._cluster = Cluster(servers, group=GROUP)
        self._connections: dict[str, BlockingConnection] = {}
        self._greeted: set[tuple[str, str]] = set()
        self._last: dict[tuple[str, TopicQueue], int] = {}
        self._targets: dict[str, Targets] = {}
        self._past: dict[str, list[Targets]] = {}
        self._begun: dict[tuple[str, str], Begun] = {}
        self._incarnation = 0
        self._open: deque[_Sent] = deque()

    def find(self, topic: str) -> None:
        """Learn which queues a topic has.

        Raises:
            TopicNotRouted: nobody knows the topic yet.
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
        """Let go of the connections, and of what is known about producers."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._greeted.clear()
        self._last.clear()
        self._open.clear()

    def _send_again(self, error: InorderError, *more: Rows) -> None:
        """Store what was sent and has no answer, and `more`, as far as it is not there yet."""
        waiting = {id(rows): rows for rows in (*(sent.rows for sent in self._open), *more)}
        for attempt in range(1, ATTEMPTS):
            if not _passes(error):
                break
            self.close()
            time.sleep(PAUSE_S * attempt)
            try:
                for rows in waiting.values():
                    self._send(rows, self._the_targets(rows.topic, anew=True))
                self._await(0)
                return
            except (TransportError, BrokerError, TopicNotRouted) as again:
                error = again
        raise error

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
        """Return the versions of a topic's key map that are over, the last one first."""
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

    def _settle(self, rows: Rows, targets: Targets, *, over: bool = False) -> list[_Lane]:
        """Note which rows are stored under a version; return the others, queue by queue.

        `over`: the version is, so nobody sends under its name any more.
        """
        where, name = rows.place(targets), name_at(rows.name, targets.version)
        lanes = []
        begun = self._begun[rows.name, rows.topic]
        for index in np.flatnonzero(np.bincount(where[~rows.stored])).tolist():
            queue = targets.queues[index]
            last = self._known_last(name, queue, greet=not over)
            begun.heard(targets.version, last)
            waiting = np.flatnonzero((where == index) & ~rows.stored)
            there = rows.numbers[waiting] <= last
            rows.stored[waiting[there]] = True
            if not there.all():
                lanes.append(_Lane(queue, waiting[~there], deque()))
        return lanes

    def _settle_past(self, rows: Rows, targets: Targets) -> bool:
        """Note which rows were stored before the topic was resized; tell whether some were."""
        begun, before = self._begun[rows.name, rows.topic], int(rows.stored.sum())
        if begun.asks_below(targets.version):
            for past in self._the_past(rows.topic):
                if past.version < targets.version and begun.asks(past.version):
                    self._settle(rows, past, over=True)
        return int(rows.stored.sum()) > before

    def _send(self, rows: Rows, targets: Targets) -> None:
        self._begun.setdefault((rows.name, rows.topic), Begun(int(rows.numbers[0])))
        lanes = self._settle(rows, targets)
        if lanes and self._settle_past(rows, targets):
            lanes = self._settle(rows, targets)
        name = name_at(rows.name, targets.version)
        for lane in lanes:
            lane.chunks.extend(rows.pack(name, lane.rows, self._last[name, lane.queue]))
        while lanes:
            for lane in lanes:
                self._await(AHEAD_MAX - 1)
                connection, number = self._ask(lane, targets.placed)
                chunk = lane.chunks.popleft()
                sent = lane.rows[chunk.start : chunk.end]
                self._open.append(_Sent(rows, sent, connection, number))
                self._last[name, lane.queue] = int(rows.numbers[sent[-1]])
            lanes = [lane for lane in lanes if lane.chunks]

    def _await(self, open_max: int) -> None:
        """Take answers, the oldest first, until at most so many requests wait for theirs."""
        while len(self._open) > open_max:
            sent = self._open[0]
            answer = sent.connection.receive(sent.number)
            _check_stored(answer)
            sent.rows.stored[sent.indexes] = True
            self._open.popleft()

    def _ask(self, lane: _Lane, placed: bytes) -> tuple[BlockingConnection, int]:
        queue, body = lane.queue, lane.chunks[0].body
        template = SendTemplate(
            group=GROUP, topic=queue.topic, template_topic=_TEMPLATE_TOPIC,
            template_queues=_TEMPLATE_QUEUES, queue_id=queue.index, broker=queue.broker,
        )  # fmt: skip
        now_ms = int(time.time() * 1000)
        connection = self._connection(queue)
        number = connection.send_frame(
            lambda request_id: template.head(
                request_id, _PROPERTIES, len(body), born_at_ms=now_ms, batch=True,
                placed=placed,
            ),
            body,
        )  # fmt: skip
        return connection, number

    # Who we are to a broker, and how far it says that we are.

    def _known_last(self, name: str, queue: TopicQueue, *, greet: bool) -> int:
        found = self._last.get((name, queue))
        if found is None:
            if greet:
                self._greet(name, queue)
            request = ProducerState(name, queue.topic, queue.index)
            answer = self._request(queue, request)
            state = decode_fields(ProducerStateReply, answer.fields)
            found = self._last[name, queue] = state.last if state.known else -1
        return found

    def _greet(self, name: str, queue: TopicQueue) -> None:
        if (name, queue.broker) in self._greeted:
            return
        for is_last in (False, True):
            now = int(time.time() * 1000) << _INCARNATION_BITS
            self._incarnation = max(now, self._incarnation) + 1
            try:
                self._request(
                    queue, ProducerHello(name, self._incarnation, True, protocol=PROTOCOL)
                )
                break
            except CodeNotSupported:
                raise ConfigError(
                    f"broker {queue.broker} knows no named producers, as Apache RocketMQ does not; "
                    "say delivery=at-least-once"
                ) from None
            except ProducerStale as error:
                if is_last:
                    raise
                self._incarnation = max(self._incarnation, error.highest)
        self._greeted.add((name, queue.broker))

    def _request(self, queue: TopicQueue, request: Any) -> Command:
        command = Command.request(request.CODE, encode_fields(request))
        answer = self._connection(queue).request(command)
        if answer.code != ResponseCode.SUCCESS:
            raise broker_error(answer.code, answer.remark, answer.fields)
        return answer

    def _connection(self, queue: TopicQueue) -> BlockingConnection:
        address = self._cluster.master_of(queue)
        found = self._connections.get(address)
        if found is None:
            tls = self._cluster.servers.context()
            found = self._connections[address] = BlockingConnection(address, tls=tls)
        return found


def _check_stored(answer: Command) -> None:
    """Raise unless the rows of a request are stored; if nobody knows, the broker is asked again."""
    said = verdict(answer.code, answer.fields.get(STORED))
    if said is Verdict.UNKNOWN:
        raise OutcomeUnknown(
            f"the broker answered {answer.code}: {answer.remark}; rows may or may not be stored",
            answer.code,
        )
    if said is Verdict.NOT_STORED:
        raise broker_error(answer.code, answer.remark)


def _passes(error: InorderError) -> bool:
    """Tell whether an error may be over when the broker was asked how far it is."""
    # A broker that comes back is not in the routes for a moment.
    if isinstance(error, TransportError | ProducerGap | KeyMapChanged | TopicNotRouted):
        return True
    return isinstance(error, BrokerError) and error.retriable
