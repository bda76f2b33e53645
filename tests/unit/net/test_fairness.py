"""Whose turn it is: greedy and new connections wait in line, the others do not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from inorder.config import NetConfig
from inorder.net.accepted import ServerConnection
from inorder.net.fairness import PROBATION_MS, SHARE_FRAMES, SLICE_MS, SPARED_MAX
from inorder.net.server import Server
from inorder.wire.frame import RawFrame
from tests.unit.net.fakes import FakeTransport, ManualClock, Recorder, frame_of, tick


class Working(Recorder):
    """A handler for which every frame takes a time, and which stops when it had its share."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.cost_ms = 1
        self.share_ms = 2
        self.served: list[str] = []

    def frames_received(self, connection: ServerConnection, frames: list[RawFrame]) -> None:
        ends_ms = self.clock.ms + self.share_ms
        for index in range(len(frames)):
            if connection.busy:
                connection.defer(frames[index:])
                return
            self.clock.ms += self.cost_ms
            self.served.append(connection.peer)
            if self.clock.ms >= ends_ms:
                connection.end_share()


class Scene:
    """A server whose connections are made by hand."""

    def __init__(self, net: NetConfig | None = None) -> None:
        self.clock = ManualClock()
        self.handler = Working(self.clock)
        self.server = Server(self.handler, net or NetConfig(), self.clock)
        self._ports = 1000

    def connect(self, host: str = "10.0.0.9", *, known: bool = False) -> ServerConnection:
        """Return a connection; a known one has been here for a while."""
        self._ports += 1
        transport = FakeTransport((host, self._ports))
        connection = ServerConnection(self.server)
        transport.protocol = connection
        connection.connection_made(transport)
        if known:
            before = self.handler.cost_ms
            self.handler.cost_ms = 0
            connection.data_received(frame_of())
            self.clock.ms += PROBATION_MS
            connection.data_received(frame_of())
            self.handler.cost_ms = before
            self.handler.served.clear()
        return connection


def play(story: Callable[[Scene], Awaitable[None]], net: NetConfig | None = None) -> None:
    async def run() -> None:
        await story(Scene(net))

    asyncio.run(run())


def test_a_known_connection_is_served_at_once_whoever_waits() -> None:
    """Greedy peers with a thousand requests are in line; who asks for little is not behind them."""

    async def story(scene: Scene) -> None:
        light = scene.connect(known=True)
        greedy = [scene.connect() for _ in range(5)]
        for one in greedy:
            one.data_received(frame_of() * 20)
        scene.handler.served.clear()
        light.data_received(frame_of())
        assert scene.handler.served == [light.peer]

    play(story)


def test_greedy_connections_take_turns() -> None:
    """Each gets a share, then the next; in the end all requests are served, in their order."""

    async def story(scene: Scene) -> None:
        greedy = [scene.connect() for _ in range(3)]
        for one in greedy:
            one.data_received(frame_of() * 6)
        for _ in range(40):
            await tick()
        served = scene.handler.served
        assert sorted(served) == sorted([one.peer for one in greedy] * 6)
        assert len({*served[2:8]}) == 3, "the others come in between"

    play(story)


def test_a_turn_is_over_after_its_slice() -> None:
    """However many wait, one turn of the loop serves them for some milliseconds only."""

    async def story(scene: Scene) -> None:
        greedy = [scene.connect() for _ in range(50)]
        for one in greedy:
            one.data_received(frame_of() * 4)
        before = scene.clock.ms
        await asyncio.sleep(0)
        assert 0 < scene.clock.ms - before <= SLICE_MS + scene.handler.share_ms

    play(story)


def test_new_connections_that_come_by_the_thousand_wait_their_turn() -> None:
    """Only as many as fit a turn are served in it; known ones are still served at once."""

    async def story(scene: Scene) -> None:
        light = scene.connect(known=True)
        crowd = [scene.connect() for _ in range(100)]
        for one in crowd:
            one.data_received(frame_of())
        assert len(scene.handler.served) <= SLICE_MS + SPARED_MAX
        light.data_received(frame_of())
        assert scene.handler.served[-1] == light.peer
        for _ in range(100):
            await tick()
        assert len(scene.handler.served) == 101

    play(story)


def test_a_few_new_connections_need_not_wait_on_a_slow_machine() -> None:
    """That a turn took long is not the fault of the next to come; greedy ones wait all the same."""

    async def story(scene: Scene) -> None:
        scene.connect().data_received(frame_of())
        scene.clock.ms += 100
        second = scene.connect()
        second.data_received(frame_of())
        assert scene.handler.served[-1] == second.peer
        greedy = scene.connect()
        greedy.end_share()
        scene.handler.served.clear()
        greedy.data_received(frame_of())
        assert scene.handler.served == []

    play(story)


def test_a_read_of_very_many_frames_is_served_in_shares() -> None:
    """Cheap requests count too: after so many the others come first."""

    async def story(scene: Scene) -> None:
        scene.handler.cost_ms = 0
        scene.handler.share_ms = 1 << 30
        light = scene.connect(known=True)
        light.data_received(frame_of() * (SHARE_FRAMES + 10))
        assert len(scene.handler.served) == SHARE_FRAMES
        for _ in range(5):
            await tick()
        assert len(scene.handler.served) == SHARE_FRAMES + 10

    play(story)


def test_closing_connections_are_forgotten_over_many_turns() -> None:
    """Ten thousand that close at once do not stop the loop; in the end all are gone."""

    async def story(scene: Scene) -> None:
        crowd = [scene.connect() for _ in range(200)]
        forget = scene.handler.connection_lost

        def slow(connection: ServerConnection, reason: str) -> None:
            scene.clock.ms += 1
            forget(connection, reason)

        scene.handler.connection_lost = slow  # type: ignore[method-assign]
        for one in crowd:
            one.connection_lost(None)
        assert len(scene.handler.lost) <= SLICE_MS + 1
        for _ in range(100):
            await tick()
        assert len(scene.handler.lost) == 200
        assert scene.server.statistics().connections == 0

    play(story)


def test_many_that_end_at_once_are_closed_over_many_turns() -> None:
    """To close a socket is what costs most: when a turn is over, the rest stay open for a while."""

    async def story(scene: Scene) -> None:
        crowd = [scene.connect() for _ in range(10)]
        kept = []
        for one in crowd:
            scene.clock.ms += 1
            kept.append(one.eof_received())
        assert kept[0] is False
        assert kept[-1] is True
        for _ in range(20):
            await tick()
        assert all(one._transport is None or one._transport.is_closing() for one in crowd[-3:])

    play(story)


def test_nothing_more_is_served_while_a_long_request_is_worked_on() -> None:
    """Requests behind it wait, and are served when it is done."""

    async def story(scene: Scene) -> None:
        one = scene.connect(known=True)
        one.hold()
        one.data_received(frame_of())
        await tick()
        assert scene.handler.served == []
        assert not one._transport.reading
        one.release()
        await tick()
        assert scene.handler.served == [one.peer]
        assert one._transport.reading

    play(story)


@pytest.mark.parametrize("loss", [None, BrokenPipeError(32, "Broken pipe")])
def test_requests_that_were_read_are_served_although_the_peer_is_gone(
    loss: OSError | None,
) -> None:
    """A Go consumer commits and closes at once; its later commits waited for their turn."""

    async def story(scene: Scene) -> None:
        one = scene.connect(known=True)
        one.data_received(frame_of() * 7)
        assert scene.handler.served == [one.peer] * 2
        one.connection_lost(loss)
        assert scene.handler.lost == [], "it still has requests"
        for _ in range(3):
            one.write(b"a late reply")
            await tick()
        assert scene.handler.served == [one.peer] * 7
        assert [lost for lost, _ in scene.handler.lost] == [one]
        assert (one.closed, list(scene.server.connections)) == (True, [])

    play(story)


@pytest.mark.parametrize("end", ["close", "abort", "hold"])
def test_a_gone_peer_that_the_server_ends_is_forgotten_once(end: str) -> None:
    """Whatever ends it, no request of it is served afterwards."""

    async def story(scene: Scene) -> None:
        one = scene.connect(known=True)
        one.data_received(frame_of() * 7)
        served = len(scene.handler.served)
        one.connection_lost(None)
        if end == "hold":
            one.hold()
        else:
            getattr(one, end)("the server stops")
        for _ in range(3):
            await tick()
        assert len(scene.handler.served) == served
        assert [lost for lost, _ in scene.handler.lost] == [one]
        assert list(scene.server.connections) == []

    play(story)


def test_connections_of_one_address_have_a_limit_of_their_own() -> None:
    """Those of others are not counted, and one that closes makes room."""

    async def story(scene: Scene) -> None:
        first = scene.connect("10.0.0.1")
        scene.connect("10.0.0.1")
        assert scene.connect("10.0.0.1").closed
        assert not scene.connect("10.0.0.2").closed
        first.connection_lost(None)
        assert not scene.connect("10.0.0.1").closed
        assert scene.server.statistics().connections_refused == 1

    play(story, replace(NetConfig(), connections_per_address_max=2))
