"""The HTTP server over real sockets: what it serves, and what it does with bad peers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from inorder.net.http import HttpServer, Request, Response, as_json, event, events, text


async def _echo(request: Request) -> Response:
    return as_json([request.method, request.path, dict(request.query), request.body.decode()])


async def _numbers(request: Request) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"%d\n" % number
            await asyncio.sleep(0)

    return Response(pieces())


async def _fails(request: Request) -> Response:
    raise RuntimeError("planted")


async def _breaks_off(request: Request) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"begun"
        raise RuntimeError("planted")

    return Response(pieces())


ROUTES = {
    ("GET", "/echo"): _echo,
    ("POST", "/echo"): _echo,
    ("GET", "/numbers"): _numbers,
    ("GET", "/fails"): _fails,
    ("GET", "/breaks-off"): _breaks_off,
}


async def ask(server: HttpServer, *requests: bytes, end: bool = True) -> bytes:
    """Send bytes over one connection and return all that comes until it is closed."""
    assert server.address is not None
    reader, writer = await asyncio.open_connection(*server.address)
    try:
        for one in requests:
            writer.write(one)
        if end:
            writer.write_eof()
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


class Served:
    """A server for one test."""

    def __init__(self, routes: Any = None, **options: Any) -> None:
        self.server = HttpServer(ROUTES if routes is None else routes, name="test", **options)

    async def __aenter__(self) -> HttpServer:
        await self.server.start("127.0.0.1", 0)
        return self.server

    async def __aexit__(self, *_: object) -> None:
        await self.server.close()


GET = b"GET %b HTTP/1.1\r\nHost: x\r\n%b\r\n"


def test_requests_share_a_connection() -> None:
    """Pipelined requests are answered in order; the last one closes."""

    async def scenario() -> bytes:
        async with Served() as server:
            first = GET % (b"/echo?a=%20b", b"")
            return await ask(server, first, GET % (b"/numbers", b"Connection: close\r\n"))

    answer = asyncio.run(scenario())
    first, _, second = answer.partition(b'"b"')[0], 0, answer
    assert b'["GET", "/echo", {"a": " b"}, ""]\n' in answer
    assert first.startswith(b"HTTP/1.1 200 OK\r\n")
    assert second.endswith(b"2\r\n0\n\r\n2\r\n1\n\r\n2\r\n2\n\r\n0\r\n\r\n")


def test_an_old_peer_gets_no_chunks() -> None:
    """HTTP/1.0 reads an answer in pieces until the connection ends."""

    async def scenario() -> bytes:
        async with Served() as server:
            return await ask(server, b"GET /numbers HTTP/1.0\r\n\r\n")

    assert asyncio.run(scenario()).endswith(b"\r\n\r\n0\n1\n2\n")


def test_head_has_no_body() -> None:
    """HEAD gets the headers of GET, also of an answer in pieces."""

    async def scenario() -> bytes:
        async with Served() as server:
            return await ask(
                server,
                b"HEAD /echo HTTP/1.1\r\nHost: x\r\n\r\n",
                b"HEAD /numbers HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            )

    answer = asyncio.run(scenario())
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert b"Content-Length: 26\r\n" in answer
    assert b"[" not in answer
    assert answer.endswith(b"\r\n\r\n")


def test_bodies_are_bounded() -> None:
    """A body up to the limit is read whole, a larger one is refused unread."""

    async def scenario() -> list[bytes]:
        async with Served(body_bytes_max=5) as server:
            post = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
            return [await ask(server, post % (len(body), body)) for body in (b"12345", b"123456")]

    fits, large = asyncio.run(scenario())
    assert b'"12345"' in fits
    assert large.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
        (b"PUT /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405),
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 9000 + b"\r\n\r\n", 431),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
    ],
)
def test_refusals_have_a_status(request_bytes: bytes, status: int) -> None:
    """What is not served, or not HTTP, is answered and the connection ends."""

    async def scenario() -> bytes:
        async with Served() as server:
            return await ask(server, request_bytes)

    assert asyncio.run(scenario()).startswith(b"HTTP/1.1 %d " % status)


def test_a_page_that_fails_is_answered_500(caplog: pytest.LogCaptureFixture) -> None:
    """The peer learns nothing of the failure, the log does; the connection goes on."""

    async def scenario() -> bytes:
        async with Served() as server:
            return await ask(server, GET % (b"/fails", b""), GET % (b"/echo", b""))

    with caplog.at_level(logging.ERROR):
        answer = asyncio.run(scenario())
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"planted" not in answer
    assert b"HTTP/1.1 200 " in answer
    assert "planted" in caplog.text


def test_an_answer_that_breaks_off_has_no_end(caplog: pytest.LogCaptureFixture) -> None:
    """The peer can tell half of an answer from a whole one."""

    async def scenario() -> bytes:
        async with Served() as server:
            try:
                return await ask(server, GET % (b"/breaks-off", b""), end=False)
            except ConnectionResetError:
                return b""

    with caplog.at_level(logging.ERROR):
        answer = asyncio.run(scenario())
    assert b"0\r\n\r\n" not in answer
    assert "half-way" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    "said", [b"", b"GET / HT", b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1"]
)
def test_a_slow_request_ends_the_connection(said: bytes) -> None:
    """Neither a silent peer nor half a request is waited for."""

    async def scenario() -> bytes:
        async with Served(request_timeout_ms=100, idle_timeout_ms=100, body_bytes_max=9) as server:
            try:
                return await ask(server, said, end=False)
            except ConnectionResetError:
                return b""

    assert asyncio.run(scenario()) == b""


def test_connections_are_bounded() -> None:
    """One connection too many is answered 503."""

    async def scenario() -> bytes:
        async with Served(connections_max=1) as server:
            assert server.address is not None
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(GET % (b"/echo", b""))
            await reader.readuntil(b"\r\n\r\n")
            answer = await ask(server, GET % (b"/echo", b""), end=False)
            writer.close()
            return answer

    assert asyncio.run(scenario()).startswith(b"HTTP/1.1 503 ")


@pytest.mark.slow
def test_a_peer_that_reads_nothing_is_closed() -> None:
    """An endless answer ends when nothing of it is read; its iterator is closed."""
    ended = asyncio.Event()

    async def endless(_: Request) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"a" * 65536
            finally:
                ended.set()

        return Response(pieces())

    async def scenario() -> None:
        async with Served({("GET", "/"): endless}, write_timeout_ms=200) as server:
            assert server.address is not None
            reader, writer = await asyncio.open_connection(*server.address, limit=1024)
            writer.write(GET % (b"/", b""))
            async with asyncio.timeout(10):
                await ended.wait()
            writer.transport.abort()
            del reader

    asyncio.run(scenario())


def test_events_arrive_one_by_one() -> None:
    """An event is with the peer before the next one is made; closing the server ends the stream."""

    async def scenario() -> None:
        turn = asyncio.Event()

        async def ticks(_: Request) -> Response:
            async def pieces() -> AsyncIterator[bytes]:
                for number in range(1000):
                    yield event(str(number), number=str(number))
                    await turn.wait()
                    turn.clear()

            return events(pieces())

        async with Served({("GET", "/events"): ticks}) as server:
            assert server.address is not None
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(GET % (b"/events", b""))
            async with asyncio.timeout(10):
                head = await reader.readuntil(b"\r\n\r\n")
                assert b"Content-Type: text/event-stream\r\n" in head
                for number in range(3):
                    piece = await reader.readuntil(b"\n\n\r\n")
                    assert piece == b"f\r\nid: %d\ndata: %d\n\n\r\n" % (number, number)
                    turn.set()
            await server.close()
            writer.close()

    asyncio.run(scenario())


def test_a_guard_answers_first() -> None:
    """A guard sees each request before its route, and may answer in its place."""

    def guard(request: Request) -> Response | None:
        if request.headers.get("authorization") == "Bearer 1":
            return None
        return text("who are you?", 401)

    async def scenario() -> list[bytes]:
        async with Served(guard=guard, headers={"X-Of-All": "1"}) as server:
            closing = b"Connection: close\r\n"
            return [
                await ask(server, GET % (b"/echo", closing)),
                await ask(server, GET % (b"/echo", closing + b"Authorization: Bearer 1\r\n")),
            ]

    refused, served = asyncio.run(scenario())
    assert refused.startswith(b"HTTP/1.1 401 ")
    assert served.startswith(b"HTTP/1.1 200 ")
    assert all(b"X-Of-All: 1\r\n" in one for one in (refused, served))
