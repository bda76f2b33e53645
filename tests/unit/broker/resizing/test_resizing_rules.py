"""The versions of a topic at one broker: plans, ends, groups, past versions."""

from __future__ import annotations

import msgspec
import pytest

from inorder.broker.resizing import rules
from inorder.broker.resizing import rules as resizing_rules
from inorder.broker.resizing.rules import GONE_MAX, Reading, Resizes, SendMap, Versions
from inorder.errors import (
    BrokerError,
    GroupNotDone,
    InvalidParameter,
    KeyMapChanged,
    RemoteProtocolError,
    ResizeUnderWay,
)
from inorder.ordering.keymap import KeyMap
from inorder.wire.requests.resizing import PastVersion, Plan

ONE = Versions(1, "1/a:0-1")
PLAN = Plan("p", 2, "2/a:0-3")
OTHER = Plan("q", 2, "2/a:0-2")
STOPPED = rules.note(ONE, PLAN, {0: 10, 1: 20}, {"g": True, "reader": False})
TWO = rules.open_next(STOPPED, "p", 2)
THREE = Versions(
    3,
    "3/a:0-0",
    "r",
    past=(
        PastVersion(1, "1/a:0-1", {0: 10, 1: 20}),
        PastVersion(2, "2/a:0-3", {0: 15, 1: 20, 2: 5}),
    ),
    groups={"g": Reading(1, True)},
)


def test_a_plan_goes_its_way() -> None:
    """Decided, stopped with its ends, opened; each step again changes nothing."""
    decided = rules.decide(ONE, PLAN)
    assert decided.plan == PLAN
    assert not decided.stopped
    assert rules.decide(decided, PLAN) is decided
    stopped = rules.note(decided, PLAN, {0: 10, 1: 20}, {"g": True})
    assert stopped.ends == {0: 10, 1: 20}
    assert rules.note(stopped, PLAN, {0: 99}, {}) is stopped, "noted ends stay"
    opened = rules.open_next(stopped, "p", 2)
    assert (opened.version, opened.map, opened.opened, opened.plan) == (2, PLAN.map, "p", None)
    assert opened.past == (PastVersion(1, "1/a:0-1", {0: 10, 1: 20}),)
    assert rules.open_next(opened, "p", 2) is opened
    assert rules.decide(opened, PLAN) is opened
    assert rules.note(opened, PLAN, {}, {}) is opened


@pytest.mark.parametrize(
    ("now", "plan", "error"),
    [
        (rules.decide(ONE, PLAN), OTHER, ResizeUnderWay),
        (STOPPED, OTHER, ResizeUnderWay),
        (TWO, OTHER, KeyMapChanged),
        (ONE, Plan("p", 3, "3/a:0-1"), KeyMapChanged),
        (ONE, Plan("p", 1, "1/a:0-1"), KeyMapChanged),
        (Versions(), Plan("p", 0, "0/a:0-1"), KeyMapChanged),
        (ONE, Plan("p", 2, "3/a:0-1"), InvalidParameter),
        (ONE, Plan("p", 2, "garbage"), InvalidParameter),
        (Versions(2047, "2047/a:0-0"), Plan("p", 2048, "2048/a:0-0"), InvalidParameter),
    ],
)
def test_another_plan_is_refused(now: Versions, plan: Plan, error: type[BrokerError]) -> None:
    """A broker accepts only the decided plan, for the next version, with its map."""
    with pytest.raises(error):
        rules.decide(now, plan)
    with pytest.raises(error):
        rules.note(now, plan, {}, {})


@pytest.mark.parametrize(
    ("now", "plan_id", "version", "error"),
    [
        (ONE, "p", 2, KeyMapChanged),
        (rules.decide(ONE, PLAN), "p", 2, InvalidParameter),
        (STOPPED, "q", 2, ResizeUnderWay),
        (STOPPED, "p", 3, KeyMapChanged),
        (TWO, "q", 2, KeyMapChanged),
    ],
)
def test_what_is_not_stopped_is_not_opened(
    now: Versions, plan_id: str, version: int, error: type[BrokerError]
) -> None:
    """Nor by another plan, nor another version."""
    with pytest.raises(error):
        rules.open_next(now, plan_id, version)


def test_a_withdrawn_plan_never_counts_again() -> None:
    """The version is open as before; late requests of the plan are refused, another plan is not."""
    for now in (rules.decide(ONE, PLAN), STOPPED, ONE):
        back = rules.withdraw(now, "p")
        assert (back.plan, back.ends, back.stopped) == (None, None, False)
        assert (back.version, back.map, back.withdrawn) == (1, ONE.map, ("p",))
        assert rules.withdraw(back, "p") is back
        with pytest.raises(InvalidParameter, match="withdrawn"):
            rules.decide(back, PLAN)
        with pytest.raises(InvalidParameter, match="withdrawn"):
            rules.note(back, PLAN, {}, {})
        with pytest.raises(InvalidParameter, match="withdrawn"):
            rules.open_next(back, "p", 2)
        with pytest.raises(InvalidParameter, match="withdrawn"):
            rules.go(back, "p", 2)
        assert rules.decide(back, OTHER).plan == OTHER


def test_a_plan_that_may_be_open_somewhere_is_not_withdrawn() -> None:
    """After `go` at the first broker, and where the version is open."""
    going = rules.go(STOPPED, "p", 2)
    assert (going.going, rules.go(going, "p", 2)) == (True, going)
    with pytest.raises(InvalidParameter, match="too late"):
        rules.withdraw(going, "p")
    opened = rules.open_next(going, "p", 2)
    assert not opened.going
    assert rules.go(opened, "p", 2) is opened
    with pytest.raises(InvalidParameter, match="is open here"):
        rules.withdraw(opened, "p")
    with pytest.raises(InvalidParameter, match="not stopped"):
        rules.go(rules.decide(ONE, PLAN), "p", 2)
    with pytest.raises(ResizeUnderWay):
        rules.go(STOPPED, "q", 2)


def test_another_plan_stays_when_one_is_withdrawn() -> None:
    """A broker that comes back late learns of both; their number is bounded."""
    both = rules.withdraw(STOPPED, "q")
    assert (both.plan, both.ends, both.withdrawn) == (PLAN, STOPPED.ends, ("q",))
    many = ONE
    for number in range(rules.WITHDRAWN_MAX + 3):
        many = rules.withdraw(many, f"p{number}")
    assert len(many.withdrawn) == rules.WITHDRAWN_MAX
    assert many.withdrawn[-1] == f"p{rules.WITHDRAWN_MAX + 2}"


def test_a_group_is_held_at_the_end_of_its_version() -> None:
    """Pulls are held in each queue; an unknown group begins with the oldest version."""
    assert rules.end_for(ONE, "g", 0) is None
    assert [rules.end_for(THREE, "g", queue) for queue in range(4)] == [10, 20, 0, 0]
    assert rules.end_for(THREE, "new", 1) == 20
    second = rules.release(THREE, "g", 2, done=2)
    assert [rules.end_for(second, "g", queue) for queue in range(4)] == [15, 20, 5, 0]
    third = rules.release(second, "g", 3, done=3)
    assert rules.end_for(third, "g", 0) is None
    assert rules.waiting(THREE) == ["g"]
    assert rules.waiting(third) == []


@pytest.mark.parametrize(
    ("committed", "first", "done"),
    [
        ({}, 0, 1),
        ({0: 10}, 0, 1),
        ({0: 9, 1: 20}, 0, 1),
        ({0: 10, 1: 20}, 0, 2),
        ({0: 15, 1: 20}, 0, 2),
        ({0: 15, 1: 20, 2: 5}, 0, 3),
        ({}, 20, 3),
    ],
)
def test_done_is_at_the_ends_of_all_queues(
    committed: dict[int, int], first: int, done: int
) -> None:
    """Or where nothing before the end is left."""
    found = rules.done_version(THREE, "g", lambda queue: committed.get(queue, -1), lambda _: first)
    assert found == done


def test_a_release_is_checked_and_never_goes_back() -> None:
    """A reset by an operator takes a group back."""
    with pytest.raises(GroupNotDone, match="yet to finish"):
        rules.release(THREE, "g", 2, done=1)
    third = rules.release(THREE, "g", 3, done=3)
    assert rules.release(third, "g", 2, done=3) is third
    assert rules.next_map(THREE, "g") == (2, "2/a:0-3")
    assert rules.next_map(third, "g") == (3, "3/a:0-0")
    assert rules.behind(THREE, "g", lambda _: 4, lambda _: 0) == 6 + 16
    assert rules.behind(third, "g", lambda _: 4, lambda _: 0) == 0


def test_groups_are_remembered_and_forgotten() -> None:
    """Members at once; whoever is asked about without being held."""
    assert TWO.groups == {"g": Reading(1, True), "reader": Reading(1, False)}
    held = rules.hold(TWO, "reader", member=True)
    assert held.groups["reader"] == Reading(1, True)
    assert rules.hold(TWO, "late", member=False).groups["late"] == Reading(1, False)
    assert rules.waiting(rules.forget(TWO, ["g"])) == ["reader"]


@pytest.mark.parametrize(
    ("now", "queue", "chapters"),
    [
        (ONE, 0, [(0, 1)]),
        (STOPPED, 0, [(0, 1)]),
        (TWO, 0, [(0, 1), (10, 2)]),
        (TWO, 3, [(0, 2)]),
        (THREE, 0, [(0, 1), (10, 2), (15, 3)]),
        (THREE, 1, [(0, 1), (20, 3)]),
        (THREE, 2, [(0, 2), (5, 3)]),
        (THREE, 9, [(0, 3)]),
        (Versions(), 0, [(0, 0)]),
    ],
)
def test_version_spans_of_a_queue(
    now: Versions, queue: int, chapters: list[tuple[int, int]]
) -> None:
    """From which offset on which version placed its messages."""
    assert resizing_rules.version_spans(now, queue) == chapters


def test_what_is_gone_is_let_go() -> None:
    """Past versions without a message are dropped; ends beyond the log are lowered."""
    assert resizing_rules.trim(THREE, lambda _: 0, "a") is THREE
    trimmed = resizing_rules.trim(THREE, lambda _: 20, "a")
    assert trimmed.past == ()
    assert rules.reading(trimmed, "g") == 3
    assert [
        one.version for one in resizing_rules.trim(TWO, lambda queue: (10, 19)[queue], "a").past
    ] == [1]
    cut = resizing_rules.cut(STOPPED, lambda _: 15)
    assert cut.ends == {0: 10, 1: 15}
    assert resizing_rules.cut(THREE, lambda _: 100) == THREE


def test_version_spans_stay_as_long_as_another_broker_may_hold_messages_of_them() -> None:
    """A group that has not handled those gets nothing newer here; their ends may be dropped."""
    both = msgspec.structs.replace(THREE, map="3/a:0-0/b:0-0")
    assert resizing_rules.trim(both, lambda _: 0, "a") is both
    bare = resizing_rules.trim(both, lambda _: 20, "a")
    assert [(one.version, one.ends) for one in bare.past] == [(1, {}), (2, {})]
    assert (rules.reading(bare, "g"), rules.end_for(bare, "g", 0)) == (1, 0)
    assert rules.done_version(bare, "g", lambda _: 0, lambda _: 20) == 3
    assert resizing_rules.trim(bare, lambda _: 20, "a") is bare
    half = resizing_rules.trim(both, lambda queue: (10, 20, 0)[queue], "a")
    assert [one.ends for one in half.past] == [{}, THREE.past[1].ends]
    planned = Versions(1, "1/a:0-0", plan=Plan("p", 2, "2/a:0-0/c:0-0"))
    assert rules.brokers_of(planned) == {"a", "c"}
    assert rules.brokers_of(Versions()) == set()


def test_queues_that_groups_have_yet_to_read_are_counted() -> None:
    """Queues that the map no longer has stay until no group needs them or they are empty."""
    for of, first, count in [
        (["g"], 0, 3), (["g"], 6, 2), (["g"], 20, 0), ([], 0, 0), (None, 0, 3), (["new"], 0, 3),
    ]:  # fmt: skip
        assert resizing_rules.queues_left(THREE, lambda _, first=first: first, of=of) == count
    second = rules.release(THREE, "g", 2, done=2)
    assert resizing_rules.queues_left(second, lambda _: 15, of=["g"]) == 2
    third = rules.release(second, "g", 3, done=3)
    assert resizing_rules.queues_left(third, lambda _: 0, of=rules.waiting(third)) == 0


def test_versions_of_a_name_are_never_used_again() -> None:
    """Also of a deleted topic, also when too many names are remembered (A5)."""
    table = Resizes()
    assert table.of("t", 1, "1/a:0-1") == ONE
    table.topics["t"] = TWO
    assert table.of("t", 1, "1/a:0-1") is TWO
    table.delete("t", 2)
    assert (table.last("t"), table.last("u"), "t" in table.topics) == (2, 0, False)
    table.delete("t", 1)
    again = Resizes()
    again.decode(table.encode_with("u", TWO))
    assert (again.last("t"), again.topics) == (2, {"u": TWO})
    for number in range(GONE_MAX):
        table.delete(f"n{number}", 3)
    assert (table.last("t"), table.last("n0")) == (2, 3)
    assert table.last("never seen") == 2, "the oldest names were forgotten, not their versions"
    with pytest.raises(RemoteProtocolError):
        again.decode(b'{"topics": 7}')


def test_queues_of_a_broker_are_counted() -> None:
    """As RocketMQ numbers them: 0, 1, …"""
    assert rules.counts_of("1/a:0-1/b:0-0") == {"a": 2, "b": 1}
    with pytest.raises(InvalidParameter):
        rules.counts_of("1/a:1-2")


# Sends.

NO_MAP = SendMap("", stopped=False)
OPEN = SendMap("2/a:0-3", stopped=False)
SHUT = SendMap("2/a:0-3", stopped=True)
BY_HAND = SendMap("2/not a map", stopped=False)
DIGEST = KeyMap.decode("2/a:0-3").digest


@pytest.mark.parametrize(
    ("now", "version", "digest"),
    [
        (NO_MAP, "0", ""),
        (OPEN, "2", DIGEST),
        (SHUT, rules.NO_VERSION, rules.NO_DIGEST),
        (SendMap("", stopped=True), rules.NO_VERSION, rules.NO_DIGEST),
        (SendMap("text without a version", stopped=False), "0", ""),
    ],
)
def test_what_a_send_must_name(now: SendMap, version: str, digest: str) -> None:
    """The open map; while a resize has it closed, no send names the right one."""
    assert (now.version, now.digest) == (version, digest)


def test_a_map_that_was_set_by_hand_has_a_digest() -> None:
    """Even if it cannot be decoded: keyed sends without it are refused."""
    assert BY_HAND.version == "2"
    assert BY_HAND.digest not in {"", rules.NO_DIGEST, DIGEST}


@pytest.mark.parametrize(
    ("now", "version", "digest"),
    [
        (NO_MAP, "0", None),
        (NO_MAP, None, None),
        (NO_MAP, "0", ""),
        (OPEN, "2", None),
        (OPEN, "2", DIGEST),
        (BY_HAND, "2", BY_HAND.digest),
    ],
)
def test_a_send_by_the_open_map_is_accepted(
    now: SendMap, version: str | None, digest: str | None
) -> None:
    """The digest is compared only if the send must have one."""
    now.check("t", version, digest)


@pytest.mark.parametrize(
    ("now", "version", "digest", "remark"),
    [
        (NO_MAP, "1", None, r"the key map of topic\[t\] has version 0, not 1"),
        (OPEN, "1", DIGEST, r"the key map of topic\[t\] has version 2, not 1"),
        (OPEN, "3", None, r"the key map of topic\[t\] has version 2, not 3"),
        (OPEN, "9" * 30, None, r"has version 2, not 9{20}$"),
        (OPEN, "2", "", r"topic\[t\] is another one of version 2"),
        (OPEN, "2", "another", r"topic\[t\] is another one of version 2"),
        (OPEN, "0", None, r"the key map of topic\[t\] has version 2, not 0"),
        (OPEN, None, None, r"topic\[t\] has a key map, and the queue of this key was chosen"),
        (SHUT, "2", DIGEST, r"topic\[t\] is being resized, version 2 of its key map is closed"),
        (SHUT, "2", rules.NO_DIGEST, r"version 2 of its key map is closed"),
        (SHUT, "3", DIGEST, r"the key map of topic\[t\] has version 2, not 3"),
        (SHUT, rules.NO_VERSION, None, r"the key map of topic\[t\] has version 2, not "),
        (SHUT, None, None, r"topic\[t\] has a key map, and the queue of this key was chosen"),
    ],
)
def test_a_send_by_another_map_is_refused_with_the_map(
    now: SendMap, version: str | None, digest: str | None, remark: str
) -> None:
    """The producer learns the present map from the refusal."""
    with pytest.raises(KeyMapChanged, match=remark) as refusal:
        now.check("t", version, digest)
    assert (refusal.value.version, refusal.value.map) == (2 if now.text else 0, now.text)


BASED = Plan("p", 1, "1/a:0-1", base="0/a:0-3")


@pytest.mark.parametrize(
    ("now", "plan", "queue_id", "key", "home"),
    [
        (Versions(), None, 7, "b", 7),  # no map
        (TWO, None, 0, "b", 2),  # its key was in queue 0 of version 1
        (TWO, None, 1, "b", 1),  # its key was never in this queue: the sender chose it
        (TWO, None, 1, None, 1),
        (STOPPED, PLAN, 0, "b", 2),  # the plan has the newest map
        (Versions(), BASED, 2, "b", 0),  # as keys were placed before the first map
        (Versions(), BASED, 2, "a", 0),  # a removed queue, and not that of its key
        (THREE, None, 3, None, 0),  # a removed queue
        (THREE, None, 3, "c", 0),
    ],
)
def test_a_delayed_message_comes_home(
    now: Versions, plan: Plan | None, queue_id: int, key: str | None, home: int
) -> None:
    """It follows its key, if its key placed it; otherwise it stays if its queue does."""
    assert rules.home(now, plan, ("a", queue_id), key) == ("a", home)
