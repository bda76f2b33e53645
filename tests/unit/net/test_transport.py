"""How queued parts become writes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from inorder.net.transport import JOIN_BYTES_MAX, Buffer, write_last, write_out
from tests.unit.net.fakes import FakeTransport

BIG = JOIN_BYTES_MAX + 1


@pytest.mark.parametrize(
    ("sizes", "writes"),
    [
        ([5], [5]),
        ([BIG], [BIG]),
        ([1, 2, 3], [6]),
        ([10, BIG, 20], [10, BIG, 20]),
        ([BIG, BIG], [BIG, BIG]),
        ([1, BIG, 2, 3], [1, BIG, 5]),
        ([JOIN_BYTES_MAX - 1, 1, 1], [JOIN_BYTES_MAX, 1]),
    ],
)
def test_small_parts_are_joined_and_large_ones_are_not(sizes: list[int], writes: list[int]) -> None:
    """Runs of small parts cost one write; a large part is written without a copy."""
    transport = FakeTransport()
    parts: list[Buffer] = [memoryview(bytes([i + 1]) * size) for i, size in enumerate(sizes)]
    write_out(transport, parts)
    assert [len(piece) for piece in transport.writes] == writes
    assert transport.written == b"".join(parts)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_end_comes_with_the_last_bytes(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """No turn lies between them in which the peer could send another request that is lost."""

    async def story() -> None:
        here, there = socket.socketpair()
        there.setblocking(False)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=here)
        assert write_last(transport, [b"last ", memoryview(b"words")]) == 10
        assert (there.recv(100), there.recv(100)) == (b"last words", b"")
        transport.close()
        await asyncio.sleep(0)
        there.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(story())


def test_last_bytes_do_not_overtake_what_waits() -> None:
    """A peer that is slow gets everything in order, as usual."""

    async def story() -> None:
        here, there = socket.socketpair()
        there.setblocking(False)
        transport, _ = await asyncio.get_running_loop().create_connection(
            asyncio.Protocol, sock=here
        )
        transport.write(bytes(4 * 1024 * 1024))
        assert transport.get_write_buffer_size() > 0
        write_last(transport, [b"last"])
        transport.close()
        got = b""
        while not got.endswith(b"last"):
            got += await asyncio.get_running_loop().sock_recv(there, 1 << 20)
        assert len(got) == 4 * 1024 * 1024 + 4
        there.close()

    asyncio.run(story())


def test_without_a_socket_last_bytes_are_written_as_usual() -> None:
    """A simulated transport has none."""
    transport = FakeTransport()
    assert write_last(transport, [b"a", b"b"]) == 2
    assert transport.writes == [b"ab"]
