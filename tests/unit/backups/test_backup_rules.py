"""The numbers that a restored broker must raise, and what a manifest holds."""

from __future__ import annotations

import pytest

from inorder.backups.rules import (
    FORMAT,
    Manifest,
    SegmentFile,
    StateFile,
    check_versions,
    decode,
    encode,
    next_generation,
    next_start,
    raised,
)
from inorder.broker.resizing.rules import Versions, reading, version_spans
from inorder.errors import RemoteProtocolError, UsageError
from inorder.ordering.fence import sequence, span_at
from inorder.wire.requests.leases import VersionSpan
from inorder.wire.requests.resizing import PastVersion, Plan

MAP = "1/broker-a:0-1/broker-b:0-0"
MADE = Manifest(
    FORMAT, "0.9", 5, 0, 300, 1024, 200, "token", 7, 2, {"orders": 1},
    [StateFile("config/topics.json", 3, "aa")], [SegmentFile(0, 300, "bb", "last")],
)  # fmt: skip


@pytest.mark.parametrize(
    ("start", "now_ms", "expected"),
    [(7, 1_800_000_000_000, 1_800_000_000), (1_800_000_000, 1_799_000_000_000, 1_800_065_536)],
)
def test_starts_go_to_the_time_or_far_ahead(start: int, now_ms: int, expected: int) -> None:
    """A restored broker's epochs are above those of any start of the old one."""
    assert next_start(start, now_ms) == expected


def test_the_generation_is_above_those_since_the_backup() -> None:
    """Sixteen lost tails are allowed for; an operator who knows the highest gives it."""
    assert next_generation(2, None) == 19
    assert next_generation(2, 40) == 41
    assert next_generation(50, 40) == 51
    with pytest.raises(UsageError, match="12 bits"):
        next_generation(4095, None)


def test_a_raised_map_has_the_same_queues_and_begins_at_the_restored_ends() -> None:
    """What is stored keeps its version; what comes later has the new one."""
    now = raised(Versions(1, MAP), 5, {0: 10, 1: 4})
    assert (now.version, now.map) == (6, "6/broker-a:0-1/broker-b:0-0")
    assert now.past == (PastVersion(1, MAP, {0: 10, 1: 4}),)
    assert version_spans(now, 0) == [(0, 1), (10, 6)]
    assert reading(now, "CG") == 1  # a group finishes what is stored first


def test_every_broker_gets_the_same_raised_map() -> None:
    """Brokers are restored one by one, and must agree without asking each other."""
    one, other = raised(Versions(1, MAP), 5, {0: 10}), raised(Versions(2, MAP), 5, {0: 3})
    assert (one.map, one.opened) == (other.map, other.opened)


def test_a_fence_after_the_restore_is_above_those_after_a_resize_that_the_backup_lacks() -> None:
    """A17: with a new generation alone, (1, g + 1, …) is below (3, g, …)."""
    now = raised(Versions(1, MAP), 3, {0: 10})
    spans = [VersionSpan(start, version, 17) for start, version in version_spans(now, 0)]
    lost, fresh = sequence(3, 0, 5000), span_at(spans, 10)
    assert lost is not None
    assert (sequence(fresh.version, fresh.generation, 10) or 0) > lost


def test_a_resize_under_way_is_withdrawn() -> None:
    """Its ends are those of the version before, and its late requests are refused."""
    plan = Plan("p", 2, "2/broker-a:0-3")
    now = raised(Versions(1, MAP, plan=plan, ends={0: 8}), 5, {0: 10})
    assert (now.plan, now.withdrawn, now.past[-1].ends) == (None, ("p",), {0: 8})


@pytest.mark.parametrize("above", [0, 2047])
def test_a_version_that_is_not_above_or_too_high_is_refused(above: int) -> None:
    """The text says which numbers fit."""
    with pytest.raises(UsageError, match="from 1, the version in the backup, to 2046"):
        raised(Versions(1, MAP), above, {})


def test_a_restore_of_mapped_topics_must_say_what_became_of_the_maps() -> None:
    """A guess would refuse every effect, or apply it twice."""
    with pytest.raises(UsageError, match="orders with version 1"):
        check_versions({"orders": 1}, None, keep=False)
    with pytest.raises(UsageError, match="give one of them"):
        check_versions({}, 1, keep=True)
    check_versions({}, None, keep=False)
    check_versions({"orders": 1}, None, keep=True)
    check_versions({"orders": 1}, 1, keep=False)


def test_a_manifest_comes_back_and_a_damaged_one_does_not() -> None:
    """Any changed byte is found; a later format is named."""
    data = encode(MADE)
    assert decode(data) == MADE
    assert MADE.size == 303
    for at in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    later = encode(Manifest(FORMAT + 1, "9", 5, 0, 0, 1, 1, "", 1, 1, {}, [], []))
    with pytest.raises(RemoteProtocolError, match=f"format {FORMAT + 1}"):
        decode(later)
