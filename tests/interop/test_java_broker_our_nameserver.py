"""A real broker registers with our name server, keeps alive there, and goes."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.process import free_ports
from bench.rocketmq import RocketMQBroker
from tests.interop.rawclient import GET_CLUSTER_INFO, GET_ROUTE, RawClient, bean
from tests.interop.rocketmq import OurNameServer, ended, is_routed, real_broker

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TEMPLATE = "TBW102"
HEARTBEAT_TIMEOUT_S = 10.0
SCAN_MS = 1000


def wait_for(condition: Callable[[], bool], what: str, *, timeout_s: float = 20) -> float:
    """Wait until something holds; return how long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)
    return time.monotonic() - began


def start_pair(tmp_path: Path, **settings: object) -> tuple[OurNameServer, RocketMQBroker]:
    """Start our name server and a real broker that knows it."""
    namesrv = OurNameServer(tmp_path, settings={"scanNotActiveBrokerInterval": SCAN_MS})
    try:
        broker = real_broker(
            tmp_path,
            store=tmp_path / "store",
            port=free_ports(1, apart=(-2, 0, 1))[0],
            namesrv=namesrv.address,
            settings=settings,
        )
    except BaseException:
        namesrv.child.kill()
        raise
    return namesrv, broker


def test_it_registers_and_its_topics_are_routed(tmp_path: Path) -> None:
    """Register, cluster info, the route of a topic made later, and unregister when stopped."""
    namesrv, broker = start_pair(tmp_path)
    with ended(namesrv), ended(broker):
        wait_for(lambda: is_routed(namesrv.address, TEMPLATE), "route of the template topic")
        with RawClient(namesrv.address) as client:
            cluster = bean(client.call(GET_CLUSTER_INFO).body)
            address = f"127.0.0.1:{broker.port}"
            assert cluster["clusterAddrTable"] == {"DefaultCluster": ["broker-a"]}
            assert cluster["brokerAddrTable"]["broker-a"]["brokerAddrs"] == {"0": address}
        with RawClient(broker.address) as client:
            client.create_topic("InteropRouted", 3)
        wait_for(lambda: is_routed(namesrv.address, "InteropRouted"), "route of a new topic")
        with RawClient(namesrv.address) as client:
            route = json.loads(client.call(GET_ROUTE, {"topic": "InteropRouted"}).body)
        assert route["brokerDatas"][0]["brokerAddrs"] == {"0": address}
        [queues] = route["queueDatas"]
        assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (3, 3, 6)
        broker.child.stop()
        wait_for(lambda: not is_routed(namesrv.address, TEMPLATE), "the broker is forgotten")


def test_a_killed_broker_is_dropped_with_its_connection(tmp_path: Path) -> None:
    """The connection that carried the registration closes: the routes go at once."""
    namesrv, broker = start_pair(tmp_path)
    with ended(namesrv), ended(broker):
        wait_for(lambda: is_routed(namesrv.address, TEMPLATE), "route of the template topic")
        broker.child.kill()
        took = wait_for(lambda: not is_routed(namesrv.address, TEMPLATE), "routes are gone")
        assert took < 10  # what is silent only would be dropped after two minutes


@pytest.mark.parametrize("compatible", [True, False])
def test_heartbeats_keep_it_and_silence_drops_it(tmp_path: Path, compatible: bool) -> None:
    """A broker with a 10 s expiry lives on its heartbeats (322 or 904), and dies of silence."""
    namesrv, broker = start_pair(
        tmp_path,
        enableSlaveActingMaster="true",
        compatibleWithOldNameSrv=str(compatible).lower(),
        registerNameServerPeriod=60_000,
    )
    with ended(namesrv), ended(broker):
        wait_for(lambda: is_routed(namesrv.address, TEMPLATE), "route of the template topic")
        until = time.monotonic() + HEARTBEAT_TIMEOUT_S + 4
        while time.monotonic() < until:
            assert is_routed(namesrv.address, TEMPLATE), "dropped although it sends heartbeats"
            time.sleep(0.2)
        os.kill(broker.child.pid, signal.SIGSTOP)
        try:
            took = wait_for(
                lambda: not is_routed(namesrv.address, TEMPLATE), "silence is noticed", timeout_s=25
            )
        finally:
            os.kill(broker.child.pid, signal.SIGCONT)
        assert took > HEARTBEAT_TIMEOUT_S - 3
