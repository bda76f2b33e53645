"""A bad network on one machine: a TCP proxy that delays, cuts, swallows and brings bytes late.

Bytes of one direction never overtake each other; that is all it promises. What a client wrote
before it gave a connection up may still reach the server long afterwards, on that connection: the
schedule that breaks naive retries. All choices come from the `Random` that is handed in.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

CHUNK_BYTES = 1 << 14


class Direction:
    """One way through a link: a gate, a delay, and perhaps an end."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.delay_s = 0.0
        self.cut_after: int | None = None
        self.swallow = False


class ProxyLink:
    """One connection of a client and its twin to the server."""

    def __init__(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._client = client
        self._server = server
        self.to_server = Direction()
        self.to_client = Direction()

    async def run(self) -> None:
        """Pass bytes on until both ends are done."""
        there = self._pump(self._client[0], self._server[1], self.to_server)
        back = self._pump(self._server[0], self._client[1], self.to_client)
        try:
            await asyncio.gather(there, back)
        finally:
            self.cut()

    def cut(self) -> None:
        """End both connections at once; what is in the buffers is lost."""
        for writer in (self._client[1], self._server[1]):
            if not writer.transport.is_closing():
                writer.transport.abort()
        for direction in (self.to_server, self.to_client):
            direction.swallow = True
            direction.gate.set()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Direction
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(CHUNK_BYTES):
                if way.delay_s:
                    await asyncio.sleep(way.delay_s)
                await way.gate.wait()
                if way.swallow:
                    continue
                if way.cut_after is not None:
                    part, way.cut_after = data[: way.cut_after], way.cut_after - len(data)
                    if way.cut_after <= 0:
                        writer.write(part)
                        await writer.drain()
                        self.cut()
                        return
                writer.write(data)
                await writer.drain()
            await way.gate.wait()
            writer.close()


class Proxy:
    """Listens on a free port and passes connections on to one server, as well as it is let."""

    def __init__(self, server: tuple[str, int]) -> None:
        self.server = server
        self.links: set[ProxyLink] = set()
        self.faults: Counter[str] = Counter()
        self._listening: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Listen; return the address for clients."""
        self._listening = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        host, port = self._listening.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def stop(self) -> None:
        """Cut everything and listen no more."""
        assert self._listening is not None
        self._listening.close()
        for link in list(self.links):
            link.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._listening.wait_closed()

    async def __aenter__(self) -> Proxy:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def torment(
        self, draw: random.Random, *, pause_s: float = 0.15, only: Sequence[str] = ()
    ) -> None:
        """Do something bad to some connection, again and again, until cancelled."""
        faults = [(name, fault) for name, fault in FAULTS if not only or name in only]
        while True:
            await asyncio.sleep(draw.expovariate(1 / pause_s))
            if not self.links:
                continue
            link = draw.choice(sorted(self.links, key=id))
            name, fault = draw.choice(faults)
            self.faults[name] += 1
            self._start(fault(link, draw), name)

    def heal(self) -> None:
        """Let everything through again that is not cut."""
        for link in self.links:
            for way in (link.to_server, link.to_client):
                way.delay_s, way.cut_after = 0.0, None
                way.gate.set()

    def lose_answers(self) -> None:
        """Let the present connections bring no more answers; requests still arrive."""
        for link in self.links:
            link.to_client.swallow = True

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            server = await asyncio.open_connection(*self.server)
        except OSError:
            writer.transport.abort()
            return
        link = ProxyLink((reader, writer), server)
        self.links.add(link)
        try:
            await link.run()
        finally:
            self.links.discard(link)


# What can happen to a connection.


async def _delay(link: ProxyLink, draw: random.Random) -> None:
    """Be slow for a while, both ways."""
    link.to_server.delay_s = draw.uniform(0, 0.1)
    link.to_client.delay_s = draw.uniform(0, 0.1)
    await asyncio.sleep(draw.uniform(0.1, 1.0))
    link.to_server.delay_s = link.to_client.delay_s = 0.0


async def _cut(link: ProxyLink, _: random.Random) -> None:
    """Be gone."""
    link.cut()


async def _cut_inside(link: ProxyLink, draw: random.Random) -> None:
    """Be gone after some more bytes, in the middle of a frame."""
    way = draw.choice((link.to_server, link.to_client))
    way.cut_after = draw.randint(1, 20_000)


async def _lose_answers(link: ProxyLink, draw: random.Random) -> None:
    """Bring requests, swallow their answers, then be gone."""
    link.to_client.swallow = True
    await asyncio.sleep(draw.uniform(0.02, 1.0))
    link.cut()


async def _hold_answers(link: ProxyLink, draw: random.Random) -> None:
    """Bring requests, and their answers late."""
    link.to_client.gate.clear()
    await asyncio.sleep(draw.uniform(0.1, 1.5))
    link.to_client.gate.set()


async def _black_hole(link: ProxyLink, draw: random.Random) -> None:
    """Hold everything with the connection open; bring it late, or never."""
    link.to_server.gate.clear()
    link.to_client.gate.clear()
    await asyncio.sleep(draw.uniform(0.3, 3.0))
    if draw.random() < 0.3:
        link.cut()
    link.to_server.gate.set()
    link.to_client.gate.set()


async def _stall_requests(link: ProxyLink, draw: random.Random) -> None:
    """Hold requests until the client has surely given the connection up, then bring them."""
    link.to_server.gate.clear()
    await asyncio.sleep(draw.uniform(0.5, 4.0))
    link.to_server.gate.set()


FAULTS = (
    ("delay", _delay),
    ("cut", _cut),
    ("cut inside", _cut_inside),
    ("lose answers", _lose_answers),
    ("hold answers", _hold_answers),
    ("black hole", _black_hole),
    ("stall requests", _stall_requests),
)
