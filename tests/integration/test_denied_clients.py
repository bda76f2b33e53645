"""Clients that access control refuses: consumers ask slowly and recover, others raise at once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import inorder
import inorder.testing
from inorder.errors import AccessDenied
from inorder.net.accepted import ServerConnection
from inorder.spark.cluster import Cluster, Servers, close_all
from inorder.wire.codes import RequestCode
from inorder.wire.frame import RawFrame
from inorder.wire.header import decode_command
from tests.integration.consumerkit import Kit, begin, handler_of, leases_and_locks, place, play

NO_PERMISSION = 16
SAID = "User:bob has no permission to access Group:billing from 10.0.1.2, no matched policies."


class Gate:
    """Stands before a broker and refuses all requests of one host, or those of some codes."""

    def __init__(self, behind: Any, host: str, codes: set[int] | None = None) -> None:
        self.behind = behind
        self.host = host
        self.codes = codes
        self.is_open = False
        self.refused: Counter[int] = Counter()

    def connection_made(self, connection: ServerConnection) -> None:
        self.behind.connection_made(connection)

    def connection_lost(self, connection: ServerConnection, reason: str) -> None:
        self.behind.connection_lost(connection, reason)

    def frames_received(self, connection: ServerConnection, frames: list[RawFrame]) -> None:
        passed = [frame for frame in frames if not self._refuses(connection, frame)]
        if passed:
            self.behind.frames_received(connection, passed)

    def _refuses(self, connection: ServerConnection, frame: RawFrame) -> bool:
        command = decode_command(frame)
        if (
            self.is_open
            or not connection.peer.startswith(self.host)
            or (self.codes is not None and command.code not in self.codes)
        ):
            return False
        self.refused[command.code] += 1
        if not command.is_oneway:
            connection.send(command.reply(NO_PERMISSION, SAID))
        return True


def gate_of(kit: Kit, host: str, codes: set[int] | None = None) -> Gate:
    server = kit.cluster.broker.server
    gate = Gate(server.handler, host, codes)
    server.handler = gate
    return gate


@leases_and_locks
@pytest.mark.parametrize("order", ["queue", None])
def test_a_refused_consumer_asks_slowly_and_goes_on_when_it_is_let_in(
    caplog: pytest.LogCaptureFixture, stock: bool, order: Any
) -> None:
    """Three minutes of refusals are three lines, and fewer requests than one a second."""

    async def story(kit: Kit) -> None:
        await kit.send(20)
        consumer, got = await handler_of(kit, order=order)
        node, _ = place(kit, consumer)
        gate = gate_of(kit, node.host)
        await begin(kit, consumer)
        await asyncio.sleep(175)
        assert got == []
        assert 0 < gate.refused.total() < 175
        gate.is_open = True
        await kit.until(lambda: len(got) >= 20, 25)

    with caplog.at_level(logging.INFO, "inorder"):
        play(story, stock=stock, queues=2)
    lines = [one for one in caplog.records if "access denied" in one.getMessage()]
    assert len(lines) == 3
    assert all(one.levelno == logging.WARNING for one in lines)
    assert "groups=billing" in lines[0].getMessage()
    assert "User:bob has no permission to access Group:billing" in lines[0].getMessage()


@pytest.fixture
def closed() -> Iterator[str]:
    """The address of a name server that refuses everybody."""
    with inorder.testing.broker() as broker:
        names = broker._async._names
        assert names is not None
        names._server.handler = Gate(names._server.handler, "127.0.0.1")
        yield broker.namesrv
        close_all()


@pytest.mark.parametrize("use", ["producer", "consumer", "pull consumer", "admin", "spark"])
def test_a_refusing_name_server_is_told_at_once(closed: str, use: str) -> None:
    """Nobody waits for a topic, and nobody is told that there is none."""
    bob = inorder.Credentials("bob", "guessed")

    def send() -> None:
        with inorder.Producer(closed, credentials=bob) as producer:
            producer.send("orders", b"x")

    def consume() -> None:
        consumer = inorder.Consumer(closed, group="g", credentials=bob)
        consumer.on("orders")(print)
        try:
            consumer.start()
        finally:
            consumer.close()

    def pull() -> None:
        with inorder.PullConsumer(closed, group="g", credentials=bob) as consumer:
            consumer.subscribe("orders")

    def administer() -> None:
        with inorder.Admin(closed, credentials=bob) as admin:
            admin.topics.names()

    def read() -> None:
        Cluster(Servers(closed), group="g").queues("orders")

    uses = {"producer": send, "consumer": consume, "pull consumer": pull, "admin": administer,
            "spark": read}  # fmt: skip
    began = time.monotonic()
    with pytest.raises(AccessDenied, match="User:bob has no permission to access Group:billing"):
        uses[use]()
    assert time.monotonic() - began < 2


def test_a_consumer_whose_pulls_are_refused_pulls_every_ten_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Other requests are allowed: a right to the topic was taken away while it ran."""

    async def story(kit: Kit) -> None:
        consumer, got = await handler_of(kit, order="key")
        node, _ = place(kit, consumer)
        await begin(kit, consumer)
        await kit.send(5)
        await kit.until(lambda: len(got) == 5)
        gate = gate_of(kit, node.host, {RequestCode.PULL_MESSAGE})
        await kit.send(5)
        await asyncio.sleep(100)
        before = len(got)
        assert 16 <= gate.refused[RequestCode.PULL_MESSAGE] <= 22, "and of the retry topic"
        gate.is_open = True
        await kit.until(lambda: len(got) == 10, 12)
        assert before < 10

    with caplog.at_level(logging.WARNING, "inorder"):
        play(story)
    lines = [one for one in caplog.messages if "access denied" in one]
    assert len(lines) == 2
    assert "pull failed" not in caplog.text
