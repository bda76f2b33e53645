"""Users, certificates, limits, slowed failures and the audit log on running servers, together."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inorder.access.rules import User
from inorder.broker.broker import Broker
from inorder.clock import SystemClock
from inorder.config import BrokerConfig, NetConfig
from inorder.disk import OsFiles
from inorder.errors import InorderError
from inorder.net.connection import Connection
from inorder.net.rules import FAILURES_FREE
from inorder.wire.frame import FrameDecoder, encode_frame
from inorder.wire.header import Command, decode_command
from tests.integration.accesskit import (
    ROOT,
    SECRETS,
    SETTINGS,
    Caller,
    allow,
    entry,
    guarded,
    guarded_names,
    send_of,
    signed,
    stored,
    until,
)
from tests.integration.brokerkit import PATIENT_MS, SMALL
from tests.kit.certificates import Certificates

SEND = 310
BEAT = 34
TOPIC = {
    "topic": "made", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
    "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip


def audit_lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of an audit log."""
    path = folder / "audit" / "audit.log"
    return [json.loads(one) for one in path.read_text().splitlines()] if path.exists() else []


@asynccontextmanager
async def on_disk(folder: Path, **settings: Any) -> AsyncIterator[tuple[Broker, Caller]]:
    """Run a broker that controls access, with real files."""
    async with guarded(OsFiles(), data=str(folder), **settings) as found:
        yield found


@asynccontextmanager
async def mutual(
    certificates: Certificates, **settings: Any
) -> AsyncIterator[tuple[Broker, Callable[[ssl.SSLContext], Any]]]:
    """Run a broker whose clients show certificates that name users."""
    net = certificates.config(
        tls_mode="enforcing", tls_client_auth="require", tls_users=True, **settings
    )
    config = BrokerConfig(
        port=0, data=str(certificates.folder / "b"), store=SMALL, access=SETTINGS, net=net
    )
    broker = Broker(config, SystemClock(), OsFiles())
    await broker.start()
    opened: list[Caller] = []

    async def open_as(context: ssl.SSLContext) -> Caller:
        connection = await Connection.open(
            broker.address, NetConfig(), tls=context, connect_timeout_ms=PATIENT_MS
        )
        opened.append(Caller(connection))
        return opened[-1]

    try:
        yield broker, open_as
    finally:
        for one in opened:
            one.connection.close()
        await broker.stop()


def test_a_certificate_names_a_user_and_his_rights(tmp_path: Path) -> None:
    """Without a signature the user of the certificate asks; a wrong signature is refused."""
    certificates = Certificates(tmp_path, "127.0.0.1")

    async def story() -> None:
        async with mutual(certificates) as (broker, open_as):
            allow(broker, "alice", entry("Topic:A", "Pub"))
            allow(broker, "bob", entry("Topic:B", "Pub"))
            alice = await open_as(certificates.client("alice"))
            sent = await alice.raw(Command.request(SEND, send_of("A"), b"1"))
            assert sent.code == 0
            refused = await alice.raw(Command.request(SEND, send_of("B"), b"2"))
            assert (refused.code, "Topic:B" in (refused.remark or "")) == (16, True)
            wrong = signed("alice", SEND, send_of("A"), b"3", secret="another secret here")
            assert (await alice.raw(wrong)).code == 16
            half = Command.request(SEND, {**send_of("A"), "AccessKey": "alice"}, b"4")
            assert (await alice.raw(half)).code == 16
            # A signature counts more than the certificate: bob asks over alice's connection.
            assert (await alice.ask("bob", SEND, send_of("B"), b"5")).code == 0
            stranger = await open_as(certificates.client("mallory"))
            assert (await stranger.raw(Command.request(SEND, send_of("A"), b"6"))).code == 16
            assert stored(broker) == {("A", 1): 1, ("B", 1): 1}
            allow(broker, "alice", enabled=False)
            again = await alice.raw(Command.request(SEND, send_of("A"), b"7"))
            assert again.code == 16
            assert stored(broker) == {("A", 1): 1, ("B", 1): 1}

    asyncio.run(story())


def test_audit_lines_of_refusals_and_changes(tmp_path: Path) -> None:
    """One line each: who, what, by which rule, under which id; also names made to forge lines."""
    evil = 'eve"}\r\n{"event":"changed\x1b[2J'

    async def story() -> None:
        async with on_disk(tmp_path) as (broker, caller):
            allow(broker, "alice", entry("Topic:A", "Pub"), entry("Topic:A1", "Pub", allow=False))
            assert (await caller.ask("root", 17, TOPIC)).code == 0
            assert (await caller.ask("alice", 17, {**TOPIC, "topic": "A"})).code == 16
            assert (await caller.ask("alice", SEND, send_of("A1"))).code == 16
            assert (await caller.raw(Command.request(SEND, send_of("A")))).code == 16
            await caller.raw(signed(evil, SEND, send_of("A\r\nB"), secret="x" * 16))
            user = b'{"username":"dave","password":"another-long-secret","userType":"Normal"}'
            assert (await caller.ask("root", 3001, {"username": "dave"}, user)).code == 0
            policy = (
                b'{"subject":"User:dave","policies":[{"policyType":"Custom","entries":'
                b'[{"resource":"Topic:A","actions":["Pub"],"decision":"Allow"}]}]}'
            )
            assert (await caller.ask("root", 3006, {"subject": "User:dave"}, policy)).code == 0

    asyncio.run(story())
    found = [one for one in audit_lines(tmp_path) if one["user"] != "test"]
    keys = ("event", "user", "code", "resource", "action", "verdict", "rule", "reason")
    shown = [tuple(one[key] for key in keys) for one in found]
    assert shown == [
        ("changed", "initAuthenticationUser", 0, "root", "user created", "done", "", ""),
        ("changed", "root", 17, "Topic:made", "Update", "done", "", ""),
        ("refused", "alice", 17, "Topic:A", "Create", "deny", "", "no matching policy"),
        ("refused", "alice", 310, "Topic:A1", "Pub", "deny", "Topic:A1 Deny", "denied by a policy"),
        ("refused", "", 310, "", "", "deny", "", "no credentials"),
        ("refused", found[5]["user"], 310, "", "", "deny", "", "unknown user"),
        ("changed", "root", 3001, "User:dave", "Create", "done", "", ""),
        ("changed", "root", 3006, "Subject:User:dave,Resource:Topic:A", "Create", "done", "", ""),
    ]
    assert all(one["id"] > 0 and ":" in one["peer"] for one in found[1:])
    assert not set(map(ord, found[5]["user"])) & set(range(32))


def test_no_secret_is_written_or_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither answers nor logs nor files have one, but for the file of users, which only we read.

    With a key file not even that one has it.
    """
    key = tmp_path / "key"
    key.write_text("ab" * 32)
    key.chmod(0o600)
    given = "dave-has-a-secret-of-his-own"
    answers: list[Command] = []
    caplog.set_level(logging.DEBUG)

    async def story() -> None:
        access = replace(SETTINGS, key_file=str(key))
        async with on_disk(tmp_path / "b", access=access) as (broker, caller):
            allow(broker, "alice", entry("Topic:A", "Pub,Sub"))
            body = f'{{"username":"dave","password":"{given}","userType":"Normal"}}'.encode()
            for user, code, fields, more in (
                ("root", 3001, {"username": "dave"}, body),
                ("root", 3004, {"username": "dave"}, b""),
                ("root", 3005, {}, b""),
                ("root", 3010, {}, b""),
                ("root", 26, {}, b""),
                ("root", 28, {}, b""),
                ("alice", 26, {}, b""),
                ("alice", 3004, {"username": "root"}, b""),
                ("alice", 3005, {}, b""),
                ("alice", SEND, send_of("A"), b"body"),
                ("alice", 25, {}, b"name=x"),
            ):
                answers.append(await caller.ask(user, code, fields, more))
            answers.append(await caller.raw(signed("alice", SEND, send_of("A"), secret=given)))
            answers.append(await caller.raw(signed("nobody", SEND, send_of("A"))))
            repr((broker, broker.config, broker.guard, broker.accounts))

    asyncio.run(story())
    captured = capfd.readouterr()
    secrets = [*SECRETS.values(), given, "ab" * 32]
    texts = {
        "answers": b"".join(
            bytes(one.body) + str((one.remark, one.fields)).encode() for one in answers
        ),
        "logs": "\n".join(one.getMessage() for one in caplog.records).encode(),
        "output": (captured.out + captured.err).encode(),
    }
    for path in (tmp_path / "b").rglob("*"):
        if path.is_file():
            texts[str(path)] = path.read_bytes()
    assert any("audit" in name for name in texts)
    assert any("access.json" in name for name in texts)
    for name, text in texts.items():
        for secret in secrets:
            assert secret.encode() not in text, (name, secret)


def test_a_user_has_his_own_limits_of_connections_and_requests() -> None:
    """The fourth connection of a user is closed; another user of that address still gets in."""

    async def story() -> None:
        net = NetConfig(connections_per_user_max=3)
        async with guarded(net=net) as (broker, caller):
            for user in ("alice", "bob"):
                allow(broker, user, entry("Topic:A", "Pub"))
            mine = [await caller.open() for _ in range(4)]
            for one in mine[:3]:
                assert (await one.ask("alice", SEND, send_of("A"), b"x")).code == 0
            with pytest.raises(InorderError):
                await mine[3].ask("alice", SEND, send_of("A"), b"x")
            assert stored(broker) == {("A", 1): 3}
            assert (await caller.ask("bob", SEND, send_of("A"), b"x")).code == 0
            mine[0].connection.close()
            again = await caller.open()
            async with asyncio.timeout(30):
                while True:
                    try:
                        assert (await again.ask("alice", SEND, send_of("A"), b"x")).code == 0
                        break
                    except InorderError:
                        again = await caller.open()
            for one in (*mine, again):
                one.connection.close()

    asyncio.run(story())


@pytest.mark.slow
def test_requests_of_a_user_wait_for_his_limit_on_all_connections() -> None:
    """What is beyond a second's worth waits; a heartbeat does not, and another user neither."""

    async def story() -> None:
        async with guarded(net=NetConfig(requests_per_user_max=20)) as (broker, caller):
            for user in ("alice", "bob"):
                allow(broker, user, entry("Topic:A", "Pub"))
            callers = [await caller.open() for _ in range(2)]
            for one in callers:
                assert (await one.ask("alice", SEND, send_of("A"), b"x")).code == 0
            waiting = [
                asyncio.ensure_future(callers[n % 2].ask("alice", SEND, send_of("A"), b"x"))
                for n in range(100)
            ]
            await asyncio.sleep(0.2)
            beat = await callers[0].ask(
                "alice", BEAT, body=b'{"clientID":"c","producerDataSet":[{"groupName":"PG"}]}'
            )
            assert beat.code == 0
            assert (await caller.ask("bob", SEND, send_of("A"), b"x")).code == 0
            assert not all(one.done() for one in waiting)
            assert {one.code for one in await asyncio.gather(*waiting)} == {0}
            for one in callers:
                one.connection.close()

    asyncio.run(story())


@pytest.mark.slow
@pytest.mark.parametrize("server", ["broker", "name server"])
def test_failed_logins_are_answered_late_and_correct_ones_at_once(server: str) -> None:
    """After ten failures the next answers take longer; the same user's right one does not."""

    async def story() -> None:
        loop = asyncio.get_running_loop()
        runs: Any = guarded() if server == "broker" else guarded_names()
        code = 28 if server == "broker" else 105
        async with runs as found:
            one, caller = found[0], found[1]
            root = User("root", ROOT[1].encode(), is_super=True)
            one.guard.accounts.put_user(root, by="test", peer="")
            wrong = {"secret": "not the secret of root"}
            for _ in range(FAILURES_FREE):
                assert (await caller.ask("root", code, {"topic": "A"}, **wrong)).code == 16
            other = await caller.open()
            began = loop.time()
            for _ in range(4):
                assert (await caller.ask("root", code, {"topic": "A"}, **wrong)).code == 16
            late = loop.time() - began
            assert late >= 0.1 + 0.2 + 0.4 + 0.8
            failing = asyncio.ensure_future(caller.ask("root", code, {"topic": "A"}, **wrong))
            await asyncio.sleep(0.01)
            assert (await other.ask("root", code, {"topic": "A"})).code != 16
            assert not failing.done()
            assert (await failing).code == 16
            other.connection.close()

    asyncio.run(story())


@pytest.mark.parametrize("user", [None, "stranger", "alice"])
def test_a_long_request_of_a_stranger_is_not_received(user: str | None) -> None:
    """Its header says that nobody knows it: the body is dropped as it comes, and refused."""

    async def story() -> None:
        async with guarded() as (broker, _):
            allow(broker, "alice", entry("Topic:A", "Pub"))
            body = bytes(700_000)
            request = Command.request(SEND, send_of("A"), body, request_id=9)
            if user is not None:
                request = signed(user, SEND, send_of("A"), body, secret=SECRETS["alice"])
            frame = encode_frame(request)
            name, _, port = broker.address.rpartition(":")
            reader, writer = await asyncio.open_connection(name, int(port))
            writer.write(frame[:500_000])
            await writer.drain()
            server = broker.server

            def kept() -> int:
                newest = max(server.connections, key=lambda one: one.id)
                decoder = newest._decoder
                return 0 if decoder is None else sum(map(len, decoder._chunks))

            await until(lambda: server.bytes_received >= 500_000)
            assert (kept() > 400_000) is (user == "alice")
            writer.write(frame[500_000:])
            decoder, answers = FrameDecoder(), []
            while not answers:
                answers = decoder.receive_data(await reader.read(65536))
            assert decode_command(answers[0]).code == (0 if user == "alice" else 16)
            assert stored(broker) == ({("A", 1): 1} if user == "alice" else {})
            writer.close()
            await writer.wait_closed()

    asyncio.run(story())


def test_what_log_lets_pass_is_told_as_passed(tmp_path: Path) -> None:
    """The line has the reason for which `enforce` would refuse; no answer is slowed."""

    async def story() -> None:
        access = replace(SETTINGS, level="log")
        async with on_disk(tmp_path, access=access) as (broker, caller):
            allow(broker, "alice", entry("Topic:A", "Pub"))
            for _ in range(20):
                wrong = signed("alice", SEND, send_of("A"), b"x", secret="not the secret of hers")
                assert (await caller.raw(wrong)).code == 0
            assert (await caller.ask("alice", 17, TOPIC)).code == 0
            assert stored(broker) == {("A", 1): 20}

    asyncio.run(story())
    found = audit_lines(tmp_path)
    passed = [one for one in found if one["event"] == "refused"]
    assert {(one["verdict"], one["reason"]) for one in passed[:20]} == {
        ("passed", "wrong signature")
    }
    # Who changed something is told only if it was proved.
    assert [(one["verdict"], one["reason"]) for one in passed[20:]] == [
        ("passed", "no matching policy")
    ]
    assert [one["user"] for one in found if one["code"] == 17] == ["alice", ""]
