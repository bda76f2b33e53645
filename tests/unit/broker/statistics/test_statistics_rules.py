"""Deliveries in windows of time, and the lowest offsets of groups."""

from __future__ import annotations

import pytest

from inorder.broker.statistics.rules import (
    DAY_MS,
    GROUPS_MAX,
    HOUR_MS,
    NOT_BEHIND,
    SAMPLE_MS,
    Deliveries,
    correction_offsets,
)
from inorder.wire.requests.statistics import WindowStats


def test_messages_count_in_the_windows_in_which_they_were_given() -> None:
    """A minute, an hour and a day; each forgets what is older, at the pace of its samples."""
    given, now_ms = Deliveries(), 0

    def advance(ms: int) -> None:
        nonlocal now_ms
        for _ in range(ms // SAMPLE_MS):
            now_ms += SAMPLE_MS
            given.sample(now_ms)

    assert given.of("t", "g", now_ms) is None
    given.count("t", "g", 6, 600)
    given.count("t", "g", 4, 400)
    advance(SAMPLE_MS)
    found = given.of("t", "g", now_ms)
    assert found is not None
    assert found.minute == WindowStats(10, 1.0, 5.0)
    assert (found.hour.sum, found.day.sum) == (10, 10)
    advance(70_000)
    found = given.of("t", "g", now_ms)
    assert found is not None
    assert (found.minute.sum, found.minute.rate, found.hour.sum) == (0, 0.0, 10)
    given.count("t", "g", 5, 500)
    found = given.of("t", "g", now_ms)
    assert found is not None
    assert (found.minute.sum, found.hour.sum, found.day.sum) == (5, 15, 15)
    advance(HOUR_MS + 700_000)
    found = given.of("t", "g", now_ms)
    assert found is not None
    assert (found.minute.sum, found.hour.sum, found.day.sum) == (0, 0, 15)


def test_an_idle_day_leaves_zeros() -> None:
    """The group is known, and was given nothing lately."""
    given = Deliveries()
    given.count("t", "g", 3, 300)
    given.sample(SAMPLE_MS)
    found = given.of("t", "g", SAMPLE_MS + DAY_MS + HOUR_MS)
    assert found is not None
    assert [one.sum for one in (found.minute, found.hour, found.day)] == [0, 0, 0]


def test_deleted_topics_and_groups_are_forgotten() -> None:
    """Each in all pairs that it is part of; others stay."""
    given = Deliveries()
    for pair in (("t", "g"), ("t", "h"), ("u", "g")):
        given.count(*pair, 1, 100)
    given.sample(SAMPLE_MS)
    given.count("t", "h", 1, 100)
    given.forget(topic="t")
    assert given.of("t", "g", 0) is None
    assert given.of("t", "h", 0) is None
    assert given.of("u", "g", 0) is not None
    given.forget(group="g")
    assert given.of("u", "g", 0) is None


def test_the_number_of_counted_groups_is_bounded() -> None:
    """Further ones have no statistics; those that are known go on."""
    given = Deliveries()
    for number in range(GROUPS_MAX + 5):
        given.count("t", f"g{number}", 1, 100)
    given.sample(SAMPLE_MS)
    assert given.of("t", "g0", SAMPLE_MS) is not None
    assert given.of("t", f"g{GROUPS_MAX}", SAMPLE_MS) is None


@pytest.mark.parametrize(
    ("compare", "left_out", "lowest"),
    [
        ({}, [], {0: 3, 1: 7}),
        ({}, ["a"], {0: 5, 1: 7}),
        ({0: 3, 1: 9}, [], {0: 3, 1: 7}),
        ({0: 2}, [], {0: NOT_BEHIND, 1: 7}),
        ({2: 4}, [], {0: 3, 1: 7, 2: NOT_BEHIND}),
    ],
    ids=["all", "without one", "not behind", "behind", "alone"],
)
def test_the_lowest_offset_of_all_groups(
    compare: dict[int, int], left_out: list[str], lowest: dict[int, int]
) -> None:
    """Offsets of messages that have expired do not count, and nobody's offsets are changed."""
    offsets = [("a", {0: 3, 1: 7}), ("b", {0: 5, 1: 7}), ("c", {1: 1})]
    assert correction_offsets(offsets, {1: 4}, compare=compare, left_out=left_out) == lowest
