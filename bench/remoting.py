"""A synchronous client of the remoting protocol in a hundred lines of struct, json and socket.

The benchmark and the interop tests judge the broker with it, so it shares no code with inorder:
a mistake in our codec cannot hide itself here.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, NamedTuple, Self

FRAME_BYTES_MAX = 16 * 1024 * 1024
RESPONSE = 1
ONEWAY = 2


class Answer(NamedTuple):
    """One frame from the peer, header decoded."""

    code: int
    request_id: int
    flag: int
    fields: dict[str, str]
    remark: str
    body: bytes


class RemotingError(Exception):
    """An answer that is not code 0, or bytes that are no answer."""


class Connection:
    """One TCP connection: a request at a time, answers matched by request id."""

    def __init__(self, address: tuple[str, int], *, timeout_s: float = 10.0) -> None:
        self._socket = socket.create_connection(address, timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._next_id = 1
        self.pushed: list[Answer] = []
        """Requests that the peer sent on its own (NOTIFY_CONSUMER_IDS_CHANGED and the like)."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def send(
        self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"", *, flag: int = 0
    ) -> int:
        """Write one request without waiting; return its id."""
        request_id = self._next_id
        self._next_id += 1
        header: dict[str, Any] = {"code": code}
        if fields is not None:
            header["extFields"] = {key: _text(value) for key, value in fields.items()}
        header |= {"flag": flag, "language": "JAVA", "opaque": request_id}
        header |= {"serializeTypeCurrentRPC": "JSON", "version": 479}
        encoded = json.dumps(header, separators=(",", ":")).encode()
        length = 4 + len(encoded) + len(body)
        self._socket.sendall(struct.pack(">ii", length, len(encoded)) + encoded + body)
        return request_id

    def receive(self) -> Answer:
        """Read the next frame, whatever it is."""
        size = struct.unpack(">i", self._take(4))[0]
        if not 4 <= size <= FRAME_BYTES_MAX:
            raise RemotingError(f"frame of {size} bytes")
        payload = self._take(size)
        header_size = struct.unpack_from(">i", payload)[0]
        if header_size >> 24 or header_size > size - 4:
            raise RemotingError(f"header word {header_size:#x}")
        header = json.loads(payload[4 : 4 + header_size])
        return Answer(
            code=header["code"],
            request_id=header["opaque"],
            flag=header["flag"],
            fields=header.get("extFields") or {},
            remark=header.get("remark") or "",
            body=payload[4 + header_size :],
        )

    def request(self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"") -> Answer:
        """Send a request and wait for its answer, whatever its code."""
        request_id = self.send(code, fields, body)
        while True:
            answer = self.receive()
            if not answer.flag & RESPONSE:
                self.pushed.append(answer)
            elif answer.request_id == request_id:
                return answer
            else:
                raise RemotingError(f"answer to request {answer.request_id}, not {request_id}")

    def call(self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"") -> Answer:
        """Send a request and insist on code 0."""
        answer = self.request(code, fields, body)
        if answer.code != 0:
            raise RemotingError(f"request {code} was answered {answer.code}: {answer.remark}")
        return answer

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = self._socket.recv(1 << 18)
            if not data:
                raise ConnectionResetError("the peer closed the connection")
            self._buffer += data
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken


def _text(value: Any) -> str:
    """Write a field value the way Java does."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
