"""Holes of RocketMQ that cannot arise: there are no replicas (O14, O15)."""

from __future__ import annotations

import asyncio

import pytest

from inorder.config import BrokerConfig
from inorder.errors import ConfigError
from inorder.settings.load import load
from inorder.wire.codes import RequestCode as Code
from tests.integration.brokerkit import running
from tests.integration.leasekit import send

REPLICAS = (
    Code.EXCHANGE_BROKER_HA_INFO, Code.GET_BROKER_HA_STATUS, Code.RESET_MASTER_FLUSH_OFFSET,
    Code.NOTIFY_MIN_BROKER_ID_CHANGE, Code.CONTROLLER_ALTER_SYNC_STATE_SET,
    Code.CONTROLLER_ELECT_MASTER, Code.GET_BROKER_EPOCH_CACHE, Code.NOTIFY_BROKER_ROLE_CHANGED,
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
