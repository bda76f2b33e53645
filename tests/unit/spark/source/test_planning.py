"""What to read: ranges, shares of a limit, partitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inorder.errors import ConfigError
from inorder.model import TopicQueue
from inorder.spark.source.rules import (
    EARLIEST,
    LATEST,
    Range,
    from_json,
    lost,
    pack,
    pack_by_queue,
    ranges,
    resolve,
    share,
    split,
    to_json,
)

Q = [TopicQueue("orders", "broker-a", index) for index in range(6)]

places = st.dictionaries(st.sampled_from(Q), st.integers(0, 1000), max_size=6)


@given(places)
def test_places_survive_the_checkpoint(given_places: dict[TopicQueue, int]) -> None:
    """What is written into a checkpoint is read back."""
    assert from_json(to_json(given_places), "x") == given_places


@pytest.mark.parametrize(
    "value",
    [17, [1], {"t": 1}, {"t": {"b": {"x": 1}}}, {"t": {"b": {"0": "1"}}}, {"t": {"b": {"0": -3}}},
     {"t": {"b": {"0": True}}}],
)  # fmt: skip
def test_what_is_no_place_is_refused(value: object) -> None:
    """The error names the option and shows the form."""
    with pytest.raises(ConfigError, match=r"startingOffsets.*broker"):
        from_json(value, "startingOffsets")


def test_earliest_and_latest_are_resolved() -> None:
    """-2 is the oldest message, -1 the end; queues that are gone are left out."""
    oldest, ends = {Q[0]: 5, Q[1]: 0}, {Q[0]: 9, Q[1]: 4}
    wanted = {Q[0]: EARLIEST, Q[1]: LATEST, Q[2]: 3}
    assert resolve(wanted, oldest, ends) == {Q[0]: 5, Q[1]: 4}


def test_a_new_queue_is_read_from_its_oldest_message() -> None:
    """A queue that the last batch did not know is read whole."""
    assert ranges({Q[0]: 3}, {Q[0]: 5, Q[1]: 9}, {Q[1]: 2}) == [
        Range(Q[0], 3, 5),
        Range(Q[1], 2, 9),
    ]


def test_what_is_gone_is_named() -> None:
    """Removed messages, a queue that is gone, a queue that ends too early."""
    found = lost(
        {Q[0]: 1, Q[1]: 9, Q[2]: 0, Q[3]: 5},
        {Q[0]: 3, Q[1]: 0, Q[3]: 0},
        {Q[0]: 9, Q[1]: 4, Q[3]: 5},
    )
    assert len(found) == 3
    assert "1 to 3 were removed" in found[0]
    assert "ends at 4, yet 9" in found[1]
    assert "is gone" in found[2]


@given(places, places, st.integers(1, 500))
def test_a_limit_is_shared_by_backlog(
    begin: dict[TopicQueue, int], more: dict[TopicQueue, int], limit: int
) -> None:
    """Never more than the limit, never past the end, nothing left while the limit has room."""
    ends = {queue: begin.get(queue, 0) + count for queue, count in more.items()}
    goal = share(begin, ends, limit)
    taken = {queue: goal[queue] - begin.get(queue, 0) for queue in ends}
    backlog = sum(more.values())
    assert all(0 <= taken[queue] <= more[queue] for queue in ends)
    assert sum(taken.values()) == min(limit, backlog)
    behind = [queue for queue in ends if more[queue]]
    if limit >= len(behind):
        assert all(taken[queue] for queue in behind)


spans = st.dictionaries(st.sampled_from(Q), st.integers(1, 50)).map(
    lambda sizes: [Range(queue, 10, 10 + size) for queue, size in sizes.items()]
)


@given(spans, st.integers(1, 8))
def test_queues_are_packed_whole(found: list[Range], most: int) -> None:
    """Every queue is in exactly one partition, uncut; there are no empty partitions."""
    for packed in (pack(found, most), pack_by_queue(found, most)):
        assert len(packed) <= most
        assert all(packed)
        flat = [span for part in packed for span in part]
        assert sorted(flat, key=lambda s: s.queue) == sorted(found, key=lambda s: s.queue)


def test_a_queue_keeps_its_partition() -> None:
    """Packing by queue does not depend on which other queues have something new."""
    everything = pack_by_queue([Range(queue, 0, 1) for queue in Q], 2)
    some = pack_by_queue([Range(queue, 5, 9) for queue in Q[:4]], 2)
    companions = [{span.queue for span in part} for part in everything]
    for part in some:
        assert any({span.queue for span in part} <= group for group in companions)


@pytest.mark.parametrize("name", ["bench", "orders", "a", "payments"])
def test_the_queues_of_a_broker_are_spread_evenly(name: str) -> None:
    """No task has more than one queue more than another, whatever the topic is called."""
    for queues in (4, 5, 16):
        found = [Range(TopicQueue(name, "broker-a", index), 0, 9) for index in range(queues)]
        for most in range(1, 9):
            sizes = [len(part) for part in pack_by_queue(found, most)]
            assert len(sizes) == min(most, queues)
            assert max(sizes) - min(sizes) <= 1


def test_split_covers_all() -> None:
    """Pieces are disjoint and cover the range."""
    assert split([Range(Q[0], 0, 5)], 2) == [
        (Range(Q[0], 0, 2),), (Range(Q[0], 2, 4),), (Range(Q[0], 4, 5),),
    ]  # fmt: skip
