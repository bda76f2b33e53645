"""The key map agrees with Java's SelectMessageQueueByHash."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inorder.ordering.keymap import queue_for_key
from inorder.wire.javahash import java_hash


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
