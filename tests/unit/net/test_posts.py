"""Posting over a connection: answers without futures, watchers, and the limit of what is open."""

from __future__ import annotations

import asyncio

from inorder.config import NetConfig
from inorder.net.accepted import ServerConnection
from inorder.net.connection import Connection
from inorder.net.server import Server
from inorder.wire.frame import RawFrame, encode_frame
from inorder.wire.header import Command, decode_command
from inorder.wire.requests.sendframes import SendAnswer
from tests.kit.clock import SimClock
from tests.kit.simloop import SimLoop, run


class Echo:
    """Answers each request with its own fields; backwards within a read."""

    def connection_made(self, connection: ServerConnection) -> None:
        pass

    def connection_lost(self, connection: ServerConnection, reason: str) -> None:
        pass

    def frames_received(self, connection: ServerConnection, frames: list[RawFrame]) -> None:
        for frame in reversed(frames):
            command = decode_command(frame)
            if command.code == 666:
                connection.abort("as asked")
                return
            connection.send(command.reply(fields=command.fields))


class Watching:
    """Posts, and notes what it is told."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.lost: list[str] = []
        self.room = 0

    def answered(self, answer: SendAnswer) -> None:
        assert answer.extFields is not None
        self.offsets.append(answer.extFields.queueOffset)

    def connection_lost(self, connection: Connection, reason: str) -> None:
        self.lost.append(reason)

    def connection_has_room(self, connection: Connection) -> None:
        self.room += 1


def post(connection: Connection, watching: Watching, offset: int, code: int = 310) -> None:
    command = Command.request(code, {"queueOffset": str(offset)})
    command.request_id = connection.post(watching)
    connection.write(encode_frame(command))


def play(scenario: object, **config: int) -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        server = Server(Echo(), NetConfig(tls_mode="disabled"), clock)
        node = loop.node("10.0.0.1")
        await node.run(server.start("10.0.0.1", 1))
        connection = await Connection.open("10.0.0.1:1", NetConfig(**config))
        watching = Watching()
        connection.watch(watching)
        await scenario(connection, watching)  # type: ignore[operator]
        connection.close()
        await connection.wait_closed()
        await node.run(server.close())

    for seed in range(3):
        run(main, seed)


def test_answers_come_to_who_posted_and_to_who_asked():
    """Both ways over one connection, in any order."""

    async def scenario(connection: Connection, watching: Watching) -> None:
        for offset in range(5):
            post(connection, watching, offset)
        answer = await connection.request(Command.request(1, {"a": "b"}), 1000)
        assert answer.fields == {"a": "b"}
        await asyncio.sleep(1)
        assert sorted(watching.offsets) == list(range(5))
        assert connection.statistics().outstanding == 0

    play(scenario)


def test_a_full_connection_says_so_and_says_when_that_is_over():
    """outstanding_max counts what was posted."""

    async def scenario(connection: Connection, watching: Watching) -> None:
        for offset in range(3):
            assert not connection.full
            post(connection, watching, offset)
        assert connection.full
        await asyncio.sleep(1)
        assert watching.room == 1
        assert not connection.full

    play(scenario, outstanding_max=3)


def test_watchers_learn_of_a_loss_once():
    """By the server or by us; nothing is answered after it."""

    async def scenario(connection: Connection, watching: Watching) -> None:
        gone = Watching()
        connection.watch(gone)
        connection.unwatch(gone)
        post(connection, watching, 0, code=666)
        await connection.wait_closed()
        assert len(watching.lost) == 1
        assert not watching.offsets
        assert not gone.lost

    async def by_us(connection: Connection, watching: Watching) -> None:
        post(connection, watching, 0)
        connection.close("enough")
        assert watching.lost == ["enough"]
        await connection.wait_closed()
        assert watching.lost == ["enough"]
        assert not watching.offsets

    play(scenario)
    play(by_us)
