"""Our consumer against Apache RocketMQ: ordered, without order, retried, and as a guest in a group
of Java consumers."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import inorder
from inorder.checker import Handled, HandledResult, Rules, Sent, Stored, check, queue_name
from inorder.cli.contents import app
from inorder.client.identity import local_ip
from tests.interop import toolchains
from tests.interop.driver import Driver
from tests.interop.rocketmq import is_routed, real_cluster
from tests.interop.toolchains import JAVA_5
from tests.kit.commands import CliRunner

pytestmark = [pytest.mark.interop, pytest.mark.slow]

QUEUES = 4
SECOND_LEVELS = " ".join(["1s"] * 18)


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run Apache RocketMQ's name server and broker; every delay level is a second there."""
    settings = {"messageDelayLevel": SECOND_LEVELS}
    with real_cluster(tmp_path_factory.mktemp("rocketmq"), settings=settings) as (host, port):
        yield f"{host}:{port}"


def make_topic(namesrv: str, name: str) -> None:
    host, _, port = namesrv.partition(":")
    wait(lambda: is_routed((host, int(port)), "TBW102"), "the broker is registered")
    done = CliRunner().invoke(
        app, ["topic", "create", name, "--queues", str(QUEUES), "--namesrv", namesrv]
    )
    assert done.exit_code == 0, done.output
    wait(lambda: is_routed((host, int(port)), name), f"a route of {name}")


def wait(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)


class Log:
    """What was sent and handled, for the order checker."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.handled: list[Handled] = []

    def send(self, namesrv: str, topic: str, count: int, first: int = 0) -> None:
        with inorder.Producer(namesrv) as producer:
            for number in range(first, first + count):
                key = f"key-{number % 11}"
                receipt = producer.send(topic, str(number).encode(), key=key, tag="A")
                self.sent.append(
                    Sent(
                        "p", key, number, receipt.message_id,
                        queue=queue_name(receipt.queue), offset=receipt.offset,
                    )
                )  # fmt: skip

    def handler(
        self, name: str, seconds: float = 0.002
    ) -> Callable[[inorder.ReceivedMessage], None]:
        def handle(message: inorder.ReceivedMessage) -> None:
            start_ns = time.monotonic_ns()
            time.sleep(seconds)
            self.handled.append(
                Handled(
                    name, queue_name(message.queue), message.offset, message.message_id,
                    message.key, start_ns, time.monotonic_ns(), HandledResult.DONE,
                )
            )  # fmt: skip

        return handle

    def ids(self) -> set[str]:
        return {event.id for event in self.handled}

    def judge(self, rules: Rules) -> None:
        stored = [
            Stored(one.queue or "", one.offset or 0, one.id, one.key, one.sequence)
            for one in self.sent
        ]
        report = check([*self.sent, *stored, *self.handled], rules=rules)
        assert report.ok, str(report)


def consumer_of(namesrv: str, group: str, **options) -> inorder.Consumer:
    return inorder.Consumer(namesrv, **{"group": group, "consume_from": "first", **options})


def test_ordered_with_failures(namesrv: str):
    """In order, one at a time, suspended by Retry, committed: as on our own broker."""
    make_topic(namesrv, "ours-ordered")
    log = Log()
    log.send(namesrv, "ours-ordered", 200)
    consumer = consumer_of(namesrv, "ours-ordered")
    handle = log.handler("a")
    failed: list[int] = []

    @consumer.on("ours-ordered")
    def fail_once(message: inorder.ReceivedMessage) -> None:
        if message.body == b"50" and message.attempt < 3:
            failed.append(message.attempt)
            raise inorder.Retry(after=0.05)
        handle(message)

    with consumer:
        wait(lambda: len(log.handled) == 200, "all is handled")
    assert failed == [1, 2]
    log.judge(Rules())
    assert sum(consumer.statistics().queues.values()) == 200
    with inorder.PullConsumer(namesrv, group="ours-ordered") as reader:
        queues = reader.queues("ours-ordered")
        assert sum(reader.committed(queue) or 0 for queue in queues) == 200


def test_two_of_ours_share_and_hand_over(namesrv: str):
    """Join and clean stop while messages flow: in order, each once (RocketMQ: 0 to 2 twice)."""
    make_topic(namesrv, "ours-shared")
    log = Log()
    consumers = [consumer_of(namesrv, "ours-shared", instance=name) for name in ("a", "b")]
    for name, consumer in zip("ab", consumers, strict=True):
        consumer.on("ours-shared")(log.handler(name))
    consumers[0].start()
    log.send(namesrv, "ours-shared", 100)
    consumers[1].start()
    wait(lambda: all(share(c, "ours-shared") == 2 for c in consumers), "two queues each")
    log.send(namesrv, "ours-shared", 100, first=100)
    consumers[0].close()
    log.send(namesrv, "ours-shared", 100, first=200)
    wait(lambda: len(log.ids()) == 300, "all is handled")
    consumers[1].close()
    log.judge(Rules())


def share(consumer: inorder.Consumer, topic: str) -> int:
    return sum(queue.topic == topic for queue in consumer.assignment())


def test_without_order_with_retries_and_dead_letters(namesrv: str):
    """Failed messages come back under their own topic; after two tries they are dead."""
    make_topic(namesrv, "ours-retry")
    consumer = consumer_of(namesrv, "ours-retry")
    got: list[tuple[str, bytes, int]] = []

    @consumer.on("ours-retry", order=None, on_failure=inorder.DeadLetter(attempts=1))
    def handle(message: inorder.ReceivedMessage) -> None:
        got.append((message.topic, message.body, message.attempt))
        if message.body == b"dead" or (message.body == b"once" and message.attempt == 1):
            raise ValueError(message.body)

    with inorder.Producer(namesrv) as producer:
        for body in (b"good", b"once", b"dead"):
            producer.send("ours-retry", body)
    with consumer:
        wait(lambda: len(got) == 5, "two came back", 90)
        wait(lambda: consumer.statistics().sent_back == 3, "the last is given up")
    assert sorted(got) == [
        ("ours-retry", b"dead", 1), ("ours-retry", b"dead", 2), ("ours-retry", b"good", 1),
        ("ours-retry", b"once", 1), ("ours-retry", b"once", 2),
    ]  # fmt: skip
    with inorder.PullConsumer(namesrv, group="reader") as reader:
        (queue,) = reader.queues("%DLQ%ours-retry", wait=30)
        (dead,) = reader.pull_all(queue)
    assert (dead.body, dead.properties["RETRY_TOPIC"]) == (b"dead", "ours-retry")


@contextmanager
def java(namesrv: str, folder: Path) -> Iterator[Driver]:
    try:
        command = toolchains.java(JAVA_5)()
    except toolchains.Lacking as lacking:
        pytest.skip(f"Java cannot run here: {lacking}")
    driver = Driver("java-5.3.3", command, namesrv, folder)
    try:
        yield driver
    finally:
        driver.end()


def test_rocketmqs_tools_see_our_consumer(namesrv: str, tmp_path: Path):
    """consumerStatus (307), a message consumed directly (309) and a reset of the offset reach it
    through Apache RocketMQ's broker."""
    topic = group = "ours-asked"
    make_topic(namesrv, topic)
    log = Log()
    log.send(namesrv, topic, 20)
    consumer = consumer_of(namesrv, group, instance="asked")
    consumer.on(topic)(log.handler("ours"))
    with java(namesrv, tmp_path) as driver, consumer:

        def admin(*words: str) -> str:
            events = driver.do("admin", args=",".join([*words, "-n", namesrv]))
            (text,) = [event.fields["text"] for event in events if event.kind == "output"]
            return base64.b64decode(text).decode()

        wait(lambda: len(log.handled) == 20, "all is handled")
        client_id = f"{local_ip()}@asked"
        shown = admin("consumerStatus", "-g", group, "-i", client_id)
        assert "PROP_CONSUMEORDERLY" in shown
        assert topic in shown
        first = log.sent[0]
        direct = admin(
            "queryMsgByUniqueKey", "-t", topic, "-i", first.id, "-g", group, "-d", client_id
        )
        assert "CR_SUCCESS" in direct
        wait(lambda: len(log.handled) == 21, "it was handled once more")
        admin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
        wait(lambda: len(log.handled) >= 41, "all is handled again", 60)
    assert log.ids() == {one.id for one in log.sent}


def test_a_guest_in_a_group_of_java_consumers(namesrv: str, tmp_path: Path):
    """Java and we agree on the allocation; each takes over from the other; none is lost, and first
    deliveries are in order."""
    topic = group = "ours-guest"
    make_topic(namesrv, topic)
    log = Log()
    with java(namesrv, tmp_path) as driver:
        driver.do("push", name="java", group=group, topic=topic, tags="*", mode="orderly")
        log.send(namesrv, topic, 50)

        def java_numbers() -> set[int]:
            return {message.number for message in driver.messages("got", "java")}

        ours_numbers = {}

        def all_numbers() -> set[int]:
            return java_numbers() | set(ours_numbers)

        consumer = consumer_of(namesrv, group)
        handle = log.handler("ours")

        @consumer.on(topic)
        def count(message: inorder.ReceivedMessage) -> None:
            handle(message)
            ours_numbers[int(message.body)] = message

        consumer.start()
        wait(lambda: share(consumer, topic) == QUEUES // 2, "half of the queues are ours", 90)
        log.send(namesrv, topic, 100, first=50)
        wait(lambda: all_numbers() >= set(range(50, 150)), "both handle their share")
        assert len(ours_numbers) > 20
        driver.do("stop", name="java")
        wait(lambda: share(consumer, topic) == QUEUES, "all queues are ours", 90)
        log.send(namesrv, topic, 50, first=150)
        wait(lambda: set(ours_numbers) >= set(range(150, 200)), "we go on alone")
        driver.do("push", name="java", group=group, topic=topic, tags="*", mode="orderly")
        wait(lambda: share(consumer, topic) == QUEUES // 2, "half of the queues are left", 90)
        consumer.close()
        log.send(namesrv, topic, 50, first=200)
        wait(lambda: java_numbers() >= set(range(200, 250)), "Java goes on alone", 90)
        for queue in range(QUEUES):
            offsets = [m.offset for m in driver.messages("got", "java") if m.queue == queue]
            assert offsets == sorted(offsets)
    for queue in {event.queue for event in log.handled}:
        offsets = [event.offset for event in log.handled if event.queue == queue]
        assert offsets == sorted(set(offsets))
