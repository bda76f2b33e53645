"""The checks of `inorder doctor`, one table each."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from inorder.diagnosis.rules import (
    BrokerFacts,
    Finding,
    GroupFacts,
    OldestFacts,
    ParkedFacts,
    Severity,
    TopicFacts,
    check_addresses,
    check_clocks,
    check_disks,
    check_groups,
    check_installation,
    check_key_maps,
    check_limits,
    check_names,
    check_parked,
    check_presence,
    check_resizes,
    check_stuck,
    check_unsupported,
    worst,
)

BROKER = BrokerFacts("broker-a", "C", "10.0.0.1:10911")
INFO, WARNING, BROKEN = Severity.INFO, Severity.WARNING, Severity.BROKEN


def broker(**changes: object) -> BrokerFacts:
    """Return a healthy broker with some changes."""
    fields = {name: getattr(BROKER, name) for name in BrokerFacts.__slots__}
    return BrokerFacts(**{**fields, **changes})  # type: ignore[arg-type]


def severities(found: Iterable[Finding]) -> list[Severity]:
    """Return how bad the findings are; each must say all four things."""
    findings = list(found)
    for one in findings:
        assert all((one.about, one.what, one.why, one.todo)), one
    return [one.severity for one in findings]


def test_a_cluster_without_brokers_is_broken() -> None:
    """An empty list is a finding, one broker is none."""
    assert severities(check_presence([])) == [BROKEN]
    assert severities(check_presence([BROKER])) == []


@pytest.mark.parametrize(
    ("namesrv", "one", "found"),
    [
        ("10.0.0.9:9876", broker(), []),
        ("10.0.0.9:9876", broker(address="127.0.0.1:10911"), [WARNING]),
        ("10.0.0.9:9876", broker(address="[::1]:10911"), [WARNING]),
        ("127.0.0.1:9876", broker(address="127.0.0.1:10911"), []),
        ("localhost:9876", broker(address="127.0.0.1:10911"), []),
        ("names.example:9876", broker(address="127.0.0.1:10911"), []),
        ("127.0.0.1:9876;10.0.0.9:9876", broker(address="localhost:10911"), [WARNING]),
        ("127.0.0.1:9876", broker(address="0.0.0.0:10911"), [BROKEN]),
        ("127.0.0.1:9876", broker(error="refused"), [BROKEN]),
    ],
)
def test_addresses(namesrv: str, one: BrokerFacts, found: list[Severity]) -> None:
    """What a broker announces must lead to it, from here and from elsewhere."""
    assert severities(check_addresses(namesrv, [one])) == found


def test_two_names_of_one_address() -> None:
    """A name that is left over has the address of another."""
    assert (
        severities(check_names([BROKER, broker(address="10.0.0.2:10911", name="broker-b")])) == []
    )
    assert severities(check_names([BROKER, broker(name="broker-b")])) == [WARNING]


@pytest.mark.parametrize(
    ("skew_ms", "found"),
    [(None, []), (0, []), (1000, []), (-1000, []), (1001, [WARNING]), (-5000, [WARNING])],
)
def test_clocks(skew_ms: int | None, found: list[Severity]) -> None:
    """More than a second apart is said, to either side."""
    assert severities(check_clocks([broker(skew_ms=skew_ms)])) == found


@pytest.mark.parametrize(
    ("one", "found"),
    [
        (broker(disk_ratio=0.5), []),
        (broker(disk_ratio=None), []),
        (broker(disk_ratio=0.75), [WARNING]),
        (broker(disk_ratio=0.95), [BROKEN]),
        (broker(writable=False), [BROKEN]),
        (broker(losses=2), [BROKEN]),
    ],
)
def test_disks(one: BrokerFacts, found: list[Severity]) -> None:
    """A disk that fills warns, one that is full is broken; so is lost data."""
    assert severities(check_disks([one])) == found


def test_limits_of_open_files() -> None:
    """Here it only matters to who starts a server; at a broker it does."""
    assert severities(check_limits([broker(files_max=1024)], 65536)) == [WARNING]
    assert severities(check_limits([broker(files_max=None)], 1024)) == [INFO]
    assert severities(check_limits([broker(files_max=4096)], 4096)) == []


def test_requests_that_are_not_served() -> None:
    """Each code is named, known or not."""
    findings = list(check_unsupported([broker(unsupported={351: 3, 9999: 1})], {351: "X"}))
    assert severities(findings) == [WARNING, WARNING]
    assert "351 (X)" in findings[0].what
    assert "9999 (unknown)" in findings[1].what


@pytest.mark.parametrize(
    ("one", "found"),
    [
        (GroupFacts("g", 1, 5), []),
        (GroupFacts("g", 0, 0), []),
        (GroupFacts("g", 0, 5), [WARNING]),
        (GroupFacts("g", 0, 5, broadcasting=True), []),
        (GroupFacts("g", 2, 0, ("orders: * and TagA",)), [BROKEN]),
        (GroupFacts("g", 2, 0, versions=("JAVA 401", "PYTHON 479")), [INFO]),
    ],
)
def test_groups(one: GroupFacts, found: list[Severity]) -> None:
    """Messages without a member, members that disagree, and members of several kinds."""
    assert severities(check_groups([one])) == found


@pytest.mark.parametrize(
    ("age_ms", "error", "found"),
    [(1000, "", []), (3_600_000, "", [WARNING]), (1000, "again", [WARNING])],
)
def test_parked_keys(age_ms: int, error: str, found: list[Severity]) -> None:
    """A key that has been parked for long, or whose redrive fails, needs somebody."""
    key = ParkedFacts("g", "t", 0, "k", 3, age_ms, last_error=error)
    assert severities(check_parked([key], {})) == found


def test_parked_keys_of_a_group_are_one_finding() -> None:
    """A thousand keys of one topic do not hide the rest of the page."""
    keys = [ParkedFacts("g", "t", 0, f"k{n}", 1, 3_600_000 + n) for n in range(1000)]
    found = list(check_parked(keys, {("g", "broker-a"): "too many"}))
    assert [one.severity for one in found] == [BROKEN, WARNING]
    assert "broker broker-a" in found[0].what
    assert "1000 keys" in found[1].what
    assert "k999" in found[1].what


def test_an_install_without_its_compiled_part() -> None:
    """It is only worth knowing."""
    assert severities(check_installation("")) == []
    assert severities(check_installation("pure Python")) == [INFO]


def test_the_exit_code_is_that_of_the_worst() -> None:
    """Nothing, or only what is worth knowing, is fine."""
    finding = Finding(INFO, "a", "b", "c", "d")
    assert worst([]) == worst([finding]) == 0
    assert worst([finding, Finding(WARNING, "a", "b", "c", "d")]) == 1
    assert worst([Finding(BROKEN, "a", "b", "c", "d"), finding]) == 2


@pytest.mark.parametrize(
    ("members", "age_ms", "found"), [(1, 300_000, [WARNING]), (1, 299_999, []), (0, 300_000, [])]
)
def test_a_key_that_blocks_is_named(members: int, age_ms: int, found: list[Severity]) -> None:
    """A group without members is another finding."""
    oldest = OldestFacts("orders", "broker-a/3", 41, "bad", age_ms, 7)
    findings = list(check_stuck([GroupFacts("billing", members, 7, oldest=oldest)]))
    assert severities(findings) == found
    for one in findings:
        assert "key bad, topic orders, queue broker-a/3, offset 41" in one.what
        assert "5 minutes, with 6 behind it" in one.what


def test_a_group_without_lag_is_not_stuck() -> None:
    """There is no oldest message."""
    assert severities(check_stuck([GroupFacts("billing", 2, 0)])) == []


def test_key_maps_that_differ_between_brokers() -> None:
    """The way out is the verb that gives the topic one map."""
    same = TopicFacts("orders", {"a": "version 1, x", "b": "version 1, x"})
    differ = TopicFacts("orders", {"a": "version 1, x", "b": "version 1, y"})
    assert severities(check_key_maps([same])) == []
    (one,) = check_key_maps([differ])
    assert severities([one]) == [BROKEN]
    assert "a: version 1, x; b: version 1, y" in one.what
    assert "inorder topic repair orders" in one.todo


def test_a_broker_of_the_key_map_without_the_topic() -> None:
    """Its keys cannot be sent."""
    (one,) = check_key_maps([TopicFacts("orders", {"a": "version 1"}, missing=("b",))])
    assert severities([one]) == [BROKEN]
    assert "--without b" in one.todo


def test_a_resize_that_has_not_ended() -> None:
    """Under way, with brokers that do not answer; or waiting for a group that nobody runs."""
    plan = TopicFacts("orders", {}, planned="a resize to 8 queues has not ended", away=("b",))
    (one,) = check_resizes([plan])
    assert severities([one]) == [WARNING]
    assert "no answer from b" in one.what
    assert "inorder topic resize orders --resume" in one.todo
    waiting = TopicFacts("orders", {}, waiting=(("old", 12, False), ("live", 3, True)))
    (one,) = check_resizes([waiting])
    assert severities([one]) == [WARNING]
    assert "group old has no member" in one.what
    assert "--release old" in one.todo
