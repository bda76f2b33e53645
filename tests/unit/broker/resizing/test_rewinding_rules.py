"""Groups that are rewound into a past version: when, what brokers agree on, and what waits."""

from __future__ import annotations

import pytest

from inorder.broker.parking.rules import ParkedKey, ParkedMessage
from inorder.broker.resizing import rules as resizing_rules
from inorder.broker.resizing.rules import (
    Agreement,
    Eligibility,
    Reading,
    Standing,
    Versions,
    agree,
)
from inorder.errors import GroupNotDone
from inorder.ordering.keymap import KeyMap
from inorder.wire.requests.parking import QueuePlace
from inorder.wire.requests.resizing import PastVersion

THREE = Versions(
    3,
    "3/a:0-0/b:0-0",
    "r",
    past=(
        PastVersion(1, "1/a:0-1/b:0-1", {0: 10, 1: 20}),
        PastVersion(2, "2/a:0-3/b:0-0", {0: 15, 1: 20, 2: 5}),
    ),
    groups={"g": Reading(3, True)},
)


@pytest.mark.parametrize(
    ("targets", "version"),
    [
        ({0: 15}, None),  # into the present one
        ({0: 100}, None),
        ({0: 12}, 2),
        ({0: 10}, 2),
        ({0: 9}, 1),
        ({0: 12, 1: 3}, 1),
        ({1: 19}, 1),
        ({2: 0}, 2),
        ({3: 0}, None),  # nothing came under any that is past
        ({}, None),
    ],
)
def test_offsets_lead_back_into_the_oldest_version_they_open_again(
    targets: dict[int, int], version: int | None
) -> None:
    """A reset is a rewind if it replays or skips messages of a past version."""
    done = {0: 40, 1: 40, 2: 40, 3: 40}
    assert resizing_rules.version_touched(THREE, targets, done.__getitem__, lambda _: 0) == version


@pytest.mark.parametrize(
    ("committed", "first", "offset", "version"),
    [
        (4, 0, 4, None),
        (4, 0, 3, 1),
        (4, 0, 5, 1),  # what is skipped may be handled just now
        (4, 0, 99, 1),
        (12, 0, 99, 2),
        (40, 10, 0, 2),  # of version 1 nothing is left
        (40, 15, 0, None),
        (15, 0, 99, None),
        (-1, 0, 0, None),
        (-1, 0, 5, 1),
    ],
)
def test_what_is_skipped_counts_too_and_what_is_gone_does_not(
    committed: int, first: int, offset: int, version: int | None
) -> None:
    """The same offset as before, or one among messages that are deleted, touches nothing."""
    found = resizing_rules.version_touched(THREE, {0: offset}, lambda _: committed, lambda _: first)
    assert found == version


def test_a_group_is_paused_once_for_a_rewind_number() -> None:
    """A paused group gets nothing; older or repeated requests change nothing."""
    paused = resizing_rules.pause(THREE, "g", 2, 1)
    assert paused.groups["g"] == Reading(2, True, 1, rests=True)
    assert [resizing_rules.end_for(paused, "g", queue) for queue in range(4)] == [0, 0, 0, 0]
    assert resizing_rules.end_for(paused, "other", 0) == 10
    assert resizing_rules.waiting(paused) == ["g"]
    assert resizing_rules.next_rewind_number(paused, "g") == 2
    assert resizing_rules.pause(paused, "g", 2, 1) is paused
    assert resizing_rules.pause(paused, "g", 3, 1) is paused
    assert resizing_rules.pause(paused, "g", 1, 0) is paused
    assert resizing_rules.pause(paused, "g", 1, 1).groups["g"] == Reading(1, True, 1, rests=True)
    again = resizing_rules.pause(paused, "g", 3, 2)
    assert again.groups["g"] == Reading(2, True, 2, rests=True), "it never goes forward"
    assert resizing_rules.reading(resizing_rules.pause(THREE, "new", 3, 1), "new") == 1


def test_a_version_of_which_nothing_is_left_is_agreed_on_too() -> None:
    """A broker without messages of the version pauses too: otherwise brokers never agree."""
    bare = Versions(3, THREE.map)
    paused = resizing_rules.pause(resizing_rules.pause(bare, "g", 3, 1), "g", 1, 1)
    assert (resizing_rules.rewound_to(paused, "g"), resizing_rules.reading(paused, "g")) == (1, 3)
    assert resizing_rules.pause(paused, "g", 1, 1) is paused
    assert resizing_rules.rewound_to(resizing_rules.resume(paused, "g", 1), "g") == 3


def test_a_group_reads_on_in_its_term() -> None:
    """A resume counts for the rewind number that it names, once."""
    paused = resizing_rules.pause(THREE, "g", 1, 2)
    assert resizing_rules.resume(paused, "g", 1) is paused
    assert resizing_rules.resume(paused, "g", 3) is paused
    reads = resizing_rules.resume(paused, "g", 2)
    assert reads.groups["g"] == Reading(1, True, 2)
    assert resizing_rules.end_for(reads, "g", 0) == 10
    assert resizing_rules.resume(reads, "g", 2) is reads
    assert resizing_rules.pause(reads, "g", 1, 2) is reads, "late"
    assert resizing_rules.resume(THREE, "other", 0) is THREE


def test_a_release_of_an_older_term_is_refused() -> None:
    """A release from before a rewind is refused; only force releases a paused group."""
    paused = resizing_rules.pause(THREE, "g", 1, 2)
    reads = resizing_rules.resume(paused, "g", 2)
    for now, term in ((paused, 2), (reads, 1)):
        with pytest.raises(GroupNotDone, match="was rewound into version 1"):
            resizing_rules.release(now, "g", 2, done=3, rewind_number=term)
    assert resizing_rules.release(reads, "g", 2, done=3, rewind_number=2).groups["g"] == Reading(
        2, True, 2
    )
    newer = resizing_rules.release(reads, "g", 2, done=3, rewind_number=5)
    assert newer.groups["g"].term == 5, "another broker knows of more"
    assert resizing_rules.release(paused, "g", 3, done=3).groups["g"] == Reading(3, True, 2)
    assert resizing_rules.release(paused, "g", 1, done=3).groups["g"] == Reading(1, True, 2)


@pytest.mark.parametrize(
    ("standings", "agreed"),
    [
        # Nobody but one knows.
        ({"a": (1, 1, True, True), "b": (0, 2, False, True)}, (1, 1, ("b",), False)),
        # All know, and somebody may be handling.
        ({"a": (1, 1, True, True), "b": (1, 1, True, False)}, (1, 1, (), False)),
        ({"a": (1, 1, True, True), "b": (1, 1, True, True)}, (1, 1, (), True)),
        # A newer reset at another broker, and an older version there.
        ({"a": (1, 1, True, True), "b": (2, 2, True, True)}, (2, 1, ("a", "b"), False)),
        ({"a": (2, 1, True, True), "b": (2, 2, True, True)}, (2, 1, ("b",), False)),
        # One did not hear that it is over.
        ({"a": (1, 1, True, True), "b": (1, 2, False, True)}, (1, 1, (), True)),
        # One that has forgotten earlier rewinds: its rewind is the newest.
        ({"a": (1, 1, True, True), "b": (4, 2, False, True)}, (5, 1, ("a", "b"), False)),
        # Alone.
        ({"a": (1, 1, True, False)}, (1, 1, (), False)),
        ({"a": (1, 1, True, True)}, (1, 1, (), True)),
    ],
)
def test_brokers_agree(
    standings: dict[str, tuple[int, int, bool, bool]],
    agreed: tuple[int, int, tuple[str, ...], bool],
) -> None:
    """A group resumes when all brokers agree on number and version and none handles it."""
    assert agree({name: Standing(*one) for name, one in standings.items()}) == Agreement(*agreed)


HERE, THERE = ("a", 1), ("a", 3)
_PAIRS = {
    (KeyMap.decode(THREE.past[0].map).queue(key), KeyMap.decode(THREE.past[1].map).queue(key)): key
    for key in map("k{}".format, range(99))
}
STAYS, LEAVES = _PAIRS[HERE, HERE], _PAIRS[HERE, THERE]
AWAY, TO = QueuePlace("b", 0), QueuePlace(*THERE)


def _parked(
    key: str,
    messages: list[int],
    older: dict[QueuePlace, int] | None = None,
    moved: tuple[QueuePlace, int] | None = None,
) -> ParkedKey:
    listed = [ParkedMessage(origin, 0, 1) for origin in messages]
    to, by = moved or (None, 0)
    return ParkedKey("k", 0, "", 1, key, listed, older=older or {}, moved_to=to, moved_by=by)


@pytest.mark.parametrize(
    ("reads", "queue", "one", "scope"),
    [
        (3, HERE, _parked(STAYS, [99]), "eligible"),
        (1, HERE, _parked(STAYS, [19]), "eligible"),
        (1, HERE, _parked(STAYS, [20]), ""),  # it is of version 2
        (1, HERE, _parked(STAYS, [19, 20]), "eligible"),  # what is of version 2 follows here
        (1, HERE, _parked(LEAVES, [19, 20]), "blocked"),  # and here it does not
        (1, HERE, _parked(LEAVES, []), "eligible"),
        (1, HERE, _parked(LEAVES, [19]), "eligible"),
        # It has come by a version, from an older list.
        (1, HERE, _parked(LEAVES, [], {AWAY: 3}), ""),
        (1, HERE, _parked(LEAVES, [20], {AWAY: 3}), ""),
        (1, HERE, _parked(LEAVES, [19], {AWAY: 3}), "blocked"),
        (1, HERE, _parked(LEAVES, [], {AWAY: 1}), "eligible"),
        (1, HERE, _parked(LEAVES, [], {AWAY: 1, TO: 3}), "blocked"),
        (1, HERE, _parked(STAYS, [19], {AWAY: 3}), "eligible"),
        # It lives elsewhere by a version: by the next one, or one that comes later.
        (1, HERE, _parked(LEAVES, [19], {}, (TO, 2)), "eligible"),
        (1, HERE, _parked(LEAVES, [19, 20], {}, (TO, 2)), "blocked"),
        (1, HERE, _parked(LEAVES, [19], {}, (TO, 3)), "blocked"),
        (1, HERE, _parked(LEAVES, [19], {}, (AWAY, 3)), "blocked"),
        (1, HERE, _parked(LEAVES, [], {}, (AWAY, 3)), "eligible"),  # nothing of it has to wait
        (1, HERE, _parked(STAYS, [19], {}, (AWAY, 3)), "eligible"),
        # By the map it belongs elsewhere, or no map has put it there.
        (1, THERE, _parked(LEAVES, []), ""),
        (2, THERE, _parked(LEAVES, [], {QueuePlace(*HERE): 2}), "eligible"),
        (1, HERE, _parked("", [19, 20]), "eligible"),
        (0, HERE, _parked(STAYS, [19]), ""),  # its group is paused
    ],
)
def test_parked_keys_of_a_newer_version_wait_for_their_group(
    reads: int, queue: tuple[str, int], one: ParkedKey, scope: str
) -> None:
    """Such a key is neither redriven nor moved before its rewound group reaches it.

    If the group has reached some of its messages, those must be redriven first.
    """
    paused = resizing_rules.pause(THREE, "g", 1, 1)
    first = resizing_rules.resume(paused, "g", 1)
    second = resizing_rules.release(first, "g", 2, done=2, rewind_number=1)
    found = resizing_rules.eligibility((paused, first, second, THREE)[reads], "g", queue, one)
    assert found == Eligibility(bool(scope), scope == "blocked")
