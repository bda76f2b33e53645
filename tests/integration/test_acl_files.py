"""An installation of RocketMQ 4 with ACL files moves here: read in place, or imported."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inorder.access.rules import Action, Kind, User, decide
from inorder.access.service import LOOK_MS, PLAIN_LOOK_MS
from inorder.cli.contents import app
from inorder.config import AccessConfig, BrokerConfig, NameServerConfig
from inorder.disk import OsFiles
from inorder.embedded import Embedded
from inorder.testing.clock import FakeClock
from inorder.wire.header import Command
from tests.integration.accesskit import (
    ROOT,
    SECRETS,
    SETTINGS,
    Caller,
    guarded,
    pull_of,
    send_of,
    stored,
)
from tests.integration.brokerkit import SMALL
from tests.kit.commands import CliRunner

FILE = """\
globalWhiteRemoteAddresses:
- 127.0.0.1
accounts:
- accessKey: appuser1
  secretKey: appuser1-secret
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms: [orders=PUB|SUB, audit=DENY]
  groupPerms: [billing=SUB]
- accessKey: appuser2
  secretKey: appuser2-secret
  whiteRemoteAddress: 127.0.0.*
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
  topicPerms: [audit=PUB]
- accessKey: faraway1
  secretKey: faraway1-secret
  whiteRemoteAddress: 10.1.1.1-50
  defaultTopicPerm: PUB
- accessKey: operator
  secretKey: operator-secret
  admin: true
- accessKey: example1
  secretKey: 12345678
"""
SECRETS_HERE = {name: f"{name}-secret" for name in ("appuser1", "appuser2", "faraway1", "operator")}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Make a home of RocketMQ with the file."""
    write(tmp_path, FILE)
    return tmp_path


def write(home: Path, text: str) -> Path:
    """Write the ACL file."""
    path = home / "conf" / "plain_acl.yml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return path


def settings(home: Path) -> AccessConfig:
    """Return what a broker.conf of RocketMQ 4 says, and nothing more."""
    return AccessConfig(acl_enable=True, rocketmq_home=str(home))


async def code_of(caller: Caller, user: str, code: int, fields: dict[str, str]) -> int:
    """Ask as an account of the file."""
    secret = SECRETS_HERE.get(user, "12345678")
    return (await caller.ask(user, code, fields, b"x", secret=secret)).code


def test_accounts_may_do_what_their_files_say(home: Path) -> None:
    """Signed requests by the table of ACL 1.0; white addresses skip nothing, and narrow."""
    cases = [
        ("appuser1", "orders", 0), ("appuser1", "audit", 16), ("appuser1", "other", 16),
        ("appuser2", "orders", 0), ("appuser2", "audit", 0), ("appuser2", "other", 0),
        ("faraway1", "orders", 16), ("operator", "audit", 0), ("example1", "orders", 16),
        ("nobody12", "orders", 16),
    ]  # fmt: skip
    pulls = [
        ("appuser1", "orders", "billing", True), ("appuser1", "orders", "other", False),
        ("appuser1", "audit", "billing", False), ("appuser2", "orders", "other", True),
        ("appuser2", "audit", "other", False), ("faraway1", "orders", "billing", False),
    ]  # fmt: skip

    async def main() -> None:
        async with guarded(access=settings(home)) as (broker, caller):
            expected = 0
            for user, topic, code in cases:
                assert await code_of(caller, user, 310, send_of(topic)) == code, (user, topic)
                expected += code == 0
            assert sum(stored(broker).values()) == expected
            for user, topic, group, allowed in pulls:
                answer = await code_of(caller, user, 11, pull_of(topic, group))
                assert (answer != 16) is allowed, (user, topic, group)
            unsigned = await caller.raw(Command.request(310, send_of("orders"), b"x"))
            assert unsigned.code == 16  # although its address is a white one
            for code in (17, 25, 26, 200, 3005):
                assert await code_of(caller, "appuser2", code, {}) == 16
            assert await code_of(caller, "operator", 3005, {"filter": ""}) == 0

    asyncio.run(main())


def test_a_changed_file_counts_without_a_restart(home: Path) -> None:
    """A right that is taken away is refused at the next request after the look."""
    clock = FakeClock()

    async def main() -> None:
        async with guarded(access=settings(home), clock=clock) as (_, caller):
            assert await code_of(caller, "appuser1", 310, send_of("orders")) == 0
            write(home, FILE.replace("orders=PUB|SUB", "orders=SUB"))
            for pause_ms in (PLAIN_LOOK_MS, LOOK_MS):  # seen twice
                clock.advance(pause_ms)
                await code_of(caller, "operator", 26, {})
            assert await code_of(caller, "appuser1", 310, send_of("orders")) == 16
            write(home, "accounts: {")
            for pause_ms in (PLAIN_LOOK_MS, LOOK_MS):
                clock.advance(pause_ms)
                await code_of(caller, "operator", 26, {})
            assert await code_of(caller, "appuser2", 310, send_of("orders")) == 0

    asyncio.run(main())


def run(*words: str, env: dict[str, str] | None = None) -> Any:
    """Run a command that succeeds; return what it printed as JSON."""
    done = CliRunner().invoke(app, ["acl", "import", *words, "-o", "json"], env=env)
    assert done.exit_code == 0, done.output
    assert not [one for one in SECRETS_HERE.values() if one in done.output]
    return json.loads(done.stdout)


def lines_of(report: Any) -> list[int]:
    """Return the lines that a report names."""
    return sorted(one["line"] for one in report["remarks"])


def test_the_report_names_every_line_that_is_not_kept(home: Path) -> None:
    """White addresses, global and of accounts, and a secret that everybody knows."""
    report = run(str(home), "--dry-run")
    assert lines_of(report) == [2, 12, 18, 23]
    assert {one["file"] for one in report["remarks"]} == {"conf/plain_acl.yml"}
    assert [(one["user"], one["super"], one["outcome"]) for one in report["users"]] == [
        ("appuser1", False, "would be created"), ("appuser2", False, "would be created"),
        ("faraway1", False, "would be created"), ("operator", True, "would be created"),
    ]  # fmt: skip
    texts = " ".join(one["text"] for one in report["remarks"])
    assert "global white address 127.0.0.1 is not kept" in texts
    assert "everybody knows its secret" in texts


def test_an_import_into_a_stopped_broker(home: Path, tmp_path: Path) -> None:
    """All users and rules at once; who is there stays; the broker then needs no file."""
    data = tmp_path / "data"
    first = ["user", "create", "--data", str(data), "--super", "root", "--secret-stdin"]
    made = CliRunner().invoke(app, first, input=ROOT[1] + "\n")
    assert made.exit_code == 0, made.output
    path = str(home / "conf" / "plain_acl.yml")
    assert {one["outcome"] for one in run(path, "--data", str(data))["users"]} == {"created"}
    again = run(path, "--data", str(data))
    assert {one["outcome"] for one in again["users"]} == {"is there already, and stays as it is"}

    async def main() -> None:
        access = replace(SETTINGS, init_user="", inner_credentials="")
        options = {"access": access, "data": str(data)}
        async with guarded(OsFiles(), **options) as (broker, caller):
            for user, topic, code in (
                ("appuser1", "orders", 0), ("appuser1", "audit", 16), ("appuser2", "audit", 0),
                ("faraway1", "orders", 16), ("operator", "new", 0),
            ):  # fmt: skip
                assert await code_of(caller, user, 310, send_of(topic)) == code, (user, topic)
            assert broker.accounts is not None
            assert set(broker.accounts.book.users) == {"root", *SECRETS_HERE}

    asyncio.run(main())


@pytest.mark.slow
def test_an_import_into_a_running_cluster(home: Path, tmp_path: Path) -> None:
    """By the requests of RocketMQ's tools; a user of the same name stays as it is."""

    async def main() -> None:
        pair = Embedded(
            NameServerConfig(port=0, data=str(tmp_path / "names"), access=SETTINGS),
            BrokerConfig(port=0, data=str(tmp_path / "data"), store=SMALL, access=SETTINGS),
            files=OsFiles(),
        )
        async with pair:
            accounts = pair.broker.accounts
            assert accounts is not None
            accounts.put_user(User("appuser2", b"another-secret"), by="", peer="")
            env = {
                "INORDER_NAMESRV": pair.namesrv_address,
                "INORDER_ACCESS_KEY": ROOT[0],
                "INORDER_SECRET_KEY": SECRETS["root"],
            }
            report = await asyncio.to_thread(run, str(home), env=env)
            outcomes = {one["user"]: one["outcome"] for one in report["users"]}
            assert outcomes == {
                "appuser1": "created", "appuser2": "is there already, and stays as it is",
                "faraway1": "created", "operator": "created",
            }  # fmt: skip
            book = accounts.book
            assert book.users["appuser1"].secret == b"appuser1-secret"
            assert book.users["appuser2"].secret == b"another-secret"
            assert book.users["operator"].is_super
            here = bytes((127, 0, 0, 1))
            rules = book.entries["appuser1"]
            assert decide(rules, Kind.TOPIC, "orders", Action.PUB, here).allowed
            assert not decide(rules, Kind.TOPIC, "audit", Action.SUB, here).allowed
            assert "appuser2" not in book.entries

    asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "words"),
    [("accounts: [", "line 1, column 11"), ("accounts:\n- accessKey: appuser1\n", "no secretKey")],
)
def test_a_broken_file_imports_nothing(tmp_path: Path, text: str, words: str) -> None:
    """One line of error with the place, exit code 2, and no user file."""
    path, data = tmp_path / "broken.yml", tmp_path / "data"
    path.write_text(text)
    done = CliRunner().invoke(app, ["acl", "import", str(path), "--data", str(data)])
    assert done.exit_code == 2
    assert words in done.output
    assert not data.exists()
