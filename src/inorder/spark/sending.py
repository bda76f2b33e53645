"""Sending packed rows under numbers, by code that blocks: the exactly-once sink.

Each producer's name is made known to a broker (hello), which then says how far that name is on a
queue (state). Rows at or below are stored already and are left out; the others go in their order,
a request at a time and queue. After whatever went wrong the broker is asked again how far it is, so
nothing is sent twice and nothing is passed over. Whoever says hello under a name later has it: an
attempt that was given up and lives on is refused.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from inorder.client.state.routes import master_address, publish_queues
from inorder.errors import (
    BrokerError,
    CodeNotSupported,
    ConfigError,
    InorderError,
    KeyMapChanged,
    ProducerGap,
    ProducerStale,
    TopicNotRouted,
    TransportError,
    broker_error,
)
from inorder.model import TopicQueue
from inorder.net.blocking import BlockingConnection
from inorder.spark.cluster import Cluster
from inorder.spark.packing import Array, Chunk
from inorder.wire.codes import ResponseCode
from inorder.wire.command import Command
from inorder.wire.fields import decode_fields, encode_fields
from inorder.wire.requests.producers import (
    ProducerHello,
    ProducerState,
    ProducerStateReply,
)
from inorder.wire.sendframes import SendTemplate, json_text

GROUP: Final = "inorder_spark"
ATTEMPTS: Final = 8
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


@dataclass(slots=True)
class Rows:
    """Rows of one producer for one topic: their numbers, and how to place and to pack them."""

    name: str
    topic: str
    numbers: Array
    place: Callable[[Targets], Array]
    """Gives each row the index of its queue."""
    pack: Callable[[Array, int], list[Chunk]]
    """Packs some rows of one queue, given the number that they come behind."""
    keyed: bool
    stored: Array = field(default_factory=lambda: np.zeros(0, bool))


@dataclass(slots=True)
class _Lane:
    queue: TopicQueue
    rows: Array
    chunks: deque[Chunk]


class Sender:
    """Sends rows for one task; made and used by one thread."""

    def __init__(self, namesrv: str) -> None:
        self._cluster = Cluster(namesrv, group=GROUP)
        self._connections: dict[str, BlockingConnection] = {}
        self._greeted: set[tuple[str, str]] = set()
        self._last: dict[tuple[str, TopicQueue], int] = {}
        self._targets: dict[str, Targets] = {}
        self._incarnation = 0

    def send(self, rows: Rows) -> None:
        """Store rows in their order, each once; return when all are stored.

        Raises:
            TopicNotRouted: nobody knows the topic yet.
            ConfigError: the broker knows no named producers.
        """
        rows.stored = np.zeros(len(rows.numbers), bool)
        targets = self._the_targets(rows.topic)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                if attempt > 1:
                    self._settle(rows, targets)
                    targets = self._the_targets(rows.topic, anew=True)
                self._send(rows, targets)
                return
            except (TransportError, BrokerError) as error:
                if attempt == ATTEMPTS or not _passes(error):
                    raise
            self.close()
            time.sleep(PAUSE_S * attempt)

    def close(self) -> None:
        """Let go of the connections, and of what is known about producers."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._greeted.clear()
        self._last.clear()

    def _the_targets(self, topic: str, *, anew: bool = False) -> Targets:
        found = None if anew else self._targets.get(topic)
        if found is None:
            queues = publish_queues(self._cluster.route(topic, anew=True), topic)
            key_map = self._cluster.key_map(topic)
            if key_map is not None:
                queues = [TopicQueue(topic, broker, index) for broker, index in key_map.queues]
            if not queues:
                raise TopicNotRouted(f"topic {topic} has no queue that may be written")
            version = 0 if key_map is None else key_map.version
            found = self._targets[topic] = Targets(tuple(queues), version)
        return found

    def _settle(self, rows: Rows, targets: Targets) -> list[_Lane]:
        """Note which rows are stored by now; return the others, queue by queue."""
        where = rows.place(targets)
        lanes = []
        for index in np.unique(where[~rows.stored]):
            queue = targets.queues[int(index)]
            last = self._known_last(rows.name, queue)
            waiting = np.flatnonzero((where == index) & ~rows.stored)
            there = rows.numbers[waiting] <= last
            rows.stored[waiting[there]] = True
            if not there.all():
                lanes.append(_Lane(queue, waiting[~there], deque()))
        return lanes

    def _send(self, rows: Rows, targets: Targets) -> None:
        lanes = self._settle(rows, targets)
        for lane in lanes:
            lane.chunks.extend(rows.pack(lane.rows, self._last[rows.name, lane.queue]))
        version = targets.version if rows.keyed else 0
        while lanes:
            asked = [(lane, *self._ask(lane, version)) for lane in lanes]
            for lane, connection, number in asked:
                answer = connection.receive(number)
                if answer.code != ResponseCode.SUCCESS:
                    raise broker_error(answer.code, answer.remark)
                chunk = lane.chunks.popleft()
                sent = lane.rows[chunk.start : chunk.end]
                rows.stored[sent] = True
                self._last[rows.name, lane.queue] = int(rows.numbers[sent[-1]])
            lanes = [lane for lane in lanes if lane.chunks]

    def _ask(self, lane: _Lane, version: int) -> tuple[BlockingConnection, int]:
        queue, body = lane.queue, lane.chunks[0].body
        template = SendTemplate(
            group=GROUP, topic=queue.topic, template_topic=_TEMPLATE_TOPIC,
            template_queues=_TEMPLATE_QUEUES, queue_id=queue.index, broker=queue.broker,
        )  # fmt: skip
        now_ms = int(time.time() * 1000)
        connection = self._connection(queue)
        number = connection.send_frame(
            lambda request_id: template.frame(
                request_id, _PROPERTIES, body, born_at_ms=now_ms, batch=True, map_version=version
            )
        )
        return connection, number

    # Who we are to a broker, and how far it says that we are.

    def _known_last(self, name: str, queue: TopicQueue) -> int:
        found = self._last.get((name, queue))
        if found is None:
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
                self._request(queue, ProducerHello(name, self._incarnation, True))
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
        address = master_address(self._cluster.route(queue.topic), queue.broker)
        if address is None:
            raise TopicNotRouted(f"no broker {queue.broker} serves topic {queue.topic}")
        found = self._connections.get(address)
        if found is None:
            found = self._connections[address] = BlockingConnection(address)
        return found


def _passes(error: InorderError) -> bool:
    """Tell whether an error may be over when the broker was asked how far it is."""
    if isinstance(error, TransportError | ProducerGap | KeyMapChanged):
        return True
    return isinstance(error, BrokerError) and error.retriable
