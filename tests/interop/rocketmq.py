"""Servers of the interop tests, real and ours, behind one shape: start, address, stop, kill.

All of them listen on loopback, live in the test's own directory with small heaps, and are ended by
their process id whatever happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from bench.process import Child, free_ports
from bench.remoting import Connection
from bench.rocketmq import RocketMQBroker, RocketMQNameServer, answers
from bench.systems import start_ours

HEAP = "512m"
READY_TIMEOUT_S = 30
GET_MAX_OFFSET = 30
GET_ROUTE = 105

# Small files, so that a few thousand messages cross every kind of file; both brokers must agree.
SMALL_FILES: dict[str, object] = {
    "mappedFileSizeCommitLog": 1024 * 1024,
    "maxMessageSize": 512 * 1024,
    "mappedFileSizeConsumeQueue": 4000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 4000,
    "flushConsumerOffsetInterval": 500,
}


class Running(Protocol):
    """A server that runs."""

    address: tuple[str, int]
    child: Child


class OurBroker:
    """`inorder broker` on a store directory."""

    def __init__(
        self,
        directory: Path,
        *,
        store: Path,
        port: int,
        namesrv: tuple[str, int] | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        flags: dict[str, object] = {"port": port, "data": store}
        if namesrv is not None:
            flags["namesrv"] = f"{namesrv[0]}:{namesrv[1]}"
        self.address = ("127.0.0.1", port)
        self.child = start_ours("broker", directory, flags=flags, settings=settings)
        _wait(self, lambda: answers(self.address, GET_MAX_OFFSET, {"topic": "T", "queueId": 0}))


class OurNameServer:
    """`inorder nameserver`."""

    def __init__(self, directory: Path, *, settings: Mapping[str, object] | None = None) -> None:
        port = free_ports(1)[0]
        self.address = ("127.0.0.1", port)
        flags: dict[str, object] = {"port": port, "data": directory / "namesrv-data"}
        self.child = start_ours("nameserver", directory, flags=flags, settings=settings)
        _wait(self, lambda: answers(self.address, GET_ROUTE, {"topic": "T"}))


def real_broker(
    directory: Path,
    *,
    store: Path,
    port: int,
    namesrv: tuple[str, int] | None = None,
    settings: Mapping[str, object] | None = None,
) -> RocketMQBroker:
    """Start a real broker on a store directory and wait until it serves."""
    broker = RocketMQBroker(
        directory, namesrv=namesrv, store=store, heap=HEAP, port=port, settings=settings
    )
    broker.wait_ready()
    return broker


def real_name_server(directory: Path) -> RocketMQNameServer:
    """Start a real name server and wait until it answers."""
    server = RocketMQNameServer(directory, heap="128m")
    server.wait_ready()
    return server


@contextmanager
def ended(server: Running) -> Iterator[None]:
    """Kill the server at the end of the block unless it has ended already."""
    try:
        yield
    finally:
        server.child.kill()


@contextmanager
def real_cluster(
    directory: Path, *, settings: Mapping[str, object] | None = None
) -> Iterator[tuple[str, int]]:
    """Run a real name server and a real broker; yield the address of the name server."""
    names = real_name_server(directory)
    with ended(names):
        (port,) = free_ports(1, apart=(-2, 0, 1))
        broker = real_broker(
            directory, store=directory / "store", port=port, namesrv=names.address,
            settings=settings,
        )  # fmt: skip
        with ended(broker):
            yield names.address


def is_routed(namesrv: tuple[str, int], topic: str) -> bool:
    """Tell whether a name server has a route for a topic."""
    with Connection(namesrv) as connection:
        return connection.request(GET_ROUTE, {"topic": topic}).code == 0


def _wait(server: Running, is_ready: Callable[[], bool]) -> None:
    try:
        server.child.wait_until(is_ready, timeout_s=READY_TIMEOUT_S)
    except BaseException:
        server.child.kill()
        raise
