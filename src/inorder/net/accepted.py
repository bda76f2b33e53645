"""One accepted connection: bytes to frames, replies to bytes, and the limits on its peer.

`net/server.py` lists the limits and their reasons; this file applies them to one connection. Why
replies are written once per turn: decision 6.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, cast

from inorder.errors import (
    ConfigError,
    ConnectionLost,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
)
from inorder.escaping import escaped
from inorder.logs import get_logger
from inorder.net.fairness import PROBATION_MS, SHARE_FRAMES
from inorder.net.rules import NEVER_DELAYED
from inorder.net.transport import SPLIT, Buffer, Calls, write_last, write_out
from inorder.wire.frame import FrameDecoder, RawFrame, encode_frame
from inorder.wire.header import decode_command
from inorder.wire.ids import pack_host

if TYPE_CHECKING:
    from inorder.net.rules import Meter
    from inorder.net.server import Server
    from inorder.net.tls import TlsSession
    from inorder.wire.header import Command

logger = get_logger(__name__)

OUTPUT_FACTOR_MAX = 4
"""Unread replies of a connection may reach this multiple of `write_buffer_bytes_max`."""
TURN_BYTES = 256 * 1024
"""Output in bytes that ends a connection's turn: it is written, and others come first."""
CROWDED_FACTOR = 32
"""On a crowded server a connection may leave this part of `write_buffer_bytes_max` unread."""
NOTED_BYTES_MIN = 16 * 1024
"""The server counts unread replies of a connection from this many bytes on."""
WAITING_BYTES_MAX = 4 * 1024 * 1024
"""Requests of a connection that wait for a limit; above, nothing is read from it."""
WAITING_FRAMES_MAX = 4096
"""The same as a number."""
FRAME_BYTES = 8
"""What a frame has beside header and body."""
SCREENED_BYTES = 32 * 1024
"""A frame that is longer is looked at when its header is there, where users are checked."""
UNSCREENED_BYTES_MAX = 128 * 1024
"""If the header is longer, nobody looks; before a login the frame counts as a long one."""
UNVERIFIED_BYTES_MAX = 64 * 1024 * 1024
"""Long frames that begin from one address, on connections where nobody has logged in."""
UNVERIFIED_TOTAL_MAX = 256 * 1024 * 1024
"""The same from all addresses."""
NO_HOST = bytes(8)
TLS_HANDSHAKE = 0x16
"""First byte of a TLS connection; a frame starts with 0 or 1."""


class FrameHandler(Protocol):
    """The callbacks of a server's connections. All calls are synchronous and on the loop."""

    def connection_made(self, connection: ServerConnection) -> None:
        """Learn of a new connection, which has sent nothing yet."""
        ...

    def frames_received(self, connection: ServerConnection, frames: list[RawFrame]) -> None:
        """Handle all frames of one read, in order.

        Responses among them (flag bit 0) belong to `connection.take_response`. A ProtocolError
        raised here closes the connection.
        """
        ...

    def connection_lost(self, connection: ServerConnection, reason: str) -> None:
        """Forget a connection. Called once for each `connection_made`."""
        ...


Screen = Callable[["ServerConnection", "Command"], bool]
"""Whether a request may be of somebody known, by its header alone."""


class _Waiting:
    """Requests of a connection that are over a limit."""

    __slots__ = ("frames", "full", "size", "timer")

    def __init__(self) -> None:
        self.frames: deque[RawFrame] = deque()
        self.size = 0
        self.full = False
        self.timer: asyncio.TimerHandle | None = None


class ServerConnection(asyncio.Protocol):
    """One accepted connection.

    `state` is free for the handler. Decoder, calls and TLS are made when first needed: most
    connections are idle most of the time, and an idle one should cost next to nothing.
    """

    __slots__ = (
        "_active", "_active_at_ms", "_calls", "_charged", "_decoder", "_deferred", "_gone",
        "_greedy", "_held", "_in_line", "_light", "_light_from_ms", "_meters", "_partial_since_ms",
        "_parts", "_queued_bytes", "_reading_paused", "_reason", "_server", "_stalled_since_ms",
        "_started", "_taken_bytes", "_tight", "_tls", "_transport", "_user", "_waiting",
        "_written_bytes", "busy", "closed", "congested", "id", "noted_bytes", "peer", "peer_host",
        "state", "tls_user",
    )  # fmt: skip

    def __init__(self, server: Server) -> None:
        self.id = 0
        self.peer = "?"
        self.peer_host = b""
        self.closed = False
        self.state: Any = None
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._user: str | None = None
        self._meters: tuple[Meter, ...] = ()
        self._waiting: _Waiting | None = None
        self._tls: TlsSession | None = None
        self.tls_user: str | None = None
        """The user that the peer's certificate names, if it was checked and names one."""
        self._decoder: FrameDecoder | None = None
        self._calls: Calls | None = None
        self._charged = 0
        self._deferred: list[RawFrame] = []
        self._gone = ""
        self._greedy = False
        self._held = False
        self._in_line = False
        self._light = False
        self._light_from_ms = -1
        self._parts: list[Buffer] = []
        self._queued_bytes = 0
        self.noted_bytes = 0
        self._tight = False
        self._started = False
        self._active = True
        self._active_at_ms = -1
        self._partial_since_ms = -1
        self._stalled_since_ms = -1
        self._taken_bytes = 0
        self._written_bytes = 0
        self._reading_paused = False
        self.congested = False
        """Whether the peer has too many unread replies; nothing is read from it meanwhile."""
        self.busy = False
        """Whether further frames must wait: congestion, or the share of this turn is used up."""
        self._reason = ""

    # What the handler uses.

    @property
    def user(self) -> str | None:
        """The user who has logged in on this connection.

        Setting it applies the limits of that user; the connection is closed if it is one too many.
        """
        return self._user

    @user.setter
    def user(self, name: str | None) -> None:
        if name == self._user or self.closed:
            return
        server, now_ms = self._server, self._server.clock.monotonic_ms()
        if self._user is not None and server.users.limits:
            server.users.leave(self._user, now_ms)
            self._meters = self._meters[: int(server.addresses.limits)]
            self._user = None
        if name is None or not server.users.limits:
            self._user = name
            return
        meter = server.users.join(name, now_ms)
        if meter is None:
            self._complain(
                "refused: too many connections of its user are open",
                "raise connections_per_user_max, or find who opens so many",
            )
            self.close("too many connections of its user")
            return
        self._user = name
        if server.users.counts:
            self._meters += (meter,)

    def admit_user(self, name: str) -> bool:
        """Apply the limits of a user who has logged in; return whether the request is served.

        An empty name is that of a server, or of nobody: no limits of a user hold.
        """
        if name and name != self._user:
            self.user = name
            return not self.closed
        return True

    def failed_login(self, user: str, answer: Callable[[], None]) -> None:
        """Count a failed login, and call `answer`: at once, or late if there were many.

        Meanwhile the connection serves nothing. After the longest pause it is closed.
        """
        server = self._server
        now_ms = server.clock.monotonic_ms()
        pause = server.failures.failed(self.peer_host[:-4], user, now_ms)
        if not pause.delay_ms:
            answer()
            return
        self.hold()

        def late() -> None:
            if self.closed:
                return
            answer()
            if pause.close:
                self.close("too many failed logins")
            else:
                self.release()

        server.loop.call_later(pause.delay_ms / 1000, late)

    @property
    def gone(self) -> bool:
        """Return whether the peer is gone, and its last requests are being served."""
        return bool(self._gone)

    @property
    def unsent_bytes(self) -> int:
        """Return how many bytes of output the peer has not taken yet."""
        waiting = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return waiting + self._queued_bytes

    def write(self, data: Buffer) -> None:
        """Queue bytes; they leave at the end of this tick. Nothing happens once closed."""
        # hot: every answer passes here.
        if self.closed:
            return
        if not self._parts:
            self._server.mark_dirty(self)
        self._parts.append(data)
        self._queued_bytes += len(data)
        if self._queued_bytes > TURN_BYTES:
            self.end_share()

    def write_parts(self, parts: Iterable[Buffer]) -> None:
        """Queue several buffers, which need not be joined first."""
        if self.closed:
            return
        queued = self._parts
        if not queued:
            self._server.mark_dirty(self)
        before = len(queued)
        queued.extend(parts)
        self._queued_bytes += sum(map(len, queued[before:] if before else queued))
        if self._queued_bytes > TURN_BYTES:
            self.end_share()

    def send(self, command: Command) -> None:
        """Queue a command."""
        self.write(encode_frame(command))

    def flush(self) -> None:
        """Write the queued bytes now, without waiting for the end of the tick."""
        parts = self._parts
        if not parts:
            return
        size = self._queued_bytes
        self._parts = []
        self._queued_bytes = 0
        transport = self._transport
        if transport is None:
            return
        self._active = True
        if self._tls is not None:
            parts = [self._tls.encrypt(parts)]
            size = len(parts[0])
        self._written_bytes += size
        self._server.bytes_sent += size
        if self._meters:
            self._count(0, size)
        if self._server.crowded is not self._tight:
            self._set_output_limit(transport)
        write_out(transport, parts)
        waiting = transport.get_write_buffer_size()
        if waiting > OUTPUT_FACTOR_MAX * self._server.config.write_buffer_bytes_max:
            self.drop_unread()
        elif waiting > NOTED_BYTES_MIN or self.noted_bytes:
            self._server.note_unread(self, waiting)

    def drop_unread(self) -> None:
        """Close a connection whose peer leaves too many replies unread."""
        self._server.closed_for_slowness += 1
        self._complain("does not read its answers", "let it read, or pull less at a time")
        self.abort("the peer does not read its answers")

    def defer(self, frames: list[RawFrame]) -> None:
        """Keep frames until the connection is not `busy`; nothing is read from it meanwhile."""
        self._deferred += frames
        self._apply_reading()

    def hold(self) -> None:
        """Serve no more frames until `release`: a long request of this peer is in progress."""
        self._held = self.busy = True
        self._apply_reading()

    def release(self) -> None:
        """Serve frames again after `hold`."""
        self._held = False
        if not self.closed:
            self._wait_in_line()

    def end_share(self) -> None:
        """End the connection's turn: write its output, and let others come first."""
        self.flush()
        self._light = False
        self._greedy = True
        self._light_from_ms = self._server.clock.monotonic_ms() + PROBATION_MS
        self._wait_in_line()

    async def request(self, command: Command, timeout_ms: int) -> Command:
        """Send the peer a request and return its reply. Raises RequestTimeout or ConnectionLost."""
        if self.closed:
            raise ConnectionLost(f"the connection to {self.peer} is closed: {self._reason}")
        calls = self._require_calls()
        answer = calls.open(command, timeout_ms)
        self.send(command)
        try:
            return await answer
        except asyncio.CancelledError:
            calls.forget(command.request_id)
            raise

    def notify(self, command: Command) -> None:
        """Send the peer a one-way request."""
        if not self.closed:
            self._require_calls().number(command)
            self.send(command)

    def take_response(self, response: Command) -> bool:
        """Take a response of the peer; False if no request waits for it and it is dropped."""
        return self._calls is not None and self._calls.take(response)

    def close(self, reason: str) -> None:
        """Send the queued bytes and close.

        The end of the stream travels with the last replies. RocketMQ's C++ client sends its next
        pull as soon as it has a reply, unless it sees the end, and waits 30 s for a lost pull.
        """
        if self.closed:
            return
        transport = self._transport
        if transport is not None and self._parts and not transport.is_closing():
            parts, self._parts, self._queued_bytes = self._parts, [], 0
            if self._tls is not None:
                parts = [self._tls.encrypt(parts)]
            self._server.bytes_sent += write_last(transport, parts)
        self._close(reason)
        if transport is not None:
            transport.close()

    def abort(self, reason: str) -> None:
        """Close at once; queued bytes are lost."""
        self._close(reason)
        self._parts = []
        self._queued_bytes = 0
        self._deferred = []
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        """Never read from this connection again."""
        self._reading_paused = True
        self._apply_reading()

    def __repr__(self) -> str:
        state = f"closed: {self._reason}" if self.closed else "open"
        tls = ", tls" if self._tls is not None else ""
        return f"ServerConnection({self.id}, {self.peer}, {state}{tls}, unsent={self.unsent_bytes})"

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # whatever the loop calls its class
        server = self._server
        self._transport = transport
        self.peer, self.peer_host = peer_names(transport.get_extra_info("peername"))
        number = server.add(self)
        if number is None:
            self._close("too many connections")
            self._complain(
                "refused: too many connections are open, in all or from this address",
                "raise connections_max or connections_per_address_max, or find who opens so many",
            )
            transport.abort()
            return
        self.id = number
        self._set_output_limit(transport)
        if server.addresses.limits:
            meter = server.addresses.join(self.peer_host[:-4], server.clock.monotonic_ms())
            self._meters = () if meter is None else (meter,)
        server.handler.connection_made(self)

    def data_received(self, data: bytes) -> None:
        # hot: once per read of the socket.
        if self.closed:
            return
        server = self._server
        self._active = True
        server.bytes_received += len(data)
        try:
            if not self._started:
                self._start(data)
            if self._tls is not None:
                data = self._decrypt(self._tls, data)
            if self._decoder is None:
                self._decoder = FrameDecoder(server.config.frame_bytes_max, SPLIT)
            frames = self._decoder.receive_data(data)
            if frames:
                self._partial_since_ms = -1
                server.frames_received += len(frames)
                if self._charged:
                    self._discharge()
                if self._meters:
                    frames = self._within_limits(frames)
                    if not frames:
                        return
                if self._deferred or self._held:
                    self._deferred += frames
                elif not (self._light or self._may_go()):
                    self._wait_in_line()
                    self.defer(frames)
                elif len(frames) <= SHARE_FRAMES:
                    server.handler.frames_received(self, frames)
                else:
                    self._serve_share(frames)
            elif server.screen is not None and not self._decoder.screened:
                self._screen(server.screen, self._decoder)
        except Exception as error:
            self._failed(error)

    def eof_received(self) -> bool:
        self.flush()
        if not (self._deferred or self._waiting):
            self._close("the peer closed")
        if self._server.turns.over:  # closing costs time, and many may close at once
            self._server.turns.later(self._close_transport)
            return True
        return False

    def _close_transport(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        self.congested = self.busy = True
        self._apply_reading()

    def resume_writing(self) -> None:
        self.congested = False
        self._stalled_since_ms = -1
        if self._deferred:
            self._wait_in_line()
        else:
            self.busy = self._held
            self._apply_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone = "the peer closed" if exc is None else f"{type(exc).__name__}: {exc}"
        if self._charged:
            self._discharge()
        self._transport = None
        self._decoder = None
        self._parts = []
        self._queued_bytes = 0
        self.congested = False
        if self._waiting is not None:
            self._deferred += self._end_waiting()
        if self._deferred and not (self.closed or self._held):
            self._wait_in_line()  # the peer's last requests count, also without replies
        else:
            self._end()

    def _end(self) -> None:
        """End a connection whose transport is gone and whose requests are served."""
        self._close(self._gone)
        self._gone = ""
        self._deferred = []
        if self.id != 0:  # else it was refused, and the handler never saw it
            self._server.turns.do(self._forget)

    def _screen(self, screen: Screen, decoder: FrameDecoder) -> None:
        """Take the body of a long frame only from somebody who may be known."""
        if decoder.pending_bytes <= SCREENED_BYTES:
            return
        frame = decoder.begun()
        if frame is None and decoder.pending_bytes <= UNSCREENED_BYTES_MAX:
            return
        decoder.screened = True
        if frame is not None and not screen(self, decode_command(frame)):
            decoder.pass_over()
        elif self._user is None:
            self._charged = decoder.needed_bytes
            if not self._server.charge(self.peer_host[:-4], self._charged):
                self._complain(
                    "sent a large request before any login, beside too many of its address",
                    "let its clients log in with a small request first",
                )
                self.abort("too many large requests before a login")

    def _discharge(self) -> None:
        self._server.charge(self.peer_host[:-4], -self._charged)
        self._charged = 0

    def _forget(self) -> None:
        """Tell handler, callers and server that the connection is closed."""
        self._leave_meters()
        self._server.remove(self)
        if self._calls is not None:
            self._calls.fail(ConnectionLost(f"lost the connection to {self.peer}: {self._reason}"))
        self._server.handler.connection_lost(self, self._reason)

    def sweep(self, now_ms: int) -> None:
        """Close the connection if it is silent, dribbles or does not read; `Server` calls this."""
        config = self._server.config
        if self.congested or self.closed:
            if self._stalls(now_ms, config.frame_timeout_ms):
                self._server.closed_for_slowness += 1
                self.abort(self._reason or "the peer does not read its answers")
            return
        if self._waiting is not None:  # it is silent because nothing is read from it
            self._active = True
            self._partial_since_ms = -1
            return
        decoder = self._decoder
        if (decoder is not None and not decoder.idle) or self._handshaking:
            if self._partial_since_ms < 0:
                self._partial_since_ms = now_ms
            elif now_ms - self._partial_since_ms >= config.frame_timeout_ms:
                self._server.closed_for_slowness += 1
                self._complain(
                    f"sent an incomplete frame for {config.frame_timeout_ms} ms",
                    "check the network, or raise frame_timeout_ms",
                )
                self.abort("a frame did not complete in time")
                return
        if self._active:
            self._active = False
            self._active_at_ms = now_ms
        elif now_ms - self._active_at_ms >= config.idle_timeout_ms:
            self._server.closed_for_silence += 1
            self.close("silent for too long")
        elif decoder is not None and decoder.idle:
            self._decoder = None  # made again when the peer speaks

    # Inside.

    @property
    def _handshaking(self) -> bool:
        return self._tls is not None and not self._tls.established

    def _set_output_limit(self, transport: asyncio.Transport) -> None:
        """Set the number of unread bytes at which the transport asks for a pause."""
        self._tight = self._server.crowded
        limit = self._server.config.write_buffer_bytes_max
        if self._tight:
            limit //= CROWDED_FACTOR
        transport.set_write_buffer_limits(high=limit, low=limit // 4)

    def _start(self, data: bytes) -> None:
        """Decide by the first byte whether this is TLS."""
        self._started = True
        mode = self._server.config.tls_mode
        if data[0] != TLS_HANDSHAKE:
            if mode == "enforcing":
                raise RemoteProtocolError("plain text where tls_mode=enforcing asks for TLS")
            return
        if mode == "disabled":
            raise RemoteProtocolError("TLS, which tls_mode=disabled does not allow")
        try:
            self._tls = self._server.tls.session(self._server.clock.now_ms())
        except ConfigError as error:
            raise RemoteProtocolError(f"TLS, and there is no certificate: {error}") from error
        self._server.tls_connections_total += 1

    def _decrypt(self, tls: TlsSession, data: bytes) -> bytes:
        shaking_hands = not tls.established
        plain = tls.receive(data)
        if shaking_hands and tls.established:
            self.tls_user = self._server.tls.user_of(tls)
        answer = tls.outgoing()
        if answer and self._transport is not None:
            self._transport.write(answer)
        return plain

    # Limits of addresses and users.

    def _count(self, requests: int, size: int) -> None:
        now_ms = self._server.clock.monotonic_ms()
        for meter in self._meters:
            meter.take(requests, size, now_ms)

    def _limit_wait_ms(self) -> int:
        now_ms = self._server.clock.monotonic_ms()
        return max((meter.wait_ms(now_ms) for meter in self._meters), default=0)

    def _within_limits(self, frames: list[RawFrame]) -> list[RawFrame]:
        """Return the frames to serve now; the others wait, except those that never do."""
        waiting = self._waiting
        served = []
        for frame in frames:
            if waiting is None and not self._limit_wait_ms():
                self._count(1, _size(frame))
                served.append(frame)
            elif _never_waits(frame):
                served.append(frame)
            else:
                if waiting is None:
                    waiting = self._waiting = _Waiting()
                waiting.frames.append(frame)
                waiting.size += _size(frame)
                self._server.note_waiting(1, _size(frame))
        if waiting is not None:
            self._wait_for_limit(waiting)
        return served

    def _wait_for_limit(self, waiting: _Waiting) -> None:
        """Serve what waits when the limits allow it, and read no more if too much does."""
        if waiting.timer is None:
            wait_ms = max(1, self._limit_wait_ms())
            waiting.timer = self._server.loop.call_later(wait_ms / 1000, self._limit_over)
        full = (
            waiting.size > WAITING_BYTES_MAX
            or len(waiting.frames) > WAITING_FRAMES_MAX
            or self._server.waiting_full
        )
        if full is not waiting.full:
            waiting.full = full
            self._apply_reading()

    def _limit_over(self) -> None:
        waiting = self._waiting
        if waiting is None or self.closed or self._reading_paused:  # the server stops
            return
        waiting.timer = None
        before = len(self._deferred)
        while waiting.frames and not self._limit_wait_ms():
            frame = waiting.frames.popleft()
            size = _size(frame)
            waiting.size -= size
            self._server.note_waiting(-1, -size)
            self._count(1, size)
            self._deferred.append(frame)
        if len(self._deferred) > before and not (self.congested or self._held):
            self._wait_in_line()
        if waiting.frames:
            self._wait_for_limit(waiting)
        else:
            self._waiting = None
        self._apply_reading()

    def _end_waiting(self) -> list[RawFrame]:
        """Wait no more, for the peer is gone; return what waited, which its next ones pay for."""
        waiting = self._waiting
        assert waiting is not None
        self._waiting = None
        if waiting.timer is not None:
            waiting.timer.cancel()
        self._server.note_waiting(-len(waiting.frames), -waiting.size)
        self._count(len(waiting.frames), waiting.size)
        return list(waiting.frames)

    def _leave_meters(self) -> None:
        server, now_ms = self._server, self._server.clock.monotonic_ms()
        if server.addresses.limits:
            server.addresses.leave(self.peer_host[:-4], now_ms)
        if self._user is not None and server.users.limits:
            server.users.leave(self._user, now_ms)
        self._meters = ()

    def _may_go(self) -> bool:
        """Return whether a new or once greedy connection is served now (`net/fairness.py`)."""
        now_ms = self._server.clock.monotonic_ms()
        if self._light_from_ms < 0:
            self._light_from_ms = now_ms + PROBATION_MS
        self._light = now_ms >= self._light_from_ms
        if self._light:
            self._greedy = False
            return True
        return self._server.turns.admits(greedy=self._greedy)

    def _wait_in_line(self) -> None:
        self.busy = True
        if not self._in_line:
            self._in_line = True
            self._server.turns.wait(self)

    def take_turn(self) -> None:
        """Go on where the handler stopped; `Turns` calls this."""
        self._in_line = False
        if not (self.closed or self.congested or self._held):
            self.busy = False
            if self._deferred:
                frames, self._deferred = self._deferred, []
                try:
                    self._serve_share(frames)
                except Exception as error:
                    self._failed(error)
            self._apply_reading()
        if self._gone and not self._in_line:
            self._end()

    def _serve_share(self, frames: list[RawFrame]) -> None:
        """Serve as many frames as a share allows; the others wait."""
        rest = frames[SHARE_FRAMES:]
        self._server.handler.frames_received(self, frames[:SHARE_FRAMES] if rest else frames)
        if rest and not self.closed:
            if not self.busy:
                self.end_share()
            self.defer(rest)

    def _failed(self, error: Exception) -> None:
        """End a connection whose input failed."""
        if isinstance(error, ProtocolError):
            self._protocol_failed(error)
            return
        # Every error that input can cause ends here: a bug must not affect other peers.
        logger.error("peer=%s a handler failed; it is closed", self.peer, exc_info=error)
        self.close("a handler failed")

    def _protocol_failed(self, error: ProtocolError) -> None:
        if self._tls is not None and self._transport is not None:
            self._transport.write(self._tls.outgoing())  # the alert says why
        self._server.closed_for_protocol += 1
        self._complain(f"sent {error}", "check that it is a RocketMQ client of this address")
        self.close(f"protocol error: {escaped(str(error))}")

    def _complain(self, what: str, advice: str) -> None:
        self._server.quiet.warning(
            self._server.clock.monotonic_ms(),
            "server=%s peer=%s closed: %s; %s",
            self._server.name, self.peer, what, advice,
        )  # fmt: skip

    def _require_calls(self) -> Calls:
        if self._calls is None:
            self._calls = Calls(
                self._server.loop,
                outstanding_max=self._server.config.outstanding_max,
                peer=self.peer,
            )
        return self._calls

    def _close(self, reason: str) -> None:
        if not self.closed:
            self.closed = True
            self._reason = reason

    @property
    def is_unread(self) -> bool:
        """Return whether bytes of the peer may wait unread in the kernel."""
        return bool(
            self._reading_paused or self.congested or self.busy or self._deferred or self._held
            or self._waiting
        )  # fmt: skip

    def _apply_reading(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if (
            self._reading_paused or self.congested or self._deferred or self._held
            or (self._waiting is not None and self._waiting.full)
        ):  # fmt: skip
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _stalls(self, now_ms: int, limit_ms: int) -> bool:
        """Return whether the peer took no byte of its output for `limit_ms`."""
        unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        taken = self._written_bytes - unsent
        if self._stalled_since_ms < 0 or taken != self._taken_bytes:
            self._stalled_since_ms = now_ms
            self._taken_bytes = taken
            return False
        return now_ms - self._stalled_since_ms >= limit_ms


def user_of_peer(peer: object) -> str | None:
    """Return the user that the checked certificate of a peer names."""
    return peer.tls_user if isinstance(peer, ServerConnection) else None


def _size(frame: RawFrame) -> int:
    return FRAME_BYTES + len(frame[1]) + len(frame[2])


def _never_waits(frame: RawFrame) -> bool:
    """Return whether no limit holds a frame back: some requests, and every response."""
    try:
        command = decode_command(frame)
    except RemoteProtocolError:
        return False  # whoever serves it says what is wrong
    return command.is_response or command.code in NEVER_DELAYED


def peer_names(peername: Any) -> tuple[str, bytes]:
    """Return a peer's address as "ip:port" and as the packed form of records."""
    if not isinstance(peername, tuple) or len(peername) < 2:
        return "?:0", NO_HOST
    host, port = str(peername[0]), int(peername[1])
    try:
        return f"{host}:{port}", socket.inet_pton(socket.AF_INET, host) + port.to_bytes(4, "big")
    except OSError:
        pass  # not IPv4
    host = host.partition("%")[0].removeprefix("::ffff:")
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        return shown, pack_host(host, port)
    except LocalProtocolError:
        return shown, NO_HOST  # a network in memory may have names instead of addresses
