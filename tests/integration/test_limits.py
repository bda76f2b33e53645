"""Limits of addresses and users on a running broker, with real sockets."""

from __future__ import annotations

import asyncio
import socket

import pytest

from inorder.config import NetConfig
from inorder.net.connection import Connection
from inorder.wire.frame import encode_frame
from inorder.wire.header import Command
from tests.integration.brokerkit import PATIENT_MS, running, send_fields

RATE = 100
COUNT = 150


async def from_address(host: str, address: str) -> None:
    """Ask for the runtime info from an address of the loopback; return once it is answered."""
    loop = asyncio.get_running_loop()
    name, _, port = address.rpartition(":")
    with socket.socket() as plain:
        plain.setblocking(False)
        plain.bind((host, 0))
        await loop.sock_connect(plain, (name, int(port)))
        await loop.sock_sendall(plain, encode_frame(Command.request(28)))
        async with asyncio.timeout(30):
            assert await loop.sock_recv(plain, 1)


@pytest.mark.slow
def test_sends_wait_for_the_limit_and_heartbeats_do_not() -> None:
    """150 sends at 100 a second: all are stored; heartbeats and other addresses do not wait."""

    async def story() -> None:
        net = NetConfig(requests_per_address_max=RATE)
        async with running(net=net) as rig:
            loop = asyncio.get_running_loop()
            began = loop.time()
            connection = await Connection.open(rig.broker.address, net)
            sends = [
                connection.call(Command.request(310, send_fields(), b"%d" % n), PATIENT_MS)
                for n in range(COUNT)
            ]
            beat = await connection.request(
                Command.request(34, body=b'{"clientID":"c","producerDataSet":[]}'), PATIENT_MS
            )
            assert beat.code == 0
            assert sum(not one.done() for one in sends) > COUNT - RATE - 20
            await from_address("127.0.0.2", rig.broker.address)
            assert not sends[-1].done()
            answers = await asyncio.gather(*sends)
            assert {one.code for one in answers} == {0}
            assert [int(one.fields["queueOffset"]) for one in answers] == list(range(COUNT))
            assert loop.time() - began > (COUNT - RATE) / RATE * 0.8
            info = await rig.ask(28)
            assert b"inorderLimitedRequests" in info.body
            connection.close()

    asyncio.run(story())


def test_without_limits_the_info_says_nothing() -> None:
    """The fields of limits and logins are there only if there is something to say."""

    async def story() -> None:
        async with running() as rig:
            assert b"inorderLimited" not in (await rig.ask(28)).body

    asyncio.run(story())
