"""A connection that blocks: a large body goes out behind its head, in however many pieces."""

from __future__ import annotations

import socket
import threading

import pytest

from inorder.net.blocking import BlockingConnection


@pytest.mark.parametrize(("head", "size"), [(b"head", 0), (b"head", 5), (b"h" * 300_000, 4 << 20)])
def test_head_and_body_arrive_in_one_piece(head: bytes, size: int) -> None:
    """Whatever the kernel takes at a time."""
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = listening.getsockname()
        found = bytearray()

        def read() -> None:
            peer, _ = listening.accept()
            with peer:
                while piece := peer.recv(65_536):
                    found.extend(piece)

        reader = threading.Thread(target=read)
        reader.start()
        with BlockingConnection(f"{host}:{port}") as connection:
            assert connection.send_frame(lambda number: head, body) == 1
        reader.join()
    assert bytes(found) == head + body
