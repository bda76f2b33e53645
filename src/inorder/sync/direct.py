"""Lone blocking sends: the caller's own thread writes the request and reads the answer.

A call through the portal costs two switches of threads, several times what a broker takes to
answer. So a thread whose sends come one by one, with nothing else on its way, gets a blocking
connection of its own to the broker, with a producer id of its own (`client/send/router.py`).
Whatever is not a plain success goes back to the portal: a refusal is definite, so the message is
sent again there; of anything else the outcome is not known, and the portal finds out.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from inorder.client.rules.receipts import STATUSES, Verdict, verdict
from inorder.client.send.messages import Outgoing, compose
from inorder.client.send.queues import Send, Waiter
from inorder.client.send.router import Target
from inorder.client.session import Identity, MessageIds, new_producer_id
from inorder.errors import ConnectionLost, InorderError, RemoteProtocolError, broker_error
from inorder.model import SendReceipt
from inorder.net.connection import parse_address
from inorder.wire.extensions import PROTOCOL
from inorder.wire.fields import encode_fields
from inorder.wire.frame import encode_frame
from inorder.wire.header import Command
from inorder.wire.requests.producers import ProducerHello
from inorder.wire.requests.sendframes import SendAnswer, SendTemplate, decode_answer

if TYPE_CHECKING:
    from inorder.client.send.producer import Producer
    from inorder.sync.portal import Portal

LONE_SENDS: Final = 16
"""So many lone sends in a row are worth a connection."""
IDLE_MS: Final = 30_000
"""A connection that was not used for so long is opened anew: the broker may have closed it."""
BODY_BYTES_MAX: Final = 64 * 1024

_EXTENSIONS: Final = range(7100, 7110)
_PREFIX: Final = struct.Struct(">II").unpack_from
_PREFIX_BYTES: Final = 8
_INCARNATION_BITS: Final = 12


class _Wire:
    """A blocking connection to one broker, and the numbers of its producer id."""

    def __init__(self, address: str, producer_id: str, incarnation: int, timeout_ms: int) -> None:
        self.producer_id = producer_id
        self.numbers: dict[tuple[str, int], int] = {}
        self.used_ms = 0
        self._ids = itertools.count(1)
        seconds = timeout_ms / 1000
        self._socket = socket.create_connection(parse_address(address), timeout=seconds)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            limit = struct.pack("ll", timeout_ms // 1000, timeout_ms % 1000 * 1000)
            self._socket.settimeout(None)  # the kernel's own limit saves a system call
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            hello = ProducerHello(producer_id, incarnation, protocol=PROTOCOL)
            request_id = self.next_id()
            command = Command.request(hello.CODE, encode_fields(hello), request_id=request_id)
            answer = self.ask(encode_frame(command), request_id)
            if answer.code:
                raise broker_error(answer.code, answer.remark)
        except BaseException:
            self.close()
            raise

    def next_id(self) -> int:
        return next(self._ids) & 0x7FFFFFFF

    def ask(self, frame: bytes, request_id: int) -> SendAnswer:
        """Write a request and read its answer."""
        self._socket.sendall(frame)
        data = self._socket.recv(65_536)
        while len(data) < _PREFIX_BYTES or len(data) < _PREFIX(data)[0] + 4:
            more = self._socket.recv(65_536)
            if not more:
                raise ConnectionLost("the broker closed the connection")
            data += more
        header_end = _PREFIX_BYTES + (_PREFIX(data)[1] & 0xFFFFFF)
        answer = decode_answer(data[_PREFIX_BYTES:header_end])
        if answer is None or answer.opaque != request_id or len(data) != _PREFIX(data)[0] + 4:
            raise RemoteProtocolError("the broker answered something else")
        return answer

    def close(self) -> None:
        self._socket.close()


class DirectSends:
    """A blocking producer's own connections. One thread at a time; others take the portal."""

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
        self._wires: dict[str, _Wire] = {}
        self._templates: dict[tuple[str, int], SendTemplate] = {}
        self._pid = os.getpid()

    def interrupted(self) -> None:
        """Something else is under way: wait for lone sends again."""
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
        """Send a message; None if it has to go by the portal: it is not stored then."""
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
            wire = None if where is None else self._wire(where.address)
            if where is None or wire is None:
                return None
            assert self._ids is not None
            born_at_ms = self._clock.now_ms()
            part = compose(
                topic, body, key, tag, keys, properties, self._ids.at(born_at_ms), born_at_ms,
                self._config,
            )  # fmt: skip
            return self._exchange(wire, where, key, part)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the connections; a producer that is closed uses them no more."""
        with self._lock:
            self._lone = -(1 << 62)
            for wire in self._wires.values():
                wire.close()
            self._wires.clear()

    def _exchange(
        self, wire: _Wire, where: Target, key: str | None, part: Outgoing
    ) -> SendReceipt | None:
        queue = where.queue
        place = (queue.topic, queue.index)
        number = wire.numbers.get(place, 0)
        request_id = wire.next_id()
        frame = self._template(wire, where).frame(
            request_id,
            part.properties,
            part.body,
            numbers=(number,),
            sys_flag=part.sys_flag,
            born_at_ms=part.born_at_ms,
            placed=where.placed,
        )
        deadline_ms = wire.used_ms + self._config.send_timeout_ms
        doubt = (part, key, where, wire.producer_id, number, deadline_ms)
        try:
            answer = wire.ask(frame, request_id)
        except (OSError, InorderError):
            return self._find_out(where, doubt)
        except BaseException:
            # Ctrl-C: the caller goes; the message must not come later than those after it.
            self._drop(where.address)
            self._portal.post_nowait(self._take_over, *doubt)
            raise
        status = STATUSES.get(answer.code)
        if status is not None:
            wire.numbers[place] = number + 1
            self.sent += 1
            fields = answer.extFields
            offset = -1 if fields is None else fields.queueOffset
            return SendReceipt(part.ids[0], queue, offset, status)
        said = "" if answer.extFields is None else answer.extFields.stored
        if verdict(answer.code, said) is Verdict.UNKNOWN:
            return self._find_out(where, doubt)
        if answer.code in _EXTENSIONS:
            self._drop(where.address)
        self._lone = 0
        return None  # refused, and not stored

    def _find_out(
        self, where: Target, doubt: tuple[Outgoing, str | None, Target, str, int, int]
    ) -> SendReceipt:
        self._drop(where.address)
        self._lone = 0
        receipt: SendReceipt = self._portal.post(self._take_over, *doubt)
        return receipt

    def _target(self, topic: str, key: str | None) -> Target | None:
        router = self._producer._router
        self._turn += 1
        return None if router is None else router.direct_target(topic, key, self._turn)

    def _take_over(  # noqa: PLR0917 - as it comes through the portal
        self, waiter: Waiter, part: Outgoing, key: str | None, where: Target, producer_id: str,
        number: int, deadline_ms: int,
    ) -> None:  # fmt: skip
        """On the loop: let the producer find out what became of a message."""
        producer = self._producer
        assert producer._router is not None
        send = Send(where.queue.topic, key, part, None, deadline_ms, waiter)
        send.sequence = send.last = number
        send.tries = 1
        send.size = len(part.body)
        producer._waiting += 1
        producer._room.add(1, send.size)
        producer._router.take_over(send, where, producer_id)

    def _wire(self, address: str) -> _Wire | None:
        now_ms = self._clock.monotonic_ms()
        wire = self._wires.get(address)
        if wire is not None and now_ms - wire.used_ms > IDLE_MS:
            self._drop(address)
            wire = None
        if wire is None:
            if self._ids is None:
                self._ids = MessageIds(Identity.of_this_process(), self._clock)
            incarnation = self._clock.now_ms() << _INCARNATION_BITS
            try:
                wire = _Wire(
                    address, new_producer_id(self._ids), incarnation,
                    min(self._config.request_timeout_ms, self._config.send_timeout_ms),
                )  # fmt: skip
            except (OSError, InorderError):
                self._lone = 0
                return None
            self._wires[address] = wire
        wire.used_ms = now_ms
        return wire

    def _template(self, wire: _Wire, where: Target) -> SendTemplate:
        place = (where.queue.topic, where.queue.index)
        template = self._templates.get(place)
        if template is None:
            router = self._producer._router
            assert router is not None
            template = self._templates[place] = router.template(where.queue)
        if place not in wire.numbers:
            template.set_producer(wire.producer_id, named=False)
        return template

    def _drop(self, address: str) -> None:
        wire = self._wires.pop(address, None)
        if wire is not None:
            wire.close()
