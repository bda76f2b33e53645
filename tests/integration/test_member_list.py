"""The member list over sockets: for members at once, for others when nobody can be missing."""

from __future__ import annotations

import asyncio

from inorder.config import NetConfig
from inorder.net.connection import Connection
from inorder.testing.clock import MovableClock
from inorder.wire import fastjson
from inorder.wire.header import Command
from inorder.wire.requests.nameserver import decode_consumer_ids
from tests.integration.brokerkit import PATIENT_MS, running, until

GROUP = "billing"


def beat(client: str) -> bytes:
    consumer = {
        "groupName": GROUP, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [],
    }  # fmt: skip
    return fastjson.dumps({"clientID": client, "consumerDataSet": [consumer]})


async def listed(connection: Connection) -> list[str]:
    answer = await connection.request(Command.request(38, {"consumerGroup": GROUP}), PATIENT_MS)
    assert answer.code in (0, 1)
    return decode_consumer_ids(answer.body) if answer.code == 0 else []


def test_a_tool_sees_the_members_but_a_client_never_misses_itself() -> None:
    """A stock client that lost its connection asks before its heartbeat; it keeps its queues."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig:
            broker = rig.broker

            async def connect(client: str = "") -> Connection:
                made = await Connection.open(
                    broker.address, NetConfig(), connect_timeout_ms=PATIENT_MS
                )
                if client:
                    done = await made.request(Command.request(34, {}, beat(client)), PATIENT_MS)
                    assert done.code == 0
                return made

            tool, one, two = await connect(), await connect("one"), await connect("two")
            assert (await listed(one), await listed(tool)) == (["one", "two"], [])
            clock.advance(65_000)
            assert await listed(tool) == ["one", "two"]

            two.close()
            await until(lambda: broker.members.client_ids(GROUP) == ["one"])
            back = await connect()
            assert (await listed(one), await listed(back), await listed(tool)) == (["one"], [], [])
            done = await back.request(Command.request(34, {}, beat("two")), PATIENT_MS)
            assert done.code == 0
            assert await listed(back) == ["one", "two"]
            clock.advance(35_000)
            assert await listed(tool) == ["one", "two"]
            for connection in (tool, one, back):
                connection.close()

    asyncio.run(scenario())
