"""The rules for the numbers of one producer on one queue."""

from __future__ import annotations

import pytest

from inorder.ordering.sequence import Verdict, expected, is_next, judge, judge_batch

NEXT, DUPLICATE, GAP, UNKNOWN = Verdict.NEXT, Verdict.DUPLICATE, Verdict.GAP, Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("last", "number", "verdict"),
    [
        (None, 0, NEXT),
        (None, 1, UNKNOWN),
        (-1, 0, NEXT),
        (-1, 1, GAP),
        (4, 5, NEXT),
        (4, 6, GAP),
        (4, 4, DUPLICATE),
        (4, 0, DUPLICATE),
    ],
)
def test_an_anonymous_producer_counts_without_gaps(
    last: int | None, number: int, verdict: Verdict
) -> None:
    """The next number is stored, stored ones are duplicates, later ones are refused."""
    assert judge(last, number, None) is verdict


@pytest.mark.parametrize(
    ("last", "number", "before", "verdict"),
    [
        (None, 10, -1, NEXT),
        (None, 10, 5, GAP),
        (10, 20, 10, NEXT),
        (10, 30, 20, GAP),
        (10, 11, -1, GAP),
        (20, 20, 10, DUPLICATE),
        (20, 15, 10, DUPLICATE),
    ],
)
def test_a_named_producer_names_its_predecessor(
    last: int | None, number: int, before: int, verdict: Verdict
) -> None:
    """Gaps are allowed, but only behind the last number stored (A2)."""
    assert judge(last, number, before) is verdict


@pytest.mark.parametrize("last", [-1, 0, 4])
@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("before", [None, *range(-1, 6)])
def test_the_next_number_is_judged_next(last: int, number: int, before: int | None) -> None:
    """The fast path of the broker and the general path mean the same by it."""
    assert is_next(last, number, before) is (judge(last, number, before) is NEXT)


def test_what_a_refused_send_is_told() -> None:
    """An anonymous producer the next number, a named one the predecessor to name."""
    assert expected(None, named=False) == 0
    assert expected(4, named=False) == 5
    assert expected(None, named=True) == -1
    assert expected(4, named=True) == 4


@pytest.mark.parametrize(
    ("last", "numbers", "found"),
    [
        (None, [(0, None), (1, None)], (NEXT, 0)),
        (None, [(1, None), (2, None)], (UNKNOWN, 0)),
        (1, [(0, None), (1, None)], (DUPLICATE, 2)),
        (1, [(1, None), (2, None), (3, None)], (NEXT, 1)),
        (1, [(3, None), (4, None)], (GAP, 0)),
        (10, [(10, 5), (20, 10), (30, 20)], (NEXT, 1)),
        (10, [(20, 15), (30, 20)], (GAP, 0)),
    ],
)
def test_a_batch_is_judged_by_the_first_message_that_is_not_stored(
    last: int | None, numbers: list[tuple[int, int | None]], found: tuple[Verdict, int]
) -> None:
    """What is stored stands at its front."""
    assert judge_batch(last, numbers) == found


@pytest.mark.parametrize(
    "numbers",
    [
        [(0, None), (2, None)],
        [(1, None), (0, None)],
        [(1, None), (1, None)],
        [(10, -1), (20, 15)],
        [(10, 10)],
        [(10, -1), (5, 10)],
    ],
)
def test_the_messages_of_a_batch_follow_one_another(numbers: list[tuple[int, int | None]]) -> None:
    """A hole, a step back or a wrong predecessor inside a batch is nobody's stored prefix."""
    with pytest.raises(ValueError, match=r"follow|predecessor"):
        judge_batch(None, numbers)
