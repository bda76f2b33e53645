"""`inorder doctor` against a cluster with things that are wrong."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from inorder.access.rules import User
from inorder.aio import Admin, Consumer, Producer
from inorder.cli.contents import app
from inorder.cli.doctor import _topic
from inorder.client.consume.rules.outcomes import Park
from inorder.client.rules.resizing import TopicResize
from inorder.config import BrokerConfig, NameServerConfig, NetConfig
from inorder.diagnosis import rules
from inorder.embedded import Embedded
from inorder.model import TopicConfig
from inorder.ordering.keymap import ATTRIBUTE, KeyMap
from inorder.wire.requests.resizing import ResizeDecide
from tests.integration.accesskit import SETTINGS
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


def test_an_unfinished_resize_and_a_key_that_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that nobody drives any more; a handler that fails, and no parking."""
    monkeypatch.setattr(rules, "LAG_OLD_MS", 0)

    async def scenario() -> None:
        config = BrokerConfig(port=0, data=str(tmp_path))
        namesrv = NameServerConfig(port=0, data=str(tmp_path / "n"))
        async with Embedded(namesrv, config) as pair, Admin(pair.namesrv_address) as admin:
            await admin.topics.create("orders", queues=2)
            async with Producer(pair.namesrv_address) as producer:
                for number in range(3):
                    await producer.send("orders", b"%d" % number, key="bad")
            failed = asyncio.Event()
            consumer = Consumer(pair.namesrv_address, group="billing", consume_from="first")

            @consumer.on("orders", order="key")
            async def handle(_: Any) -> None:
                failed.set()
                raise ValueError("planted")

            name = config.name
            map_ = KeyMap.of(2, [(name, index) for index in range(4)]).encode()
            async with consumer:
                await asyncio.wait_for(failed.wait(), 30)
                pair.broker.config = replace(config, host="0.0.0.0")  # says so, and is not there
                api = await admin.cluster.api(pair.broker.address)
                await api.resize(ResizeDecide("orders", "planted", 2, map_, ""))
                _, found = await asyncio.to_thread(doctor, pair.namesrv_address)
            whole = "\n".join(one["what"] for one in found)
            for part in (
                "it listens on 0.0.0.0 without authentication",
                "a resize to 4 queues has not ended: stopped at no broker yet",
                "oldest unfinished message (key bad, topic orders, queue",
                "with 2 behind it",
            ):
                assert part in whole, (part, whole)

    asyncio.run(scenario())


def test_users_rules_and_a_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a rule, and a certificate of three days; others may not look at users."""
    soon = datetime.now(UTC) + timedelta(days=3, hours=1)
    issued = trustme.CA().issue_cert("127.0.0.1", not_after=soon)
    pem, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    pem.write_bytes(issued.cert_chain_pems[0].bytes())
    key.write_bytes(issued.private_key_pem.bytes())

    async def scenario() -> None:
        config = BrokerConfig(
            port=0, data=str(tmp_path), access=SETTINGS,
            net=NetConfig(tls_certificate=str(pem), tls_key=str(key)),
        )  # fmt: skip
        namesrv = NameServerConfig(port=0, data=str(tmp_path / "n"))
        async with Embedded(namesrv, config) as pair:
            accounts = pair.broker.accounts
            assert accounts is not None
            for user, is_super in (("root", True), ("idle", False)):
                made = User(user, b"0123456789abcdef", is_super=is_super)
                accounts.put_user(made, by="test", peer="")
            monkeypatch.setenv("INORDER_ACCESS_KEY", "root")
            monkeypatch.setenv("INORDER_SECRET_KEY", "0123456789abcdef")
            _, found = await asyncio.to_thread(doctor, pair.namesrv_address, "--quick")
            told = {one["what"] for one in found}
            assert {"it is enabled and has no rule", "its certificate ends in 3 days"} <= told

    asyncio.run(scenario())


def test_the_doctor_reads_key_maps_that_differ() -> None:
    """Of the newest version; a broker of the map that lacks the topic is named."""
    one, other = (KeyMap.of(1, places) for places in ([("a", 0), ("b", 0)], [("a", 0), ("c", 0)]))
    configs = {
        name: TopicConfig("orders", 1, 1, 6, attributes={ATTRIBUTE: key_map.encode()})
        for name, key_map in (("a", one), ("b", other))
    }
    status = TopicResize("orders", 1, 2, {}, None, (), (), (), 0)
    facts = _topic("orders", configs, status, {"a", "b", "c"})
    assert len(set(facts.maps.values())) == 2
    assert facts.missing == ("c",)
    assert [found.severity for found in rules.check_key_maps([facts])] == ["broken", "broken"]
