"""What happens to a half: tables of its fate, of its copies, and of ends that come again."""

from __future__ import annotations

import pytest

from inorder.broker.transactions.rules import (
    PUT_BACK_BYTES,
    REMEMBERED_MAX,
    End,
    Fate,
    Half,
    Settings,
    Transactions,
    fate,
    is_late,
    judge_again,
)
from inorder.errors import SystemBusy

SETTINGS = Settings(timeout_ms=6000, checks_max=15, retention_ms=72 * 3_600_000)
BORN = 1_000_000


def half(offset: int, origin: int | None = None, **changes: int) -> Half:
    position = 1000 + offset * 100
    given = {"born_at_ms": BORN, "stored_at_ms": BORN, **changes}
    return Half(position if origin is None else origin, offset, position, **given)


def table(*offsets: int) -> Transactions:
    found = Transactions(pending_max=100)
    for offset in offsets:
        found.add(half(offset))
    return found


@pytest.mark.parametrize(
    ("changes", "age_ms", "log_end", "wanted"),
    [
        ({}, 0, 0, Fate.LEAVE),
        ({}, 6000, 0, Fate.LEAVE),
        ({}, 6001, 0, Fate.ASK),
        ({}, -1, 0, Fate.ASK),  # the clock went back
        ({"immunity_s": 60}, 6001, 0, Fate.LEAVE),
        ({"immunity_s": 60}, 60_001, 0, Fate.ASK),
        ({"immunity_s": 60}, 6001, PUT_BACK_BYTES + 2001, Fate.PUT_BACK),
        ({"immunity_s": 60}, 6001, PUT_BACK_BYTES + 2000, Fate.LEAVE),
        ({}, 3000, PUT_BACK_BYTES * 2, Fate.LEAVE),
        ({"checks": 14}, 6001, 0, Fate.ASK),
        ({"checks": 15}, 6001, 0, Fate.GIVE_UP),
        ({"checks": 15}, 0, 0, Fate.GIVE_UP),
        ({"immunity_s": 10**7}, 72 * 3_600_000 + 1, 0, Fate.GIVE_UP),
        ({"stored_at_ms": BORN + 10_000}, 6001, 0, Fate.LEAVE),
    ],
)
def test_the_fate_of_a_half(
    changes: dict[str, int], age_ms: int, log_end: int, wanted: Fate
) -> None:
    """In RocketMQ's order: too often or too old, stored in this round, immune, due."""
    one = half(10, **changes)
    now_ms = BORN + age_ms
    found = fate(one, SETTINGS, now_ms=now_ms, began_ms=BORN + 5000, log_end=log_end)
    assert found is wanted


@pytest.mark.parametrize("busy", ["ending", "storing"])
def test_a_half_that_is_being_written_is_left_alone(busy: str) -> None:
    """Its end, itself or its newer copy is in the tick."""
    one = half(1, checks=15)
    setattr(one, busy, True)
    assert fate(one, SETTINGS, now_ms=BORN + 10**6, began_ms=BORN + 1, log_end=0) is Fate.LEAVE


def test_the_first_offset_passes_ended_halves_and_waits_for_copies() -> None:
    """A half whose copy is being stored counts where it was, until the copy is safe."""
    found = table(3, 4, 5)
    assert found.first_offset(9) == 3
    found.end(found.at(4), End.COMMITTED)  # type: ignore[arg-type]
    first = found.at(3)
    assert first is not None
    moved = found.move(first, 6, 1600, BORN + 1)
    found.add(half(7))
    assert (found.first_offset(9), found.offsets()) == (3, [5, 6, 7])
    found.settle(moved)
    assert found.first_offset(9) == 5
    found.end(found.at(5), End.ROLLED_BACK)  # type: ignore[arg-type]
    assert found.first_offset(9) == 6
    for offset in (6, 7):
        found.end(found.at(offset), End.COMMITTED)  # type: ignore[arg-type]
    assert found.first_offset(9) == 9


def test_a_copy_that_was_not_stored_leaves_the_half_where_it_was() -> None:
    """In the order of the offsets, and as a half that may be asked about again."""
    found = table(3, 4)
    second = found.at(4)
    assert second is not None
    moved = found.move(second, 5, 1500, BORN + 1)
    found.add(half(6))
    found.undo(moved)
    assert (found.offsets(), second.position, second.storing) == ([3, 4, 6], 1400, False)
    assert found.first_offset(9) == 3
    found.undo(moved)
    found.remove(second)
    found.undo(moved)
    assert found.offsets() == [3, 6]


@pytest.mark.parametrize(
    ("steps", "durable", "wanted"),
    [
        ("", 0, None),
        ("add 3, add 4", 9000, 1300),
        ("add 3, add 4, end 3", 9000, 1400),
        ("add 3, add 4, end 3, end 4", 9000, None),
        ("add 3, remove 3, add 4", 9000, 1400),
        ("add 3, add 4, move 3 5", 9000, 1300),  # its copy is not stored
        ("add 3, add 4, move 3 5, undo, end 4", 9000, 1300),
        ("add 3, add 4, move 3 5, settle", 1500, 1300),  # a power cut may take the copy
        ("add 3, add 4, move 3 5, settle", 1501, 1400),
        ("add 3, move 3 5, settle", 1501, 1500),
        ("add 3, move 3 5, settle, move 5 6, settle", 1600, 1500),
        ("add 3, move 3 5, settle, move 5 6, settle", 1500, 1300),
        ("add 3, move 3 5, end 5, settle", 1500, 1300),  # ended by its copy, which may be lost
        ("add 3, move 3 5, end 5, settle", 1501, None),
    ],
)
def test_where_the_log_must_begin(steps: str, durable: int, wanted: int | None) -> None:
    """At the first half that is pending; it counts where it was until its copy is durable."""
    found, moved = table(), None
    for step in filter(None, steps.split(", ")):
        name, *numbers = step.split()
        offsets = [int(number) for number in numbers]
        one = found.at(offsets[0]) if offsets else None
        if name == "add":
            found.add(half(*offsets))
        elif name == "settle":
            assert moved is not None
            found.settle(moved)
        elif name == "undo":
            assert moved is not None
            found.undo(moved)
        else:
            assert one is not None
            if name == "end":
                found.end(one, End.COMMITTED)
            elif name == "remove":
                found.remove(one)
            else:
                moved = found.move(one, offsets[1], 1000 + offsets[1] * 100, BORN + 1)
    assert found.keep_from(durable) == wanted
    assert found.keep_from(durable) == wanted, "asking changes nothing"


def test_the_first_record_that_counts_tells_of_a_half_that_counts() -> None:
    """Records of halves before the first one that counts are passed."""
    found = table()
    for record, highest in ((0, 5), (1, 3), (2, 9)):
        found.note(record, highest)
    assert found.first_note(4, 3) == 0
    assert found.first_note(6, 3) == 2
    assert found.first_note(10, 3) == 3


def test_pending_transactions_have_a_limit() -> None:
    """The refusal names the setting."""
    found = Transactions(pending_max=1)
    found.require_room()
    found.add(half(1))
    with pytest.raises(SystemBusy, match="transactions_max"):
        found.require_room()


def test_ends_are_remembered_up_to_a_limit() -> None:
    """The oldest are forgotten first."""
    found = table()
    for origin in range(REMEMBERED_MAX + 2):
        found.remember(origin, End.COMMITTED)
    assert (found.known_end(1), found.known_end(2)) == (None, End.COMMITTED)


@pytest.mark.parametrize(
    ("known", "wanted", "text"),
    [
        (End.COMMITTED, End.COMMITTED, None),
        (End.ROLLED_BACK, End.ROLLED_BACK, None),
        (End.COMMITTED, End.ROLLED_BACK, "was committed before"),
        (End.ROLLED_BACK, End.COMMITTED, "was rolled back before"),
        (End.GIVEN_UP, End.COMMITTED, "was given up"),
        (None, End.COMMITTED, "no longer remembered"),
    ],
)
def test_an_end_that_comes_again(known: End | None, wanted: End, text: str | None) -> None:
    """The same end is answered as the first time, another one is refused."""
    error = judge_again(known, wanted)
    assert (text is None) == (error is None)
    assert text is None or text in str(error)


@pytest.mark.parametrize(
    ("immunity_s", "age_ms", "late"),
    [(None, 10**9, False), (10, 10_000, False), (10, 10_001, True), (1, 6000, False),
     (1, 6001, True)],
)  # fmt: skip
def test_what_ends_too_late(immunity_s: int | None, age_ms: int, late: bool) -> None:
    """Only a message that names a time of its own, which is at least the broker's."""
    assert is_late(immunity_s, BORN, 6000, BORN + age_ms) is late
