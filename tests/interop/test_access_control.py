"""Stock clients with right, wrong, missing and disabled credentials, where access is controlled.

Each client starts once and plays all cases. What is stored is read by hand, as the super user.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.interop.driver import DriverFailed, by_queue
from tests.interop.guarded import QUEUES, ROOT, USERS_AND_RULES, Guarded, SignedClient
from tests.interop.stock import BY_NAME, SETTLE_S, Client, Kind, as_sent, running
from tests.interop.toolchains import JAVA_5, java

pytestmark = [pytest.mark.interop, pytest.mark.slow]

COUNT = 8
# The 5.3.3 client adds its zone after it has signed.
ZONED = Kind(
    "java-5.3.3-zone",
    java(JAVA_5, "-Drocketmq.zone=z1"),
)
KINDS = [
    *(BY_NAME[name] for name in ("cpp-0.4.4", "ali-ons-3.12", "go-2.1.2", "java-4.9.8-binary")),
    ZONED,
]
NOTHING: dict[int, list[int]] = {queue: [] for queue in range(QUEUES)}
HOME = "-Drocketmq.home.dir=."


def new_user(server: Guarded, name: str, secret: str, *, enabled: bool = True) -> None:
    """Create a user as mqadmin does, by 3001."""
    info = {"username": name, "password": secret, "userType": "Normal"}
    info["userStatus"] = "enable" if enabled else "disable"
    with server.raw() as raw:
        raw.call(3001, {"username": name}, json.dumps(info).encode())


def allow(server: Guarded, name: str, rules: dict[str, list[str]]) -> None:
    """Give rights as mqadmin does, by 3006."""
    entries = [
        {"resource": resource, "actions": actions, "decision": "Allow"}
        for resource, actions in rules.items()
    ]
    policies = [{"policyType": "Custom", "entries": entries}]
    body = {"subject": f"User:{name}", "policies": policies}
    with server.raw() as raw:
        raw.call(3006, {"subject": f"User:{name}"}, json.dumps(body).encode())


@pytest.fixture(scope="module")
def server() -> Iterator[Guarded]:
    """Run one `inorder up` with users for all clients."""
    quick = {"transactionTimeOut": 1000, "transactionCheckInterval": 500}
    with Guarded({**USERS_AND_RULES, **quick}) as server:
        yield server


def produce(client: Client, topic: str, first: int, **who: str) -> str:
    """Send numbers; return the error, empty if there is none."""
    try:
        client.driver.do(
            "produce", topic=topic, first=first, count=COUNT, tags="A", timeout_s=45, **who
        )
    except DriverFailed as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_client_works_with_right_credentials_and_changes_nothing_with_others(
    server: Guarded, tmp_path: Path, kind: Kind
) -> None:
    """Producer and consumer with one rule each work; wrong, missing, disabled: nothing changes.

    Java and Go also send in transactions, and are asked about those without an outcome.
    """
    name, mark = kind.name, re.sub(r"[^a-z0-9]", "_", kind.name)
    topic, other, group = f"orders_{mark}", f"other_{mark}", f"billing_{mark}"
    sender, reader, gone = f"sender_{mark}", f"reader_{mark}", f"gone_{mark}"
    for one in (topic, other):
        server.make_topic(one)
    new_user(server, sender, "secret-of-sender")
    allow(server, sender, {f"Topic:{topic}": ["Pub"]})
    new_user(server, reader, "secret-of-reader")
    allow(server, reader, {f"Topic:{topic}": ["Sub"], f"Group:{group}": ["Sub"]})
    new_user(server, gone, "secret-of-gone", enabled=False)
    allow(server, gone, {f"Topic:{topic}": ["Pub"]})
    right = {"user": sender, "secret": "secret-of-sender"}
    with running(kind, server, tmp_path) as client:
        assert produce(client, topic, 0, **right) == ""
        assert server.stored(topic) == as_sent(0, COUNT)
        if name.startswith(("java", "go")):
            transact(client, server, f"halves_{mark}", right)
        with server.raw() as raw:  # the C++ client begins at the end of a queue else
            raw.create_group(group)
            for queue in range(QUEUES):
                raw.commit(group, topic, queue, 0)
        consumer = {"user": reader, "secret": "secret-of-reader"}
        client.driver.do(
            "push", name="reader", group=group, topic=topic, tags="*", mode="concurrent", **consumer
        )
        client.wait_got("reader", COUNT)
        time.sleep(SETTLE_S)
        client.stop("reader")
        assert by_queue(client.driver.messages("got", "reader")) == as_sent(0, COUNT)
        with server.raw() as raw:
            raw.wait_committed(group, topic, [COUNT // QUEUES] * QUEUES)
        before = server.state(topic, group)
        for who in (
            {"user": sender, "secret": "not-the-secret"},
            {"user": f"nobody_{mark}", "secret": "secret-of-sender"},
            {"user": gone, "secret": "secret-of-gone"},
            {},
        ):
            assert produce(client, topic, 100, **who) != "", who
            assert server.state(topic, group) == before, who
        refused = server.refused()
        assert produce(client, other, 200, **right) != ""
        assert server.stored(other) == NOTHING
        with server.raw() as raw:  # the client knows its route: now the broker itself refuses
            raw.call(3002, {"username": sender}, b'{"userStatus":"disable"}')
        error = produce(client, topic, 300, **right)
        assert error != ""
        assert server.stored(topic) == as_sent(0, COUNT)
        assert server.refused() > refused
        if name.startswith("java"):
            assert "CODE: 16" in error, error
        # A consumer without rights gets nothing, and the group stays where it is.
        with server.raw() as raw:
            raw.send_message(topic, 0, b"400", {"TAGS": "A"})
        before = server.state(topic, group)
        try:
            client.driver.do(
                "push", name="thief", group=group, topic=topic, tags="*", mode="concurrent",
                timeout_s=45, user=gone, secret="secret-of-gone",
            )  # fmt: skip
        except DriverFailed:
            pass
        assert client.driver.messages("got", "thief") == []
        assert server.state(topic, group) == before
    assert "secret-of-" not in server.log()


def transact(client: Client, server: Guarded, topic: str, who: dict[str, str]) -> None:
    """Commit one message of four at once, another one when asked; the rest is rolled back."""
    server.make_topic(topic)
    allow(server, who["user"], {f"Topic:{topic}": ["Pub"]})
    client.driver.do("transact", topic=topic, group=f"{topic}_p", first=0, count=COUNT, **who)

    def committed() -> list[int]:
        return sorted(number for queue in server.stored(topic).values() for number in queue)

    server.child.wait_until(lambda: committed() == list(range(0, COUNT, 2)), timeout_s=40)


Admin = Callable[..., str]


@pytest.fixture
def admin(server: Guarded, tmp_path: Path) -> Iterator[Admin]:
    """Return a function that runs mqadmin with the credentials of `conf/tools.yml`."""
    kind = BY_NAME["java-5.3.3-json"]
    (tmp_path / "conf").mkdir()
    tools = tmp_path / "conf" / "tools.yml"
    command = kind.command

    def with_home() -> list[str]:
        words = command()
        return [words[0], HOME, *words[1:]]

    with running(replace(kind, command=with_home), server, tmp_path) as client:

        def run(*words: str, who: tuple[str, str] | None = ROOT) -> str:
            tools.unlink(missing_ok=True)
            if who is not None:
                tools.write_text(f"accessKey: {who[0]}\nsecretKey: {who[1]}\n")
            namesrv = f"127.0.0.1:{server.namesrv[1]}"
            events = client.driver.do("admin", args=",".join([*words, "-n", namesrv]))
            (text,) = [event.fields["text"] for event in events if event.kind == "output"]
            return base64.b64decode(text).decode()

        yield run


def test_mqadmin_makes_users_and_rules_that_count(server: Guarded, admin: Admin) -> None:
    """createUser, createAcl and the rest of 5.3, as the super user, as others, and as nobody."""
    broker = f"127.0.0.1:{server.address[1]}"
    server.make_topic("mq_orders")
    alice = ("mqalice", "secret-of-mqalice")
    before = server.users()
    for who in (None, (ROOT[0], "not-the-secret"), ("nobody12", ROOT[1])):
        admin("createUser", "-b", broker, "-u", alice[0], "-p", alice[1], who=who)
        assert server.users() == before, who
    made = admin("createUser", "-b", broker, "-u", alice[0], "-p", alice[1], "-t", "Normal")
    assert "create user to" in made, made
    shown = admin("listUser", "-b", broker)
    assert "mqalice" in shown
    assert "secret-of" not in shown
    # A normal user changes nothing, also not its own rights.
    before = server.users()
    for words in (
        ("createUser", "-b", broker, "-u", "mqbob", "-p", "secret-of-mqbob", "-t", "Super"),
        ("updateUser", "-b", broker, "-u", alice[0], "-t", "Super"),
        ("createAcl", "-b", broker, "-s", "User:mqalice", "-r", "Topic:*", "-a", "All",
         "-d", "Allow"),
        ("deleteUser", "-b", broker, "-u", "root"),
    ):  # fmt: skip
        admin(*words, who=alice)
        assert server.users() == before, words

    def may_send(topic: str = "mq_orders") -> bool:
        with SignedClient(server.address, alice) as raw:
            answer = raw.request(310, send_fields(topic), b"1")
        assert answer.code in {0, 16}, answer
        return answer.code == 0

    def send_fields(topic: str) -> dict[str, object]:
        return {
            "a": "pg", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "",
            "j": 0, "k": False, "m": False,
        }  # fmt: skip

    assert not may_send()
    text = admin(
        "createAcl", "-b", broker, "-s", "User:mqalice", "-r", "Topic:mq_*", "-a", "Pub",
        "-i", "127.0.0.1,10.0.0.0/8", "-d", "Allow",
    )  # fmt: skip
    assert "create acl to" in text, text
    assert may_send()
    # The literal name is more specific than the prefix, and denies.
    admin("createAcl", "-b", broker, "-s", "User:mqalice", "-r", "Topic:mq_orders", "-a", "Pub",
          "-d", "Deny")  # fmt: skip
    assert not may_send()
    shown = admin("getAcl", "-b", broker, "-s", "User:mqalice")
    assert "Topic:mq_orders" in shown
    assert "Deny" in shown
    admin("deleteAcl", "-b", broker, "-s", "User:mqalice", "-r", "Topic:mq_orders")
    assert may_send()
    admin("updateAcl", "-b", broker, "-s", "User:mqalice", "-r", "Topic:mq_*", "-a", "Pub",
          "-i", "10.0.0.0/8", "-d", "Allow")  # fmt: skip
    assert not may_send()
    admin("updateAcl", "-b", broker, "-s", "User:mqalice", "-r", "Topic:mq_*", "-a", "Pub",
          "-i", "127.0.0.1", "-d", "Allow")  # fmt: skip
    assert may_send()
    admin("updateUser", "-b", broker, "-u", alice[0], "-s", "disable")
    assert not may_send()
    admin("updateUser", "-b", broker, "-u", alice[0], "-s", "enable")
    assert may_send()
    admin("deleteUser", "-b", broker, "-u", alice[0])
    assert not may_send()
    assert "mqalice" not in admin("listUser", "-b", broker)
    assert "secret-of-" not in server.log()


ACL_FILE = """\
globalWhiteRemoteAddresses:
  - 127.0.0.1
accounts:
  - accessKey: RocketMQ4
    secretKey: secret-of-rocketmq4
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms:
      - acl_orders=PUB|SUB
      - acl_audit=DENY
    groupPerms:
      - acl_readers=SUB
  - accessKey: rocketmq4admin
    secretKey: secret-of-admin4
    admin: true
"""


def test_an_installation_of_rocketmq_4_moves_without_new_keys(tmp_path: Path) -> None:
    """Its broker.conf line, its files, its Java 4 client: rights as they were, and nothing more."""
    home = tmp_path / "home"
    (home / "conf" / "acl").mkdir(parents=True)
    path = home / "conf" / "plain_acl.yml"
    path.write_text(ACL_FILE)
    path.chmod(0o600)
    settings = {"aclEnable": "true", "rocketmqHome": home}
    who = {"user": "RocketMQ4", "secret": "secret-of-rocketmq4"}
    root = ("rocketmq4admin", "secret-of-admin4")
    with Guarded(settings, root=root) as server:
        for topic in ("acl_orders", "acl_audit"):
            server.make_topic(topic)
        with running(BY_NAME["java-4.9.8-json"], server, tmp_path / "client") as client:
            assert produce(client, "acl_orders", 0, **who) == ""
            assert server.stored("acl_orders") == as_sent(0, COUNT)
            client.driver.do(
                "push", name="reader", group="acl_readers", topic="acl_orders", tags="*",
                mode="orderly", **who,
            )  # fmt: skip
            client.wait_got("reader", COUNT)
            client.stop("reader")
            error = produce(client, "acl_audit", 0, **who)
            assert "CODE: 16" in error, error
            # The address is a white one of the file, and skips nothing.
            assert "CODE: 16" in produce(client, "acl_orders", 0)
            assert server.stored("acl_audit") == NOTHING
            assert server.stored("acl_orders") == as_sent(0, COUNT)
        assert "the global white address 127.0.0.1 is not kept" in server.log()
        assert "secret-of-" not in server.log()
