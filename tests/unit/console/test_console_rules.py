"""What the console decides: hosts, origins, pages of rows, what needs attention, resets."""

from __future__ import annotations

from typing import Any

import pytest

from inorder.client.admin import ParkedKey, QueueLag, QueueLock
from inorder.console.rules import (
    Attempts,
    BrokerRow,
    Facts,
    GroupRow,
    History,
    Level,
    ResetRow,
    again,
    age,
    attention,
    clear_in,
    host_is_ours,
    is_loopback,
    origin_is_ours,
    page_of,
    path,
    path_is_local,
    size,
    skipped,
    still_true,
    why,
)
from inorder.model import TopicQueue

QUEUE = TopicQueue("orders", "a", 3)
NOTHING = "\u2013"


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("127.0.0.1:8089", True),
        ("localhost:8089", True),
        ("LOCALHOST", True),
        ("[::1]:8089", True),
        ("192.168.1.7:8089", True),
        ("console.shop:8089", True),
        ("evil.example:8089", False),
        ("127.0.0.1.evil.example", False),
        ("127.0.0.1:8089@evil.example", False),
        ("localhost:port", False),
        ("localhost/x", False),
        ("", False),
    ],
)
def test_only_addresses_and_known_names_are_served(host: str, ours: bool) -> None:
    """A name that another site points here is refused: it carries that site's Host."""
    assert host_is_ours(host, ["Console.shop"]) is ours


@pytest.mark.parametrize(
    ("origin", "site", "ours"),
    [
        ("http://127.0.0.1:8089", "same-origin", True),
        ("https://127.0.0.1:8089", None, True),
        (None, None, False),
        ("null", None, False),
        ("http://evil.example", None, False),
        ("http://127.0.0.1:8090", None, False),
        ("http://127.0.0.1:8089", "cross-site", False),
        ("http://127.0.0.1:8089", "same-site", False),
        ("http://127.0.0.1:8089", "none", False),
    ],
)
def test_changes_come_from_this_console(origin: str | None, site: str | None, ours: bool) -> None:
    """Origin must name this host, and the browser must not say otherwise."""
    assert origin_is_ours(origin, site, "127.0.0.1:8089") is ours


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("10.0.0.1", False), ("example.com", False)],
)  # fmt: skip
def test_loopback(host: str, loopback: bool) -> None:
    """Only what no other machine reaches is loopback."""
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(
    ("to", "local"),
    [("/topics?page=2", True), ("//evil.example", False), ("/\\evil", False),
     ("https://evil.example", False), ("", False), ("/a\nb", False)],
)  # fmt: skip
def test_a_way_back_stays_here(to: str, local: bool) -> None:
    """After signing in nobody is sent to another site."""
    assert path_is_local(to) is local


def test_wrong_secrets_are_bounded() -> None:
    """Ten within a minute, then a pause."""
    attempts = Attempts()
    for at in range(10):
        assert attempts.may_try(at)
        attempts.failed(at)
    assert not attempts.may_try(59_999)
    assert attempts.may_try(60_000)


def test_pages_of_ten_thousand() -> None:
    """A page has fifty rows; a page beyond the last is the last; a word leaves few."""
    names = [f"topic-{number:05d}" for number in range(10_000)]
    first = page_of(names, 1)
    assert (len(first.rows), first.total, first.pages) == (50, 10_000, 200)
    assert page_of(names, 999).page == 200
    assert page_of(names, 0).page == 1
    assert page_of(names, 7, word="-0999").rows[0] == "topic-09990"
    assert page_of([], 1).pages == 1


@pytest.mark.parametrize(
    ("ms", "text"),
    [(-5, "0 ms"), (850, "850 ms"), (4_000, "4 s"), (119_000, "119 s"), (240_000, "4 min"),
     (7_200_000, "2 h"), (3 * 86_400_000, "3 d")],
)  # fmt: skip
def test_ages(ms: int, text: str) -> None:
    """A span of time in one or two words."""
    assert age(ms) == text


def test_sizes_and_paths() -> None:
    """Numbers of bytes, and paths whose names are encoded."""
    assert (size(12), size(1500), size(2.5e9)) == ("12 bytes", "1.5 kB", "2.5 GB")
    assert path("groups", "a/b", "owners") == "/groups/a%2Fb/owners"
    assert path("keys", topic="t", key="a&b=c ", page=None) == "/keys?topic=t&key=a%26b%3Dc%20"


@pytest.mark.parametrize(
    ("points", "members", "text"),
    [
        ([], 1, NOTHING),
        ([(0, 5), (9000, 0)], 1, NOTHING),
        ([(0, 5)], 1, "not known yet"),
        ([(0, 50), (9000, 50)], 0, "never"),
        ([(0, 50), (9000, 51)], 1, "keeps pace"),
        ([(0, 50), (9000, 90)], 1, "never"),
        ([(0, 300), (10_000, 200)], 1, "20 s"),
    ],
)
def test_when_work_is_done(points: list[tuple[int, int]], members: int, text: str) -> None:
    """The pace of the last samples tells; growing work never ends."""
    assert clear_in(points, members) == text


def parked(**changes: Any) -> ParkedKey:
    values: dict[str, Any] = {
        "group": "billing", "queue": QUEUE, "key": "order-42", "messages": 2, "size_bytes": 99,
        "since_ms": 0, "first_offset": 0, "tries": 5, "first_error": "ValueError",
        "last_error": "", "redriving": False, "older": (), "moved_to": None, **changes,
    }  # fmt: skip
    return ParkedKey(**values)


def row(**changes: Any) -> GroupRow:
    values: dict[str, Any] = {
        "name": "billing", "seen_ms": 0, "lag": 0, "oldest_ms": 0, "members": 1, "queues": 2,
        "topics": ("orders",), **changes,
    }  # fmt: skip
    return GroupRow(**values)


def test_nothing_needs_anybody() -> None:
    """Brokers that answer and groups that keep up give no finding."""
    quiet = BrokerRow("a", "h:1", "c", 0, {"commitLogDiskRatio": "0.4"})
    assert attention([quiet], [row()], [], {}, 1000) == []


def test_what_needs_somebody_is_named_with_its_page() -> None:
    """The worst first, each a sentence with its object and a link."""
    found = attention(
        [BrokerRow("a", "h:1", "c", 0, error="refused"),
         BrokerRow("b", "h:2", "c", 0, {"commitLogDiskRatio": "0.88"})],
        [row(lag=7, members=0), row(name="slow", lag=3, oldest_ms=1)],
        [parked(), parked(group="mail"), parked(group="mail", key="b")],
        {("billing", "a"): "10,000 keys"},
        300_000,
    )  # fmt: skip
    assert [(one.level, one.text, one.link) for one in found] == [
        (Level.BAD, "broker a (h:1) does not answer: refused", "/brokers"),
        (Level.BAD, "group billing has 7 messages to do and no member", "/groups/billing"),
        (Level.BAD, "the oldest message of group slow waits for 4 min", "/groups/slow"),
        (Level.BAD, "group billing can park no more keys at a, failing keys block: 10,000 keys",
         "/parked?group=billing"),
        (Level.WARN, "the disk of broker b is 88% full", "/brokers"),
        (Level.WARN, "key order-42 of group billing is parked, the oldest for 5 min",
         "/parked?group=billing"),
        (Level.WARN, "2 keys of group mail are parked, the oldest for 5 min",
         "/parked?group=mail"),
    ]  # fmt: skip


def lock(**changes: Any) -> QueueLock:
    values: dict[str, Any] = {
        "group": "billing", "queue": QUEUE, "holder": "c1", "instance": "", "epoch": 7,
        "age_ms": 100, "remaining_ms": 900, "lease_ms": 1000, "grace_ms": 10, "stock": False,
        "connected": True, "waiting": (), **changes,
    }  # fmt: skip
    return QueueLock(**values)


def facts(**changes: Any) -> Facts:
    values: dict[str, Any] = {
        "members": 1, "differences": 0, "enabled": True,
        "queues": [QueueLag("billing", QUEUE, 3, 9, 3, 0)], "locks": [lock()], "parked": [],
        "full": {}, "waits_for_version": (), "silent": (), **changes,
    }  # fmt: skip
    return Facts(**values)


def test_a_group_that_runs_has_no_cause() -> None:
    """All is fine, and each thing that was looked at says so."""
    assert {one.level for one in why("billing", facts())} == {Level.OK}


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({"members": 0}, Level.BAD, "nobody consumes"),
        ({"members": 0, "queues": []}, Level.WARN, "nothing to do either"),
        ({"differences": 2}, Level.BAD, "subscribe differently"),
        ({"enabled": False}, Level.BAD, "disabled"),
        ({"locks": None}, Level.UNKNOWN, "Apache RocketMQ does not tell"),
        ({"locks": [lock(recalled=True)]}, Level.BAD, "recalled by a rewind"),
        ({"locks": [lock(connected=False)]}, Level.WARN, "connection is closed"),
        ({"locks": [lock(queue=TopicQueue("orders", "a", 9))]}, Level.WARN, "have no owner"),
        ({"parked": None}, Level.UNKNOWN, "keeps no parked keys"),
        ({"parked": [parked()]}, Level.WARN, "1 keys are parked"),
        ({"full": {("billing", "a"): "10,000 keys"}}, Level.BAD, "10,000 keys"),
        ({"waits_for_version": ["orders"]}, Level.WARN, "older than a resize of orders"),
        ({"silent": ["b"]}, Level.BAD, "no answer from b"),
    ],
)
def test_causes_come_first(changes: dict[str, Any], level: Level, words: str) -> None:
    """Each cause that can keep a group from its work is named, above what is fine."""
    first = why("billing", facts(**changes))[0]
    assert first.level is level
    assert words in first.text


def test_owners_over_time() -> None:
    """An owner that stays is one segment; another epoch begins another, never before the last."""
    history = History()
    history.note_owners([lock(age_ms=400)], 1000)
    history.note_owners([lock(age_ms=900)], 1500)
    history.note_owners([lock(holder="c2", epoch=8, age_ms=9000)], 2000)
    (segments,) = history.owners("billing").values()
    assert [(one.holder, one.since_ms, one.until_ms) for one in segments] == [
        ("c1", 600, 1500), ("c2", 1500, 2000),
    ]  # fmt: skip
    assert history.owners("mail") == {}


def test_histories_are_bounded() -> None:
    """Neither many groups nor long times let the console grow."""
    history = History()
    for at in range(1000):
        history.note_group(row(seen_ms=at))
    assert len(history.lags("billing")) == 300
    for number in range(2500):
        history.note_group(row(name=f"g{number}"))
    assert history.lags("billing") == []


def test_a_preview_counts_both_directions() -> None:
    """Messages again and messages skipped are counted apart."""
    rows = [ResetRow(QUEUE, 10, 4, 20), ResetRow(TopicQueue("orders", "a", 4), 3, 8, 8)]
    assert (again(rows), skipped(rows)) == (6, 5)
    assert [one.effect for one in rows] == ["6 again", "5 skipped"]
    assert ResetRow(QUEUE, 4, 4, 9).effect == "none"


@pytest.mark.parametrize(
    ("seen", "holds"),
    [
        ({f"{QUEUE}:now": 10, f"{QUEUE}:to": 4}, True),
        ({f"{QUEUE}:now": 8, f"{QUEUE}:to": 4}, True),
        ({f"{QUEUE}:now": 11, f"{QUEUE}:to": 4}, False),
        ({f"{QUEUE}:now": 10, f"{QUEUE}:to": 5}, False),
        ({}, False),
    ],
)
def test_a_preview_that_is_out_of_date(seen: dict[str, int], holds: bool) -> None:
    """Live traffic may go on; an offset that went back or a target that moved may not."""
    assert still_true(seen, [ResetRow(QUEUE, 10, 4, 20)]) is holds
