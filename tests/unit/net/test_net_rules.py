"""Buckets, meters and failed logins, by themselves."""

from __future__ import annotations

from copy import copy

from hypothesis import given
from hypothesis import strategies as st

from inorder.net.rules import (
    FAILURE_KEYS_MAX,
    PAUSE_MAX_MS,
    Bucket,
    Failures,
    Meters,
    Pause,
)

HOST = b"\x0a\x00\x00\x01"


def test_a_bucket_gives_a_second_at_once_then_its_rate() -> None:
    """Ten a second: ten at once, then one every 100 ms."""
    bucket = Bucket(10, 0)
    for _ in range(10):
        assert bucket.wait_ms(0) == 0
        bucket.take(1, 0)
    assert bucket.wait_ms(0) == 1
    assert bucket.wait_ms(1) == 0
    bucket.take(1, 1)
    assert bucket.wait_ms(1) == 100
    assert bucket.wait_ms(100) == 1
    assert bucket.wait_ms(101) == 0


def test_a_debt_is_paid_before_anything_is_taken() -> None:
    """What is larger than the limit is served once, and waited for afterwards."""
    bucket = Bucket(1000, 0)
    assert bucket.wait_ms(0) == 0
    bucket.take(5000, 0)
    assert bucket.wait_ms(0) == 4001
    assert bucket.wait_ms(3999) == 2
    assert not bucket.is_full(4500)
    assert bucket.is_full(5000)


@given(
    rate=st.integers(1, 1000),
    steps=st.lists(st.tuples(st.integers(0, 500), st.integers(1, 200)), max_size=60),
)
def test_no_schedule_takes_more_than_the_rate(rate: int, steps: list[tuple[int, int]]) -> None:
    """However it is asked: what was taken is at most a second's worth, the rate, and one step."""
    bucket, now_ms, taken = Bucket(rate, 0), 0, 0
    for pause_ms, amount in steps:
        now_ms += pause_ms
        wait_ms = bucket.wait_ms(now_ms)
        if wait_ms == 0:
            assert taken <= rate + rate * now_ms / 1000 + 1e-6
            bucket.take(amount, now_ms)
            taken += amount
        else:
            assert copy(bucket).wait_ms(now_ms + wait_ms) == 0


def test_time_that_goes_back_gives_nothing() -> None:
    """A clock that is set back neither fills nor empties a bucket."""
    bucket = Bucket(10, 1000)
    bucket.take(10, 1000)
    assert bucket.wait_ms(500) == 1
    assert bucket.wait_ms(1001) == 0


def test_connections_of_a_user_have_a_limit() -> None:
    """One too many is refused, and there is room again when one leaves."""
    meters: Meters[str] = Meters(requests_max=0, bytes_max=0, connections_max=2)
    assert meters.limits
    assert not meters.counts
    assert meters.join("a", 0) is not None
    assert meters.join("a", 0) is not None
    assert meters.join("a", 0) is None
    assert meters.join("b", 0) is not None
    meters.leave("a", 0)
    assert meters.join("a", 0) is not None
    for name in ("a", "a", "b"):
        meters.leave(name, 0)
    assert len(meters) == 0


def test_coming_back_does_not_pay_a_debt() -> None:
    """A meter outlives its connections until it is full again."""
    meters: Meters[bytes] = Meters(requests_max=10, bytes_max=1000)
    meter = meters.join(HOST, 0)
    assert meter is not None
    meter.take(1, 3000, 0)
    meters.leave(HOST, 0)
    again = meters.join(HOST, 100)
    assert again is meter
    assert again.wait_ms(100) == 1901
    meters.leave(HOST, 100)
    meters.forget_idle(2999)
    assert len(meters) == 1
    meters.forget_idle(3000)
    assert len(meters) == 0


def test_nothing_is_limited_by_zero() -> None:
    """The default: nobody joins."""
    meters: Meters[str] = Meters(requests_max=0, bytes_max=0)
    assert not meters.limits


def test_failed_logins_grow_slow_and_are_closed() -> None:
    """Ten are free, then 0.1 s, doubled, up to 5 s; whoever gets the longest pause is closed."""
    failures = Failures()
    found = [failures.failed(HOST, "alice", 0) for _ in range(20)]
    assert found[:10] == [Pause(0, close=False)] * 10
    delays = [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000, 5000]
    assert [one.delay_ms for one in found[10:]] == delays
    assert [one.close for one in found[10:]] == [delay == PAUSE_MAX_MS for delay in delays]
    totals = (failures.failed_total, failures.slowed_total, failures.closed_total)
    assert totals == (20, 10, 4)


def test_failures_are_forgotten_with_time() -> None:
    """Ten a minute stay free; a minute later nothing is left."""
    failures = Failures()
    for turn in range(100):
        assert failures.failed(HOST, "alice", turn * 6000).delay_ms == 0
    for _ in range(17):
        failures.failed(HOST, "alice", 600_000)
    assert failures.delay_ms(HOST, "alice", 600_000) == PAUSE_MAX_MS
    assert failures.delay_ms(HOST, "alice", 900_000) == 0


def test_failures_count_for_the_address_and_for_the_user() -> None:
    """One address that tries many names, and many addresses that try one, are both slow."""
    failures = Failures()
    for number in range(11):
        failures.failed(HOST, f"user-{number}", 0)
    assert failures.delay_ms(HOST, "somebody", 0) == 100
    assert failures.delay_ms(b"\x0a\x00\x00\x02", "user-1", 0) == 0
    for number in range(10, 21):
        failures.failed(bytes([10, 1, 0, number]), "alice", 0)
    assert failures.delay_ms(b"\x0a\x00\x00\x02", "alice", 0) == 100


def test_the_tables_of_failures_are_bounded() -> None:
    """Strangers push out those who failed longest ago, never the latest."""
    failures = Failures()
    for _ in range(20):
        failures.failed(HOST, "alice", 0)
    for number in range(FAILURE_KEYS_MAX + 5):
        failures.failed(number.to_bytes(4, "big"), f"u{number}", 1)
    assert len(failures) == 2 * FAILURE_KEYS_MAX
    assert failures.delay_ms(HOST, "alice", 1) == 0
