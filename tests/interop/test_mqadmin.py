"""RocketMQ's own admin tool against our name server and broker.

It runs inside one JVM, one command after the other; each may wait 3 s for a thread of its own when
it ends, as it does against Apache RocketMQ.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Callable, Iterator

import pytest

import inorder
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
    settings = {"traceTopicEnable": "true"}
    with (
        Ours(settings=settings) as server,
        running(kind, server, tmp_path_factory.mktemp("mqadmin")) as client,
    ):
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


def test_stats_all_shows_what_came_in_and_went_out(client: Client, admin: Admin) -> None:
    """Messages of the last day of a topic, in and out, by group (315)."""
    topic = client.name("orders")
    (row,) = [words for words in rows(admin("statsAll", "-t", topic)) if words[0] == topic]
    assert row[1] == GROUP
    assert [int(row[-2]), int(row[-1])] == [MESSAGES, MESSAGES]


def test_broker_consume_stats_shows_every_group(client: Client, admin: Admin) -> None:
    """Topic, group, broker, queue, ends and lag of each queue with progress (317)."""
    topic, address = client.name("orders"), f"127.0.0.1:{client.server.address[1]}"
    shown = [w for w in rows(admin("brokerConsumeStats", "-b", address)) if w[0] == topic]
    end = str(MESSAGES // QUEUES)
    assert sorted(words[1:7] for words in shown) == [
        [GROUP, BROKER, str(queue), end, end, "0"] for queue in range(QUEUES)
    ]


def test_query_cq_shows_the_entries_of_a_queue(client: Client, admin: Admin) -> None:
    """Where the messages of a queue lie in the log (321)."""
    address = f"127.0.0.1:{client.server.address[1]}"
    words = ("-t", client.name("orders"), "-q", "1", "-i", "3", "-c", "2", "-b", address)
    text = admin("queryCq", *words)
    assert "Queue data:" in text, text
    assert len(re.findall(r"physicOffset", text)) == 2
    assert f"max: {MESSAGES // QUEUES}" in text or str(MESSAGES // QUEUES) in text


def test_cleaning_changes_nothing_that_is_needed(client: Client, admin: Admin) -> None:
    """Nothing has expired: all three verbs succeed and every message stays (306, 316, 329)."""
    address = f"127.0.0.1:{client.server.address[1]}"
    before = client.stored(client.name("orders"))
    for verb in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        assert "success" in admin(verb, "-b", address), verb
    assert client.stored(client.name("orders")) == before


def test_traces_of_our_clients_are_shown(client: Client, admin: Admin) -> None:
    """queryMsgTraceById finds the send and the handler of a message by its id."""
    namesrv, topic = f"127.0.0.1:{client.server.namesrv[1]}", client.topic("traced")
    consumer = inorder.Consumer(namesrv, group="traced_readers", consume_from="first", trace=True)
    done = threading.Event()

    @consumer.on(topic, order="queue")
    def handle(message: inorder.ReceivedMessage) -> None:
        done.set()

    with consumer, inorder.Producer(namesrv, group="traced_senders", trace=True) as producer:
        receipt = producer.send(topic, b"x", keys=["traced-1"])
        assert done.wait(30)
    text = admin("queryMsgTraceById", "-i", receipt.message_id)
    assert re.search(r"Pub +traced_senders .*success", text), text
    assert re.search(r"Sub +traced_readers .*success", text), text
