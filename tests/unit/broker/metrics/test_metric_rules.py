"""The catalogue, and labels that come from peers."""

from __future__ import annotations

import re

import pytest

from inorder.broker.metrics.rules import (
    CATALOGUE,
    Counts,
    Handovers,
    Meters,
    language_of,
    mode_of,
    request_of,
    response_of,
    version_of,
)
from inorder.model import GroupQueue

KEY = GroupQueue("g", "t", 0)


def test_names_follow_the_conventions() -> None:
    """Counters end with _total, nothing else does; ours have base units; labels are plain."""
    for family in CATALOGUE.values():
        assert re.fullmatch(r"(rocketmq|inorder)_[a-z_]+", family.name)
        assert (family.kind == "counter") == family.name.endswith("_total"), family
        assert (family.kind == "histogram") == bool(family.buckets), family
        if family.name.startswith("inorder_"):
            assert not re.search(r"_(ms|milliseconds|kib|mb)(_|$)", family.name), family
        forbidden = {"key", "client_id", "message_id", "address", "le"}
        assert not forbidden & set(family.labels), family


@pytest.mark.parametrize(
    ("code", "shown"),
    [(479, "V5_3_3"), (401, "V4_9_4"), (413, "V5_0_0"), (213, "V4_0_0"), (480, "other"),
     (0, "other"), (-1, "other"), (99_999, "other")],
)  # fmt: skip
def test_versions_come_from_the_table_of_releases(code: int, shown: str) -> None:
    """Snapshots, very old ones and numbers of the future are one label."""
    assert version_of(code) == shown


def test_other_labels_of_peers_come_from_tables() -> None:
    """Whatever number a peer sends, the label is a known word."""
    assert [language_of(code) for code in (0, 3, 9, 4711, -5)] == [
        "java", "python", "go", "other", "other",
    ]  # fmt: skip
    assert [mode_of(one) for one in ("CONSUME_POP", 'x"\n')] == ["pop", "other"]
    assert [request_of(code) for code in (310, 7120, 4711)] == ["send_message_v2", "lease", "other"]
    assert [response_of(code) for code in (0, 7120, 4711)] == ["success", "lease_lost", "other"]


def test_counts_are_bounded() -> None:
    """A label set too many is counted, not kept."""
    counts = Counts(sets_max=2)
    for group in ("a", "b", "a", "c"):
        counts.add("inorder_fenced_requests_total", group, "pull")
    assert dict(counts.items("inorder_fenced_requests_total")) == {
        ("a", "pull"): 2,
        ("b", "pull"): 1,
    }
    assert counts.left_out == 1


def test_counts_of_deleted_groups_go() -> None:
    """A deleted group leaves no series behind, and makes room."""
    counts = Counts()
    counts.add("inorder_parked_total", "a", "t")
    counts.add("inorder_parked_total", "b", "t2")
    counts.add("inorder_fenced_requests_total", "a", "pull")
    counts.forget(group="a")
    counts.forget(topic="t2")
    assert not list(counts.items("inorder_parked_total"))
    assert not list(counts.items("inorder_fenced_requests_total"))


def test_a_handover_is_timed_from_end_to_grant() -> None:
    """One that resumes was never gone, and a second grant has nothing to time."""
    handovers = Handovers()
    handovers.ended(KEY, "released", 1000)
    handovers.granted(KEY, 1150, resumed=False)
    handovers.granted(KEY, 1900, resumed=False)
    handovers.ended(KEY, "closed", 2000)
    handovers.granted(KEY, 2500, resumed=True)
    assert list(handovers.by_cause) == ["released"]
    found = handovers.by_cause["released"]
    assert (found.count, found.total) == (1, 0.15)


def test_meters_forget_the_worst_lag_with_each_scrape() -> None:
    """The largest lag is that since the last look."""
    meters = Meters()
    meters.late(0.5)
    meters.late(0.01)
    assert [meters.take_loop_max(), meters.take_loop_max()] == [0.5, 0.0]
    assert meters.loop.count == 2
