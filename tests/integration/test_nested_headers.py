"""A header that nests without end: the connection is closed, whatever the code."""

from __future__ import annotations

import asyncio
import logging
import struct

import pytest

from tests.integration.brokerkit import running


@pytest.mark.parametrize("code", [10, 11, 310, 320, 34])
def test_a_deeply_nested_header_closes_its_connection_without_a_fault(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The fast paths of sends and pulls leave it to the general one, which says what is wrong."""
    header = b'{"code":%d,"extFields":%s' % (code, b'{"x":' * 5000)
    frame = struct.pack(">II", 4 + len(header), len(header)) + header

    async def scenario() -> None:
        async with running() as rig:
            address = rig.broker.server.address
            reader, writer = await asyncio.open_connection(*address)
            writer.write(frame)
            assert await reader.read() == b""
            writer.close()
            assert (await rig.send(b"x")).code == 0

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]
