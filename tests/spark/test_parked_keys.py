"""Keys that `process_in_order` parks: once, in order, whatever is repeated; and back again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import inorder
from inorder.config import BrokerConfig
from inorder.errors import CodeNotSupported, UsageError
from inorder.model import Message, TopicQueue
from inorder.spark.cluster import Cluster
from inorder.spark.ordered import service as ordered_service
from inorder.spark.ordered.parking import ParkingFull, Reports
from inorder.testing import broker
from tests.spark.barequery import BareQuery, Killed

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("default")]

KEYS = 6


class Shop:
    """A topic of numbered messages of six keys, and a handler that fails for those that are bad."""

    def __init__(self, patch: pytest.MonkeyPatch, namesrv: str, folder: Path) -> None:
        self.patch, self.namesrv, self.folder = patch, namesrv, folder
        self.bad: set[int] = set()
        self.sent = 0
        self.tries: list[int] = []

    def fill(self, count: int) -> None:
        """Send messages, key by key in turn."""
        with inorder.Producer(self.namesrv) as producer:
            producer.send_batch(
                [Message("orders", b"%d" % at, key=f"k{at % KEYS}")
                 for at in range(self.sent, self.sent + count)]
            )  # fmt: skip
        self.sent += count

    def handler(self, message: Any, state: Any) -> Any:
        """Count a key's messages."""
        number = int(message.body)
        self.tries.append(number)
        if number in self.bad:
            raise ValueError(f"{number} is bad")
        seen = (state or 0) + 1
        return seen, [{"key": message.key, "body": f"{seen}:{number}"}]

    def query(self, attempts: int = 0, **more: Any) -> BareQuery:
        """Return a query over the topic."""
        return BareQuery(self.patch, self.namesrv, self.folder, self.handler,
                         on_failure=inorder.Park(attempts=attempts), **more)  # fmt: skip

    def check(self, query: BareQuery, *, without: tuple[str, ...] = ()) -> None:
        """Every message of every key has its row, once, in order, with the state before it."""
        for at in range(KEYS):
            if f"k{at}" not in without:
                numbers = range(at, self.sent, KEYS)
                expected = [f"{count}:{number}" for count, number in enumerate(numbers, 1)]
                assert query.bodies(f"k{at}") == expected

    def parked(self, key: str, group: str = "billing") -> list[int]:
        """Return the numbers that lie in the list of a key."""
        with inorder.Admin(self.namesrv) as admin:
            if key not in {one.key for one in admin.parked.list(group)}:
                return []
            return [int(message.body) for message in admin.parked.show(group, key, count=1000)]

    def redrive(self, *keys: str, group: str = "billing", **more: Any) -> None:
        """Ask for a redrive as an operator does."""
        with inorder.Admin(self.namesrv) as admin:
            admin.parked.redrive(group, keys, **more)


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch, namesrv: str, tmp_path: Path) -> Shop:
    return Shop(monkeypatch, namesrv, tmp_path)


def test_a_key_is_parked_once_and_comes_back_in_order(shop: Shop) -> None:
    """Each batch is run twice, the driver begins anew; then the key is redriven and goes live."""
    shop.fill(60)
    shop.bad = {14}
    query = shop.query()
    query.run(times=2)
    assert query.bodies("k2") == ["1:2", "2:8"]
    assert shop.parked("k2") == list(range(14, 60, KEYS))
    query.restart()
    shop.fill(60)
    query.run(times=2)
    assert shop.parked("k2") == list(range(14, 120, KEYS))
    shop.check(query, without=("k2",))
    with inorder.Admin(shop.namesrv) as admin:
        (one,) = admin.parked.list("billing")
        assert (one.key, one.messages, one.tries) == ("k2", 18, 1)
        assert one.first_error == "ValueError: 14 is bad"
    shop.bad.clear()
    shop.redrive("k2", rate=1000)
    shop.fill(30)
    query.run(times=2)
    shop.check(query)
    with inorder.Admin(shop.namesrv) as admin:
        assert admin.parked.list("billing") == []
    shop.fill(30)
    query.run()
    shop.check(query)
    assert {row["source_topic"] for row in query.rows.values()} == {"orders"}
    assert len({(row["source_queue"], row["source_offset"]) for row in query.rows.values()}) == 180


@pytest.mark.parametrize("told", [False, True])
def test_a_task_killed_beside_its_report_leaves_nothing_out(shop: Shop, told: bool) -> None:
    """Behind the decision: what is not told yet is told by the next, what is told is not twice."""
    real = Reports.carry_out

    def carry_out(self: Reports, queue: TopicQueue, version: Any) -> Any:
        if told:
            real(self, queue, version)
        raise Killed

    shop.fill(60)
    shop.bad = {14}
    query = shop.query()
    for _ in range(2):
        end = query.plan_batch()
        with shop.patch.context() as patch:
            patch.setattr(Reports, "carry_out", carry_out)
            with pytest.raises(Killed):
                query.attempt(end)
        shop.bad ^= {20}  # what is decided stays
        query.attempt(end)
        query.commit(end)
        if shop.parked("k2"):
            assert shop.parked("k2") == list(range(14, 60, KEYS))
            shop.bad.clear()
            shop.redrive("k2")
            shop.fill(30)
    shop.check(query)
    assert shop.parked("k2") == []


def test_what_waited_is_parked_below_the_groups_offset(shop: Shop) -> None:
    """A message that is tried again in a later batch is no longer above what the group has done."""
    clock = [0]
    shop.patch.setattr(ordered_service, "now_ms", lambda: clock[0])
    shop.fill(60)
    shop.bad = {14}
    query = shop.query(attempts=2, pause_ms=1000)
    query.run()
    assert shop.parked("k2") == []
    shop.fill(60)
    clock[0] += 1000
    query.run(times=2)
    assert shop.tries.count(14) == 2
    shop.fill(6)
    clock[0] += 1000
    query.run(times=2)
    assert shop.tries.count(14) == 3
    assert shop.parked("k2") == list(range(14, 126, KEYS))
    shop.bad.clear()
    shop.redrive("k2")
    shop.fill(6)
    query.run(times=2)
    shop.check(query)
    assert shop.parked("k2") == []


def test_a_redrive_that_fails_ends_with_the_new_error(shop: Shop) -> None:
    """What it handled is handled; the key stays parked, and its later messages join it."""
    shop.fill(60)
    shop.bad = {14, 26}
    query = shop.query()
    query.run()
    shop.bad = {26}
    shop.redrive("k2")
    shop.fill(30)
    query.run(times=2)
    assert query.bodies("k2")[-2:] == ["3:14", "4:20"]
    assert shop.parked("k2") == list(range(26, 90, KEYS))
    with inorder.Admin(shop.namesrv) as admin:
        (one,) = admin.parked.list("billing")
        assert (one.last_error, one.redriving) == ("ValueError: 26 is bad", False)
        admin.parked.drop("billing", ["k2"], reason="no such order", first=True)
    shop.redrive("k2")
    shop.fill(6)
    query.run()
    numbers = [int(body.split(":")[1]) for body in query.bodies("k2")]
    assert numbers == [number for number in range(2, 96, KEYS) if number != 26]


def test_messages_on_their_way_to_a_dropped_key_come_back(shop: Shop) -> None:
    """An operator drops it between the decision and the report: nothing is lost or overtaken."""
    shop.fill(60)
    shop.bad = {14}
    query = shop.query()
    query.run()
    shop.fill(30)
    real = Reports.carry_out

    def carry_out(self: Reports, queue: TopicQueue, version: Any) -> Any:
        with inorder.Admin(shop.namesrv) as admin:
            if admin.parked.list("billing"):
                admin.parked.drop("billing", ["k2"], reason="test data")
        return real(self, queue, version)

    with shop.patch.context() as patch:
        patch.setattr(Reports, "carry_out", carry_out)
        query.run()
    shop.bad.clear()
    shop.fill(6)
    query.run()
    numbers = [int(body.split(":")[1]) for body in query.bodies("k2")]
    assert numbers == [2, 8, *range(62, 96, KEYS)]


def test_parked_keys_move_with_a_resize(shop: Shop) -> None:
    """Their new queue parks what comes, and redrives the old list first."""
    with inorder.Admin(shop.namesrv) as admin:
        admin.topics.create("orders", queues=2)
    shop.fill(60)
    shop.bad = {14, 15}
    query = shop.query()
    query.run()
    with inorder.Admin(shop.namesrv) as admin:
        admin.topics.resize("orders", queues=5)
    shop.fill(60)
    query.restart()
    while query.run(times=2):
        pass
    assert shop.parked("k2") == list(range(14, 120, KEYS))
    assert shop.parked("k3") == list(range(15, 120, KEYS))
    shop.bad.clear()
    shop.redrive("k2", "k3")
    shop.fill(30)
    while query.run(times=2):
        pass
    shop.check(query)
    with inorder.Admin(shop.namesrv) as admin:
        assert admin.parked.list("billing") == []
    queues = {(row["source_queue"], row["source_offset"]) for row in query.rows.values()}
    assert len(queues) == 150


def test_parked_keys_stay_parked_whatever_the_policy(shop: Shop) -> None:
    """Of a run that parks none itself, and behind a resize; it redrives them, too."""
    with inorder.Admin(shop.namesrv) as admin:
        admin.topics.create("orders", queues=2)
        shop.fill(60)
        shop.bad = {14}
        query = shop.query()
        query.run()
        admin.topics.resize("orders", queues=5)
        shop.bad.clear()
        shop.fill(60)
        query.plan = replace(query.plan, limits=replace(query.plan.limits, parks=False))
        query.restart()  # else it looks for new queues every five seconds
        while query.run(times=2):
            pass
        assert shop.parked("k2") == list(range(14, 120, KEYS))
        shop.redrive("k2")
        shop.fill(30)
        while query.run(times=2):
            pass
        shop.check(query)
        assert admin.parked.list("billing") == []


def test_what_does_not_fit_together_is_refused(shop: Shop) -> None:
    """Brokers that cannot park, a consumer of the same group, a new query over old parked keys."""
    shop.fill(60)
    shop.bad = {14}
    real = Cluster.ask

    def ask(self: Cluster, queue: TopicQueue, request: Any, body: bytes = b"") -> Any:
        if type(request).__name__.startswith("Park"):
            raise CodeNotSupported("request type not supported")
        return real(self, queue, request, body)

    query = shop.query()
    with shop.patch.context() as patch:
        patch.setattr(Cluster, "ask", ask)
        with pytest.raises(UsageError, match="keeps no parked keys, as Apache RocketMQ does not"):
            query.run()
        assert shop.tries == []
        letters = BareQuery(shop.patch, shop.namesrv, shop.folder / "letters", shop.handler,
                            on_failure=inorder.DeadLetter(attempts=0), parks=False)  # fmt: skip
        assert letters.run() == 60
    shop.patch.undo()
    query = shop.query()
    query.run()
    again = Shop(shop.patch, shop.namesrv, shop.folder / "again")
    with pytest.raises(UsageError, match="give it a group of its own"):
        again.query().run()


def test_a_consumer_of_the_group_is_not_disturbed(shop: Shop) -> None:
    """Who owns a queue parks its keys; the query says so, and stops."""
    shop.fill(60)
    shop.bad = {14}
    handled = threading.Semaphore(0)
    consumer = inorder.Consumer(shop.namesrv, group="billing", consume_from="first")
    consumer.on("orders", order="key")(lambda message: handled.release())
    with consumer:
        for _ in range(60):
            assert handled.acquire(timeout=20)
        with pytest.raises(UsageError, match="only where no consumer does"):
            shop.query().run()
    assert shop.parked("k2") == []


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Shop]:
    """Return a shop whose broker parks one key and no more."""
    config = BrokerConfig(parked_keys_max=1)
    with broker(config=config) as running:
        yield Shop(monkeypatch, running.namesrv, tmp_path)


def test_without_room_a_key_blocks(small: Shop) -> None:
    """It waits, in order, and says why; other keys go on. With room it is parked."""
    small.fill(60)
    small.bad = {14, 15}
    query = small.query()
    query.run()
    parked = [key for key in ("k2", "k3") if small.parked(key)]
    assert len(parked) == 1
    small.check(query, without=("k2", "k3"))
    with inorder.Admin(small.namesrv) as admin:
        admin.parked.drop("billing", parked, reason="test data")
    small.fill(6)
    query.run()
    other = "k3" if parked == ["k2"] else "k2"
    at = int(other[1:])
    assert small.parked(other) == list(range(12 + at, 66, KEYS))


def test_what_is_decided_and_finds_no_room_stops_the_query(
    small: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what to do, and goes on when that is done."""
    from inorder.spark.ordered import parking

    monkeypatch.setattr(parking, "FULL_PAUSE_S", 0)
    small.fill(60)
    small.bad = {14, 15}
    query = small.query()
    end = query.plan_batch()
    with monkeypatch.context() as patch:
        patch.setattr(parking.Parker, "room", lambda self, queue: "")
        with pytest.raises(ParkingFull, match="parked_keys_max is 1"):
            query.attempt(end)
    with inorder.Admin(small.namesrv) as admin:
        (one,) = admin.parked.list("billing")
        admin.parked.drop("billing", [one.key], reason="test data")
    query.attempt(end)
    query.commit(end)
    other = "k3" if one.key == "k2" else "k2"
    assert small.parked(other) == list(range(12 + int(other[1:]), 60, KEYS))
    small.check(query, without=("k2", "k3"))
