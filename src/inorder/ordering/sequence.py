"""Sequence numbers of one producer on one queue: is a send the next one, repeated or early?

An anonymous producer numbers its messages 0, 1, 2 … without gaps. A stored number is a duplicate.
The next number is stored. A later number is refused: an earlier message is still under way and
would be stored after it. If nothing is known of the producer, only 0 can be its first message; a
later number means that the producer's state was lost.

A named producer gets its numbers from outside, from a pipeline that may run again. They only grow,
and gaps are allowed, so a number alone does not tell whether all earlier messages are stored. Each
send therefore names its predecessor on the queue and is next if the predecessor is the last stored.
How sequence numbers are remembered: decision 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from typing import Final

NOTHING: Final = -1
"""The last number of a queue without messages of the producer."""


class Verdict(Enum):
    """The broker's judgement of a sequence number."""

    NEXT = "next"
    DUPLICATE = "duplicate"
    GAP = "gap"
    UNKNOWN = "unknown"


def is_next(last: int, number: int, before: int | None) -> bool:
    """Return whether a send is the next one after `last`; for `before` see `judge`."""
    # hot: 0.05 µs
    return number == last + 1 if before is None else before == last < number


def judge(last: int | None, number: int, before: int | None) -> Verdict:
    """Judge a send; `last` is None if nothing is known of the producer on this queue.

    `before` is the predecessor that a named producer's send names, None for an anonymous one.
    """
    if last is None:
        if before is None and number:
            return Verdict.UNKNOWN
        last = NOTHING
    if number <= last:
        return Verdict.DUPLICATE
    return Verdict.NEXT if is_next(last, number, before) else Verdict.GAP


def expected(last: int | None, *, named: bool) -> int:
    """Return the answer to a refused send: the next number, or the predecessor to name."""
    known = NOTHING if last is None else last
    return known if named else known + 1


def judge_batch(last: int | None, numbers: Sequence[tuple[int, int | None]]) -> tuple[Verdict, int]:
    """Judge the (number, before) of a batch's items, which must follow one another.

    Returns how many at its front are stored already, and the verdict on the first that is not;
    DUPLICATE if all are.

    Raises:
        ValueError: they do not follow one another; says how.
    """
    _require_chain(numbers)
    known = NOTHING if last is None else last
    done = sum(number <= known for number, _ in numbers)
    if done == len(numbers):
        return Verdict.DUPLICATE, done
    return judge(last, *numbers[done]), done


def _require_chain(numbers: Sequence[tuple[int, int | None]]) -> None:
    for (earlier, _), (number, before) in pairwise(numbers):
        if number != earlier + 1 if before is None else before != earlier:
            raise ValueError(f"{number} does not follow {earlier}")
    for number, before in numbers:
        if before is not None and before >= number:
            raise ValueError(f"{number} names a later predecessor, {before}")
