"""The RocketMQ clients under test, by name, and the servers and topics that they are given."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from tests.interop import toolchains
from tests.interop.driver import Driver
from tests.interop.rawclient import GET_ROUTE, RawClient, body_of
from tests.interop.toolchains import JAVA_4, JAVA_5, Lacking

QUEUES = 4
BINARY = "-Drocketmq.serialize.type=ROCKETMQ"
TLS = "-Dtls.enable=true"
ROUTE_TIMEOUT_S = 30.0
SETTLE_S = 0.5
"""A client notes a result a moment after its handler returned; a stop in between throws it away."""
PATIENCE_S = 60.0
"""How long a test waits for a stock consumer. Now and then two heartbeats of a Java 5 client
collide as it starts; a broker then refuses its pulls (24) until the next one, up to 30 s later."""
_starts = threading.BoundedSemaphore(4)
"""So many processes and consumers start at the same time. Java gives a server three seconds to
answer at its start, and a dozen virtual machines that start at once take all of two cores."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A client library in one of its settings."""

    name: str
    command: Callable[[], list[str]]
    pulls: tuple[str, ...] = ()
    looks_up: bool = False
    orderly: bool = True


_JAVA_PULLS = ("pull", "litepull")
KINDS = [
    Kind("cpp-0.4.4", toolchains.cpp, ("pull",)),
    Kind("ali-ons-3.12", toolchains.node, orderly=False),
    Kind("go-2.1.2", toolchains.golang, ("pull",)),
    Kind("java-4.9.8-json", toolchains.java(JAVA_4), _JAVA_PULLS, looks_up=True),
    Kind("java-4.9.8-binary", toolchains.java(JAVA_4, BINARY), _JAVA_PULLS, looks_up=True),
    Kind("java-5.3.3-json", toolchains.java(JAVA_5), _JAVA_PULLS, looks_up=True),
    Kind("java-5.3.3-binary", toolchains.java(JAVA_5, BINARY), _JAVA_PULLS, looks_up=True),
    Kind("java-5.3.3-tls", toolchains.java(JAVA_5, TLS), _JAVA_PULLS, looks_up=True),
]
OURS = Kind("inorder", toolchains.ours)
BY_NAME = {kind.name: kind for kind in [*KINDS, OURS]}


class Servers(Protocol):
    """What a client is given."""

    address: tuple[str, int]
    namesrv: tuple[str, int]


class Client:
    """A running driver, the broker that it talks to, and topics of its own."""

    def __init__(self, kind: Kind, driver: Driver, server: Servers) -> None:
        self.kind = kind
        self.driver = driver
        self.server = server
        self.instance = ""
        """The name of its consumer where a scenario has several processes."""

    def name(self, purpose: str) -> str:
        """Return a topic or group name that no other client uses."""
        return f"{purpose}_{self.kind.name}".replace(".", "_")

    def topic(self, purpose: str) -> str:
        """Make a topic and wait until clients can find it."""
        name = self.name(purpose)
        make_topic(self.server, name)
        return name

    def produce(
        self, topic: str, count: int, *, first: int = 0, tags: str = "A", delay: int = 0
    ) -> None:
        """Send numbers by the client's own producer."""
        delays = {"delay": delay} if delay else {}
        self.driver.do("produce", topic=topic, first=first, count=count, tags=tags, **delays)

    def push(
        self,
        name: str,
        topic: str,
        *,
        group: str,
        tags: str = "*",
        mode: str = "concurrent",
        refuse: str = "",
        tries: int | None = None,
        sql: str = "",
        replies: bool = False,
        pop_ms: int = 0,
        work_ms: int = 0,
    ) -> None:
        """Start a push consumer; what it gets is read with `got_numbers`.

        With `pop_ms` the broker balances and the consumer may pop, with that invisible time.
        """
        options = {"refuse": refuse} if refuse else {}
        options |= {"reply": "1"} if replies else {}
        options |= {} if tries is None else {"tries": str(tries)}
        options |= {"pop": str(pop_ms)} if pop_ms else {}
        options |= {"work": str(work_ms)} if work_ms else {}
        if sql:
            options["sql"] = base64.urlsafe_b64encode(sql.encode()).decode()
        words = options | {"name": name, "group": group, "topic": topic, "tags": tags, "mode": mode}
        with _starts:
            self.driver.do("push", **words)  # type: ignore[arg-type]

    def stop(self, name: str) -> None:
        """Shut a push consumer down."""
        self.driver.do("stop", name=name)

    def got_numbers(self, name: str) -> list[int]:
        """Return what a consumer got, in its order."""
        return [message.number for message in self.driver.messages("got", name)]

    def wait_got(self, name: str, count: int, *, timeout_s: float = PATIENCE_S) -> None:
        """Wait until a consumer has got so many."""
        self.driver.wait(
            lambda: len(self.driver.messages("got", name)) >= count,
            f"{count} messages for {name}",
            timeout_s=timeout_s,
        )

    def stored(self, topic: str) -> dict[int, list[int]]:
        """Return the numbers of each queue, read from the broker without any client library."""
        with RawClient(self.server.address) as raw:
            return {
                queue: [int(body_of(record)) for record in raw.read_queue(topic, queue)]
                for queue in range(QUEUES)
            }


@contextmanager
def running(kind: Kind, server: Servers, directory: Path) -> Iterator[Client]:
    """Start a driver; end it with the block. Skips, with the reason, what cannot run here."""
    try:
        command = kind.command()
    except Lacking as lacking:
        pytest.skip(f"{kind.name} cannot run here: {lacking}")
    with _starts:
        driver = Driver(kind.name, command, f"127.0.0.1:{server.namesrv[1]}", directory)
    try:
        yield Client(kind, driver, server)
    finally:
        driver.end()


def make_topic(server: Servers, topic: str) -> None:
    """Make a topic of four queues and wait for its route."""
    with RawClient(server.address) as raw:
        raw.create_topic(topic, QUEUES)
    deadline = time.monotonic() + ROUTE_TIMEOUT_S
    with RawClient(server.namesrv) as raw:
        while raw.request(GET_ROUTE, {"topic": topic}).code != 0:
            assert time.monotonic() < deadline, f"no route of {topic}"
            time.sleep(0.02)


def as_sent(first: int, count: int) -> dict[int, list[int]]:
    """Return what each queue must hold: its numbers, rising."""
    return {
        queue: [n for n in range(first, first + count) if n % QUEUES == queue]
        for queue in range(QUEUES)
    }
