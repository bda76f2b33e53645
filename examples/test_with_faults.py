"""Tests of your own code with a real broker that fails on demand: the fixture `inorder_broker`.

    pip install pytest inorder
    pytest examples/test_with_faults.py

A broker starts in about ten milliseconds, inside the test. `place_order` and `Warehouse` stand for
your code: nothing in them knows of the tests.
"""

from __future__ import annotations

import threading

import inorder
from inorder.errors import SendsFailed
from inorder.testing import Sent, check

STEPS = ("created", "paid", "shipped")


def place_order(producer: inorder.Producer, order: str) -> list[inorder.SendReceipt]:
    """Send the steps of an order (your code)."""
    return [producer.send("orders", step.encode(), key=order) for step in STEPS]


class Warehouse:
    """Collects the steps of each order (your code)."""

    def __init__(self, namesrv: str) -> None:
        self.orders: dict[str, list[str]] = {}
        self.fails = threading.Event()
        self.consumer = inorder.Consumer(namesrv, group="warehouse", consume_from="first")
        self.consumer.on("orders", order="key", on_failure=inorder.Park(attempts=0))(self.pack)

    def pack(self, message: inorder.ReceivedMessage) -> None:
        if message.key == "order-13" and self.fails.is_set():
            raise ValueError("no such shelf")
        self.orders.setdefault(message.key, []).append(message.body.decode())


def wait_until(condition, seconds=10.0):
    """Wait for something that other threads do."""
    pause = threading.Event()
    for _ in range(round(seconds / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not happen in time")


def test_a_lost_answer_stores_nothing_twice(inorder_broker):
    """The broker stores the message and the answer is lost: the producer asks, and goes on."""
    with inorder_broker.producer() as producer:
        inorder_broker.lose_answers(2)
        receipts = place_order(producer, "order-1")
    assert [m.body.decode() for m in inorder_broker.messages("orders")] == list(STEPS)
    assert [receipt.offset for receipt in receipts] == [0, 1, 2]


def test_an_order_outlives_its_broker(inorder_broker):
    """The broker is killed between two sends and started again: all is there, in order."""
    with inorder_broker.producer() as producer:
        producer.send("orders", b"created", key="order-1")
        inorder_broker.kill()  # like kill -9
        paid = producer.send_nowait("orders", b"paid", key="order-1")
        inorder_broker.restart()
        paid.result(timeout=10)
    assert [m.body for m in inorder_broker.messages("orders")] == [b"created", b"paid"]


def test_a_broker_that_stays_away_is_reported(inorder_broker):
    """Nobody is told that a message is stored if it is not."""
    inorder_broker.create_topic("orders")
    producer = inorder_broker.producer()
    inorder_broker.kill()
    future = producer.send_nowait("orders", b"created", key="order-1", timeout=0.3)
    assert future.exception(timeout=10) is not None
    try:
        producer.close()
    except SendsFailed:
        pass  # it says so again, if nobody has read the future


def test_a_bad_order_is_parked_and_the_others_go_on(inorder_broker):
    """One order fails, waits in order, and is redriven after the repair."""
    warehouse = Warehouse(inorder_broker.namesrv)
    warehouse.fails.set()
    with inorder_broker.producer() as producer, warehouse.consumer:
        for order in ("order-12", "order-13", "order-14"):
            place_order(producer, order)
        wait_until(lambda: warehouse.consumer.statistics().parked == 3)
        wait_until(lambda: len(warehouse.orders.get("order-14", [])) == 3)
        assert set(warehouse.orders) == {"order-12", "order-14"}
        warehouse.fails.clear()  # the repair
        with inorder.Admin(inorder_broker.namesrv) as admin:
            admin.parked.redrive("warehouse", ["order-13"])
            wait_until(lambda: not admin.parked.list("warehouse"))
    assert warehouse.orders["order-13"] == list(STEPS)


def test_nothing_overtakes(inorder_broker):
    """The order checker compares what was sent with what is stored, over faults of all kinds."""
    sent = []
    with inorder_broker.producer() as producer:
        for number in range(60):
            if number % 20 == 10:
                inorder_broker.close_connections()
            key = f"order-{number % 7}"
            receipt = producer.send("orders", b"step", key=key)
            sent.append(Sent("shop", key, number, receipt.message_id))
    report = check([*sent, *inorder_broker.stored("orders")])
    assert report.ok, report
