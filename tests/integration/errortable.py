"""What a user sees when something is wrong: each case is provoked, and the page is made of it.

`python -m tests.integration.errortable` writes docs/reference/errors.md; a test keeps it fresh.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

import inorder
import inorder.testing
from inorder.config import BrokerConfig, ClientConfig, StoreConfig
from inorder.errors import InorderError
from inorder.model import TopicQueue
from inorder.testing import RunningBroker

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"

HEAD = """\
# Errors of the client

Made by `python -m tests.integration.errortable`, which provokes each of them; do not edit.

All are in `inorder.errors` and derive from `inorder.InorderError`. Sends try again by themselves
inside of their `timeout` whenever the error is one that may pass (*retriable*); what is raised is
what was still wrong at the end. After an `OutcomeUnknown` of a send (`SendTimedOut` is one) nobody
knows whether the message is stored; after any other error it is not.

| what is wrong | class | retriable | what it says | way out |
|---|---|---|---|---|
"""

PATIENCE = 1.0
"""Long enough for one attempt on a busy machine. A second one, under way when the time is up, would
now and then make it another error: there is none."""
CLIENT = ClientConfig(request_timeout_ms=10_000, retry_first_ms=60_000, retry_max_ms=60_000)


@dataclass(frozen=True)
class Case:
    """Something that goes wrong, and what to do about it."""

    what: str
    provoke: Callable[[], None]
    way_out: str


def closed_port() -> str:
    """Return an address where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def send(namesrv: str, topic: str = "orders", body: bytes = b"x", **how: object) -> None:
    with inorder.Producer(namesrv, config=CLIENT) as producer:
        producer.send(topic, body, timeout=PATIENCE, **how)  # type: ignore[arg-type]


def running(**config: object) -> AbstractContextManager[RunningBroker]:
    return inorder.testing.broker(config=BrokerConfig(**config), client=CLIENT)  # type: ignore[arg-type]


def no_name_server() -> None:
    inorder.Producer("")


def wrong_host() -> None:
    send("no-such-host.invalid:9876")


def nobody_listens() -> None:
    send(closed_port())


def all_name_servers_down() -> None:
    with inorder.PullConsumer(
        f"{closed_port()};{closed_port()}", group="g", config=CLIENT
    ) as reader:
        reader.subscribe("orders")


def broker_down() -> None:
    with running() as broker, broker.producer() as producer:
        producer.send("orders", b"x", key="k")
        broker.kill()
        producer.send("orders", b"y", key="k", timeout=PATIENCE)


def broker_frozen() -> None:
    with running() as broker, broker.producer() as producer:
        producer.send("orders", b"x", key="k")
        broker.freeze()
        producer.send("orders", b"y", key="k", timeout=PATIENCE)


def unknown_topic() -> None:
    with running(auto_create_topics=False) as broker:
        send(broker.namesrv, "ordres")


def nothing_to_read() -> None:
    with running() as broker, broker.consumer() as consumer:
        consumer.subscribe("ordres")


def no_route() -> None:
    with running() as broker, broker.consumer() as consumer:
        broker.create_topic("orders")
        broker._call(broker._async._stop_broker)  # it tells the name server that it leaves
        consumer.subscribe("orders")


def unknown_group() -> None:
    with running() as broker, inorder.Admin(broker.namesrv) as admin:
        admin.groups.describe("biling")


def read_only_topic() -> None:
    with running() as broker:
        broker.create_topic("orders", perm=4)
        send(broker.namesrv)


def no_permission_to_read() -> None:
    with running() as broker, broker.consumer() as consumer:
        broker.create_topic("orders", perm=2)
        consumer.assign([TopicQueue("orders", "broker-a", 0)])
        consumer.poll(5)


def too_big() -> None:
    with running() as broker:
        send(broker.namesrv, body=bytes(4 * 1024 * 1024 + 1))


def too_big_for_the_broker() -> None:
    with running(store=StoreConfig(message_bytes_max=1000)) as broker:
        send(broker.namesrv, body=bytes(2000))


def bad_tags() -> None:
    with running() as broker, broker.consumer() as consumer:
        broker.create_topic("orders")
        consumer.subscribe("orders", "||")


def busy() -> None:
    with running(store=StoreConfig(pending_bytes_max=1)) as broker:
        send(broker.namesrv)


def delayed() -> None:
    with running() as broker:
        send(broker.namesrv, deliver_at=datetime(2030, 1, 1, tzinfo=UTC))


def park_without_keys() -> None:
    inorder.Consumer("127.0.0.1:1", group="billing").on(
        "orders", order="queue", on_failure=inorder.Park()
    )(print)


def park_on_rocketmq() -> None:
    with patch("inorder.wire.extensions.CAPABILITY", "stock"), running() as broker:
        send(broker.namesrv)
        consumer = inorder.Consumer(broker.namesrv, group="billing")
        consumer.on("orders", order="key", on_failure=inorder.Park())(print)
        try:
            consumer.start()
        finally:
            consumer.close()


def redrive_of_nothing() -> None:
    with running() as broker, inorder.Admin(broker.namesrv) as admin:
        admin.parked.redrive("billing", ["order-13"])


def after_close() -> None:
    with running() as broker, broker.producer() as producer:
        producer.close()
        producer.send("orders", b"x")


def mapped_topic() -> None:
    """Change the number of queues as RocketMQ does."""
    with running() as broker, inorder.Admin(broker.namesrv) as admin:
        admin.topics.create("orders", queues=4)
        admin.topics.update("orders", queues=8)


CASES = (
    Case("no name server given", no_name_server, "write `host:9876`, or set `NAMESRV_ADDR`"),
    Case("wrong host", wrong_host, "correct the name; `getent hosts NAME` shows it"),
    Case(
        "closed port", nobody_listens, "start the name server (`inorder up`), or correct the port"
    ),
    Case(
        "all name servers down",
        all_name_servers_down,
        "start one of them; known routes stay in use meanwhile",
    ),
    Case(
        "broker down",
        broker_down,
        "start it again; a send with a key waits for it as long as its `timeout`",
    ),
    Case(
        "broker does not answer",
        broker_frozen,
        "look at the broker; send again only if a second copy does no harm",
    ),
    Case(
        "send to an unknown topic",
        unknown_topic,
        "create it, correct its name, or let the broker make it (`auto_create_topics`)",
    ),
    Case("subscribe to an unknown topic", nothing_to_read, "create the topic, or send to it first"),
    Case("no route: the broker of the topic left", no_route, "start its broker again"),
    Case("unknown group", unknown_group, "create it, or correct its name (`inorder group list`)"),
    Case("no permission to write", read_only_topic, "give it write permission (perm 6)"),
    Case("no permission to read", no_permission_to_read, "give it read permission (perm 6)"),
    Case("message too big", too_big, "split it, or raise `message_bytes_max` of client and broker"),
    Case(
        "message too big for the broker",
        too_big_for_the_broker,
        "raise `store.message_bytes_max` of the broker",
    ),
    Case("bad tag expression", bad_tags, "write `*`, a tag, or `a \\|\\| b`"),
    Case("broker busy", busy, "send less at a time; sends try again by themselves"),
    Case("message for a time of day", delayed, "use `delay_level=`, or send it when it is due"),
    Case(
        "other queues for a topic with a key map",
        mapped_topic,
        "`inorder topic resize`, which keeps the order of keys",
    ),
    Case("`Park` without keys", park_without_keys, 'use `order="key"`, or another policy'),
    Case("`Park` on Apache RocketMQ", park_on_rocketmq, "use `DeadLetter` or `Block` there"),
    Case("redrive of a key that is not parked", redrive_of_nothing, "`inorder parked GROUP`"),
    Case("use after close", after_close, "make a new one"),
)


def outcome(case: Case) -> InorderError:
    """Provoke a case and return its error."""
    try:
        case.provoke()
    except InorderError as error:
        return error
    raise AssertionError(f"{case.what}: nothing went wrong")


def row(case: Case) -> str:
    """Return the line of a case."""
    error = outcome(case)
    name = type(error).__name__
    retriable = "yes" if error.retriable else "no"
    return f"| {case.what} | `{name}` | {retriable} | {shown(str(error))} | {case.way_out} |\n"


def shown(text: str) -> str:
    """Return a text without what differs from run to run."""
    text = re.sub(r"127\.0\.0\.1:\d+", "HOST:PORT", text)
    text = re.sub(r"\[Errno -?\d+\] [^;|]*?(?=;|$)", "(the reason, by the system)", text)
    text = re.sub(r"; the next attempt is in \d+ ms", "", text)
    text = re.sub(r"\d+ ms", "N ms", text)
    return text.replace("|", "\\|").replace("\n", " ")


def page() -> str:
    """Return the page."""
    return HEAD + "".join(map(row, CASES))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
