"""Accepting: a few connections a turn, the others in between; no room means a pause, not a spin."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Any

import pytest

from inorder.net.server import ACCEPTED_MAX, Listener


class Watcher:
    """A loop that watches sockets only when told to, and counts who was adopted."""

    def __init__(self) -> None:
        self.readers: dict[socket.socket, Callable[[], None]] = {}
        self.later: list[Callable[[], None]] = []
        self.adopted: list[socket.socket] = []
        self.tasks: list[Any] = []

    async def getaddrinfo(self, host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))] * 2

    def add_reader(self, one: socket.socket, action: Callable[..., None], *words: Any) -> None:
        self.readers[one] = lambda: action(*words)

    def remove_reader(self, one: socket.socket) -> bool:
        return self.readers.pop(one, None) is not None

    def call_later(self, _: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        self.later.append(action)
        return asyncio.TimerHandle(0, action, (), asyncio.get_running_loop())

    def create_task(self, work: Any) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work)

    async def connect_accepted_socket(self, _: Any, accepted: socket.socket) -> None:
        self.adopted.append(accepted)


async def started(watcher: Watcher) -> tuple[Listener, tuple[str, int]]:
    listener = Listener(watcher, asyncio.Protocol)  # type: ignore[arg-type]
    return listener, await listener.start("127.0.0.1", 0)


def test_a_turn_accepts_a_few_and_leaves_the_rest_to_the_next() -> None:
    """Forty that wait are accepted in three turns."""

    async def play() -> list[int]:
        watcher = Watcher()
        listener, address = await started(watcher)
        peers = [socket.create_connection(address) for _ in range(40)]
        counts = []
        for _ in range(4):
            (look,) = watcher.readers.values()
            look()
            await asyncio.sleep(0)
            counts.append(len(watcher.adopted))
        listener.close()
        for one in (*peers, *watcher.adopted):
            one.close()
        return counts

    assert asyncio.run(play()) == [ACCEPTED_MAX, 2 * ACCEPTED_MAX, 40, 40]


def test_without_descriptors_nothing_is_accepted_for_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The socket is not watched meanwhile, the log says what to do, and then it goes on."""

    async def play() -> tuple[int, int, int]:
        watcher = Watcher()
        listener, address = await started(watcher)
        peer = socket.create_connection(address)

        def refused(_: socket.socket) -> Any:
            raise OSError(errno.EMFILE, "Too many open files")

        (look,) = watcher.readers.values()
        with monkeypatch.context() as broken:
            broken.setattr(socket.socket, "accept", refused)
            look()
        during = len(watcher.readers)
        watcher.later[0]()
        (look,) = watcher.readers.values()
        look()
        await asyncio.sleep(0)
        listener.close()
        for one in (peer, *watcher.adopted):
            one.close()
        return during, len(watcher.adopted), len(watcher.readers)

    assert asyncio.run(play()) == (0, 1, 0)
    assert "ulimit" in caplog.text


def test_a_port_in_use_is_an_error_that_names_it() -> None:
    """And no socket is left open."""

    async def play(port: int) -> None:
        await Listener(asyncio.get_running_loop(), asyncio.Protocol).start("127.0.0.1", port)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=str(port)) as caught:
            asyncio.run(play(port))
    assert caught.value.errno == errno.EADDRINUSE
