"""Which directories of RocketMQ are refused."""

from __future__ import annotations

import pytest

from inorder.broker.topics.rules import not_here, problems

BATCH, COMPACT = {"queue.type": "BatchCQ"}, {"cleanup.policy": "COMPACTION"}


@pytest.mark.parametrize(
    ("topics", "batched", "compacted", "ours", "count"),
    [
        ({}, [], [], False, 0),
        ({"a": {"queue.type": "SimpleCQ", "cleanup.policy": "DELETE"}}, [], [], False, 0),
        ({"a": BATCH}, ["a"], [], False, 1),
        ({"a": BATCH}, ["a"], [], True, 1),
        ({}, ["a"], [], True, 1),
        ({"a": BATCH}, [], [], False, 1),
        ({"a": BATCH}, [], [], True, 0),
        ({"a": COMPACT}, [], ["a"], True, 1),
        ({"a": COMPACT}, [], [], False, 1),
        ({"a": COMPACT}, [], [], True, 0),
        ({"a": BATCH, "b": BATCH | COMPACT}, ["a"], ["b"], False, 2),
        ({"a": BATCH, "b": BATCH | COMPACT}, [], [], False, 3),
    ],
)
def test_what_is_refused(
    topics: dict[str, dict[str, str]], batched: list[str], compacted: list[str], ours: bool,
    count: int,
) -> None:  # fmt: skip
    """Files of such queues always, the attribute alone only where we never worked."""
    assert len(problems(topics, batched, compacted, ours=ours)) == count


def test_attributes_that_mean_nothing_here() -> None:
    """By name and value."""
    assert not_here(BATCH | COMPACT | {"message.type": "FIFO"}) == ["queue.type", "cleanup.policy"]
    assert not_here({"queue.type": "SimpleCQ"}) == []
