"""A lone blocking send: the caller's own thread writes the request and reads the reply.

A call through the portal costs two switches of threads, several times what a broker takes to
answer. A thread whose sends come one by one, with no other send pending, therefore gets a blocking
connection of its own to the broker, with a producer id of its own (`client/send/router.py`).

Anything but a plain success goes back to the portal. After a refusal the message is certainly not
stored, and the portal sends it again. After any other failure the outcome is unknown, and the
portal finds out. How a producer keeps order and speed: decision 11.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from inorder.client.identity import Identity, MessageIds, new_id
from inorder.client.rules.receipts import STATUSES, Verdict, verdict
from inorder.client.send.messages import Outgoing, compose
from inorder.client.send.queues import Send, Waiter
from inorder.client.send.router import Target
from inorder.errors import InorderError
from inorder.model import SendReceipt
from inorder.net.blocking import BlockingConnection, BlockingProducer, Incarnations
from inorder.wire.requests.sendframes import SendTemplate

if TYPE_CHECKING:
    from inorder.client.send.producer import Producer
    from inorder.sync.portal import Portal

LONE_SENDS: Final = 16
"""After so many lone sends in a row, a thread gets a connection of its own."""
IDLE_MS: Final = 30_000
"""A connection that was idle for so long is opened again: the broker may have closed it."""
BODY_BYTES_MAX: Final = 64 * 1024

_EXTENSIONS: Final = range(7100, 7110)
_INCARNATION_BITS: Final = 12


class DirectSends:
    """A blocking producer's own connections, for one thread at a time; others use the portal."""

    def __init__(self, producer: Producer, portal: Portal) -> None:
        self.sent = 0
        self._producer = producer
        self._portal = portal
        self._clock = producer._clock
        self._config = producer._config
        self._lock = threading.Lock()
        self._lone = 0
        self._turn = 0
        self._ids: MessageIds | None = None
        self._incarnations = Incarnations(_INCARNATION_BITS, self._clock.now_ms)
        self._producers: dict[str, BlockingProducer] = {}
        self._used_ms: dict[str, int] = {}
        self._templates: dict[tuple[str, int], SendTemplate] = {}
        self._pid = os.getpid()

    def interrupted(self) -> None:
        """Note another send under way: count lone sends from 0 again."""
        self._lone = 0

    def send(  # noqa: PLR0917 - by place, for it is called for every message
        self,
        topic: str,
        body: bytes,
        key: str | None,
        tag: str | None,
        keys: Sequence[str],
        properties: Mapping[str, str] | None,
    ) -> SendReceipt | None:
        """Send a message. None: it is not stored, and the portal must send it."""
        if self._lone < LONE_SENDS:
            self._lone += 1
            return None
        if (
            type(body) is not bytes
            or len(body) > BODY_BYTES_MAX
            or not self._lock.acquire(blocking=False)
        ):
            return None
        try:
            if self._pid != os.getpid():
                return None
            where = self._target(topic, key)
            own = None if where is None else self._own_producer(where.address)
            if where is None or own is None:
                return None
            assert self._ids is not None
            born_at_ms = self._clock.now_ms()
            part = compose(
                topic, body, key, tag, keys, properties, self._ids.at(born_at_ms), born_at_ms,
                self._config,
            )  # fmt: skip
            return self._exchange(own, where, key, part)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the connections for good."""
        with self._lock:
            self._lone = -(1 << 62)
            for own in self._producers.values():
                own.connection.close()
            self._producers.clear()

    def _exchange(
        self, own: BlockingProducer, where: Target, key: str | None, part: Outgoing
    ) -> SendReceipt | None:
        queue = where.queue
        place = (queue.topic, queue.index)
        number = own.last.get(place, -1) + 1
        request_id = own.connection.next_id()
        frame = self._template(own, where).frame(
            request_id,
            part.properties,
            part.body,
            numbers=(number,),
            sys_flag=part.sys_flag,
            born_at_ms=part.born_at_ms,
            placed=where.placed,
        )
        deadline_ms = self._used_ms[where.address] + self._config.send_timeout_ms
        unconfirmed = (part, key, where, own.producer_id, number, deadline_ms)
        try:
            answer = own.connection.exchange(frame, request_id)
        except InorderError:
            return self._find_out(where, unconfirmed)
        except BaseException:
            # Ctrl-C: the caller goes; the message must not come later than those after it.
            self._drop(where.address)
            self._portal.post_nowait(self._take_over, *unconfirmed)
            raise
        status = STATUSES.get(answer.code)
        if status is not None:
            own.last[place] = number
            self.sent += 1
            fields = answer.extFields
            offset = -1 if fields is None else fields.queueOffset
            return SendReceipt(part.ids[0], queue, offset, status)
        said = "" if answer.extFields is None else answer.extFields.stored
        if verdict(answer.code, said) is Verdict.UNKNOWN:
            return self._find_out(where, unconfirmed)
        if answer.code in _EXTENSIONS:
            self._drop(where.address)
        self._lone = 0
        return None  # refused, and not stored

    def _find_out(
        self, where: Target, unconfirmed: tuple[Outgoing, str | None, Target, str, int, int]
    ) -> SendReceipt:
        self._drop(where.address)
        self._lone = 0
        receipt: SendReceipt = self._portal.post(self._take_over, *unconfirmed)
        return receipt

    def _target(self, topic: str, key: str | None) -> Target | None:
        router = self._producer._router
        self._turn += 1
        return None if router is None else router.direct_target(topic, key, self._turn)

    def _take_over(  # noqa: PLR0917 - as it comes through the portal
        self, waiter: Waiter, part: Outgoing, key: str | None, where: Target, producer_id: str,
        number: int, deadline_ms: int,
    ) -> None:  # fmt: skip
        """Let the producer find out, on the loop, whether a message is stored."""
        producer = self._producer
        assert producer._router is not None
        send = Send(where.queue.topic, key, part, None, deadline_ms, waiter)
        send.sequence = send.last = number
        send.tries = 1
        send.size = len(part.body)
        producer._waiting += 1
        producer._room.add(1, send.size)
        producer._router.take_over(send, where, producer_id)

    def _own_producer(self, address: str) -> BlockingProducer | None:
        """Return this producer's own id at a broker; None if the broker cannot be reached."""
        now_ms = self._clock.monotonic_ms()
        own = self._producers.get(address)
        if own is not None and now_ms - self._used_ms[address] > IDLE_MS:
            self._drop(address)
            own = None
        if own is None:
            try:
                own = self._producers[address] = self._connect(address)
            except (OSError, InorderError):
                self._lone = 0
                return None
        self._used_ms[address] = now_ms
        return own

    def _connect(self, address: str) -> BlockingProducer:
        """Make a connection and say hello under a new producer id."""
        if self._ids is None:
            self._ids = MessageIds(Identity.of_this_process(), self._clock)
        timeout_ms = min(self._config.request_timeout_ms, self._config.send_timeout_ms)
        router = self._producer._router
        credentials = None if router is None else router.session.credentials
        connection = BlockingConnection(address, timeout_ms=timeout_ms, credentials=credentials)
        try:
            own = BlockingProducer(connection, new_id(self._ids), self._incarnations, named=False)
            own.hello()
            connection.limit_by_kernel(timeout_ms)
        except BaseException:
            connection.close()
            raise
        return own

    def _template(self, own: BlockingProducer, where: Target) -> SendTemplate:
        place = (where.queue.topic, where.queue.index)
        template = self._templates.get(place)
        if template is None:
            router = self._producer._router
            assert router is not None
            template = self._templates[place] = router.template(where.queue)
        if place not in own.last:
            template.set_producer(own.producer_id, named=False)
        return template

    def _drop(self, address: str) -> None:
        own = self._producers.pop(address, None)
        if own is not None:
            own.connection.close()
