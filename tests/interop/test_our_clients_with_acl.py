"""Our clients against Apache RocketMQ with access control (ACL 2.0): signed, refused, explained."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import inorder
import inorder.aio
from bench.process import free_ports
from bench.rocketmq import RocketMQBroker
from inorder import AccessDenied, Credentials
from inorder.cli.contents import app
from inorder.wire.header import Command
from inorder.wire.replies import succeeded
from tests.interop.rocketmq import HEAP, ended, real_name_server
from tests.kit.commands import CliRunner

pytestmark = [pytest.mark.interop, pytest.mark.slow]

ROOT = Credentials("admin", "the-secret-of-admin")
INNER = Credentials("inner", "the-secret-of-the-broker")
WRONG = Credentials("admin", "not-the-secret")
PROVIDER = "org.apache.rocketmq.auth.{0}.provider.Local{1}MetadataProvider"
SETTINGS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "authenticationMetadataProvider": PROVIDER.format("authentication", "Authentication"),
    "authorizationMetadataProvider": PROVIDER.format("authorization", "Authorization"),
    "initAuthenticationUser": json.dumps(
        {"username": ROOT.access_key, "password": ROOT.secret_key}
    ),
    "innerClientAuthenticationCredentials": json.dumps(
        {"accessKey": INNER.access_key, "secretKey": INNER.secret_key}
    ),
}
AUTH_CREATE_USER = 3001
AUTH_CREATE_ACL = 3006
QUEUES = 4
COUNT = 60


class Served:
    """Apache RocketMQ with users."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv

    def topic(self, name: str) -> str:
        """Create a topic, as the super user."""
        with inorder.Admin(self.namesrv, credentials=ROOT) as admin:
            admin.topics.create(name, queues=QUEUES)
        return name

    def user(self, name: str, actions: list[str], *resources: str) -> Credentials:
        """Create a normal user who may do this, as the super user."""
        who = Credentials(name, f"the-secret-of-{name}")
        info = {"username": name, "password": who.secret_key, "userType": "Normal"}
        entries = [{"resource": one, "actions": actions, "decision": "Allow"} for one in resources]
        acl = {
            "subject": f"User:{name}",
            "policies": [{"policyType": "Custom", "entries": entries}],
        }
        asyncio.run(self._ask(AUTH_CREATE_USER, {"username": name}, info))
        asyncio.run(self._ask(AUTH_CREATE_ACL, {"subject": f"User:{name}"}, acl))
        return who

    async def _ask(self, code: int, fields: dict[str, str], body: object) -> None:
        async with inorder.aio.Session(self.namesrv, credentials=ROOT) as session:
            (address,) = [
                one.addresses[0] for one in (await session.cluster_info()).brokers.values()
            ]
            connection = (await session.broker_at(address)).connection
            command = Command.request(code, fields, json.dumps(body).encode())
            succeeded(await connection.request(command, 5000))

    def stored(self, topic: str) -> list[bytes]:
        """Return what is stored, as the super user sees it."""
        with inorder.PullConsumer(self.namesrv, group="looker", credentials=ROOT) as consumer:
            return [
                message.body
                for queue in consumer.queues(topic, wait=30)
                for message in consumer.pull_all(queue)
            ]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run Apache RocketMQ's name server, and its broker with access control."""
    folder = tmp_path_factory.mktemp("acl")
    names = real_name_server(folder)
    with ended(names):
        (port,) = free_ports(1, apart=(-2, 0, 1))
        broker = RocketMQBroker(
            folder, namesrv=names.address, store=folder / "store", heap=HEAP, port=port,
            settings=SETTINGS,
        )  # fmt: skip
        with ended(broker):
            broker.wait_ready()
            found = Served(f"127.0.0.1:{names.address[1]}")
            wait(lambda: is_known(found), "the broker is registered")
            yield found


def is_known(served: Served) -> bool:
    with inorder.Admin(served.namesrv, credentials=ROOT) as admin:
        return bool(admin.cluster.brokers())


def wait(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.05)


def test_signed_sends_are_stored(served: Served) -> None:
    """Lone sends, batches and sends without waiting are accepted, each once."""
    topic = served.topic("AclSends")
    with inorder.Producer(served.namesrv, credentials=ROOT) as producer:
        for number in range(COUNT):  # enough for a connection of the thread's own
            producer.send(topic, f"lone {number}".encode(), key=f"k{number % 7}", tag="ä")
        for number in range(COUNT):
            producer.send_nowait(topic, f"many {number}".encode(), key=f"k{number % 7}")
        producer.flush()
        batch = [inorder.Message(topic, f"batch {number}".encode()) for number in range(10)]
        producer.send_batch(batch)
        producer.send_oneway(topic, b"one way")
    wait(lambda: len(served.stored(topic)) == 2 * COUNT + 11, "all is stored")


def test_a_wrong_secret_is_refused(served: Served) -> None:
    """The error names the user and the way out at once, and nothing is stored."""
    topic = served.topic("AclWrong")
    with inorder.Producer(served.namesrv, credentials=WRONG) as producer:
        began = time.monotonic()
        with pytest.raises(AccessDenied, match=r"access key admin.*check both keys") as refused:
            producer.send(topic, b"no")
        assert time.monotonic() - began < 5
        assert WRONG.secret_key not in str(refused.value)
    assert served.stored(topic) == []


def test_no_credentials_are_refused(served: Served) -> None:
    """The error says that the client has none."""
    topic = served.topic("AclNobody")
    with (
        inorder.Producer(served.namesrv) as producer,
        pytest.raises(AccessDenied, match="this client has no credentials"),
    ):
        producer.send(topic, b"no")
    assert served.stored(topic) == []


@pytest.mark.parametrize("order", ["queue", "key", None])
def test_consumers_sign(served: Served, order: str | None) -> None:
    """Ordered consumers, with RocketMQ's locks, and those without order get every message."""
    topic = served.topic(f"AclConsumed{order}")
    with inorder.Producer(served.namesrv, credentials=ROOT) as producer:
        for number in range(COUNT):
            producer.send(topic, str(number).encode(), key=f"k{number % 5}")
    handled: list[int] = []
    consumer = inorder.Consumer(
        served.namesrv, group=f"acl-{order}", consume_from="first", credentials=ROOT
    )
    consumer.on(topic, order=order)(lambda message: handled.append(int(message.body)))  # type: ignore[call-overload]
    with consumer:
        wait(lambda: len(set(handled)) == COUNT, f"all is handled, {len(handled)} so far")
    if order is not None:
        for key in range(5):
            mine = [number for number in handled if number % 5 == key]
            assert mine == sorted(set(mine))
    with inorder.Admin(served.namesrv, credentials=ROOT) as admin:
        assert sum(one.lag for one in admin.groups.lag(f"acl-{order}", topic)) == 0


@pytest.mark.parametrize("actions", [["Pub", "Sub"], ["Pub", "Sub", "Get"]])
def test_a_normal_user_works_with_its_own_topic_and_group(
    served: Served, actions: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Sends and consumes what its rules allow; another topic is refused by name."""
    name = f"bob{len(actions)}"
    topic, other = served.topic(f"AclOwn{len(actions)}"), served.topic(f"AclOther{len(actions)}")
    bob = served.user(name, actions, f"Topic:{topic}", f"Group:{name}")
    with inorder.Producer(served.namesrv, credentials=bob) as producer:
        for number in range(20):
            producer.send(topic, str(number).encode(), key=f"k{number % 5}")
        with pytest.raises(AccessDenied, match=rf"User:{name} has no permission .*{other}"):
            producer.send(other, b"no")
    assert served.stored(other) == []
    handled: list[bytes] = []
    consumer = inorder.Consumer(served.namesrv, group=name, consume_from="first", credentials=bob)
    consumer.on(topic)(lambda message: handled.append(message.body))
    with consumer:
        wait(lambda: len(set(handled)) == 20, f"all is handled: {caplog.messages}", 30)


def test_a_refused_consumer_asks_slowly_and_says_so(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told why once, not every second, and gets nothing."""
    topic = served.topic("AclRefused")
    with inorder.Producer(served.namesrv, credentials=ROOT) as producer:
        producer.send(topic, b"secret")
    handled: list[bytes] = []
    consumer = inorder.Consumer(
        served.namesrv, group="acl-refused", consume_from="first", credentials=WRONG
    )
    consumer.on(topic)(lambda message: handled.append(message.body))
    with caplog.at_level(logging.WARNING, "inorder"), consumer:
        time.sleep(8)
    lines = [line for line in caplog.messages if "access denied" in line]
    assert len(lines) == 1, lines
    assert "acl-refused" in lines[0]
    assert "access key admin" in lines[0]
    assert len(caplog.messages) < 5, caplog.messages
    assert handled == []


def test_the_command_line_signs_by_a_file(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--credentials-file` makes admin work possible; without it the command is refused."""
    file = tmp_path / "credentials"
    file.write_text(f"accessKey: {ROOT.access_key}\nsecretKey: {ROOT.secret_key}\n")
    file.chmod(0o600)
    monkeypatch.setenv("INORDER_NAMESRV", served.namesrv)
    command = ["topic", "create", "AclCommand", "--queues", "2"]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code != 0
    assert "no credentials" in refused.output
    done = CliRunner().invoke(app, [*command, "--credentials-file", str(file)])
    assert done.exit_code == 0, done.output
    assert ROOT.secret_key not in done.output
