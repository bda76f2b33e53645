"""The simulated network: what TCP promises, and each fault."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.kit.simloop import Node, SimLoop, run
from tests.kit.simnet import SimTransport

SERVER, CLIENT = "10.0.0.1", "10.0.0.2"


class Recorder(asyncio.Protocol):
    """Writes down what happens to it; echoes if told to."""

    def __init__(self, *, echo: bool = False) -> None:
        self.echo = echo
        self.got = bytearray()
        self.chunks = 0
        self.lost: list[Exception | None] = []
        self.paused: list[bool] = []
        self.eof = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data
        self.chunks += 1
        if self.echo:
            self.transport.write(data)

    def eof_received(self) -> None:
        self.eof = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    def pause_writing(self) -> None:
        self.paused.append(True)

    def resume_writing(self) -> None:
        self.paused.append(False)


class World:
    """A server node, a client node and one connection between them."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.network = loop.network
        self.server_node: Node = loop.node(SERVER)
        self.client_node: Node = loop.node(CLIENT)
        self.accepted: list[Recorder] = []
        self.port = 0

    def _accept(self) -> Recorder:
        self.accepted.append(Recorder(echo=True))
        return self.accepted[-1]

    async def listen(self) -> None:
        with self.server_node.here():
            server = await self.loop.create_server(self._accept, SERVER, 0)
        self.port = server.sockets[0].getsockname()[1]

    async def connect(self) -> tuple[SimTransport, Recorder]:
        with self.client_node.here():
            transport, protocol = await self.loop.create_connection(Recorder, SERVER, self.port)
        assert isinstance(protocol, Recorder)
        return transport, protocol


def in_world(scenario: Callable[[World], Awaitable[None]], seeds: int = 5) -> None:
    """Run a scenario under several seeds."""

    async def main(loop: SimLoop) -> None:
        world = World(loop)
        await world.listen()
        await scenario(world)

    for seed in range(seeds):
        run(main, seed)


def test_bytes_arrive_whole_and_in_order():
    """However cut and joined, the stream is the same, and both ends know their names."""

    async def scenario(world: World) -> None:
        transport, client = await world.connect()
        sent = bytes(range(256)) * 100
        for at in range(0, len(sent), 700):
            transport.write(sent[at : at + 700])
        await asyncio.sleep(1)
        assert bytes(client.got) == sent
        assert transport.get_extra_info("peername") == (SERVER, world.port)
        peer = world.accepted[0].transport
        assert peer.get_extra_info("peername") == transport.get_extra_info("sockname")
        assert peer.get_extra_info("peername")[0] == CLIENT

    in_world(scenario)


def test_writes_are_cut_and_joined():
    """The receiver sees neither one chunk per write nor always a single one."""
    counts = set()

    async def scenario(world: World) -> None:
        transport, _ = await world.connect()
        for _ in range(10):
            transport.writelines([b"a" * 50, memoryview(b"b" * 50)])
        await asyncio.sleep(1)
        counts.add(world.accepted[0].chunks)

    in_world(scenario, seeds=20)
    assert len(counts) > 3


def test_close_flushes_and_both_sides_learn_it():
    """What was written before close arrives; then comes the end."""

    async def scenario(world: World) -> None:
        transport, client = await world.connect()
        transport.write(b"x" * 1_000_000)
        transport.close()
        assert transport.is_closing()
        await asyncio.sleep(10)
        server = world.accepted[0]
        assert len(server.got) == 1_000_000
        assert server.eof
        assert client.lost == [None]
        assert len(server.lost) == 1
        assert not world.network.connections()

    in_world(scenario)


def test_abort_is_a_reset_for_the_peer():
    """Unsent bytes are gone and the peer sees ConnectionResetError."""

    async def scenario(world: World) -> None:
        transport, client = await world.connect()
        transport.abort()
        await asyncio.sleep(1)
        assert client.lost == [None]
        assert [type(error) for error in world.accepted[0].lost] == [ConnectionResetError]

    in_world(scenario)


def test_nobody_listens_is_refused():
    """A connect to a closed port fails at once."""

    async def scenario(world: World) -> None:
        world.port += 1
        with pytest.raises(ConnectionRefusedError):
            await world.connect()

    in_world(scenario)


def test_an_address_is_bound_once():
    """Two listeners cannot share an address; after close it is free again."""

    async def scenario(world: World) -> None:
        with pytest.raises(OSError, match="in use"):
            await world.loop.create_server(Recorder, SERVER, world.port)

    in_world(scenario)


def test_back_pressure_pauses_the_writer():
    """A receiver that does not read fills the window, then the write buffer."""

    async def scenario(world: World) -> None:
        transport, client = await world.connect()
        transport.set_write_buffer_limits(high=100_000)
        await asyncio.sleep(0.1)
        server = world.accepted[0]
        server.echo = False
        server.transport.pause_reading()
        transport.write(b"x" * 1_000_000)
        await asyncio.sleep(1)
        assert client.paused == [True]
        assert transport.get_write_buffer_size() > 100_000
        server.transport.resume_reading()
        await asyncio.sleep(1)
        assert client.paused == [True, False]
        assert len(server.got) == 1_000_000
        assert transport.get_write_buffer_size() == 0

    in_world(scenario)


def test_delay_is_per_link_and_direction():
    """A slow way there and a fast way back."""

    async def scenario(world: World) -> None:
        world.network.set_delay(CLIENT, SERVER, 100, 100)
        world.network.set_delay(SERVER, CLIENT, 7, 7)
        transport, client = await world.connect()
        transport.write(b"x")
        await asyncio.sleep(0.106)
        assert not client.got
        await asyncio.sleep(0.002)
        assert client.got

    in_world(scenario)


def test_a_partition_holds_bytes_until_it_heals():
    """TCP sends again: nothing is lost, it comes late."""

    async def scenario(world: World) -> None:
        transport, client = await world.connect()
        world.network.partition(CLIENT, SERVER)
        transport.write(b"x")
        await asyncio.sleep(30)
        assert not client.got
        world.network.heal()
        await asyncio.sleep(1)
        assert client.got == b"x"
        assert client.lost == []

    in_world(scenario)


def test_a_one_way_partition_lets_the_other_way_pass():
    """The request arrives, the answer does not."""

    async def scenario(world: World) -> None:
        transport, client = await world.connect()
        world.network.partition(SERVER, CLIENT, both_ways=False)
        transport.write(b"x")
        await asyncio.sleep(30)
        assert world.accepted[0].got == b"x"
        assert not client.got

    in_world(scenario)


def test_a_connect_through_a_partition_hangs():
    """The handshake is lost until the partition heals."""

    async def scenario(world: World) -> None:
        world.network.partition(CLIENT, SERVER)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await world.connect()
        world.network.heal()
        await world.connect()

    in_world(scenario)


def test_drop_resets_both_ends():
    """Both sides see the reset, bytes on the way are gone."""

    async def scenario(world: World) -> None:
        transport, client = await world.connect()
        transport.write(b"x")
        world.network.connections(CLIENT)[0].drop()
        await asyncio.sleep(1)
        assert not client.got
        for end in (client, world.accepted[0]):
            assert [type(error) for error in end.lost] == [ConnectionResetError]

    in_world(scenario)


def test_a_stalled_connection_is_half_open():
    """Nothing passes and nobody is told; a new connection works."""

    async def scenario(world: World) -> None:
        transport, client = await world.connect()
        world.network.connections()[0].stall()
        transport.write(b"x")
        other_transport, other = await world.connect()
        other_transport.write(b"y")
        await asyncio.sleep(30)
        assert (bytes(client.got), client.lost) == (b"", [])
        assert other.got == b"y"

    in_world(scenario)


@pytest.mark.parametrize("size", [0, 1, 137, 999])
def test_cut_after_drops_at_that_very_byte(size: int):
    """The receiver sees exactly n bytes, then the reset."""

    async def scenario(world: World) -> None:
        transport, client = await world.connect()
        await asyncio.sleep(0.1)
        server = world.accepted[0]
        world.network.connections()[0].cut_after(size, toward=SERVER)
        for _ in range(10):
            transport.write(b"x" * 100)
        await asyncio.sleep(1)
        assert len(server.got) == size
        assert len(server.lost) == len(client.lost) == 1

    in_world(scenario)


def test_killing_a_node_resets_its_peers():
    """The peer sees a reset; the dead side is told nothing and listens no more."""

    async def scenario(world: World) -> None:
        _, client = await world.connect()
        await asyncio.sleep(0.1)
        world.loop.kill(world.server_node)
        await asyncio.sleep(1)
        assert [type(error) for error in client.lost] == [ConnectionResetError]
        assert world.accepted[0].lost == []
        with pytest.raises(ConnectionRefusedError):
            await world.connect()

    in_world(scenario)


def test_a_silent_death_leaves_the_peer_waiting():
    """A power cut sends no reset."""

    async def scenario(world: World) -> None:
        transport, client = await world.connect()
        await asyncio.sleep(0.1)
        world.loop.kill(world.server_node, silent=True)
        transport.write(b"x")
        await asyncio.sleep(60)
        assert client.lost == []

    in_world(scenario)
