"""A peer that says whatever it likes: a blocking socket, frames by hand."""

from __future__ import annotations

import socket
import struct
import time
from types import TracebackType

from inorder.wire.frame import FrameDecoder, encode_frame
from inorder.wire.header import Command, decode_command

TIMEOUT_S = 30.0
UNKNOWN_CODE = 31_999

Address = tuple[str, int]


class Peer:
    """One connection."""

    def __init__(self, address: Address, *, receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect(address)
        self._decoder = FrameDecoder()
        self._received: list[Command] = []
        self._last_id = 0

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def send(self, data: bytes) -> bool:
        """Send bytes; False if the other side has closed already."""
        try:
            self.socket.sendall(data)
        except (ConnectionError, BrokenPipeError):
            return False
        return True

    def outcome(self, request_id: int, timeout_s: float = TIMEOUT_S) -> int | None:
        """Wait for the answer to a request; return its code, None if the peer closed instead.

        Raises TimeoutError if neither happens: the one thing that is never allowed.
        """
        command = self.answer(request_id, timeout_s)
        return None if command is None else command.code

    def answer(self, request_id: int, timeout_s: float = TIMEOUT_S) -> Command | None:
        """Wait for the answer to a request; None if the peer closed instead."""
        deadline = time.monotonic() + timeout_s
        while True:
            for index, command in enumerate(self._received):
                if command.is_response and command.request_id == request_id:
                    del self._received[index]
                    return command
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"neither an answer to {request_id} nor an end")
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(1 << 18)
            except ConnectionError:
                return None
            if not data:
                return None
            self._received += map(decode_command, self._decoder.receive_data(data))

    def closes(self, timeout_s: float = TIMEOUT_S) -> bool:
        """Tell whether the other side closes within the time, whatever it says before."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                if not self.socket.recv(1 << 18):
                    return True
            except TimeoutError:
                return False
            except ConnectionError:
                return True
        return False

    def call(self, command: Command, timeout_s: float = TIMEOUT_S) -> Command | None:
        """Send a request under a new id and wait for its answer; None if it closes instead."""
        self._last_id += 1
        command.request_id = self._last_id
        if not self.send(encode_frame(command)):
            return None
        return self.answer(command.request_id, timeout_s)

    def probe(self, timeout_s: float = TIMEOUT_S) -> int | None:
        """Ask something that nobody serves: the answer is 3, at once."""
        answer = self.call(Command.request(UNKNOWN_CODE), timeout_s)
        return None if answer is None else answer.code


def raw_frame(header: bytes, body: bytes = b"", serializer: int = 0) -> bytes:
    """Return a frame around any header bytes."""
    return (
        struct.pack(">iI", 4 + len(header) + len(body), serializer << 24 | len(header))
        + header
        + body
    )
