"""`inorder doctor` against a cluster with things that are wrong."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from inorder.aio import Admin, Consumer, Producer
from inorder.cli.contents import app
from inorder.client.consume.rules.outcomes import Park
from inorder.config import BrokerConfig, NameServerConfig
from inorder.embedded import Embedded
from tests.kit.commands import CliRunner

pytestmark = pytest.mark.slow


def doctor(namesrv: str, *words: str) -> tuple[int, Any]:
    """Run the command and return its exit code and its findings."""
    words = ("doctor", "--namesrv", namesrv, "-o", "json", *words)
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code in (0, 1, 2), (done.output, done.exception)
    assert done.stdout, done.stderr
    return done.exit_code, json.loads(done.stdout)


def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    """A group without members, a parked key, a request that is not served, a clock, a full disk."""

    async def scenario() -> None:
        config = BrokerConfig(port=0, data=str(tmp_path), parked_keys_max=1)
        namesrv = NameServerConfig(port=0, data=str(tmp_path / "n"))
        async with Embedded(namesrv, config) as pair:
            address = pair.namesrv_address

            async def look(*words: str) -> tuple[int, dict[str, Any]]:
                code, found = await asyncio.to_thread(doctor, address, *words)
                severe = [
                    one for one in found if one["severity"] != "info" and "disk" not in one["what"]
                ]
                return code, {one["what"]: one for one in severe}

            _, found = await look()
            assert found == {}
            async with Producer(address) as producer:
                await producer.send("orders", b"1", key="bad")
                await producer.send("orders", b"2", key="good")
            consumer = Consumer(address, group="billing", consume_from="first")

            @consumer.on("orders", order="key", on_failure=Park(attempts=1))
            async def handle(message: Any) -> None:
                if message.key == "bad":
                    raise ValueError("planted")

            async with consumer:
                async with asyncio.timeout(30):
                    while consumer.statistics().parked < 1 or consumer.statistics().handled < 1:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
            async with Producer(address) as producer:
                await producer.send("orders", b"3", key="good")
            table = pair.broker.parking.table
            for queue in table.places.values():
                for key in queue.keys.values():
                    key.since_ms -= 7_200_000
            pair.broker.router.unknown_codes[351] = 2
            pair.broker.store_writable = False
            real = pair.broker.clock.now_ms
            pair.broker.clock.now_ms = lambda: real() + 5000  # type: ignore[method-assign]
            code, found = await look()
            pair.broker.clock.now_ms = real  # type: ignore[method-assign]
            assert code == 2
            whole = "\n".join(found)
            for part in (
                "1 messages wait, and it has no member",
                "1 keys of orders are parked, the oldest (bad) for 120 minutes",
                "parks nothing more",
                "2 requests with code 351",
                "its clock is 5.0 s ahead of",
                "it takes no messages",
            ):
                assert part in whole, (part, whole)
            _, found = await look("--quick")
            assert not any("member" in what for what in found)
            pair.broker.store_writable = True

    asyncio.run(scenario())


def test_a_broker_that_does_not_answer_hides_nothing(tmp_path: Path) -> None:
    """Its name server still knows it; the finding says that nobody answers."""

    async def scenario() -> None:
        config = BrokerConfig(port=0, data=str(tmp_path), advertised_host="127.0.0.9")
        namesrv = NameServerConfig(port=0, data=str(tmp_path / "n"))
        async with Embedded(namesrv, config) as pair:
            code, found = await asyncio.to_thread(doctor, pair.namesrv_address, "--quick")
            assert code == 2
            assert any("does not answer from here" in one["what"] for one in found)

    asyncio.run(scenario())


def test_a_cluster_without_brokers(tmp_path: Path) -> None:
    """A name server alone is broken, and said in words as well as JSON."""

    async def scenario() -> None:
        async with Embedded(
            NameServerConfig(port=0, data=str(tmp_path / "n")),
            BrokerConfig(port=0, data=str(tmp_path)),
        ) as pair:
            async with Admin(pair.namesrv_address) as admin:
                await pair.broker.stop()
                until = time.monotonic() + 20
                while await admin.cluster.brokers() and time.monotonic() < until:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            words = ["doctor", "--namesrv", pair.namesrv_address]
            done = await asyncio.to_thread(CliRunner().invoke, app, words)
            assert done.exit_code == 2
            assert "BROKEN   cluster: no broker is registered" in done.stdout

    asyncio.run(scenario())
