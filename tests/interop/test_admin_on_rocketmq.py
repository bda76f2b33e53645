"""The admin client and the command line against Apache RocketMQ: its codes, its JSON dialect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

import inorder
from inorder.cli.contents import app
from inorder.client.admin import Admin
from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.errors import GroupNotFound, NotFound, SystemError_, TopicNotRouted
from inorder.model import GroupConfig, Subscription
from inorder.wire.ids import offset_message_id, pack_host
from inorder.wire.requests.groups import ConsumerData
from tests.interop.rocketmq import real_cluster
from tests.kit.commands import CliRunner

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TOPIC = "orders"


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run Apache RocketMQ's name server and broker."""
    with real_cluster(tmp_path_factory.mktemp("rocketmq")) as (host, port):
        yield f"{host}:{port}"


def test_the_admin_client_operates_rocketmq(namesrv: str) -> None:
    """Every noun and verb of Admin, as against our own broker."""

    async def story() -> None:
        async with Session(namesrv) as session:
            admin = Admin(session)
            await _wait_for_broker(admin)
            await admin.topics.create(TOPIC, queues=2)
            await _topics_and_messages(session, admin)
            await _groups_and_offsets(session, admin)
            await admin.topics.delete(TOPIC)
            with pytest.raises(TopicNotRouted):
                await admin.topics.describe(TOPIC)

    asyncio.run(story())


async def _wait_for_broker(admin: Admin) -> None:
    while not await admin.cluster.brokers():  # noqa: ASYNC110 - another process registers itself
        await asyncio.sleep(0.1)


async def _runtime(admin: Admin, name: str) -> dict[str, str]:
    """Ask until it answers: a RocketMQ broker fails at this before its first sample (a second)."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await admin.cluster.runtime(name)
            except SystemError_ as error:
                if "NoSuchElementException" not in error.remark:
                    raise
            await asyncio.sleep(0.2)


async def _topics_and_messages(session: Session, admin: Admin) -> None:
    ids = []
    async with Producer(session) as producer:
        for number in range(6):
            key = f"order-{number}"
            receipt = await producer.send(TOPIC, key.encode(), key=key, keys=[key])
            ids.append(receipt.message_id)
    assert TOPIC in await admin.topics.names()
    assert "TBW102" not in await admin.topics.names()
    view = await admin.topics.describe(TOPIC)
    assert (view.messages, len(view.queues)) == (6, 2)
    assert next(iter(view.configs.values())).write_queues == 2
    await admin.topics.update(TOPIC, perm=6)
    messages = admin.messages
    (found,) = await messages.by_id(TOPIC, ids[3])
    assert found.body == b"order-3"
    (node,) = await admin.cluster.brokers()
    host, _, port = node.address.rpartition(":")
    stored_id = offset_message_id(pack_host(host, int(port)), found.position)
    assert await messages.by_id(TOPIC, stored_id) == [found]
    with pytest.raises(NotFound):
        await messages.by_id(TOPIC, "0" * 32)
    assert await messages.by_key(TOPIC, "order-3") == [found]
    assert await messages.by_offset(found.queue, found.offset) == found
    assert len(await messages.by_time(TOPIC)) == 6
    assert (await _runtime(admin, node.name))["brokerActive"] in ("true", "false")
    assert (await admin.cluster.settings(node.name))["brokerName"] == node.name


async def _groups_and_offsets(session: Session, admin: Admin) -> None:
    await admin.groups.create(GroupConfig("billing", retry_max_times=3))
    assert (await admin.groups.table())["billing"].popitem()[1].retry_max_times == 3
    queues = [one.queue for one in await admin.offsets.get("billing", TOPIC)]
    await admin.offsets.set("billing", queues[0], 1)
    committed = [one.committed_offset for one in await admin.offsets.get("billing", TOPIC)]
    assert committed == [1, None]
    ends = await admin.offsets.reset("billing", TOPIC, "end")
    assert sum(ends.values()) == 6
    assert sum(one.lag for one in await admin.groups.lag("billing", TOPIC)) == 0
    assert await admin.offsets.reset("billing", TOPIC, "beginning") == dict.fromkeys(queues, 0)
    assert await admin.offsets.reset_queue("billing", queues[1], 1) == 1
    assert sum(one.lag for one in await admin.groups.lag("billing")) == 5
    async with Session(namesrv_of(session)) as other:
        await other.route(TOPIC)
        other.set_consumer(ConsumerData("billing", subscriptions=(Subscription(TOPIC),)))
        other.add_producer("shop")
        await other.heartbeat()
        view = await admin.groups.describe("billing")
        assert [member.client_id for member in view.members] == [other.client_id]
        assert (await admin.groups.producers("shop")).popitem()[1][0].client_id == other.client_id
    assert await admin.groups.producers("nobody") == {}
    await admin.groups.delete("billing")
    with pytest.raises(GroupNotFound):
        await admin.groups.describe("billing")


def namesrv_of(session: Session) -> str:
    """Return the address that a session asks."""
    return session.statistics().name_server


def test_the_command_line_operates_rocketmq(namesrv: str) -> None:
    """Create, send, tail, find, measure and delete from the shell."""

    def run(*words: str, stdin: str = "") -> str:
        done = CliRunner().invoke(app, [*words, "--namesrv", namesrv], input=stdin)
        assert done.exit_code == 0, done.output
        return done.stdout

    def objects(*words: str) -> Any:
        return json.loads(run(*words, "-o", "json"))

    run("topic", "create", "shell", "--queues", "2")
    run("send", "shell", "--key-separator", "=", stdin="a=1\nb=1\na=2\n")
    rows = [json.loads(line) for line in run("tail", "shell", "-o", "json").splitlines()]
    assert sorted(row["body"] for row in rows) == ["1", "1", "2"]
    of_key = run("tail", "shell", "--key", "a", "--from", "beginning", "--body")
    assert of_key == "1\n2\n"
    assert [one["body"] for one in objects("message", "find", "shell", "--key", "a")] == ["1", "2"]
    run("group", "create", "shell-group")
    run("offset", "reset", "shell-group", "shell", "--to", "beginning", "--yes")
    assert objects("lag", "shell-group")["lag"] == 3
    assert "shell" in run("topic", "list")
    assert objects("topic", "describe", "shell")["messages"] == 3
    assert "V5" in run("cluster", "brokers")
    run("group", "delete", "shell-group", "-y")
    run("topic", "delete", "shell", "-y")


def test_names_are_suggested_on_rocketmq(namesrv: str) -> None:
    """A typo in a topic or a group is told with the nearest name."""

    def fails(*words: str) -> str:
        done = CliRunner().invoke(app, [*words, "--namesrv", namesrv])
        assert done.exit_code == 1, done.output
        return done.stderr

    assert CliRunner().invoke(app, ["topic", "create", "shop", "--namesrv", namesrv]).exit_code == 0
    made = CliRunner().invoke(app, ["group", "create", "counting", "--namesrv", namesrv])
    assert made.exit_code == 0
    assert "did you mean shop?" in fails("topic", "describe", "shpo")
    assert "did you mean counting?" in fails("lag", "countin")


@pytest.mark.parametrize("verb", ["send", "pull", "roundtrip"])
def test_rocketmq_is_measured(namesrv: str, verb: str) -> None:
    """`inorder bench` through the public client; the temporary topic is gone afterwards."""
    words = ["bench", verb, "--count", "500", "--size", "100", "--namesrv", namesrv]
    done = CliRunner().invoke(app, [*words, "-o", "json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["messages"], found["mean_bytes"]) == (500, 100)
    assert 0 < found["latency_ms"]["p50"] <= found["latency_ms"]["max"]
    listed = CliRunner().invoke(app, ["topic", "list", "--namesrv", namesrv])
    assert "inorder-bench" not in listed.stdout


def test_the_blocking_admin_operates_rocketmq(namesrv: str) -> None:
    """The same verbs from code that blocks."""
    with inorder.Admin(namesrv) as admin:
        admin.topics.create("blocking", queues=3)
        (config,) = admin.topics.configs("blocking").values()
        assert config.write_queues == 3
        admin.groups.create(GroupConfig("blocking-group"))
        assert "blocking-group" in admin.groups.names()
        admin.groups.delete("blocking-group")
        admin.topics.delete("blocking")


def test_rocketmq_by_tls(namesrv: str) -> None:
    """Its certificate is of its own making: refused, unless any is trusted."""
    done = CliRunner().invoke(app, ["cluster", "list", "--tls-insecure", "--namesrv", namesrv])
    assert done.exit_code == 0, done.output
    refused = CliRunner().invoke(app, ["cluster", "list", "--tls", "--namesrv", namesrv])
    assert refused.exit_code == 1
    assert "CERTIFICATE_VERIFY_FAILED" in refused.stderr
