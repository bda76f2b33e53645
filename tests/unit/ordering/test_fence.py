"""The fence: a number that grows along a key for ever, or none (A5)."""

from __future__ import annotations

import copy
import pickle

import pytest

from inorder.model import NO_FENCE, Fence, ReceivedMessage, TopicQueue
from inorder.ordering.fence import QueueFence, sequence, span_at, split
from inorder.ordering.keymap import KeyMap
from inorder.wire.requests.leases import VersionSpan

QUEUE = TopicQueue("orders", "broker-a", 0)
MAP = KeyMap.of(3, [("broker-a", 0), ("broker-b", 0)])
HERE = next(key for key in map(str, range(99)) if MAP.queue(key) == ("broker-a", 0))
THERE = next(key for key in map(str, range(99)) if MAP.queue(key) == ("broker-b", 0))


def message(offset: int, key: str | None = HERE, **options: object) -> ReceivedMessage:
    properties = {} if key is None else {"__SHARDINGKEY": key}
    return ReceivedMessage("orders", QUEUE, offset, b"", properties, "id", 0, 0, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "generation", "offset"),
    [(0, 0, 0), (0, 0, 7), (1, 0, 0), (0, 1, 0), (2047, 4095, 2**40 - 1), (3, 2, 1_000_000)],
)
def test_the_parts_of_a_sequence_come_back(version: int, generation: int, offset: int) -> None:
    """11, 12 and 40 bits: a positive number of 63, whatever they hold."""
    number = sequence(version, generation, offset)
    assert number is not None
    assert split(number) == (version, generation, offset)
    assert 0 <= number < 2**63


@pytest.mark.parametrize(
    ("version", "generation", "offset"), [(2048, 0, 0), (0, 4096, 0), (0, 0, 2**40)]
)
def test_what_does_not_fit_has_no_sequence(version: int, generation: int, offset: int) -> None:
    """Rather none than one that is lower than it should be."""
    assert sequence(version, generation, offset) is None


@pytest.mark.parametrize(
    ("offset", "expected"), [(0, (0, 0)), (9, (0, 0)), (10, (1, 0)), (19, (1, 0)), (25, (1, 2))]
)
def test_a_version_span_holds_from_its_offset_on(offset: int, expected: tuple[int, int]) -> None:
    """Before the first: version 0 of generation 0."""
    spans = [VersionSpan(10, 1, 0), VersionSpan(20, 1, 2)]
    assert span_at(spans, offset)[1:] == expected


def test_offsets_that_are_used_again_get_higher_numbers() -> None:
    """A5: the log lost its tail at 900, or the topic was made again: what follows is higher."""
    fences = QueueFence(QUEUE, 1, [VersionSpan(0, 0, 0)])
    handled = fences.of(message(999)).sequence
    fences.spans = (VersionSpan(0, 0, 0), VersionSpan(900, 0, 1))
    again = fences.of(message(900)).sequence
    assert handled is not None
    assert again is not None
    assert again > handled


def test_a_key_that_moved_to_another_queue_goes_on_with_higher_numbers() -> None:
    """Its offsets begin at 0 there, its version does not."""
    before = QueueFence(TopicQueue("orders", "broker-b", 0), 1, [VersionSpan(0, 2, 7)])
    after = QueueFence(QUEUE, 1, [VersionSpan(0, 3, 0)], key_map=lambda: MAP)
    old, new = before.of(message(5000)).sequence, after.of(message(0)).sequence
    assert old is not None
    assert new is not None
    assert new > old


@pytest.mark.parametrize(
    ("key", "key_map", "key_of", "numbered"),
    [
        pytest.param(HERE, MAP, None, True, id="where the map puts it"),
        pytest.param(
            THERE, MAP, None, False, id="elsewhere: a RocketMQ producer with fewer queues"
        ),
        pytest.param(THERE, None, None, True, id="no map, nobody can tell"),
        pytest.param(None, MAP, None, True, id="no key: along the queue"),
        pytest.param(THERE, KeyMap.of(4, MAP.queues), None, True, id="the map is of another time"),
        pytest.param(HERE, MAP, lambda m: THERE, False, id="key_of says another key"),
        pytest.param(THERE, MAP, lambda m: HERE, True, id="key_of, as the map puts it"),
        pytest.param(HERE, None, lambda m: "x", False, id="key_of is not what placed it"),
        pytest.param(HERE, None, lambda m: m.key, True, id="key_of is the key"),
        pytest.param(HERE, MAP, lambda m: None, True, id="key_of has none: along the queue"),
    ],
)
def test_a_message_that_does_not_lie_with_its_key_has_no_sequence(
    key: str | None, key_map: KeyMap | None, key_of: object, numbered: bool
) -> None:
    """A5: it would be lower than what was handled of its key, and its effect refused."""
    fences = QueueFence(QUEUE, 7, [VersionSpan(0, 3, 0)], key_map=lambda: key_map, key_of=key_of)  # type: ignore[arg-type]
    fence = fences.of(message(12, key))
    assert (fence.sequence is not None) is numbered
    assert fence.epoch == 7


def test_a_message_from_the_retry_topic_has_no_sequence() -> None:
    """It left its place in the order when it was sent back."""
    queue = TopicQueue("%RETRY%billing", "broker-a", 0)
    assert QueueFence(queue, 7, [VersionSpan(0, 0, 0)]).of(message(1)) == Fence(None, 7)


def test_a_message_without_a_lease_has_no_fence() -> None:
    """Stock brokers, and handlers without order."""
    assert message(1).fence == NO_FENCE == Fence(None, None)


def test_a_message_keeps_its_fence_when_it_is_copied_or_sent_to_another_process() -> None:
    """Whoever applies the effect elsewhere compares the same numbers."""
    fences = QueueFence(
        QUEUE, 7, [VersionSpan(0, 3, 0)], key_map=lambda: MAP, key_of=lambda m: m.key
    )
    found = message(12, fencing=fences)
    assert found.fence.sequence == 3 << 52 | 12
    for twin in (pickle.loads(pickle.dumps(found)), copy.copy(found), copy.deepcopy(found)):
        assert twin == found
        assert twin.fence == found.fence


def test_a_redriven_message_has_the_fence_of_its_origin() -> None:
    """A5: it may carry one as a value."""
    assert message(12, fencing=Fence(4711, 3)).fence == Fence(4711, 3)
