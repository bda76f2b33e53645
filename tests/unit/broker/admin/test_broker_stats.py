"""Counters, rates and totals by day."""

from __future__ import annotations

import pytest

from inorder.broker.admin.rules import DAY_MS, BrokerStats


def test_rates_over_three_windows() -> None:
    """Each rate looks back over its own window, or to the start if that is nearer."""
    stats = BrokerStats(monotonic_ms=0, now_ms=0)
    assert str(stats.put_rates(0)) == "0.0 0.0 0.0"
    for second in range(1, 121):
        stats.put_messages += 10 if second <= 60 else 100
        stats.sample(second * 1000, second * 1000)
    rates = stats.put_rates(120_000)
    assert rates.ten_seconds == pytest.approx(100)
    assert rates.minute == pytest.approx(100)
    assert rates.ten_minutes == pytest.approx(55)


def test_samples_are_bounded() -> None:
    """Ten minutes are remembered and no more."""
    stats = BrokerStats(monotonic_ms=0, now_ms=0)
    for second in range(3000):
        stats.sample(second * 1000, 0)
    assert len(stats._samples) <= 602


def test_totals_by_day() -> None:
    """At midnight the totals so far become this morning's, and this morning's yesterday's."""
    stats = BrokerStats(monotonic_ms=0, now_ms=DAY_MS - 1000)
    stats.put_messages = 5
    stats.sample(1000, DAY_MS)
    stats.put_messages = 9
    stats.get_messages = 2
    stats.sample(2000, 2 * DAY_MS)
    stats.put_messages = 10
    assert stats.day_totals() == {
        "msgPutTotalYesterdayMorning": 5,
        "msgPutTotalTodayMorning": 9,
        "msgPutTotalTodayNow": 10,
        "msgGetTotalYesterdayMorning": 0,
        "msgGetTotalTodayMorning": 2,
        "msgGetTotalTodayNow": 2,
    }


def test_rates_add_up() -> None:
    """Found and missed pulls together are all pulls."""
    stats = BrokerStats(monotonic_ms=0, now_ms=0)
    stats.pulls_found, stats.pulls_missed = 20, 30
    total = stats.found_rates(10_000) + stats.missed_rates(10_000)
    assert total.ten_seconds == pytest.approx(5)
