"""Stock clients against our broker: each writes a thousand messages in order and reads them back.

What is stored is read over a socket and split by hand, not by a client library and not by inorder.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.systems import Ours
from tests.interop.driver import Message, by_queue
from tests.interop.rawclient import RawClient
from tests.interop.stock import KINDS, PATIENCE_S, QUEUES, SETTLE_S, Client, Kind, as_sent, running

pytestmark = [pytest.mark.interop, pytest.mark.slow]

MESSAGES = 1000
PROBES_FROM = 1_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[Ours]:
    """Run one `inorder up` for all clients."""
    with Ours() as ours:
        yield ours


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.name)
def client(
    request: pytest.FixtureRequest, server: Ours, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    """Run one process per client: a JVM starts once for all its tests."""
    kind: Kind = request.param
    directory: Path = tmp_path_factory.mktemp(kind.name)
    with running(kind, server, directory) as client:
        yield client


@pytest.fixture(scope="module")
def orders(client: Client) -> str:
    """Let the client send a thousand numbers over four queues; return the topic."""
    topic = client.topic("orders")
    client.produce(topic, MESSAGES)
    return topic


def test_what_a_client_sends_is_stored_once_and_in_order(client: Client, orders: str) -> None:
    """The broker holds each message once, in its queue, in order; the client was told where."""
    assert client.stored(orders) == as_sent(0, MESSAGES)
    told = [(m.number, m.queue, m.offset) for m in client.driver.messages("sent")[:MESSAGES]]
    assert told == [(n, n % QUEUES, n // QUEUES) for n in range(MESSAGES)]


def test_push_reads_everything_once_and_in_order(client: Client, orders: str) -> None:
    """A new group gets every message once, each queue in order."""
    client.push("reader", orders, group=client.name("readers"))
    client.wait_got("reader", MESSAGES)
    client.stop("reader")
    check_read(client.driver.messages("got", "reader"))


def test_pull_reads_everything_once_and_in_order(client: Client, orders: str) -> None:
    """The client's pull consumers read every queue from its first offset to its end."""
    if not client.kind.pulls:
        pytest.skip(f"{client.kind.name} has no pull consumer")
    for verb in client.kind.pulls:
        before = len(client.driver.messages("pulled"))
        options = {"count": MESSAGES} if verb == "litepull" else {}
        client.driver.do(verb, topic=orders, group=client.name(verb), **options)
        check_read(client.driver.messages("pulled")[before:])


def check_read(messages: list[Message]) -> None:
    """Every number once, at its place, each queue in order."""
    assert by_queue(messages) == as_sent(0, MESSAGES)
    assert all(m.offset == m.number // QUEUES for m in messages)


def test_a_tag_filter_lets_through_its_tags_only(client: Client) -> None:
    """Two of three tags are subscribed; the third is never shown."""
    topic = client.topic("tagged")
    client.produce(topic, 120, tags="paid,packed,sent")
    client.push("tags", topic, group=client.name("tags"), tags="paid,sent")
    wanted = [n for n in range(120) if n % 3 != 1]
    client.wait_got("tags", len(wanted))
    client.stop("tags")
    messages = client.driver.messages("got", "tags")
    assert sorted(m.number for m in messages) == wanted
    assert {m.tag for m in messages} == {"paid", "sent"}


def test_broadcasting_shows_everything_to_every_member(client: Client) -> None:
    """Two members of one group in broadcasting mode get each message both, in order."""
    topic, names = client.topic("news"), ("here", "there")
    for name in names:
        client.push(name, topic, group=client.name("news"), mode="broadcast")
    first = PROBES_FROM
    with RawClient(client.server.address) as raw:
        deadline = time.monotonic() + PATIENCE_S
        # The C++ client has no setting for it and starts at the end of a queue: wait for it there.
        while any(len(queues_seen(client, name)) < QUEUES for name in names):
            assert time.monotonic() < deadline, {n: queues_seen(client, n) for n in names}
            for queue in range(QUEUES):
                raw.send_message(topic, queue, str(first + queue).encode(), {"TAGS": "probe"})
            first += QUEUES
            time.sleep(0.25)
    client.produce(topic, 100)
    for name in names:
        wait_for_news(client, name, 100)
        client.stop(name)
        assert by_queue(news(client, name)) == as_sent(0, 100)


def wait_for_news(client: Client, name: str, count: int) -> None:
    """Wait until a consumer has got so many besides probes."""
    client.driver.wait(lambda: len(news(client, name)) >= count, f"news for {name}")


def queues_seen(client: Client, name: str) -> set[int]:
    """Return the queues from which a consumer got something."""
    return {message.queue for message in client.driver.messages("got", name)}


def news(client: Client, name: str) -> list[Message]:
    """Return what a consumer got besides probes."""
    return [m for m in client.driver.messages("got", name) if m.number < PROBES_FROM]


def test_a_restarted_consumer_goes_on_where_it_committed(client: Client) -> None:
    """What was handled before a clean stop does not come again, what came meanwhile does."""
    topic, group = client.topic("resumed"), client.name("resumed")
    client.produce(topic, 100)
    client.push("before", topic, group=group)
    client.wait_got("before", 100)
    time.sleep(SETTLE_S)
    client.stop("before")
    with RawClient(client.server.address) as raw:
        raw.wait_committed(group, topic, [25] * QUEUES)
    client.produce(topic, 100, first=100)
    client.push("after", topic, group=group)
    client.wait_got("after", 100)
    client.stop("after")
    assert by_queue(client.driver.messages("got", "after")) == as_sent(100, 100)


def test_messages_are_found_by_key_and_by_both_ids(client: Client, orders: str) -> None:
    """Look-ups of the Java client: by key, by the unique id, by the id of the place in the log."""
    if not client.kind.looks_up:
        pytest.skip(f"the driver of {client.kind.name} has no look-up")
    sent = client.driver.said("sent")[7]
    for verb, name, value in (
        ("query", "key", "key-7"),
        ("view", "id", sent["id"]),
        ("view", "id", sent["unique"]),
    ):
        before = len(client.driver.messages("found"))
        client.driver.do(verb, **{"topic": orders, name: value})  # type: ignore[arg-type]
        assert client.driver.messages("found")[before:] == [Message(7, 3, 1)], (verb, value)
