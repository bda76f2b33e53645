"""The asking side: one connection to a broker or a name server.

    call              a future per request; replies come back in any order
    post, `answered`  the short way for sends: no future, task or Command for each. `post` gives a
                      request id, the caller writes the frame by `write_request`, and the reply
                      reaches `answered` straight from `data_received`
    on_request        requests that the server sends over the same connection

With credentials every request is signed on its way out (`net/signing.py`), answers are not.

Output is queued and written once per tick. Watchers hear when the connection is lost, and when it
takes more output after it was full.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from inorder.errors import (
    ConnectFailed,
    ConnectionLost,
    ProtocolError,
    TooManyOutstanding,
    not_supported,
)
from inorder.escaping import escaped
from inorder.logs import get_logger
from inorder.net.signing import Signer, explain
from inorder.net.tls import TlsSession
from inorder.net.transport import SPLIT, Buffer, Calls, write_out
from inorder.wire.codes import ResponseCode
from inorder.wire.frame import FrameDecoder, RawFrame, encode_frame
from inorder.wire.header import FLAG_RESPONSE, JSON, decode_command
from inorder.wire.requests.sendframes import SendAnswer, decode_answer

if TYPE_CHECKING:
    from inorder.config import NetConfig
    from inorder.credentials import Credentials
    from inorder.wire.header import Command

logger = get_logger(__name__)


class Posted(Protocol):
    """A send on its way."""

    def answered(self, answer: SendAnswer) -> None:
        """Take the reply. It never comes if the connection is lost."""
        ...


class Watcher(Protocol):
    """A caller of `post`, which watches the connection."""

    def connection_lost(self, connection: Connection, reason: str) -> None:
        """Learn that no more replies come."""
        ...

    def connection_has_room(self, connection: Connection) -> None:
        """Learn that the connection takes sends again."""
        ...


class Posting:
    """The part of a Connection that sends without futures."""

    _calls: Calls
    _config: NetConfig
    _signer: Signer | None
    _reason: str | None
    _writable: asyncio.Future[None] | None
    _requests_sent: int
    _responses_received: int

    def __init__(self) -> None:
        self._posts: dict[int, Posted] = {}
        self._watchers: dict[Watcher, None] = {}
        self._was_full = False

    def watch(self, watcher: Watcher) -> None:
        """Add a watcher."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        """Remove a watcher."""
        self._watchers.pop(watcher, None)

    @property
    def full(self) -> bool:
        """Return whether nothing should be posted now; watchers hear when that ends."""
        if self._writable is None and len(self._posts) < self._config.outstanding_max:
            return False
        self._was_full = True
        return True

    def next_id(self) -> int:
        """Return an id that no outstanding request has."""
        request_id = self._calls.next_id()
        while request_id in self._posts:
            request_id = self._calls.next_id()
        return request_id

    def post(self, posted: Posted) -> int:
        """Register a send and return its request id; the caller writes it by `write_request`."""
        request_id = self.next_id()
        self._posts[request_id] = posted
        self._requests_sent += 1
        return request_id

    def _receive_posted(self, frame: RawFrame) -> bool:
        """Take the reply to a posted send; False if the frame is anything else."""
        # hot: 0.8 us, without what `answered` does.
        answer = decode_answer(frame[1]) if frame[0] == JSON else None
        if answer is None or not answer.flag & FLAG_RESPONSE:
            return False
        posted = self._posts.pop(answer.opaque, None)
        if posted is None:
            return False
        self._responses_received += 1
        if answer.code:
            explain(answer, self._signer)
        posted.answered(answer)
        return True

    def _tell_room(self) -> None:
        if not self.full:
            self._was_full = False
            for watcher in list(self._watchers):
                watcher.connection_has_room(cast("Connection", self))

    def _end_posts(self) -> None:
        """Tell watchers that no more replies come, even while the last bytes leave slowly."""
        self._posts.clear()
        watchers, self._watchers = list(self._watchers), {}
        for watcher in watchers:
            watcher.connection_lost(cast("Connection", self), self._reason or "")


CONNECT_TIMEOUT_MS = 3000

OnRequest = Callable[["Connection", "Command"], None]
OnLost = Callable[["Connection", str], None]
OnDenied = Callable[["Connection", str], None]


@dataclass(frozen=True, slots=True)
class ConnectionStatistics:
    """Counters of a connection."""

    address: str
    outstanding: int
    requests_sent: int
    responses_received: int
    strays_received: int
    bytes_sent: int
    bytes_received: int
    closed: str | None


class Connection(Posting, asyncio.Protocol):
    """A connection that this process opened. Make one with `Connection.open`."""

    def __init__(
        self,
        address: str,
        config: NetConfig,
        *,
        on_request: OnRequest | None = None,
        on_lost: OnLost | None = None,
        on_denied: OnDenied | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        super().__init__()
        self.address = address
        self.local_address = ""
        self.closed = False
        self._config = config
        self._on_request = on_request or refuse_request
        self._on_lost = on_lost
        self._on_denied = on_denied
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._calls = Calls(self._loop, outstanding_max=config.outstanding_max, peer=address)
        self._decoder = FrameDecoder(config.frame_bytes_max, SPLIT)
        self._tls: TlsSession | None = None
        if tls is not None:
            host, _ = parse_address(address)
            self._tls = TlsSession(tls, server_side=False, server_hostname=host)
        self._parts: list[Buffer] = []
        self._signer = None if credentials is None else Signer(credentials)
        self.write_request: Callable[[bytes], None] = (
            self.write if self._signer is None else self._write_signed
        )
        """Queues the frame of a request, signed if this client signs."""
        self.numbers_sends: bool | None = None
        """Whether the server is a broker with idempotent producers; None: not asked yet."""
        self.capability: int | None = None
        """The capability of the server: 0 for an Apache RocketMQ server; None: not asked yet."""
        self._reason: str | None = None
        self._writable: asyncio.Future[None] | None = None
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._requests_sent = 0
        self._responses_received = 0
        self._strays_received = 0
        self._bytes_sent = 0
        self._bytes_received = 0

    @classmethod
    async def open(
        cls,
        address: str,
        config: NetConfig,
        *,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        on_request: OnRequest | None = None,
        on_lost: OnLost | None = None,
        on_denied: OnDenied | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> Connection:
        """Connect to "host:port", including the TLS handshake. Raises ConnectFailed."""
        host, port = parse_address(address)
        connection = cls(
            address, config, on_request=on_request, on_lost=on_lost, on_denied=on_denied, tls=tls,
            credentials=credentials,
        )  # fmt: skip
        try:
            async with asyncio.timeout(connect_timeout_ms / 1000):
                await connection._loop.create_connection(lambda: connection, host, port)
                await connection._ready
        except TimeoutError as error:
            connection.close("it took too long to connect")
            raise ConnectFailed(
                f"no connection to {address} in {connect_timeout_ms} ms; is it up and reachable?"
            ) from error
        except OSError as error:
            raise ConnectFailed(f"no connection to {address}: {error}") from error
        except ConnectionLost as error:
            raise ConnectFailed(f"no connection to {address}: {error}") from error
        except BaseException:
            connection.close("the caller gave up")
            raise
        return connection

    @property
    def peer(self) -> str:
        """Return the address of the other side."""
        return self.address

    async def request(self, command: Command, timeout_ms: int) -> Command:
        """Send a request and return its reply, whatever its code.

        Raises RequestTimeout, ConnectionLost, or TooManyOutstanding.
        """
        if self._writable is not None:
            await self._wait_writable(timeout_ms)
        answer = self.call(command, timeout_ms)
        try:
            return await answer
        except asyncio.CancelledError:
            self._calls.forget(command.request_id)
            raise

    def call(self, command: Command, timeout_ms: int) -> asyncio.Future[Command]:
        """Send a request and return the future of its reply; for callers that send many."""
        self._check_open()
        answer = self._calls.open(command, timeout_ms)
        try:
            self._send_request(command)
        except BaseException:
            self._calls.forget(command.request_id)
            raise
        self._requests_sent += 1
        return answer

    def notify(self, command: Command) -> None:
        """Send a one-way request. Raises ConnectionLost or TooManyOutstanding."""
        self._check_open()
        self._calls.number(command)
        self._send_request(command)

    def send(self, command: Command) -> None:
        """Queue a command as it is; for replies to the server's requests."""
        self.write(encode_frame(command))

    def write(self, data: Buffer) -> None:
        """Queue bytes; they leave at the end of this tick. Nothing happens once closed."""
        if self.closed:
            return
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)

    def flush(self) -> None:
        """Write the queued bytes now."""
        parts = self._parts
        if not parts or self._transport is None:
            return
        self._parts = []
        if self._tls is not None:
            parts = [self._tls.encrypt(parts)]
        self._bytes_sent += sum(map(len, parts))
        write_out(self._transport, parts)

    def close(self, reason: str = "closed by us") -> None:
        """Send the queued bytes and close; outstanding requests fail with ConnectionLost."""
        if self.closed:
            return
        self.flush()
        self._close(reason)
        if self._transport is None:
            self._finish()
        else:
            self._transport.close()
            self._end_posts()

    async def wait_closed(self) -> None:
        """Wait until the connection is gone, by whichever side."""
        await asyncio.shield(self._lost)

    @property
    def bytes_received(self) -> int:
        """How many bytes came."""
        return self._bytes_received

    def statistics(self) -> ConnectionStatistics:
        """Return a snapshot of the counters."""
        return ConnectionStatistics(
            address=self.address,
            outstanding=len(self._calls) + len(self._posts),
            requests_sent=self._requests_sent,
            responses_received=self._responses_received,
            strays_received=self._strays_received,
            bytes_sent=self._bytes_sent,
            bytes_received=self._bytes_received,
            closed=self._reason,
        )

    def __repr__(self) -> str:
        state = "open" if self._reason is None else f"closed: {self._reason}"
        return f"Connection({self.address}, {state}, outstanding={len(self._calls)})"

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # whatever the loop calls its class
        self._transport = transport
        local = transport.get_extra_info("sockname")
        if isinstance(local, tuple):
            self.local_address = f"{local[0]}:{local[1]}"
        limit = self._config.write_buffer_bytes_max
        transport.set_write_buffer_limits(high=limit, low=limit // 4)
        if self.closed:
            transport.abort()
        elif self._tls is None:
            self._set_ready()
        else:
            transport.write(self._tls.start())

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        self._bytes_received += len(data)
        try:
            if self._tls is not None:
                data = self._decrypt(self._tls, data)
            for frame in self._decoder.receive_data(data):
                if not self._posts or not self._receive_posted(frame):
                    self._receive(frame)
            if self._was_full and not self.closed:
                self._tell_room()
        except ProtocolError as error:
            logger.warning(
                "server=%s closed: it sent %s; check that it is a RocketMQ server",
                self.address, error,
            )  # fmt: skip
            self.close(f"protocol error: {escaped(str(error))}")

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        waiting, self._writable = self._writable, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
        if self._was_full and not self.closed:
            self._tell_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._close("the server closed" if exc is None else f"{type(exc).__name__}: {exc}")
        self._transport = None
        self._finish()

    # Inside.

    def _send_request(self, command: Command) -> None:
        self.send(command if self._signer is None else self._signer.signed(command))

    def _write_signed(self, frame: bytes) -> None:
        assert self._signer is not None
        self.write(self._signer.signed_frame(frame))

    def _receive(self, frame: RawFrame) -> None:
        command = decode_command(frame)
        if command.is_response:
            self._responses_received += 1
            if command.code and explain(command, self._signer) and self._on_denied is not None:
                self._on_denied(self, command.remark or "")
            if self._signer is not None:
                self._signer.learn(command)
            if not self._calls.take(command):
                self._strays_received += 1
            return
        try:
            self._on_request(self, command)
        except Exception:
            # Every error that a server's request can cause ends here: other replies must go on.
            logger.exception("server=%s code=%d handler failed", self.address, command.code)
            if not command.is_oneway:
                self.send(command.reply(ResponseCode.SYSTEM_ERROR, "the handler failed"))

    def _decrypt(self, tls: TlsSession, data: bytes) -> bytes:
        assert self._transport is not None
        try:
            return tls.receive(data)
        finally:
            answer = tls.outgoing()
            if answer:
                self._transport.write(answer)
            if tls.established:
                self._set_ready()

    def _set_ready(self) -> None:
        if not self._ready.done():
            self._ready.set_result(None)

    def _check_open(self) -> None:
        if self.closed:
            raise ConnectionLost(f"the connection to {self.address} is closed: {self._reason}")
        if self._writable is not None:
            raise TooManyOutstanding(
                f"{self.address} does not read: {self._config.write_buffer_bytes_max} bytes wait"
            )

    async def _wait_writable(self, timeout_ms: int) -> None:
        with contextlib.suppress(TimeoutError):  # then _check_open raises the reason
            async with asyncio.timeout(timeout_ms / 1000):
                while self._writable is not None and not self.closed:
                    await asyncio.shield(self._writable)

    def _close(self, reason: str) -> None:
        if not self.closed:
            self.closed = True
            self._reason = reason

    def _finish(self) -> None:
        """Tell all that wait, once."""
        if self._lost.done():
            return
        self.resume_writing()
        self._parts = []
        lost = ConnectionLost(f"lost the connection to {self.address}: {self._reason}")
        self._calls.fail(lost)
        if not self._ready.done():
            self._ready.set_exception(lost)
            self._ready.exception()  # nobody need be waiting
        self._lost.set_result(None)
        self._end_posts()
        if self._on_lost is not None:
            self._on_lost(self, self._reason or "")


def refuse_request(connection: Connection, command: Command) -> None:
    """Refuse a server's request as unknown."""
    if not command.is_oneway:
        connection.send(unsupported(command))


def unsupported(command: Command) -> Command:
    """Return RocketMQ's reply to a code without a handler."""
    return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, not_supported(command.code))


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of "host:port" or "[v6]:port". Raises ConnectFailed if it is neither."""
    host, colon, port = address.strip().rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 0xFFFF:
        raise ConnectFailed(f"{escaped(address)!r} is not an address of the form host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
