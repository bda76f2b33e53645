"""The Java client as a consumer that pops, on our broker and on Apache RocketMQ.

The broker balances (`setClientRebalance(false)`), and mqadmin says that the group pops.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.grounds import Ground
from tests.interop.rawclient import RawClient
from tests.interop.stock import BY_NAME, QUEUES, SETTLE_S, Client, running

pytestmark = [pytest.mark.interop, pytest.mark.slow]

JAVA = BY_NAME["java-5.3.3-json"]
QUERY_ASSIGNMENT = 400
INVISIBLE_MS = 6000
PATIENT_MS = 60_000
SENT = 400
AGAIN_S = 60
"""A message that failed is invisible for ten seconds; RocketMQ brings it back some time later."""


@pytest.fixture(scope="module", params=["inorder", "rocketmq"])
def ground(request: pytest.FixtureRequest) -> Iterator[Ground]:
    """Run a name server and a broker."""
    ground = Ground(request.param)
    yield ground
    ground.stop()


@pytest.fixture(scope="module")
def client(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Run one process for producers, tools and a consumer."""
    with running(JAVA, ground, tmp_path_factory.mktemp("pop")) as client:
        yield client


def popping(client: Client, purpose: str) -> tuple[str, str]:
    """Make a topic and a group that pops it; return both."""
    topic, group = client.topic(purpose), client.name(f"{purpose}_readers")
    with RawClient(client.server.address) as raw:
        raw.create_group(group)
    host, port = client.server.address
    _, namesrv_port = client.server.namesrv
    words = ["setConsumeMode", "-b", f"{host}:{port}", "-t", topic, "-g", group, "-m", "POP"]
    words += ["-q", "0", "-n", f"127.0.0.1:{namesrv_port}"]
    said = client.driver.do("admin", args=",".join(words))
    text = "".join(
        base64.b64decode(one.fields["text"]).decode() for one in said if one.kind == "output"
    )
    assert f"set consume mode to {host}:{port} success" in text, text
    assert f"topic[{topic}] group[{group}] consume mode[POP]" in text, text
    return topic, group


def test_mqadmin_sets_how_a_group_consumes(client: Client) -> None:
    """A member then learns that it shall pop, and from which queues; without it, pull (400)."""
    topic, group = popping(client, "modes")
    for asked, mode in ((group, "POP"), ("others", "PULL")):
        client.push(asked, topic, group=asked, pop_ms=INVISIBLE_MS)
        deadline, found = time.monotonic() + AGAIN_S, set[str]()
        while found != {mode}:
            assert time.monotonic() < deadline, (asked, found)
            time.sleep(0.2)
            found = modes(client, topic, asked)
        client.stop(asked)


def modes(client: Client, topic: str, group: str) -> set[str]:
    """Return how the members of a group are told to consume."""
    found = set()
    with RawClient(client.server.address) as raw:
        connections = json.loads(raw.request(203, {"consumerGroup": group}).body or b"{}")
        for member in connections.get("connectionSet", ()):
            body = {
                "clientId": member["clientId"], "consumerGroup": group, "topic": topic,
                "messageModel": "CLUSTERING", "strategyName": "AVG",
            }  # fmt: skip
            answer = raw.request(QUERY_ASSIGNMENT, body=json.dumps(body).encode())
            assert answer.code == 0, answer
            assignments = json.loads(answer.body)["messageQueueAssignments"] or ()
            found |= {one["mode"] for one in assignments}
    return found


def test_a_consumer_pops_everything(client: Client, ground: Ground) -> None:
    """Each message once; in the end everything is committed."""
    topic, group = popping(client, "all")
    client.push("all", topic, group=group, pop_ms=PATIENT_MS)
    client.produce(topic, 400)
    client.wait_got("all", 400)
    time.sleep(SETTLE_S)
    client.stop("all")
    assert sorted(client.got_numbers("all")) == list(range(400))
    if ground.name == "inorder":
        with RawClient(client.server.address) as raw:
            raw.wait_committed(group, topic, [100] * QUEUES)


def test_what_a_handler_refuses_comes_again_counted_up(client: Client) -> None:
    """Under its own topic, after the time that the client asked for; the others are not held up."""
    topic, group = popping(client, "refused")
    client.push("refused", topic, group=group, pop_ms=INVISIBLE_MS, refuse="7:1")
    client.produce(topic, 40)
    client.wait_got("refused", 40, timeout_s=AGAIN_S)
    client.stop("refused")
    got = client.driver.messages("got", "refused")
    assert sorted(message.number for message in got) == list(range(40))
    (first,) = client.driver.messages("refused", "refused")
    (again,) = [message for message in got if message.number == 7]
    assert (first.number, first.tries) == (7, 0)
    assert (again.tries, again.topic) == (1, topic)
    assert again.begin_us - first.end_us > 9_500_000


def test_what_a_killed_consumer_had_comes_to_the_other_one(
    client: Client, ground: Ground, tmp_path: Path
) -> None:
    """It had popped more than it handled; nothing of that is lost."""
    topic, group = popping(client, "killed")
    with running(JAVA, ground, tmp_path) as victim:
        victim.push("victim", topic, group=group, pop_ms=INVISIBLE_MS, work_ms=100)
        client.produce(topic, SENT)
        victim.driver.wait(
            lambda: len(victim.driver.messages("begun", "victim")) > 5, "what it begins"
        )
        client.push("survivor", topic, group=group, pop_ms=INVISIBLE_MS)
        victim.driver.kill()
        by_victim = {message.number for message in victim.driver.messages("got", "victim")}
    assert len(by_victim) < SENT

    def missing() -> set[int]:
        return set(range(SENT)) - by_victim - set(client.got_numbers("survivor"))

    deadline = time.monotonic() + AGAIN_S
    while missing():
        assert time.monotonic() < deadline, sorted(missing())[:20]
        time.sleep(0.1)
    client.stop("survivor")
