"""A name server that controls access: brokers sign and bring users, strangers are refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from inorder.config import AccessConfig
from inorder.disk import OsFiles
from inorder.errors import ConfigError
from inorder.model import DataVersion
from inorder.ordering import keymap
from inorder.wire.extensions import SESSION
from inorder.wire.header import Command
from inorder.wire.requests.registration import RegisterBrokerBody
from tests.integration.accesskit import (
    INNER,
    SETTINGS,
    allow,
    connect,
    entry,
    guarded,
    guarded_names,
    send_of,
    signed,
    until,
)
from tests.kit.disk import FakeFiles

IMPOSTOR = {
    "brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "DefaultCluster",
    "haServerAddr": "10.0.0.1:10912", "brokerId": "0",
}  # fmt: skip
BODY = RegisterBrokerBody(DataVersion(1, 1, 1), {}).encode()


def test_a_broker_registers_and_brings_its_users() -> None:
    """Users and rules of the broker count at the name server, also after a change."""

    async def main() -> None:
        async with (
            guarded_names() as (names, caller, address),
            guarded(namesrv=address) as (broker, at_broker),
        ):
            assert names.guard is not None
            accounts = names.guard.accounts
            await until(lambda: "root" in accounts.book.users)
            allow(broker, "alice", entry("Topic:Orders", "Pub"))
            await until(lambda: "alice" in accounts.book.entries)
            assert (await at_broker.ask("alice", 310, send_of("Orders"), b"1")).code == 0
            await until(lambda: names.routes.route("Orders") is not None)
            answer = await caller.ask("alice", 105, {"topic": "Orders"})
            assert answer.code == 0
            assert len(answer.fields[SESSION]) == 32
            assert (await caller.ask("alice", 105, {"topic": "Other"})).code == 16
            assert (await caller.ask("alice", 105, {"topic": "TBW102"})).code == 0
            assert broker.accounts is not None
            broker.accounts.delete_user("alice", by="t", peer="")
            await until(lambda: "alice" not in accounts.book.users)
            assert (await caller.ask("alice", 105, {"topic": "Orders"})).code == 16

    asyncio.run(main())


def test_strangers_change_no_route_and_no_value() -> None:
    """Registrations, route changes, KV and users: 16 for nobody and for a normal user."""

    async def main() -> None:
        async with (
            guarded_names() as (names, caller, address),
            guarded(namesrv=address) as (broker, _),
        ):
            allow(broker, "alice", entry("Topic:Orders", "Pub,Sub"), entry("Group:g", "Sub"))
            assert names.guard is not None
            await until(lambda: "alice" in names.guard.accounts.book.users)  # type: ignore[union-attr]
            before = names.routes.cluster_info()
            book = names.guard.accounts.book
            for code, fields, body in (
                (103, IMPOSTOR, BODY),
                (104, IMPOSTOR, b""),
                (322, IMPOSTOR, b"{}"),
                (904, IMPOSTOR, b""),
                (205, {"brokerName": "broker-a"}, b""),
                (327, {"brokerName": "broker-a"}, b""),
                (216, {"topic": "TBW102"}, b""),
                (217, {"topic": "Evil"}, b"{}"),
                (100, {"namespace": "n", "key": "k", "value": "v"}, b""),
                (100, {"namespace": keymap.NAMESPACE, "key": "Orders", "value": "v"}, b""),
                (101, {"namespace": "n", "key": "k"}, b""),
                (102, {"namespace": "n", "key": "k"}, b""),
                (219, {"namespace": "n"}, b""),
                (318, {}, b"a=b"),
                (319, {}, b""),
                (7180, {}, b'{"format":1,"version":[99999999999999,1],"users":[],"entries":[]}'),
            ):
                assert (await caller.ask("alice", code, fields, body)).code == 16, code
                answer = await caller.raw(Command.request(code, dict(fields), body))
                assert answer.code == 16, code
            assert names.routes.cluster_info() == before
            assert len(names.kv) == 0
            assert names.guard.accounts.book == book
            for code in (106, 206):
                assert (await caller.ask("alice", code)).code == 0
                assert (await caller.raw(Command.request(code, {}))).code == 16

    asyncio.run(main())


def test_a_broker_without_the_credentials_stays_outside() -> None:
    """It serves whoever knows it, and is in no route."""

    async def main() -> None:
        off = AccessConfig()
        async with (
            guarded_names() as (names, _, address),
            guarded(namesrv=address, access=off),
        ):
            assert names.routes.cluster_info().brokers == {}

    asyncio.run(main())


def test_the_users_are_there_after_a_restart_of_the_name_server() -> None:
    """They lie in a file of its own."""
    files = FakeFiles()

    async def main() -> None:
        async with guarded_names(files) as (names, _, address), guarded(namesrv=address):
            await until(lambda: names.guard and "root" in names.guard.accounts.book.users)
        async with guarded_names(files) as (names, caller, _):
            assert (await caller.ask("root", 206)).code == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"authentication": True, "level": ""}, "authorizationEnabled=true"),
        ({"authorization": True, "level": ""}, "authenticationEnabled=true"),
        ({"inner_credentials": ""}, "innerClientAuthenticationCredentials={"),
        ({"init_user": ""}, "inorder user create"),
        ({"init_user": '{"username":"root"}'}, "initAuthenticationUser={"),
        ({"init_user": '{"username":"root","password":"12345678"}'}, "everybody knows"),
        ({"level": "off", "authentication": True, "authorization": True}, "contradicts"),
        ({"key_file": "/nowhere/key"}, "cannot be read"),
    ],
)
def test_half_a_configuration_is_an_error_of_the_start(
    changes: dict[str, object], missing: str
) -> None:
    """It names the line that is missing."""

    async def main() -> None:
        access = replace(SETTINGS, **changes)  # type: ignore[arg-type]
        with pytest.raises(ConfigError) as caught:
            async with guarded(access=access, namesrv="127.0.0.1:1"):
                pass
        assert missing in str(caught.value)

    asyncio.run(main())


def test_a_broker_takes_users_from_no_peer() -> None:
    """7180 is not served by brokers, and a name server takes it from servers alone."""

    async def main() -> None:
        async with guarded() as (broker, caller):
            assert broker.accounts is not None
            before = broker.accounts.book
            body = b'{"format":1,"version":[99999999999999,1],"users":[],"entries":[]}'
            assert (await caller.ask(INNER[0], 7180, {}, body)).code == 3
            assert broker.accounts.book == before
            assert (await caller.ask(INNER[0], 3005)).code == 16

    asyncio.run(main())


def test_an_edited_file_counts_if_it_is_whole_and_private(tmp_path: Path) -> None:
    """A broken, half written, shared or linked file leaves the old rules, and says so."""

    async def main() -> None:
        data = tmp_path / "data"
        async with guarded(OsFiles(), data=str(data)) as (broker, caller):
            allow(broker, "alice", entry("Topic:A", "Pub"))
            accounts, path = broker.accounts, data / "inorder" / "access.json"
            assert accounts is not None
            assert path.stat().st_mode & 0o777 == 0o600
            good = path.read_bytes()
            for damage in ("broken", "half", "mode", "link"):
                path.unlink()
                if damage == "link":
                    (tmp_path / "elsewhere").write_bytes(good.replace(b"alice", b"malice"))
                    (tmp_path / "elsewhere").chmod(0o600)
                    path.symlink_to(tmp_path / "elsewhere")
                else:
                    text = {"broken": b"{]", "half": good[: len(good) // 2]}.get(
                        damage, good.replace(b"alice", b"malice")
                    )
                    path.write_bytes(text)
                    path.chmod(0o644 if damage == "mode" else 0o600)
                accounts.look(now=True)
                assert accounts.trouble, damage
                assert (await caller.ask("alice", 310, send_of("A"), b"1")).code == 0, damage
                table = (await caller.ask("root", 28)).body
                assert b"accessTrouble" in bytes(table)
            path.unlink()
            path.write_bytes(good.replace(b'"Topic:A"', b'"Topic:B"'))
            path.chmod(0o600)
            accounts.look(now=True)
            assert not accounts.trouble
            assert (await caller.ask("alice", 310, send_of("A"), b"1")).code == 16

    asyncio.run(main())


def test_a_repeated_registration_of_a_captured_frame_is_no_stranger() -> None:
    """The credentials among servers open the name server, under any broker name."""

    async def main() -> None:
        async with guarded_names() as (names, _, address):
            caller = await connect(address)
            answer = await caller.raw(signed(INNER[0], 103, IMPOSTOR, BODY))
            assert answer.code == 0, answer
            assert names.routes.cluster_info().brokers

    asyncio.run(main())
