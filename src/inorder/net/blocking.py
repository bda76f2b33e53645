"""A connection for code that blocks and has no event loop: Spark's workers.

One thread uses it. Requests may be sent ahead (`send`) and their answers taken later (`receive`);
answers that come before they are asked for are kept, those that nobody wants any more are not.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from types import TracebackType
from typing import Final

from inorder.errors import (
    ConnectFailed,
    ConnectionLost,
    RemoteProtocolError,
    RequestTimeout,
    TransportError,
)
from inorder.net.connection import parse_address
from inorder.wire.frame import encode_frame
from inorder.wire.header import Command, decode_command

_LENGTH_BYTES: Final = 4
_AHEAD_MAX: Final = 1024


class BlockingConnection:
    """One socket to one server."""

    def __init__(
        self,
        address: str,
        *,
        timeout_ms: int = 10_000,
        frame_bytes_max: int = 64 * 1024 * 1024,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.address = address
        self.closed = False
        self._frame_bytes_max = frame_bytes_max
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

    def request(self, command: Command) -> Command:
        """Ask and return the answer."""
        return self.receive(self.send(command))

    def send(self, command: Command) -> int:
        """Ask; return the number by which the answer is taken."""

        def frame(number: int) -> bytes:
            command.request_id = number
            return encode_frame(command)

        return self.send_frame(frame)

    def send_frame(self, make: Callable[[int], bytes], body: bytes = b"") -> int:
        """Ask with a frame that is made for its number, but for its body; return the number."""
        if len(self._wanted) >= _AHEAD_MAX:
            raise TransportError(f"{_AHEAD_MAX} requests to {self.address} have no answer yet")
        number = self._next_id
        self._next_id = number % 0x7FFFFFFF + 1
        try:
            self._send_all(make(number), body)
        except OSError as error:
            raise self._lost(error) from error
        self._wanted.add(number)
        return number

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
        """Return the answer to a request."""
        while number not in self._early:
            answer = self._read()
            if answer.is_response and answer.request_id in self._wanted:
                self._early[answer.request_id] = answer
        self._wanted.discard(number)
        return self._early.pop(number)

    def ignore(self, number: int) -> None:
        """Want an answer no more."""
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
        return decode_command((word >> 24, header, body))

    def _take(self, size: int) -> bytes:
        data: bytes | None = self._file.read(size)
        if data is None or len(data) < size:
            raise ConnectionResetError("it was closed")
        return data

    def _lost(self, error: OSError) -> TransportError:
        self.close()
        if isinstance(error, TimeoutError):
            return RequestTimeout(f"no answer from {self.address} in time")
        return ConnectionLost(f"lost the connection to {self.address}: {error}")

    def close(self) -> None:
        """Close the socket; twice is fine."""
        if not self.closed:
            self.closed = True
            self._file.close()
            self._socket.close()
