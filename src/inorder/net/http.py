"""A small HTTP/1.1 server: fixed routes, bounded requests, answers in pieces, server-sent events.

Pages and metrics of a process need few requests and no framework. What a peer can cost is bounded:

- memory: a head of HEAD_BYTES_MAX, a body of `body_bytes_max` (0: requests with a body are
  refused), and an answer of which the peer reads nothing: `asyncio` keeps at most one piece of it;
- time: a request that takes longer than `request_timeout_ms`, an answer of which nothing is read
  for `write_timeout_ms`, and silence of `idle_timeout_ms` between requests close the connection;
- number: above `connections_max` a new connection is answered 503 and closed; after
  `requests_max` requests a connection is closed.

What is ambiguous is refused: lengths that are not one number, transfer codings in requests, line
ends other than CRLF, blanks before a colon, continued lines. `parse_head` is pure.

    async def hello(request: Request) -> Response:
        return text(f"hello {request.query.get('name', '')}")

    server = HttpServer({("GET", "/hello"): hello}, name="admin")
    host, port = await server.start("127.0.0.1", 0)

A path that ends with `/*` takes every path below it; the longest one that fits counts. A route of
GET answers HEAD, too. `guard` sees each request before its route and may answer in its place
(credentials, the allowed values of `Host`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from inorder.errors import InorderError
from inorder.logs import get_logger

log = get_logger(__name__)

HEAD_BYTES_MAX: Final = 8192
"""Bytes of the request line and all header lines."""
HEADERS_MAX: Final = 64
QUERY_FIELDS_MAX: Final = 64
LINGER_S: Final = 1.0
LINGER_READS_MAX: Final = 64
"""How long, and how far, the rest of a refused request is read and dropped."""
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_TARGET: Final = re.compile(r"/[\x21-\x7e]*\Z")
_SINGLE: Final = frozenset(("content-length", "host", "transfer-encoding", "authorization"))
"""Headers of which two are refused; the lines of others are joined."""

Body = bytes | AsyncIterator[bytes]
Handler = Callable[["Request"], Awaitable["Response"]]
Guard = Callable[["Request"], "Response | None"]


class Refused(InorderError):
    """A request that is answered with a status of failure."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True)
class Head:
    """The request line and the headers of a request."""

    method: str
    target: str
    version: str
    headers: Mapping[str, str]
    """By names in small letters."""

    @property
    def body_bytes(self) -> int:
        """Return the length of the body."""
        return int(self.headers.get("content-length", "0"))

    @property
    def keep_alive(self) -> bool:
        """Return whether the peer wants the connection for further requests."""
        wanted = {one.strip().lower() for one in self.headers.get("connection", "").split(",")}
        if self.version == "HTTP/1.0":
            return "keep-alive" in wanted
        return "close" not in wanted


@dataclass(frozen=True, slots=True)
class Request:
    """One request with its whole body."""

    method: str
    path: str
    """Decoded, without the query."""
    query: Mapping[str, str]
    """Of a name that comes twice, the last value."""
    headers: Mapping[str, str]
    """By names in small letters."""
    body: bytes = b""
    peer: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer: its body at once, or in pieces as an iterator makes them."""

    body: Body = b""
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


def text(words: str, status: int = 200) -> Response:
    """Return an answer of plain text; it ends with a line end."""
    return Response(words.encode() + b"\n", status)


def as_json(value: Any, status: int = 200) -> Response:
    """Return an answer of JSON."""
    return Response(json.dumps(value).encode() + b"\n", status, "application/json")


def events(pieces: AsyncIterator[bytes]) -> Response:
    """Return an answer of server-sent events; `event` makes the pieces.

    That the peer is gone shows at the next piece: an iterator that has nothing to say gives
    `COMMENT` every few seconds.
    """
    return Response(pieces, content_type="text/event-stream", headers={"Cache-Control": "no-store"})


COMMENT: Final = b":\n\n"


def event(data: str, *, name: str = "", number: str = "") -> bytes:
    """Return one server-sent event; line ends in `name` and `number` are left out."""
    head = "".join(
        f"{field}: {''.join(value.splitlines())}\n"
        for field, value in (("event", name), ("id", number))
        if value
    )
    lines = re.split("\r\n|\r|\n", data)
    return (head + "".join(f"data: {line}\n" for line in lines) + "\n").encode()


def parse_head(head: bytes) -> Head:
    """Read a request line and headers, without the empty line at their end.

    Raises:
        Refused: it is not HTTP/1, or its meaning depends on who reads it.
    """
    try:
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, version = first.split(" ")
    except ValueError:
        raise Refused(400, "the request line is not METHOD TARGET VERSION") from None
    if version not in {"HTTP/1.0", "HTTP/1.1"}:
        raise Refused(505, "only HTTP/1.0 and HTTP/1.1 are spoken here")
    if not _TOKEN.match(method) or not _TARGET.match(target):
        raise Refused(400, "the method or the target is malformed")
    headers = _headers(lines)
    if version == "HTTP/1.1" and "host" not in headers:
        raise Refused(400, "the header Host is missing")
    if "transfer-encoding" in headers:
        raise Refused(501, "a body needs Content-Length; transfer codings are not read here")
    length = headers.get("content-length", "0")
    if not re.fullmatch("[0-9]{1,15}", length):
        raise Refused(400, "Content-Length is not a number")
    return Head(method, target, version, headers)


def _headers(lines: list[str]) -> dict[str, str]:
    if len(lines) > HEADERS_MAX:
        raise Refused(431, f"more than {HEADERS_MAX} headers")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        value = value.strip(" \t")
        if not colon or not _TOKEN.match(name) or re.search(r"[\x00-\x08\x0a-\x1f\x7f]", value):
            raise Refused(400, "a header line is malformed")
        name = name.lower()
        if name not in headers:
            headers[name] = value
        elif name in _SINGLE:
            raise Refused(400, f"the header {name} comes twice")
        else:
            headers[name] = f"{headers[name]}, {value}".rstrip()
    return headers


def split_target(target: str) -> tuple[str, dict[str, str]]:
    """Return the decoded path and the fields of the query.

    Raises:
        Refused: an escape is no UTF-8, the path has a step upwards, or there are too many fields.
    """
    path, _, query = target.partition("?")
    try:
        path = unquote(path, errors="strict")
        fields = parse_qsl(
            query, keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX
        )
    except ValueError:
        raise Refused(
            400, "the target has an escape that is no UTF-8, or too many fields"
        ) from None
    if "\x00" in path or any(step in {".", ".."} for step in path.split("/")):
        raise Refused(400, "the path is not plain")
    return path, dict(fields)


class Routes:
    """Which handler answers a method and a path."""

    def __init__(self, routes: Mapping[tuple[str, str], Handler]) -> None:
        self._exact = {key: value for key, value in routes.items() if not key[1].endswith("/*")}
        below = ((key, value) for key, value in routes.items() if key[1].endswith("/*"))
        self._below = sorted(
            (((method, path[:-1]), handler) for (method, path), handler in below),
            key=lambda one: -len(one[0][1]),
        )

    def find(self, method: str, path: str) -> Handler:
        """Return the handler. Raises Refused with 404, or 405 if only other methods are served."""
        methods = ("GET", "HEAD") if method == "HEAD" else (method,)
        found = self._of_path(path)
        for one in methods:
            if one in found:
                return found[one]
        if found:
            raise Refused(405, f"{method} is not served here; {', '.join(sorted(found))} is")
        raise Refused(404, "there is no such page")

    def _of_path(self, path: str) -> dict[str, Handler]:
        found: dict[str, Handler] = {}
        for (method, below), handler in reversed(self._below):  # the longest comes last, and counts
            if path.startswith(below):
                found[method] = handler
        for (method, exact), handler in self._exact.items():
            if path == exact:
                found[method] = handler
        return found


class HttpServer:
    """A listening address, its routes, and its open connections."""

    def __init__(
        self,
        routes: Mapping[tuple[str, str], Handler],
        *,
        name: str,
        guard: Guard | None = None,
        headers: Mapping[str, str] | None = None,
        connections_max: int = 16,
        requests_max: int = 100,
        idle_timeout_ms: int = 30_000,
        request_timeout_ms: int = 5000,
        write_timeout_ms: int = 10_000,
        body_bytes_max: int = 0,
    ) -> None:
        self.name = name
        self.address: tuple[str, int] | None = None
        self.refused_total = 0
        self.requests_total = 0
        self._routes = Routes(routes)
        self._guard = guard
        self._headers = dict(headers or {})  # of every answer
        self._connections_max = connections_max
        self._requests_max = requests_max
        self._idle_timeout_s = idle_timeout_ms / 1000
        self._request_timeout_s = request_timeout_ms / 1000
        self._write_timeout_s = write_timeout_ms / 1000
        self._body_bytes_max = body_bytes_max
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int, *, ssl: Any = None) -> tuple[str, int]:
        """Listen, and return the address that was bound (port 0 means any)."""
        self._server = await asyncio.start_server(
            self._accepted, host, port, limit=HEAD_BYTES_MAX, ssl=ssl
        )
        bound = self._server.sockets[0].getsockname()
        self.address = (str(bound[0]), int(bound[1]))
        return self.address

    async def close(self) -> None:
        """Listen no longer, and end every connection, also in the middle of an answer."""
        self.abandon()
        while self._serving:
            await asyncio.wait(self._serving)

    def abandon(self) -> None:
        """Stop as a kill does: the connections break, and nobody is waited for."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._serving:
            task.cancel()

    def __repr__(self) -> str:
        return f"HttpServer({self.name!r}, {self.address}, connections={len(self._serving)})"

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._server is None:  # closed between the accept and now
            writer.transport.abort()
            return
        crowded = len(self._serving) >= self._connections_max
        self._serving.add(task)
        try:
            if crowded:
                self.refused_total += 1
                refusal = text("too many connections", 503)
                await self._answer(writer, "GET", refusal, chunked=False, closes=True)
            else:
                await self._serve(reader, writer)
            await self._end(reader, writer)
        except (OSError, TimeoutError, EOFError) as error:
            log.debug("server=%s connection ended: %s", self.name, error)
        except asyncio.CancelledError:
            pass  # `close`: nobody waits for this task but it
        except Exception:
            # The root of a connection: an answer that breaks off must not end the process.
            log.exception("server=%s an answer failed half-way", self.name)
        finally:
            self._serving.discard(task)
            writer.transport.abort()  # without effect on a connection that has ended well

    async def _end(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Close, so that the last answer arrives: bytes that nobody read would make it a reset."""
        async with asyncio.timeout(self._write_timeout_s):
            if writer.can_write_eof():
                writer.write_eof()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LINGER_S):
                        for _ in range(LINGER_READS_MAX):
                            if not await reader.read(HEAD_BYTES_MAX):
                                break
            writer.close()
            await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = writer.get_extra_info("peername")
        peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else ""
        for left in reversed(range(self._requests_max)):
            method, chunked, keep = "GET", False, False
            async with asyncio.timeout(self._idle_timeout_s):
                first = await reader.read(1)
            if not first:
                return
            try:
                async with asyncio.timeout(self._request_timeout_s):
                    head = await _read_head(reader, first)
                    method, chunked = head.method, head.version == "HTTP/1.1"
                    body = await self._read_body(reader, writer, head)
                keep = head.keep_alive and left > 0
                response = await self._respond(head, body, peer)
            except Refused as refused:
                self.refused_total += 1
                response = text(str(refused), refused.status)
            keep = keep and (chunked or isinstance(response.body, bytes))
            await self._answer(writer, method, response, chunked=chunked, closes=not keep)
            if not keep:
                return

    async def _read_body(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: Head
    ) -> bytes:
        length = head.body_bytes
        if length > self._body_bytes_max:
            raise Refused(413, f"a body may have {self._body_bytes_max} bytes")
        if length and head.headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return await reader.readexactly(length) if length else b""

    async def _respond(self, head: Head, body: bytes, peer: str) -> Response:
        self.requests_total += 1
        path, query = split_target(head.target)
        request = Request(head.method, path, query, head.headers, body, peer)
        try:
            refusal = self._guard(request) if self._guard is not None else None
            if refusal is not None:
                return refusal
            return await self._routes.find(head.method, path)(request)
        except Refused as refused:  # read whole: the connection goes on
            return text(str(refused), refused.status)
        except Exception:
            # The root of a request: a page that fails must not end the process.
            log.exception("server=%s the request %s %s failed", self.name, head.method, path)
            return text("this request failed; the log of the process says why", 500)

    async def _answer(
        self,
        writer: asyncio.StreamWriter,
        method: str,
        response: Response,
        *,
        chunked: bool,
        closes: bool,
    ) -> None:
        body = response.body
        fields = {"Content-Type": response.content_type, **self._headers, **response.headers}
        fields["X-Content-Type-Options"] = "nosniff"
        if isinstance(body, bytes):
            fields["Content-Length"] = str(len(body))
        elif chunked:
            fields["Transfer-Encoding"] = "chunked"
        if closes:
            fields["Connection"] = "close"
        writer.write(_head_bytes(response.status, fields))
        if isinstance(body, bytes):
            writer.write(body if method != "HEAD" else b"")
        elif method != "HEAD":
            await self._pieces(writer, body, chunked=chunked)
        else:
            await _close(body)
        await self._drain(writer)

    async def _pieces(
        self, writer: asyncio.StreamWriter, body: AsyncIterator[bytes], *, chunked: bool
    ) -> None:
        """Write the pieces of an answer, each when the one before it is on its way."""
        try:
            async for piece in body:
                if piece:
                    writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                    await self._drain(writer)
            if chunked:
                writer.write(b"0\r\n\r\n")
        finally:
            await _close(body)

    async def _drain(self, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(self._write_timeout_s):
            await writer.drain()


async def _read_head(reader: asyncio.StreamReader, first: bytes) -> Head:
    try:
        head = first + await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise Refused(431, f"the head is larger than {HEAD_BYTES_MAX} bytes") from None
    return parse_head(head[:-4])


async def _close(body: AsyncIterator[bytes]) -> None:
    if isinstance(body, AsyncGenerator):
        await body.aclose()


def _head_bytes(status: int, fields: Mapping[str, str]) -> bytes:
    for name, value in fields.items():
        if "\r" in value or "\n" in value:
            raise ValueError(f"the header {name} has a line end")
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{lines}\r\n".encode("latin-1")
