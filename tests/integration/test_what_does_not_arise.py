"""Holes of RocketMQ that cannot arise: there are no replicas (O14, O15) and no POP (O19 to O21)."""

from __future__ import annotations

import asyncio

import pytest

from inorder.config import BrokerConfig
from inorder.errors import ConfigError
from inorder.settings.load import load
from inorder.testing.clock import FakeClock
from inorder.wire.codes import RequestCode as Code
from tests.integration.brokerkit import running
from tests.integration.leasekit import GROUP, LEASE_MS, TOPIC, ours, send

REPLICAS = (
    Code.EXCHANGE_BROKER_HA_INFO, Code.GET_BROKER_HA_STATUS, Code.RESET_MASTER_FLUSH_OFFSET,
    Code.NOTIFY_MIN_BROKER_ID_CHANGE, Code.CONTROLLER_ALTER_SYNC_STATE_SET,
    Code.CONTROLLER_ELECT_MASTER, Code.GET_BROKER_EPOCH_CACHE, Code.NOTIFY_BROKER_ROLE_CHANGED,
)  # fmt: skip
POP = (
    Code.POP_MESSAGE, Code.ACK_MESSAGE, Code.BATCH_ACK_MESSAGE, Code.PEEK_MESSAGE,
    Code.CHANGE_MESSAGE_INVISIBLETIME, Code.NOTIFICATION, Code.POLLING_INFO, Code.POP_ROLLBACK,
    400, 401,
)  # fmt: skip
NOT_SUPPORTED = 3


@pytest.mark.parametrize(
    "settings",
    [{"broker_id": 1}, {"brokerId": "2"}, {"brokerRole": "SLAVE"}, {"enableControllerMode": True}],
    ids=str,
)
def test_o14_o15_a_broker_is_nobodys_replica(settings: dict[str, str | int]) -> None:
    """One under another's name with a log of its own would be read when the other is away."""
    with pytest.raises(ConfigError, match=r"it must be: 0|no replicas"):
        load(BrokerConfig, env={}, flags=settings)


def test_o14_o15_nobody_is_sent_to_a_replica_or_becomes_one() -> None:
    """Requests of replicas and controllers are refused, readers are told to stay at the master."""

    async def scenario() -> None:
        async with running() as rig:
            await send(rig, 2)
            for code in REPLICAS:
                answer = await rig.ask(code, {"brokerName": "broker-a", "masterAddress": "x:1"})
                assert answer.code == NOT_SUPPORTED, code
            assert rig.broker.writable
            found = await rig.pull(queueId="0")
            assert (found.code, found.fields["suggestWhichBrokerId"]) == (0, "0")

    asyncio.run(scenario())


def test_o19_o20_o21_pop_is_refused_and_touches_no_order() -> None:
    """No message is handed out beside an owner, nothing is acknowledged, no lock is cleaned."""

    async def scenario() -> None:
        clock = FakeClock()
        async with running(clock=clock) as rig, ours(rig, "a", "b") as (a, b):
            await send(rig, 4)
            await a.take()
            assert await a.commit(1)
            fields = {
                "consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "maxMsgNums": "32",
                "invisibleTime": "100", "pollTime": "0", "bornTime": "0", "initMode": "0",
                "order": "true", "extraInfo": "0 0 0 0 0 broker-a 0", "offset": "3",
            }  # fmt: skip
            for code in POP:
                answer = await rig.ask(code, fields, b"{}")
                assert (answer.code, len(answer.body)) == (NOT_SUPPORTED, 0), code
                clock.advance(LEASE_MS // (2 * len(POP)))
            assert rig.broker.offsets.query(GROUP, TOPIC, 0) == 1
            assert (await b.refused()).holder == "a"
            assert await a.commit(2)

    asyncio.run(scenario())
