"""The blocking consumer's races: handlers that send, and closes from everywhere, threads switching
all the time. `INORDER_STOPS=200` makes 200 rounds of each."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import inorder
import inorder.testing
from inorder.errors import AlreadyClosed
from inorder.testing import RunningBroker

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("INORDER_STOPS", "4"))
MESSAGES = 2000
JOIN_S = 60


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with inorder.testing.broker() as running:
        running.create_topic("orders", queues=4)
        running.create_topic("shipped", queues=4)
        with running.producer() as producer:
            producer.send_batch(
                [inorder.Message("orders", b"%d" % n, key=f"k{n % 31}") for n in range(MESSAGES)]
            )
        yield running


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    """Let threads switch after every few lines."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Story:
    """One consumer whose handler sends, and what it did."""

    def __init__(self, broker: RunningBroker, group: str, producer: inorder.Producer) -> None:
        self.lock = threading.Lock()
        self.begun = self.ended = 0
        self.stop_at = -1
        self.consumer = inorder.Consumer(broker.namesrv, group=group, consume_from="first")
        self.seen: list[tuple[int, int]] = []

        @self.consumer.on("orders", order=random.choice(("queue", None)), concurrency=4)
        def handle(message: inorder.ReceivedMessage) -> None:
            with self.lock:
                self.begun += 1
                stops = self.begun == self.stop_at
            if message.offset % 2:
                producer.send("shipped", message.body, key=message.key)
            else:
                producer.send_nowait("shipped", message.body, key=message.key)
            if stops:
                self.consumer.close()
            with self.lock:
                self.ended += 1

    def close(self) -> None:
        """Close, and note what was so when that returned."""
        self.consumer.close()
        with self.lock:
            self.seen.append((self.begun, self.ended))


def by_main(story: Story, moment: Callable[[], None]) -> None:
    story.consumer.start()
    moment()
    story.close()


def by_many(story: Story, moment: Callable[[], None]) -> None:
    story.consumer.start()
    moment()
    closers = [threading.Thread(target=story.close) for _ in range(4)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(JOIN_S)
        assert not closer.is_alive()
    story.close()


def by_a_handler(story: Story, moment: Callable[[], None]) -> None:
    story.stop_at = random.randrange(1, 60)
    runner = threading.Thread(target=story.consumer.run)
    runner.start()
    runner.join(JOIN_S)
    assert not runner.is_alive()
    story.close()


def while_it_starts(story: Story, moment: Callable[[], None]) -> None:
    def run() -> None:
        try:
            story.consumer.run()
        except AlreadyClosed:
            pass  # it had not begun

    runner = threading.Thread(target=run)
    runner.start()
    time.sleep(random.uniform(0, 0.02))
    story.close()
    runner.join(JOIN_S)
    assert not runner.is_alive()


@pytest.mark.parametrize("who", [by_main, by_many, by_a_handler, while_it_starts])
def test_whoever_closes_finds_all_ended_and_committed(
    broker: RunningBroker, who: Callable[[Story, Callable[[], None]], None]
) -> None:
    """Every close that returned saw what began ended; the group's offsets are what was done."""
    for round_ in range(ROUNDS):
        random.seed(f"{who.__name__} {round_}")
        group = f"{who.__name__}-{round_}"
        with broker.producer() as producer:
            story = Story(broker, group, producer)
            who(story, lambda: time.sleep(random.uniform(0, 0.15)))
            producer.flush()
        assert all(begun == ended == story.ended for begun, ended in story.seen), story.seen
        with inorder.Admin(broker.namesrv) as admin:
            offsets = admin.offsets.get(group, "orders")
        committed = sum(each.committed_offset or 0 for each in offsets)
        assert committed == story.ended, (group, committed, story.seen)
