"""What handlers say and what policies mean."""

from __future__ import annotations

from datetime import timedelta

import pytest

from inorder.client.consume.rules.outcomes import (
    ATTEMPTS_MAX,
    Block,
    DeadLetter,
    Handled,
    Park,
    Policy,
    Retry,
    check_policy,
    default_policy,
    redeliveries_max,
)
from inorder.errors import UsageError


@pytest.mark.parametrize(
    ("policy", "attempts"),
    [
        (Block(), ATTEMPTS_MAX),
        (Block(attempts=3), 3),
        (DeadLetter(), 16),
        (DeadLetter(attempts=0), 0),
        (Park(), 5),
    ],
)
def test_attempts_are_rocketmqs_max_reconsume_times(policy: Policy, attempts: int) -> None:
    """How often a message is handed out again; Block() is RocketMQ's -1."""
    assert redeliveries_max(policy) == attempts


def test_defaults_are_rocketmqs() -> None:
    """An ordered queue waits for ever; concurrent messages have 16 further tries."""
    assert default_policy("queue") == Block()
    assert default_policy(None) == DeadLetter(16)


@pytest.mark.parametrize("order", ["queue", None])
def test_park_needs_keys(order: str | None) -> None:
    """Elsewhere it is refused, with what to use instead."""
    with pytest.raises(UsageError, match=r"order='key', or DeadLetter"):
        check_policy(Park(), order)
    check_policy(Park(attempts=0), "key")


def test_block_needs_something_to_hold() -> None:
    """order=None with Block says that nothing follows."""
    with pytest.raises(UsageError, match="order=None"):
        check_policy(Block(), None)
    check_policy(Block(), "queue")
    check_policy(DeadLetter(), None)


@pytest.mark.parametrize("attempts", [-1, 2**31])
def test_attempts_are_a_count(attempts: int) -> None:
    """None, not -1, stands for "for ever"."""
    with pytest.raises(UsageError):
        Block(attempts)
    with pytest.raises(UsageError):
        DeadLetter(attempts)


@pytest.mark.parametrize(
    ("after", "after_ms"), [(None, None), (0, 0), (30, 30_000), (timedelta(minutes=1), 60_000)]
)
def test_retry_takes_seconds(after: float | timedelta | None, after_ms: int | None) -> None:
    """Or a timedelta; nothing means the consumer's default."""
    assert Retry(after).after_ms == after_ms


def test_wishes_that_make_no_sense_are_refused() -> None:
    """A negative pause, a negative count."""
    with pytest.raises(UsageError):
        Retry(after=-1)
    with pytest.raises(UsageError):
        Handled(-1)
