"""RocketMQ's own admin tool against our name server and broker.

It runs inside one JVM, one command after the other; each may wait 3 s for a thread of its own when
it ends, as it does against Apache RocketMQ.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator

import pytest

from bench.systems import Ours
from tests.interop.stock import KINDS, QUEUES, Client, running

pytestmark = [pytest.mark.interop, pytest.mark.slow]

MESSAGES = 100
GROUP = "readers"
BROKER = "broker-a"
Admin = Callable[..., str]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Run a broker and a Java client, which has sent and read something."""
    kind = next(kind for kind in KINDS if kind.name == "java-5.3.3-json")
    with Ours() as server, running(kind, server, tmp_path_factory.mktemp("mqadmin")) as client:
        topic = client.topic("orders")
        client.produce(topic, MESSAGES)
        client.push("reader", topic, group=GROUP)
        client.wait_got("reader", MESSAGES)
        yield client


@pytest.fixture(scope="module")
def admin(client: Client) -> Admin:
    """Return a function that runs one command and returns what it printed."""

    def run(*words: str) -> str:
        namesrv = f"127.0.0.1:{client.server.namesrv[1]}"
        events = client.driver.do("admin", args=",".join([*words, "-n", namesrv]))
        (text,) = [event.fields["text"] for event in events if event.kind == "output"]
        return base64.b64decode(text).decode()

    return run


def rows(text: str) -> list[list[str]]:
    """Return the words of each line that is not a heading."""
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return [words for words in lines if words]


def test_cluster_list_shows_the_broker(client: Client, admin: Admin) -> None:
    """Cluster, name, id, address and version stand in the first columns."""
    address = f"127.0.0.1:{client.server.address[1]}"
    row = ["DefaultCluster", BROKER, "0", address, "V5_3_3"]
    assert [words[:5] for words in rows(admin("clusterList"))] == [row]


def test_topics_are_made_listed_routed_and_deleted(client: Client, admin: Admin) -> None:
    """updateTopic, topicList, topicRoute and deleteTopic agree with each other."""
    made = admin("updateTopic", "-c", "DefaultCluster", "-t", "made", "-r", "3", "-w", "3")
    assert "create topic to" in made
    assert "made" in admin("topicList").split()
    text = re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', admin("topicRoute", "-t", "made"))
    route = json.loads(text)
    assert [(q["brokerName"], q["readQueueNums"], q["perm"]) for q in route["queueDatas"]] == [
        (BROKER, 3, 6)
    ]
    address = f"127.0.0.1:{client.server.address[1]}"
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": address}
    assert "from NameServer success" in admin("deleteTopic", "-c", "DefaultCluster", "-t", "made")
    assert "made" not in admin("topicList").split()


def test_topic_status_shows_the_ends_of_each_queue(client: Client, admin: Admin) -> None:
    """Each queue goes from 0 to its number of messages."""
    shown = rows(admin("topicStatus", "-t", client.name("orders")))
    end = str(MESSAGES // QUEUES)
    assert [w[:4] for w in shown if w[0] == BROKER] == [
        [BROKER, str(queue), "0", end] for queue in range(QUEUES)
    ]


def test_consumer_progress_shows_offset_and_lag(client: Client, admin: Admin) -> None:
    """A group that has read everything stands at the end of each queue once it has committed."""
    client.stop("reader")
    topic = client.name("orders")
    shown = [w for w in rows(admin("consumerProgress", "-g", GROUP)) if w[0] == topic]
    end = str(MESSAGES // QUEUES)
    assert [w[1:6] for w in shown] == [
        [BROKER, str(queue), end, end, "0"] for queue in range(QUEUES)
    ]
    assert GROUP in [words[0] for words in rows(admin("consumerProgress"))]


def test_messages_are_found_by_key_id_unique_key_and_offset(client: Client, admin: Admin) -> None:
    """Four ways lead to the same message."""
    topic, sent = client.name("orders"), client.driver.said("sent")[7]
    found = rows(admin("queryMsgByKey", "-t", topic, "-k", "key-7"))
    assert found == [[sent["unique"], "3", "1"]]
    place = ("-b", BROKER, "-i", "3", "-o", "1")
    for words in (
        ("queryMsgById", "-t", topic, "-i", sent["id"]),
        ("queryMsgByUniqueKey", "-t", topic, "-i", sent["unique"]),
        ("queryMsgByOffset", "-t", topic, *place),
    ):
        text = admin(*words)
        assert re.search(r"Keys: +\[key-7\]", text), words
        assert re.search(r"Queue ID: +3\n", text), words
        assert re.search(r"Queue Offset: +1\n", text), words
