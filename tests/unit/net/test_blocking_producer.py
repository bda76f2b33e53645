"""A producer that blocks: hello, an older hello that is outbid, and the last number."""

from __future__ import annotations

from typing import Any

import pytest

from inorder.errors import ProducerStale
from inorder.net.blocking import BlockingProducer, Incarnations
from inorder.wire.requests.producers import ProducerHello, ProducerState, ProducerStateReply


class Broker:
    """The connection to a broker that knows incarnations below `highest`."""

    def __init__(self, highest: int = 0, last: int | None = None, *, grows: bool = False) -> None:
        self.asked: list[Any] = []
        self.highest = highest
        self.last = last
        self.grows = grows

    def ask(self, request: Any) -> Any:
        self.asked.append(request)
        if isinstance(request, ProducerHello):
            if request.incarnation <= self.highest:
                told = self.highest
                if self.grows:
                    self.highest += 1 << 60
                raise ProducerStale("stale", highest=told)
            return None
        known = self.last is not None
        return ProducerStateReply(known, 0, self.last if self.last is not None else -1)


def producer(broker: Any, bits: int = 12) -> BlockingProducer:
    return BlockingProducer(broker, "sink", Incarnations(bits, lambda: 1000), named=True)


@pytest.mark.parametrize("bits", [12, 20])
def test_incarnations_ascend_while_the_clock_stands_still(bits: int) -> None:
    """The time is above the bits that count; a broker's higher one is passed."""
    incarnations = Incarnations(bits, lambda: 1000)
    first = incarnations.next()
    assert first >> bits == 1000
    assert incarnations.next() == first + 1
    assert incarnations.next(1 << 60) == (1 << 60) + 1
    assert incarnations.next() == (1 << 60) + 2


def test_hello_is_said_once() -> None:
    """The second call does nothing."""
    broker = Broker()
    made = producer(broker)
    made.hello()
    made.hello()
    assert [type(request) for request in broker.asked] == [ProducerHello]
    assert broker.asked[0].named


def test_an_older_hello_is_outbid_once() -> None:
    """Its incarnation was higher: another machine's clock, or a clock that was set back."""
    broker = Broker(highest=1 << 60)
    producer(broker).hello()
    assert broker.asked[-1].incarnation == (1 << 60) + 1


def test_two_that_outbid_each_other_do_not_go_on_for_ever() -> None:
    """The second refusal is raised, and the next call says hello again."""
    broker = Broker(highest=1 << 60, grows=True)
    made = producer(broker)
    with pytest.raises(ProducerStale):
        made.hello()
    assert len(broker.asked) == 2
    broker.grows = False
    made.hello()
    assert len(broker.asked) == 4


@pytest.mark.parametrize(("last", "found"), [(None, -1), (7, 7)])
def test_the_last_number_is_asked_once(last: int | None, found: int) -> None:
    """Afterwards the producer itself knows it."""
    broker = Broker(last=last)
    made = producer(broker)
    assert [made.find_last("orders", 3), made.find_last("orders", 3)] == [found, found]
    assert broker.asked == [ProducerState("sink", "orders", 3)]
    made.last["orders", 3] = 9
    assert made.find_last("orders", 3) == 9
