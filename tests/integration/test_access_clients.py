"""Our own clients and commands at servers that control access."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import inorder
import inorder.aio
from inorder.cli.contents import app
from inorder.config import BrokerConfig, NameServerConfig
from inorder.credentials import Credentials
from inorder.disk import OsFiles
from inorder.embedded import Embedded
from inorder.errors import BrokerError, InorderError
from tests.integration.accesskit import ROOT, SECRETS, SETTINGS, allow, entry, stored, until
from tests.integration.brokerkit import SMALL
from tests.kit.commands import CliRunner

ROOTS = Credentials(*ROOT)


def of(user: str) -> Credentials:
    return Credentials(user, SECRETS[user])


@asynccontextmanager
async def cluster(tmp_path: Path, **changes: Any) -> AsyncIterator[Embedded]:
    """Run both servers with access control."""
    access = replace(SETTINGS, **changes)
    pair = Embedded(
        NameServerConfig(port=0, data=str(tmp_path / "names"), access=access),
        BrokerConfig(port=0, data=str(tmp_path / "data"), store=SMALL, access=access),
        files=OsFiles(),
    )
    async with pair:
        yield pair


@pytest.mark.slow
@pytest.mark.parametrize("order", ["queue", "key"])
def test_producer_and_consumer_with_one_rule_each(tmp_path: Path, order: str) -> None:
    """Pub on the topic sends; Sub on topic and group consumes in order, with leases and commits."""

    async def main() -> None:
        async with cluster(tmp_path) as pair:
            names = pair.namesrv_address
            async with inorder.aio.Admin(names, credentials=ROOTS) as admin:
                await admin.topics.create("orders", queues=2)
                await admin.users.create("alice", SECRETS["alice"], session_required=True)
                await admin.users.create("bob", SECRETS["bob"], session_required=True)
                await admin.acls.set("alice", ["Topic:orders"], ["Pub"])
                await admin.acls.set("bob", ["Topic:orders", "Group:billing"], ["Sub"])
            await asyncio.sleep(0.3)
            seen: list[bytes] = []
            async with inorder.aio.Producer(names, credentials=of("alice")) as producer:
                for number in range(20):
                    await producer.send("orders", b"%d" % number, key="k")
            consumer = inorder.aio.Consumer(
                names, group="billing", consume_from="first", credentials=of("bob")
            )

            @consumer.on("orders", order=order)
            async def handle(message: inorder.ReceivedMessage) -> None:
                seen.append(message.body)

            async with consumer:
                await until(lambda: len(seen) == 20)
            assert seen == [b"%d" % number for number in range(20)]
            offsets = [pair.broker.offsets.query("billing", "orders", one) for one in (0, 1)]
            assert sum(max(one, 0) for one in offsets) == 20

    asyncio.run(main())


def test_a_producer_without_the_right_stores_nothing(tmp_path: Path) -> None:
    """Another topic, no credentials, and wrong ones: an error, and nothing in the log."""

    async def main() -> None:
        async with cluster(tmp_path) as pair:
            names = pair.namesrv_address
            allow(pair.broker, "alice", entry("Topic:orders", "Pub"))
            async with inorder.aio.Admin(names, credentials=ROOTS) as admin:
                await admin.topics.create("orders", queues=1)
                await admin.topics.create("other", queues=1)
            await asyncio.sleep(0.3)
            for topic, credentials in (
                ("other", of("alice")),
                ("orders", None),
                ("orders", Credentials("alice", "a-wrong-secret")),
            ):
                with pytest.raises(InorderError):
                    async with inorder.aio.Producer(names, credentials=credentials) as producer:
                        await producer.send(topic, b"x", key="k")
            assert stored(pair.broker) == {}
            async with inorder.aio.Producer(names, credentials=of("alice")) as producer:
                await producer.send("orders", b"x", key="k")
            assert stored(pair.broker) == {("orders", 0): 1}

    asyncio.run(main())


@pytest.mark.slow
def test_commands_manage_users_and_rules(tmp_path: Path) -> None:
    """Create, list, change and delete by the codes of RocketMQ; a secret is printed once."""

    async def main() -> None:
        async with cluster(tmp_path) as pair:
            env = {
                "INORDER_NAMESRV": pair.namesrv_address,
                "INORDER_ACCESS_KEY": ROOT[0],
                "INORDER_SECRET_KEY": ROOT[1],
            }

            async def run(*words: str, **more: Any) -> Any:
                done = await asyncio.to_thread(
                    CliRunner().invoke, app, [*words, "-o", "json"], env=env, **more
                )
                assert done.exit_code == 0, done.output
                return json.loads(done.stdout)

            made = await run("user", "create", "alice")
            accounts = pair.broker.accounts
            assert accounts is not None
            assert accounts.book.users["alice"].secret.decode() == made["secret"]
            await run("user", "create", "bob", "--secret-stdin", input="a-secret-of-bob\n")
            assert accounts.book.users["bob"].secret == b"a-secret-of-bob"
            await run("acl", "set", "alice", "Topic:orders*", "Group:g", "--actions", "Pub,Sub",
                      "--source", "10.0.0.0/8")  # fmt: skip
            await run("acl", "set", "alice", "Topic:*", "--actions", "All", "--deny")
            rules = await run("acl", "get", "alice")
            assert [(one["resource"], one["actions"], one["allow"]) for one in rules] == [
                ("Group:g", ["Pub", "Sub"], True),
                ("Topic:*", ["All"], False),
                ("Topic:orders*", ["Pub", "Sub"], True),
            ]
            assert rules[0]["sources"] == ["10.0.0.0/8"]
            await run("acl", "delete", "alice", "Topic:*")
            assert len(await run("acl", "list")) == 2
            await run("user", "update", "alice", "--disable", "--session-required")
            (shown,) = await run("user", "get", "alice")
            assert (shown["enabled"], shown["session_required"]) == (False, True)
            assert {one["user"] for one in await run("user", "list")} == {"alice", "bob", "root"}
            await run("user", "delete", "alice", "--yes")
            assert "alice" not in accounts.book.users
            assert "alice" not in accounts.book.entries
            refused = await asyncio.to_thread(
                CliRunner().invoke, app, ["user", "delete", "root", "--yes"], env=env
            )
            assert refused.exit_code != 0
            assert "last super user" in refused.output

    asyncio.run(main())


def test_the_first_user_of_a_stopped_broker(tmp_path: Path) -> None:
    """One command makes it; the broker starts with it and refuses the command meanwhile."""
    data = tmp_path / "data"
    words = ["user", "create", "--data", str(data), "--super", "chief", "-o", "json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    secret = json.loads(done.stdout)["secret"]
    assert len(secret) == 32
    assert (data / "inorder" / "access.json").stat().st_mode & 0o777 == 0o600
    again = CliRunner().invoke(app, words)
    assert again.exit_code != 0
    assert "is there already" in again.output

    async def main() -> None:
        async with cluster(tmp_path, init_user="") as pair:
            async with inorder.aio.Admin(
                pair.namesrv_address, credentials=Credentials("chief", secret)
            ) as admin:
                await until(lambda: True)
                for _ in range(100):
                    try:
                        users = await admin.users.list()
                        break
                    except BrokerError:  # the name server has yet to learn of the user
                        await asyncio.sleep(0.02)
                assert [one.name for one in users] == ["chief"]
            late = await asyncio.to_thread(
                CliRunner().invoke, app, ["user", "create", "x1", "--data", str(data)]
            )
            assert late.exit_code != 0
            assert "a broker runs in" in late.output

    asyncio.run(main())


def test_settings_are_shown_without_secrets(tmp_path: Path) -> None:
    """`inorder config show` says that they are set, and not to what."""
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "authenticationEnabled=true\nauthorizationEnabled=true\n"
        f"initAuthenticationUser={SETTINGS.init_user}\n"
        f"innerClientAuthenticationCredentials={SETTINGS.inner_credentials}\n"
        "authenticationProvider=org.apache.rocketmq.auth.authentication.provider.Default\n"
    )
    shown = CliRunner().invoke(app, ["config", "show", "broker", "--config", str(conf)])
    assert shown.exit_code == 0, shown.output
    assert "(hidden)" in shown.output
    assert not [one for one in SECRETS.values() if one in shown.output]
    conf.write_text("authenticationWhitelist=10,11\n")
    refused = CliRunner().invoke(app, ["config", "show", "broker", "--config", str(conf)])
    assert refused.exit_code != 0
    assert "without a check" in refused.output
