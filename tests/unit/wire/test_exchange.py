"""Request ids, outstanding requests and deadlines."""

from __future__ import annotations

import pytest

from inorder.errors import TooManyOutstanding
from inorder.wire.exchange import REQUEST_ID_MAX, Exchange


def test_a_response_gets_its_token_once() -> None:
    """The first response takes the token, a second one with the same id is a stray."""
    exchange: Exchange[str] = Exchange(10)
    first, second = exchange.open("a", 100), exchange.open("b", 100)
    assert first != second
    assert exchange.take(second) == "b"
    assert exchange.take(second) is None
    assert exchange.take(first) == "a"
    assert len(exchange) == 0


def test_ids_start_at_one_and_wrap_around_those_in_flight() -> None:
    """Ids are never 0, and never one that still waits."""
    exchange: Exchange[str] = Exchange(10)
    assert exchange.open("oldest", 100) == 1
    exchange._last_id = REQUEST_ID_MAX
    assert exchange.next_id() == 2
    exchange._last_id = REQUEST_ID_MAX - 1
    assert exchange.open("last", 100) == REQUEST_ID_MAX
    assert exchange.open("wrapped", 100) == 2


def test_the_limit_refuses_and_keeps_what_is_there() -> None:
    """At outstanding_max a further request raises; after an answer there is room again."""
    exchange: Exchange[str] = Exchange(2)
    first = exchange.open("a", 100)
    exchange.open("b", 100)
    with pytest.raises(TooManyOutstanding, match="2 requests wait"):
        exchange.open("c", 100)
    assert exchange.take(first) == "a"
    exchange.open("c", 100)


def test_deadlines_expire_in_order_and_name_the_next() -> None:
    """What is due leaves the table; the next deadline is exact after that."""
    exchange: Exchange[str] = Exchange(10)
    assert exchange.next_deadline_ms is None
    exchange.open("late", 300)
    exchange.open("early", 100)
    exchange.open("due too", 200)
    assert exchange.next_deadline_ms == 100
    assert exchange.expire(99) == []
    assert exchange.expire(200) == ["early", "due too"]
    assert exchange.next_deadline_ms == 300
    assert exchange.expire(300) == ["late"]
    assert exchange.next_deadline_ms is None


def test_drain_returns_everybody() -> None:
    """When the connection is lost nobody is left waiting."""
    exchange: Exchange[str] = Exchange(10)
    exchange.open("a", 1)
    exchange.open("b", 2)
    assert exchange.drain() == ["a", "b"]
    assert len(exchange) == 0
    assert "outstanding=0/10" in repr(exchange)
