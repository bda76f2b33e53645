"""One accepted connection, on a transport in memory."""

from __future__ import annotations

import asyncio
import logging
import struct
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from inorder.config import NetConfig
from inorder.errors import ConnectionLost, RemoteProtocolError, RequestTimeout
from inorder.net.accepted import ServerConnection
from inorder.net.server import Server
from inorder.wire.frame import FrameDecoder, RawFrame, encode_frame
from inorder.wire.header import Command, decode_command
from tests.unit.net.fakes import FakeTransport, ManualClock, Recorder, frame_of, tick

Scene = tuple[Server, ServerConnection, FakeTransport, Recorder, ManualClock]


def connect(server: Server) -> tuple[ServerConnection, FakeTransport]:
    """Return a new connection of a server."""
    transport = FakeTransport()
    connection = ServerConnection(server)
    transport.protocol = connection
    connection.connection_made(transport)
    return connection, transport


def play(story: Callable[..., Awaitable[None]], **settings: Any) -> None:
    """Run a story with one fresh connection."""

    async def run() -> None:
        clock, recorder = ManualClock(), Recorder()
        server = Server(recorder, replace(NetConfig(), **settings), clock, name="test")
        connection, transport = connect(server)
        await story(server, connection, transport, recorder, clock)

    asyncio.run(run())


def test_all_frames_of_one_read_come_in_one_call() -> None:
    """The handler sees a read as one list, and half a frame not at all."""

    async def story(server: Server, connection: Any, t: Any, recorder: Recorder, c: Any) -> None:
        data = frame_of(request_id=1) + frame_of(request_id=2) + frame_of(request_id=3)
        connection.data_received(data[:-5])
        connection.data_received(data[-5:])
        ids = [[decode_command(f).request_id for f in call] for call in recorder.calls]
        assert ids == [[1, 2], [3]]
        assert server.statistics().frames_received == 3
        assert server.statistics().bytes_received == len(data)

    play(story)


def test_a_stream_cut_into_single_bytes_gives_the_same_frames() -> None:
    """How the network cuts the stream does not matter."""

    async def story(s: Any, connection: Any, t: Any, recorder: Recorder, c: Any) -> None:
        data = frame_of(body=b"x" * 50) + frame_of()
        for at in range(len(data)):
            connection.data_received(data[at : at + 1])
        assert [len(call) for call in recorder.calls] == [1, 1]
        assert recorder.calls[0][0][2] == b"x" * 50

    play(story)


def test_output_of_a_tick_is_one_write() -> None:
    """However many answers a tick gives, the transport is written to once."""

    async def story(s: Any, connection: Any, transport: FakeTransport, r: Any, c: Any) -> None:
        connection.write(b"one ")
        connection.write_parts([b"two ", memoryview(b"three")])
        assert transport.writes == []
        await tick()
        assert transport.writes == [b"one two three"]
        connection.write(b"!")
        connection.flush()
        assert transport.writes[-1] == b"!"
        await tick()
        assert len(transport.writes) == 2

    play(story)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 8,
        b"\x00\x00\x00\x00\x00\x00\x00\x00",
        b"\x7f\xff\xff\xff",
    ],
)
def test_garbage_closes_with_one_escaped_line(
    garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes that are no frame close the connection and are counted; the log says what to do."""

    async def story(server: Any, connection: Any, transport: Any, recorder: Any, c: Any) -> None:
        connection.data_received(garbage)
        await tick()
        assert transport.closing
        assert recorder.calls == []
        assert recorder.lost[0][1].startswith("protocol error")
        assert server.statistics().closed_for_protocol == 1
        assert server.statistics().connections == 0

    play(story)
    assert "peer=10.0.0.9:4711" in caplog.text
    assert "check that it is a RocketMQ client" in caplog.text


def test_many_bad_peers_make_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    """The log does not grow with the number of bad peers."""

    async def story(server: Server, *_: Any) -> None:
        for _i in range(100):
            connection, _transport = connect(server)
            connection.data_received(b"\xff" * 8)
        assert server.statistics().closed_for_protocol == 100

    play(story)
    assert len(caplog.records) == 10


def test_an_error_of_the_handler_closes_that_connection_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A bug behind one connection does not reach the others."""

    class Broken(Recorder):
        def frames_received(self, connection: ServerConnection, frames: list[RawFrame]) -> None:
            if connection.id == 1:
                raise KeyError("a bug")
            super().frames_received(connection, frames)

    async def story(server: Server, connection: Any, transport: Any, r: Any, c: Any) -> None:
        server.handler = broken = Broken()
        other, other_transport = connect(server)
        connection.data_received(frame_of())
        other.data_received(frame_of())
        assert transport.closing
        assert not other_transport.closing
        assert len(broken.calls) == 1

    with caplog.at_level(logging.ERROR):
        play(story)
    assert "a handler failed" in caplog.text


def test_silence_closes_after_the_idle_timeout_and_not_before() -> None:
    """Neither read nor write for idle_timeout_ms closes; any of both starts the time again."""

    async def story(server: Any, connection: Any, transport: Any, r: Any, clock: Any) -> None:
        connection.sweep(clock.ms)
        clock.ms += 999
        connection.sweep(clock.ms)
        connection.data_received(frame_of())
        clock.ms += 999
        connection.sweep(clock.ms)
        connection.write(b"x")
        await tick()
        clock.ms += 999
        connection.sweep(clock.ms)
        clock.ms += 999
        connection.sweep(clock.ms)
        assert not connection.closed
        clock.ms += 1
        connection.sweep(clock.ms)
        assert transport.closing
        assert server.statistics().closed_for_silence == 1

    play(story, idle_timeout_ms=1000)


def test_a_dribbled_frame_closes_although_bytes_keep_coming() -> None:
    """Slow loris: a byte now and then does not keep an incomplete frame alive."""

    async def story(server: Any, connection: Any, transport: Any, r: Any, clock: Any) -> None:
        data = frame_of(body=b"x" * 100)
        for at in range(10):
            connection.data_received(data[at : at + 1])
            connection.sweep(clock.ms)
            clock.ms += 100
        assert not transport.closing
        connection.data_received(data[10:11])
        connection.sweep(clock.ms)
        assert transport.aborted
        assert server.statistics().closed_for_slowness == 1

    play(story, frame_timeout_ms=1000)


def test_progress_frame_by_frame_is_not_slow() -> None:
    """A busy stream whose reads always end inside a frame is fine."""

    async def story(s: Any, connection: Any, transport: FakeTransport, r: Any, clock: Any) -> None:
        data = frame_of()
        connection.data_received(data[:20])
        for _ in range(50):
            connection.data_received(data[20:] + data[:20])
            connection.sweep(clock.ms)
            clock.ms += 900
        assert not transport.closing

    play(story, frame_timeout_ms=1000)


def test_a_peer_that_does_not_read_is_not_read_from() -> None:
    """Back-pressure: above the write limit reading pauses, below it goes on."""

    async def story(s: Any, connection: Any, transport: FakeTransport, r: Any, c: Any) -> None:
        assert transport.limits == (1000, 250)
        connection.pause_writing()
        assert connection.congested
        assert not transport.reading
        connection.resume_writing()
        assert transport.reading
        connection.pause_reading()
        connection.pause_writing()
        connection.resume_writing()
        assert not transport.reading

    play(story, write_buffer_bytes_max=1000)


def test_a_peer_that_takes_nothing_for_long_is_closed() -> None:
    """Stalled output closes; output that moves does not."""

    async def story(server: Any, connection: Any, transport: Any, r: Any, clock: Any) -> None:
        transport.unsent = 3000
        connection.write(b"x" * 3000)
        connection.pause_writing()
        await tick()
        for _ in range(5):
            connection.sweep(clock.ms)
            clock.ms += 900
            transport.unsent -= 1
        assert not transport.closing
        connection.sweep(clock.ms)
        clock.ms += 1000
        connection.sweep(clock.ms)
        assert transport.aborted
        assert server.statistics().closed_for_slowness == 1

    play(story, frame_timeout_ms=1000, write_buffer_bytes_max=1000)


def test_unread_answers_have_a_hard_limit() -> None:
    """Four times the write limit is the most that a connection may owe its peer."""

    async def story(server: Any, connection: Any, transport: Any, r: Any, c: Any) -> None:
        connection.pause_writing()
        transport.unsent = 4_000
        connection.write(b"x")
        await tick()
        assert not transport.aborted
        transport.unsent = 4_001
        connection.write(b"x")
        await tick()
        assert transport.aborted

    play(story, write_buffer_bytes_max=1000)


def test_large_output_does_not_wait_for_the_end_of_the_tick() -> None:
    """What is queued is written at 256 KiB, so that limits are seen while requests are served."""

    async def story(s: Any, connection: Any, transport: Any, r: Any, c: Any) -> None:
        connection.write(b"x" * 200_000)
        assert not transport.written
        connection.write_parts([b"y" * 50_000, b"z" * 50_000])
        assert len(transport.written) == 300_000
        assert connection.unsent_bytes == 0

    play(story)


def test_deferred_frames_wait_until_the_peer_has_read() -> None:
    """A handler that stops at a congested peer goes on where it stopped; reading pauses."""

    async def story(s: Any, connection: Any, transport: Any, recorder: Any, c: Any) -> None:
        connection.pause_writing()
        first, second = (frame_of(request_id=number) for number in (1, 2))
        connection.data_received(first)
        (frames,) = recorder.calls
        connection.defer(frames)
        connection.data_received(second)
        assert len(recorder.calls) == 1
        connection.resume_writing()
        assert not transport.reading
        assert connection.busy
        await tick()
        assert not connection.busy
        assert [decode_command(raw).request_id for raw in recorder.calls[1]] == [1, 2]
        assert transport.reading

    play(story, write_buffer_bytes_max=1000)


def test_a_turn_ends_with_its_share_of_output() -> None:
    """After 256 KiB of answers the other connections come first; then it goes on."""

    async def story(s: Any, connection: Any, transport: Any, recorder: Any, c: Any) -> None:
        connection.data_received(frame_of(request_id=1))
        assert not connection.busy
        connection.write(b"x" * 300_000)
        assert connection.busy
        assert not connection.congested
        connection.defer(recorder.calls[0])
        assert not transport.reading
        await tick()
        assert not connection.busy
        assert len(recorder.calls) == 2
        assert transport.reading

    play(story)


def test_a_crowded_server_gives_each_connection_less() -> None:
    """Near the limit of all unread answers the share of each shrinks, and grows again later."""

    async def story(server: Any, connection: Any, transport: Any, r: Any, clock: Any) -> None:
        usual = transport.limits
        transport.unsent = 60_000
        connection.write(b"x")
        await tick()
        assert server.crowded
        other, its_transport = connect(server)
        assert its_transport.limits[0] == usual[0] // 32
        transport.unsent = 0
        connection.write(b"x")
        server._sweep()
        other.write(b"x")
        await tick()
        assert its_transport.limits == usual

    play(story, unread_bytes_max=100_000)


def test_too_many_unread_answers_close_whoever_has_most() -> None:
    """The limit of all unread answers costs the worst reader its connection, nobody else."""

    async def story(server: Any, first: Any, transport: Any, r: Any, c: Any) -> None:
        second, its_transport = connect(server)
        transport.unsent, its_transport.unsent = 40_000, 61_000
        first.write(b"x")
        second.write(b"x")
        await tick()
        assert its_transport.aborted
        assert not transport.aborted
        assert server.statistics().closed_for_slowness == 1

    play(story, unread_bytes_max=100_000)


def test_one_connection_too_many_is_refused() -> None:
    """At connections_max a new one is closed at once and the handler never hears of it."""

    async def story(server: Server, first: Any, t: Any, recorder: Recorder, c: Any) -> None:
        _second, transport = connect(server)
        assert transport.aborted
        await tick()
        assert recorder.made == [first]
        assert recorder.lost == []
        assert server.statistics().connections_refused == 1
        first.close("enough")
        await tick()
        _third, transport = connect(server)
        assert not transport.aborted

    play(story, connections_max=1)


def test_a_request_to_the_peer_is_answered_or_times_out() -> None:
    """Responses find their request; late ones are strays."""

    async def story(s: Any, connection: Any, transport: FakeTransport, r: Any, c: Any) -> None:
        asked = asyncio.ensure_future(connection.request(Command.request(307), 1000))
        await tick()
        (raw,) = FrameDecoder().receive_data(transport.written)
        sent = decode_command(raw)
        assert connection.take_response(sent.reply(0, "fine"))
        assert (await asked).remark == "fine"
        assert not connection.take_response(sent.reply(0))
        with pytest.raises(RequestTimeout, match="request 307 in 1 ms"):
            await connection.request(Command.request(307), 1)

    play(story)


def test_a_lost_connection_fails_its_requests() -> None:
    """Nobody waits for an answer that cannot come, and the reason is in the error."""

    async def story(s: Any, connection: Any, transport: Any, recorder: Recorder, c: Any) -> None:
        asked = asyncio.ensure_future(connection.request(Command.request(307), 60_000))
        await tick()
        connection.connection_lost(OSError("cable cut"))
        with pytest.raises(ConnectionLost, match="cable cut"):
            await asked
        with pytest.raises(ConnectionLost):
            await connection.request(Command.request(307), 60_000)
        connection.notify(Command.request(40, oneway=True))
        connection.write(b"into the void")
        await tick()
        assert recorder.lost == [(connection, "OSError: cable cut")]

    play(story)


def test_notifications_have_ids_of_their_own() -> None:
    """Each one-way request is numbered, none is waited for."""

    async def story(s: Any, connection: Any, transport: FakeTransport, r: Any, c: Any) -> None:
        connection.notify(Command.request(40, {"consumerGroup": "g"}, oneway=True))
        connection.notify(Command.request(40, {"consumerGroup": "g"}, oneway=True))
        await tick()
        frames = FrameDecoder().receive_data(transport.written)
        assert [decode_command(f).request_id for f in frames] == [1, 2]

    play(story)


@pytest.mark.parametrize(
    ("mode", "first", "accepted"),
    [
        ("disabled", b"\x16\x03\x01\x02\x00", False),
        ("permissive", b"\x16\x03\x01\x02\x00", True),
        ("enforcing", b"\x16\x03\x01\x02\x00", True),
        ("disabled", b"\x00", True),
        ("permissive", b"\x00", True),
        ("enforcing", b"\x00", False),
    ],
)
def test_the_first_byte_and_the_mode_decide_about_tls(
    mode: str, first: bytes, accepted: bool
) -> None:
    """TLS is told by its first byte; tls_mode says which of both may go on."""

    async def story(s: Any, connection: Any, transport: FakeTransport, r: Any, c: Any) -> None:
        connection.data_received(first)
        assert transport.closing is not accepted

    play(story, tls_mode=mode)


def test_a_half_finished_tls_handshake_is_slow_too() -> None:
    """A handshake that does not go on falls under the frame timeout."""

    async def story(s: Any, connection: Any, transport: FakeTransport, r: Any, clock: Any) -> None:
        connection.data_received(b"\x16\x03\x01")
        connection.sweep(clock.ms)
        clock.ms += 1000
        connection.sweep(clock.ms)
        assert transport.aborted

    play(story, frame_timeout_ms=1000)


def test_a_protocol_error_of_the_handler_closes() -> None:
    """A header that does not parse closes the connection like a bad frame does."""

    class Strict(Recorder):
        def frames_received(self, connection: ServerConnection, frames: list[RawFrame]) -> None:
            raise RemoteProtocolError("a bad header")

    async def story(server: Server, connection: Any, transport: Any, r: Any, c: Any) -> None:
        server.handler = Strict()
        connection.data_received(frame_of())
        assert transport.closing
        assert "a bad header" in repr(connection)

    play(story)


@pytest.mark.parametrize(
    ("peername", "shown", "packed"),
    [
        (("10.0.0.9", 4711), "10.0.0.9:4711", bytes([10, 0, 0, 9, 0, 0, 0x12, 0x67])),
        (("::ffff:10.0.0.9", 1, 0, 0), "10.0.0.9:1", bytes([10, 0, 0, 9, 0, 0, 0, 1])),
        (("::1", 2, 0, 0), "[::1]:2", bytes(15) + b"\x01" + b"\x00\x00\x00\x02"),
        (
            ("fe80::1%eth0", 2, 0, 2),
            "[fe80::1]:2",
            b"\xfe\x80" + bytes(13) + b"\x01\x00\x00\x00\x02",
        ),
        (("broker-a", 3), "broker-a:3", bytes(8)),
        (None, "?:0", bytes(8)),
    ],
)
def test_the_peer_has_a_name_and_a_packed_address(peername: Any, shown: str, packed: bytes) -> None:
    """The address of the peer serves logs and the born host of records."""

    async def run() -> None:
        server = Server(Recorder(), NetConfig(), ManualClock())
        connection = ServerConnection(server)
        connection.connection_made(FakeTransport(peername))
        assert (connection.peer, connection.peer_host) == (shown, packed)

    asyncio.run(run())


def test_an_idle_connection_is_small() -> None:
    """What was needed for frames is given back when the connection is idle."""

    async def story(s: Any, connection: Any, transport: Any, r: Any, clock: Any) -> None:
        connection.data_received(frame_of())
        connection.sweep(clock.ms)
        assert connection._decoder is not None
        connection.sweep(clock.ms + 1)
        assert connection._decoder is None
        connection.data_received(frame_of())
        parts = (connection, connection.peer, connection.peer_host, connection._parts)
        assert sum(map(sys.getsizeof, parts)) < 600
        assert not hasattr(connection, "__dict__")

    play(story)


def codes(recorder: Recorder) -> list[int]:
    """Return the codes of the requests that were served, in order."""
    return [decode_command(frame).code for call in recorder.calls for frame in call]


def test_what_is_over_a_limit_waits_and_heartbeats_do_not() -> None:
    """Two a second: the third waits, a heartbeat, a lock, a lease and a response overtake it."""

    async def story(
        server: Any, connection: Any, transport: Any, recorder: Any, clock: Any
    ) -> None:
        response = Command.request(0, request_id=9).reply(0)
        data = b"".join(frame_of(code) for code in (11, 11, 12, 34, 41, 7120, 7122, 13))
        connection.data_received(data + encode_frame(response))
        assert codes(recorder) == [11, 11, 34, 41, 7120, 7122, 0]
        assert transport.reading
        assert server.statistics().limited_total == 2
        connection.data_received(frame_of(34) + frame_of(14))
        assert codes(recorder)[7:] == [34]
        recorder.calls.clear()
        for _ in range(2000):
            clock.ms += 1
            if connection._waiting is not None:
                connection._waiting.timer.cancel()
                connection._limit_over()
                await tick()
        assert codes(recorder) == [12, 13, 14]
        assert connection._waiting is None
        assert server._waiting_bytes == 0

    play(story, requests_per_address_max=2)


def test_the_loop_serves_what_waited() -> None:
    """A timer does it, without a further read."""

    async def story(
        server: Any, connection: Any, transport: Any, recorder: Any, clock: Any
    ) -> None:
        connection.data_received(frame_of(11) + frame_of(12))
        assert codes(recorder) == [11]
        clock.ms += 1000
        async with asyncio.timeout(30):
            while len(recorder.calls) < 2:  # noqa: ASYNC110 - a timer of the connection
                await asyncio.sleep(0.001)
        assert codes(recorder) == [11, 12]

    play(story, requests_per_address_max=1)


def test_bytes_count_in_both_directions() -> None:
    """Answers make a debt; requests that come meanwhile wait."""

    async def story(
        server: Any, connection: Any, transport: Any, recorder: Any, clock: Any
    ) -> None:
        connection.data_received(frame_of(11))
        connection.write(b"z" * 5000)
        connection.flush()
        connection.data_received(frame_of(12))
        assert codes(recorder) == [11]
        assert 4000 < connection._limit_wait_ms() < 4200
        clock.ms += 4200
        connection._limit_over()
        await tick()
        assert codes(recorder) == [11, 12]

    play(story, bytes_per_address_max=1000)


def test_reading_pauses_when_much_waits() -> None:
    """Memory is bounded: above WAITING_BYTES_MAX nothing is read until it is less."""

    async def story(
        server: Any, connection: Any, transport: Any, recorder: Any, clock: Any
    ) -> None:
        body = b"x" * (1 << 20)
        for _ in range(5):
            connection.data_received(frame_of(11, body))
        assert transport.reading
        connection.data_received(frame_of(11, body))
        assert not transport.reading
        assert connection.is_unread
        for _ in range(40):  # silent, yet not idle
            clock.ms += 10_000
            connection.sweep(clock.ms)
        assert not connection.closed
        connection._limit_over()
        await tick()
        assert transport.reading
        clock.ms += 1000
        connection._limit_over()
        await tick()
        assert codes(recorder) == [11] * 6
        assert connection._waiting is None

    play(story, bytes_per_address_max=2 << 20)


def test_all_connections_together_have_a_bound() -> None:
    """When very much waits in all, each connection that waits is not read."""

    async def story(
        server: Any, connection: Any, transport: Any, recorder: Any, clock: Any
    ) -> None:
        server.note_waiting(1, 65 << 20)
        connection.data_received(frame_of(11))
        connection.data_received(frame_of(11))
        assert not transport.reading
        server.note_waiting(-1, -(65 << 20))
        clock.ms += 2000
        connection._limit_over()
        await tick()
        assert transport.reading

    play(story, requests_per_address_max=1)


def test_connections_of_an_address_share_its_limit() -> None:
    """A second connection of the address waits as well; one of another address does not."""

    async def story(
        server: Any, connection: Any, transport: Any, recorder: Any, clock: Any
    ) -> None:
        connection.data_received(frame_of(11))
        again, _ = connect(server)
        again.data_received(frame_of(12))
        assert codes(recorder) == [11]
        other, its = ServerConnection(server), FakeTransport(("10.0.0.10", 1))
        its.protocol = other
        other.connection_made(its)
        other.data_received(frame_of(13))
        assert codes(recorder) == [11, 13]

    play(story, requests_per_address_max=1)


def test_what_a_gone_peer_sent_is_served_and_its_address_pays() -> None:
    """Closing does not lose a last commit, and coming back at once does not help."""

    async def story(
        server: Any, connection: Any, transport: Any, recorder: Any, clock: Any
    ) -> None:
        connection.data_received(frame_of(11) + frame_of(15) + frame_of(15))
        connection.connection_lost(None)
        await tick()
        assert codes(recorder) == [11, 15, 15]
        assert [reason for _, reason in recorder.lost] == ["the peer closed"]
        assert len(server.addresses) == 1
        again, _ = connect(server)
        assert again._limit_wait_ms() > 1000

    play(story, requests_per_address_max=1)


def test_users_have_limits_of_their_own() -> None:
    """They begin with the login, end with another, and count all connections of the user."""

    async def story(
        server: Any, connection: Any, transport: Any, recorder: Any, clock: Any
    ) -> None:
        connection.user = "alice"
        connection.data_received(frame_of(11) + frame_of(12))
        assert codes(recorder) == [11]
        again, _ = connect(server)
        again.data_received(frame_of(13))
        again.user = "alice"
        again.data_received(frame_of(14))
        assert codes(recorder) == [11, 13]
        again.user = "bob"
        assert len(server.users) == 2
        again.user = None
        assert again._meters == ()
        connection.connection_lost(None)
        again.connection_lost(None)
        await tick()
        clock.ms += 10_000
        server.users.forget_idle(clock.ms)
        assert len(server.users) == 0

    play(story, requests_per_user_max=1)


def test_a_user_has_a_number_of_connections() -> None:
    """One too many is closed, and is nobody's."""

    async def story(
        server: Any, connection: Any, transport: Any, recorder: Any, clock: Any
    ) -> None:
        connection.user = "alice"
        again, _ = connect(server)
        again.user = "alice"
        assert (again.closed, again.user) == (True, None)
        await tick()
        assert not connection.closed
        connection.connection_lost(None)
        await tick()
        third, _ = connect(server)
        third.user = "alice"
        assert (third.closed, third.user) == (False, "alice")

    play(story, connections_per_user_max=1)


def test_without_limits_nothing_is_counted() -> None:
    """A user is only a name then."""

    async def story(
        server: Any, connection: Any, transport: Any, recorder: Any, clock: Any
    ) -> None:
        connection.user = "alice"
        connection.data_received(frame_of(11) * 100)
        assert len(codes(recorder)) == 100
        assert (connection.user, connection._meters) == ("alice", ())
        assert len(server.users) + len(server.addresses) == 0

    play(story)


def test_failed_logins_are_answered_late_then_closed() -> None:
    """The first ten at once; later ones wait, nothing is served meanwhile; at last it is closed."""

    async def story(
        server: Any, connection: Any, transport: Any, recorder: Any, clock: Any
    ) -> None:
        answered: list[int] = []
        delays: list[float] = []
        calls: list[Any] = []
        server.loop.call_later = lambda delay, late: (delays.append(delay), calls.append(late))
        for number in range(10):
            connection.failed_login("alice", lambda number=number: answered.append(number))
        assert answered == list(range(10))
        connection.failed_login("alice", lambda: answered.append(10))
        assert (answered[-1], delays) == (9, [0.1])
        connection.data_received(frame_of(34))
        assert codes(recorder) == []
        calls.pop()()
        await tick()
        assert answered[-1] == 10
        assert codes(recorder) == [34]
        for _ in range(6):
            connection.failed_login("alice", lambda: answered.append(11))
            calls.pop()()
        assert delays[-1] == 5.0
        assert connection.closed
        assert server.failures.closed_total == 1

    play(story)


LONG = 40 * 1024


def test_a_long_body_of_nobody_is_not_kept() -> None:
    """The request comes with its header alone, at its end; later ones are whole."""

    async def story(server: Server, connection: Any, t: Any, recorder: Recorder, c: Any) -> None:
        server.screen = lambda _, command: command.code != 7
        data = frame_of(body=b"x" * 1_000_000, code=7) + frame_of(body=b"y" * LONG, code=8)
        for at in range(0, len(data), 10_000):
            connection.data_received(data[at : at + 10_000])
            assert sum(map(len, connection._decoder._chunks)) < 60_000
        found = [one for call in recorder.calls for one in call]
        assert [len(one[2]) for one in found] == [0, LONG]

    play(story)


def test_long_requests_before_a_login_share_a_bounded_room(monkeypatch: Any) -> None:
    """Who comes when it is full is closed; what is complete, or lost, makes room again."""
    monkeypatch.setattr("inorder.net.server.UNVERIFIED_BYTES_MAX", 3 * LONG)

    async def story(server: Server, first: Any, transport: Any, r: Any, c: Any) -> None:
        server.screen = lambda _, command: True
        data = frame_of(body=b"x" * LONG)
        second, _ = connect(server)
        third, _ = connect(server)
        known, _ = connect(server)
        known.user = "alice"
        for one in (first, second, known, third):
            one.data_received(data[:-1])
        assert [one.closed for one in (first, second, known, third)] == [False] * 3 + [True]
        first.data_received(data[-1:])
        second.connection_lost(None)
        third.connection_lost(None)
        fourth, _ = connect(server)
        fourth.data_received(data[:-1])
        fifth, _ = connect(server)
        fifth.data_received(data[:-1])
        assert [fourth.closed, fifth.closed] == [False, False]

    play(story)


def test_a_header_without_end_counts_as_a_long_request(monkeypatch: Any) -> None:
    """Before a login nobody may fill the memory with the beginnings of headers."""
    monkeypatch.setattr("inorder.net.server.UNVERIFIED_BYTES_MAX", 1_000_000)

    async def story(server: Server, connection: Any, t: Any, r: Any, c: Any) -> None:
        server.screen = lambda _, command: True
        connection.data_received(struct.pack(">iI", 1_000_100, 1_000_000) + b"x" * 100_000)
        assert not connection.closed
        connection.data_received(b"x" * 40_000)
        assert connection.closed

    play(story)
