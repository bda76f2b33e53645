"""Connections and idempotent producers for code that blocks: Spark's workers, and lone sends.

    BlockingConnection   a socket that one thread uses
        ask              a typed request; its reply, or the BrokerError that the reply stands for
        send, receive    requests ahead of their replies, which may come in any order
        exchange         one frame and its reply, with as few system calls as possible
    BlockingProducer     a producer id on a connection: hello, and how far the id is on a queue
    Incarnations         the numbers of hellos, each above the one before

A producer that is not sure how far it is (a gap, a lost connection) makes a new connection, says
hello again and asks `last`. The broker stores a sequence number once, so nothing is stored twice.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, TypeVar

from inorder.errors import (
    ConnectFailed,
    ConnectionLost,
    ProducerStale,
    RemoteProtocolError,
    RequestTimeout,
    TransportError,
)
from inorder.net.connection import parse_address
from inorder.net.signing import Signer, explain
from inorder.wire.extensions import PROTOCOL
from inorder.wire.frame import encode_frame
from inorder.wire.header import Command, decode_command
from inorder.wire.replies import Request, command_of, reply_of
from inorder.wire.requests.producers import ProducerHello, ProducerState
from inorder.wire.requests.sendframes import SendAnswer, decode_answer

if TYPE_CHECKING:
    from inorder.credentials import Credentials

_LENGTH_BYTES: Final = 4
_PREFIX: Final = struct.Struct(">II").unpack_from
_PREFIX_BYTES: Final = 8
_READ_BYTES: Final = 65_536
_AHEAD_MAX: Final = 1024
_TIMEVAL: Final = struct.Struct("ll").pack

R = TypeVar("R")


class BlockingConnection:
    """One socket to one server."""

    def __init__(
        self,
        address: str,
        *,
        timeout_ms: int = 10_000,
        frame_bytes_max: int = 64 * 1024 * 1024,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.address = address
        self.closed = False
        self.denied = False
        """Whether the server has refused this user; new credentials need a new connection."""
        self._frame_bytes_max = frame_bytes_max
        self._signer = None if credentials is None else Signer(credentials)
        self._next_id = 1
        self._wanted: set[int] = set()
        self._early: dict[int, Command] = {}
        host, port = parse_address(address)
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_ms / 1000)
        except OSError as error:
            raise ConnectFailed(
                f"no connection to {address}: {error}; is a server listening there?"
            ) from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        except OSError as error:
            self._socket.close()
            raise ConnectFailed(
                f"no TLS with {address}: {error}; does tls_ca name who signed its certificate?"
            ) from error
        self._file = self._socket.makefile("rb", buffering=1 << 18)

    def __enter__(self) -> BlockingConnection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def ask(self, request: Request[R], body: bytes = b"") -> R:
        """Send a typed request; return its reply. Raises BrokerError unless it is a success."""
        return reply_of(request, self.request(command_of(request, body)))

    def request(self, command: Command) -> Command:
        """Send a request and return its reply, whatever its code."""
        return self.receive(self.send(command))

    def send(self, command: Command) -> int:
        """Send a request; return the id by which `receive` takes its reply."""

        def frame(number: int) -> bytes:
            command.request_id = number
            return encode_frame(command if self._signer is None else self._signer.signed(command))

        return self._send_next(frame)

    def send_frame(self, make: Callable[[int], bytes], body: bytes = b"") -> int:
        """Send the head that `make` builds for a request id, then the body; return the id."""
        signer = self._signer
        if signer is None:
            return self._send_next(make, body)
        return self._send_next(lambda number: signer.signed_head(make(number), body), body)

    def _send_next(self, make: Callable[[int], bytes], body: bytes = b"") -> int:
        if len(self._wanted) >= _AHEAD_MAX:
            raise TransportError(f"{_AHEAD_MAX} requests to {self.address} have no answer yet")
        number = self.next_id()
        try:
            self._send_all(make(number), body)
        except OSError as error:
            raise self._lost(error) from error
        self._wanted.add(number)
        return number

    def next_id(self) -> int:
        """Return the id of the next request."""
        number = self._next_id
        self._next_id = number % 0x7FFFFFFF + 1
        return number

    def limit_by_kernel(self, timeout_ms: int) -> None:
        """Let the kernel time reads and writes out: it saves `exchange` two system calls."""
        limit = _TIMEVAL(timeout_ms // 1000, timeout_ms % 1000 * 1000)
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    # hot: a lone send is this and the broker
    def exchange(self, frame: bytes, request_id: int) -> SendAnswer:
        """Send the frame of a send and return its reply. No other request may wait for one."""
        if self._signer is not None:
            frame = self._signer.signed_frame(frame)
        try:
            self._socket.sendall(frame)
            data = self._socket.recv(_READ_BYTES)
            while len(data) < _PREFIX_BYTES or len(data) < _PREFIX(data)[0] + _LENGTH_BYTES:
                more = self._socket.recv(_READ_BYTES)
                if not more:
                    raise ConnectionResetError("it was closed")
                data += more
        except OSError as error:
            raise self._lost(error) from error
        size, word = _PREFIX(data)
        reply = decode_answer(data[_PREFIX_BYTES : _PREFIX_BYTES + (word & 0xFFFFFF)])
        if reply is None or reply.opaque != request_id or len(data) != size + _LENGTH_BYTES:
            raise RemoteProtocolError(f"{self.address} sent something else than the reply")
        if reply.code:
            explain(reply, self._signer)
        return reply

    def _send_all(self, head: bytes, body: bytes) -> None:
        if not body:
            self._socket.sendall(head)
        elif isinstance(self._socket, ssl.SSLSocket):  # which takes one buffer at a time
            self._socket.sendall(head + body)
        else:
            sent = self._socket.sendmsg((head, body))
            if sent < len(head):
                self._socket.sendall(head[sent:])
                sent = len(head)
            with memoryview(body) as whole:
                self._socket.sendall(whole[sent - len(head) :])

    def receive(self, number: int) -> Command:
        """Return the reply to a request. Replies to other requests are kept until taken."""
        while number not in self._early:
            answer = self._read()
            if answer.is_response and answer.request_id in self._wanted:
                self._early[answer.request_id] = answer
        self._wanted.discard(number)
        return self._early.pop(number)

    def ignore(self, number: int) -> None:
        """Drop the reply to a request, now or when it comes."""
        self._wanted.discard(number)
        self._early.pop(number, None)

    def _read(self) -> Command:
        try:
            size = int.from_bytes(self._take(_LENGTH_BYTES), "big")
            if not _LENGTH_BYTES <= size <= self._frame_bytes_max:
                raise RemoteProtocolError(f"{self.address} sent a frame of {size} bytes")
            word = int.from_bytes(self._take(_LENGTH_BYTES), "big")
            header_size = word & 0xFFFFFF
            if header_size > size - _LENGTH_BYTES:
                raise RemoteProtocolError(f"{self.address} sent a header longer than its frame")
            header = self._take(header_size)
            body = self._take(size - _LENGTH_BYTES - header_size)
        except OSError as error:
            raise self._lost(error) from error
        except RemoteProtocolError:
            self.close()
            raise
        command = decode_command((word >> 24, header, body))
        if command.is_response:
            if command.code and explain(command, self._signer):
                self.denied = True
            if self._signer is not None:
                self._signer.learn(command)
        return command

    def _take(self, size: int) -> bytes:
        data: bytes | None = self._file.read(size)
        if data is None or len(data) < size:
            raise ConnectionResetError("it was closed")
        return data

    def _lost(self, error: OSError) -> TransportError:
        self.close()
        if isinstance(error, TimeoutError | BlockingIOError):
            return RequestTimeout(f"no answer from {self.address} in time")
        return ConnectionLost(f"lost the connection to {self.address}: {error}")

    def close(self) -> None:
        """Close the socket; twice is fine."""
        if not self.closed:
            self.closed = True
            self._file.close()
            self._socket.close()


class Incarnations:
    """Incarnations of producers, each above the one before: the time, and `bits` bits below it."""

    __slots__ = ("_bits", "_last", "_now_ms")

    def __init__(self, bits: int, now_ms: Callable[[], int]) -> None:
        self._bits = bits
        self._now_ms = now_ms
        self._last = 0

    def next(self, above: int = 0) -> int:
        """Return the next incarnation, above one that a broker knows."""
        self._last = max(self._now_ms() << self._bits, self._last, above) + 1
        return self._last


class BlockingProducer:
    """A producer id on one connection, and its last sequence number on each queue."""

    __slots__ = ("_has_said_hello", "_incarnations", "connection", "last", "named", "producer_id")

    def __init__(
        self,
        connection: BlockingConnection,
        producer_id: str,
        incarnations: Incarnations,
        *,
        named: bool,
    ) -> None:
        self.connection = connection
        self.producer_id = producer_id
        self.named = named
        self.last: dict[tuple[str, int], int] = {}
        """The last number sent, by topic and queue; `find_last` asks for it."""
        self._incarnations = incarnations
        self._has_said_hello = False

    def hello(self) -> None:
        """Bind the producer id to the connection, once.

        An older hello under a higher incarnation is outbid once. Raises ProducerStale if another
        process does the same, and CodeNotSupported if the broker is not an inorder broker.
        """
        if not self._has_said_hello:
            try:
                self._say_hello(self._incarnations.next())
            except ProducerStale as error:
                self._say_hello(self._incarnations.next(error.highest))
            self._has_said_hello = True

    def _say_hello(self, incarnation: int) -> None:
        self.connection.ask(
            ProducerHello(self.producer_id, incarnation, self.named, protocol=PROTOCOL)
        )

    def find_last(self, topic: str, queue_id: int) -> int:
        """Return the last number on a queue, -1 if there is none; the broker is asked once."""
        found = self.last.get((topic, queue_id))
        if found is None:
            request = ProducerState(self.producer_id, topic, queue_id)
            state = self.connection.ask(request)
            found = self.last[topic, queue_id] = state.last if state.known else -1
        return found
