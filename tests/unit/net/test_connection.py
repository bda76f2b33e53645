"""The asking side, on a transport in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from inorder.config import NetConfig
from inorder.errors import ConnectFailed, ConnectionLost, RequestTimeout, TooManyOutstanding
from inorder.net.connection import Connection, parse_address
from inorder.wire.frame import FrameDecoder, encode_frame
from inorder.wire.header import Command, decode_command
from tests.unit.net.fakes import FakeTransport, tick

Story = Callable[[Connection, FakeTransport], Awaitable[None]]


def play(story: Story, *, on_request: Any = None, **settings: Any) -> None:
    """Run a story with one fresh connection."""

    async def run() -> None:
        config = replace(NetConfig(), **settings)
        connection = Connection("10.0.0.1:10911", config, on_request=on_request)
        transport = FakeTransport()
        transport.protocol = connection
        connection.connection_made(transport)
        await story(connection, transport)

    asyncio.run(run())


def sent(transport: FakeTransport) -> list[Command]:
    """Return the commands that were written so far."""
    return [decode_command(frame) for frame in FrameDecoder().receive_data(transport.written)]


def test_answers_find_their_requests_in_any_order() -> None:
    """Two requests of one tick leave in one write; each gets its own answer."""

    async def story(connection: Connection, transport: FakeTransport) -> None:
        first = asyncio.ensure_future(connection.request(Command.request(105), 1000))
        second = asyncio.ensure_future(connection.request(Command.request(106), 1000))
        await tick()
        assert len(transport.writes) == 1
        one, two = sent(transport)
        answers = encode_frame(two.reply(0, "two")) + encode_frame(one.reply(17, "one"))
        connection.data_received(answers[:30])
        connection.data_received(answers[30:])
        assert (await first).remark == "one"
        assert (await second).remark == "two"
        assert connection.statistics().responses_received == 2

    play(story)


def test_timeouts_share_a_timer_and_name_the_request() -> None:
    """Each request ends at its own deadline, the shorter one first."""

    async def story(connection: Connection, transport: FakeTransport) -> None:
        long = asyncio.ensure_future(connection.request(Command.request(11), 30))
        with pytest.raises(RequestTimeout, match=r"10\.0\.0\.1:10911 did not answer request 105"):
            await connection.request(Command.request(105), 1)
        assert not long.done()
        with pytest.raises(RequestTimeout, match="request 11 in 30 ms"):
            await long
        late = sent(transport)[0].reply(0)
        connection.data_received(encode_frame(late))
        assert connection.statistics().strays_received == 1

    play(story)


def test_a_cancelled_request_gives_its_place_back() -> None:
    """A caller that stops waiting leaves nothing behind."""

    async def story(connection: Connection, transport: FakeTransport) -> None:
        asked = asyncio.ensure_future(connection.request(Command.request(105), 60_000))
        await tick()
        assert connection.statistics().outstanding == 1
        asked.cancel()
        await tick()
        assert connection.statistics().outstanding == 0

    play(story)


def test_the_limit_of_outstanding_requests_refuses() -> None:
    """More than outstanding_max at a time raise instead of piling up."""

    async def story(connection: Connection, transport: FakeTransport) -> None:
        answer = connection.call(Command.request(105), 60_000)
        with pytest.raises(TooManyOutstanding):
            connection.call(Command.request(105), 60_000)
        connection.connection_lost(None)
        with pytest.raises(ConnectionLost):
            await answer

    play(story, outstanding_max=1)


def test_back_pressure_delays_requests_and_refuses_notifications() -> None:
    """While the server does not read, `request` waits for room and the others raise."""

    async def story(connection: Connection, transport: FakeTransport) -> None:
        connection.pause_writing()
        asked = asyncio.ensure_future(connection.request(Command.request(105), 1000))
        await tick()
        assert transport.writes == []
        with pytest.raises(TooManyOutstanding, match="does not read"):
            connection.notify(Command.request(15, oneway=True))
        connection.resume_writing()
        await tick()
        connection.data_received(encode_frame(sent(transport)[0].reply(0)))
        assert (await asked).code == 0
        connection.pause_writing()
        with pytest.raises(TooManyOutstanding):
            await connection.request(Command.request(105), 1)

    play(story)


def test_requests_of_the_server_reach_the_callback() -> None:
    """The server may ask too; what the callback answers goes back."""

    def answer(connection: Connection, command: Command) -> None:
        connection.send(command.reply(0, body=b"running"))

    async def story(connection: Connection, transport: FakeTransport) -> None:
        connection.data_received(encode_frame(Command.request(307, request_id=5)))
        await tick()
        (reply,) = sent(transport)
        assert (reply.request_id, reply.code, reply.body) == (5, 0, b"running")

    play(story, on_request=answer)


def test_without_a_callback_the_server_learns_that_the_code_is_unknown() -> None:
    """As RocketMQ's clients do: code 3, and nothing for one-way requests."""

    async def story(connection: Connection, transport: FakeTransport) -> None:
        connection.data_received(encode_frame(Command.request(307, request_id=5)))
        connection.data_received(encode_frame(Command.request(40, request_id=6, oneway=True)))
        await tick()
        (reply,) = sent(transport)
        assert (reply.code, reply.remark) == (3, " request type 307 not supported")

    play(story)


def test_a_failing_callback_is_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A bug in a callback costs that request, not the connection."""

    def fail(connection: Connection, command: Command) -> None:
        raise KeyError("a bug")

    async def story(connection: Connection, transport: FakeTransport) -> None:
        connection.data_received(encode_frame(Command.request(307, request_id=5)))
        await tick()
        assert sent(transport)[0].code == 1
        assert not connection.closed

    play(story, on_request=fail)
    assert "handler failed" in caplog.text


def test_garbage_from_the_server_closes(caplog: pytest.LogCaptureFixture) -> None:
    """A server that does not speak the protocol is left, and requests in flight fail."""

    async def story(connection: Connection, transport: FakeTransport) -> None:
        asked = asyncio.ensure_future(connection.request(Command.request(105), 60_000))
        await tick()
        connection.data_received(b"HTTP/1.1 400 Bad Request\r\n")
        with pytest.raises(ConnectionLost, match="protocol error"):
            await asked
        await connection.wait_closed()
        assert transport.closing

    play(story)
    assert "check that it is a RocketMQ server" in caplog.text


def test_closing_sends_what_is_queued_first() -> None:
    """A one-way request just before close still leaves."""

    async def story(connection: Connection, transport: FakeTransport) -> None:
        connection.notify(Command.request(42, oneway=True))
        connection.close("done")
        assert [command.code for command in sent(transport)] == [42]
        await connection.wait_closed()
        with pytest.raises(ConnectionLost, match="done"):
            connection.call(Command.request(105), 100)
        assert repr(connection) == "Connection(10.0.0.1:10911, closed: done, outstanding=0)"

    play(story)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("127.0.0.1:9876", ("127.0.0.1", 9876)),
        (" broker.example:10911 ", ("broker.example", 10911)),
        ("[::1]:9876", ("::1", 9876)),
        ("fe80::1:10911", ("fe80::1", 10911)),
    ],
)
def test_addresses(text: str, parsed: tuple[str, int]) -> None:
    """Names, IPv4 and both spellings of IPv6 are understood."""
    assert parse_address(text) == parsed


@pytest.mark.parametrize(
    "text", ["", "host", ":1", "host:", "host:x", "host:65536", "host:-1", "h:\u0661"]
)
def test_what_is_no_address(text: str) -> None:
    """Anything else is refused before a socket is opened."""
    with pytest.raises(ConnectFailed, match="host:port"):
        parse_address(text)
