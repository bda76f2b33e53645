"""The key map agrees with Java's SelectMessageQueueByHash."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inorder.errors import RemoteProtocolError
from inorder.ordering.keymap import KeyMap, queue_for_key, version_of
from inorder.wire.ids import java_hash


def java_remainder(left: int, right: int) -> int:
    """Java's %, which truncates toward zero."""
    return left - right * int(left / right)


@given(st.text(max_size=20), st.integers(1, 64))
def test_the_queue_is_that_of_java(key: str, queues: int) -> None:
    """abs(hashCode() % n) with Java's remainder."""
    assert queue_for_key(key, queues) == abs(java_remainder(java_hash(key), queues))


@pytest.mark.parametrize(("queues", "queue"), [(1, 0), (3, 2), (4, 0), (7, 2), (2**31 - 1, 1)])
def test_the_smallest_hash_has_a_queue(queues: int, queue: int) -> None:
    """The hash of this text is Integer.MIN_VALUE, whose absolute value Java cannot hold."""
    assert java_hash("polygenelubricants") == -(2**31)
    assert queue_for_key("polygenelubricants", queues) == queue


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("order-42", (0, 0, 1, 0, 13)),
        ("order-0", (0, 0, 3, 0, 15)),
        ("order-7", (0, 2, 0, 0, 8)),
        ("支付", (0, 1, 1, 5, 9)),
        ("😀", (0, 1, 3, 2, 3)),
        ("payment-99991", (0, 2, 2, 1, 10)),
    ],
)
def test_queues_as_a_jvm_computed_them(key: str, expected: tuple[int, ...]) -> None:
    """Printed by a Java program that does what SelectMessageQueueByHash does."""
    assert tuple(queue_for_key(key, queues) for queues in (1, 3, 4, 7, 16)) == expected


def test_no_queue_is_an_error() -> None:
    """A topic without queues has no place for a key."""
    with pytest.raises(ValueError, match="at least one queue"):
        queue_for_key("a", 0)


def test_a_map_is_one_line_of_text() -> None:
    """Runs of queues, in RocketMQ's order; what attributes are separated by is encoded."""
    made = KeyMap.of(3, [("broker-b", 0), ("broker-a", 1), ("broker-a", 0), ("a,b=c/d:e", 7)])
    assert made.encode() == "3/a%2Cb%3Dc%2Fd%3Ae:7-7/broker-a:0-1/broker-b:0-0"
    assert KeyMap.decode(made.encode()) == made
    assert version_of(made.encode()) == 3


def test_a_map_gives_the_queue_of_a_key() -> None:
    """The function points into the list of all queues, whichever broker is up."""
    made = KeyMap.of(1, [(broker, index) for broker in ("a", "b") for index in range(4)])
    for key in ("order-1", "order-2", "Käse"):
        assert made.queue(key) == made.queues[queue_for_key(key, 8)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00/a:0-1",
        "x/a:0-1",
        "1",
        "1/",
        "1/a:0",
        "1/a:2-1",
        "1/a:-1-1",
        "1/a:0-1,b:0-1",
        "1/a:0-999999999",
        "1/a:0-262143/b:0-0",
        "01/a:0-1",
    ],
)
def test_what_is_no_map_is_refused(text: str) -> None:
    """Nor does a short text make a long list."""
    with pytest.raises(RemoteProtocolError):
        KeyMap.decode(text)


def test_a_map_has_a_version_and_queues() -> None:
    """Nothing is made that could not be read."""
    with pytest.raises(ValueError, match="no key map has version"):
        KeyMap(-1, (("a", 0),))
    with pytest.raises(ValueError, match="at least one queue"):
        KeyMap(1, ())
    assert version_of("garbage") == 0
