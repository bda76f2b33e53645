"""Which messages above the committed offset are done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inorder.errors import RemoteProtocolError
from inorder.ordering.finished import SPAN_MAX, FinishedMap


def test_the_base_moves_over_what_is_done() -> None:
    """The base is the lowest offset that is not done."""
    done = FinishedMap(100)
    for offset in (102, 103, 105):
        done.add(offset)
    assert (done.base, done.above, done.encode()) == (100, [102, 103, 105], "100:2c")
    done.add(100)
    assert (done.base, done.above) == (101, [102, 103, 105])
    done.add(101)
    assert (done.base, done.above) == (104, [105])


def test_what_is_below_the_base_is_done() -> None:
    """An offset below the base counts, and adding it changes nothing."""
    done = FinishedMap(10)
    done.add(3)
    assert 9 in done
    assert 10 not in done
    assert done.encode() == "10:0"


def test_a_long_contiguous_range_needs_no_bits() -> None:
    """A range that begins at the base may be longer than the span."""
    done = FinishedMap(0)
    done.add(5)
    done.add_range(0, 10 * SPAN_MAX)
    assert (done.base, done.span) == (10 * SPAN_MAX, 0)


def test_beyond_the_span_is_refused() -> None:
    """A message too far above the base must wait: the map stays bounded."""
    with pytest.raises(ValueError, match="above 0"):
        FinishedMap(0).add(SPAN_MAX)


@pytest.mark.parametrize(
    "text", ["", "5", "x:1", "-1:1", "5:", "5:g", "5:1:2", "5:" + "f" * 20_000]
)
def test_garbage_is_refused(text: str) -> None:
    """What is no map is named in the error."""
    with pytest.raises(RemoteProtocolError, match="finished"):
        FinishedMap.decode(text)


@given(st.integers(0, 2**40), st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40))))
def test_it_equals_a_set(base: int, ranges: list[tuple[int, int]]) -> None:
    """Ranges in any order leave the map that a set of offsets would."""
    done, model = FinishedMap(base), set(range(max(0, base - 5), base))
    for start, length in ranges:
        done.add_range(base + start, base + start + length)
        model |= set(range(base + start, base + start + length))
    lowest = base
    while lowest in model:
        lowest += 1
    assert done.base == lowest
    assert done.above == sorted(offset for offset in model if offset > lowest)
    assert FinishedMap.decode(done.encode()) == done


@given(
    st.sets(st.integers(0, 40), max_size=9),
    st.sets(st.integers(0, 40), max_size=9),
    st.integers(0, 50),
)
def test_all_but_the_unfinished_are_added(known: set[int], unfinished: set[int], end: int) -> None:
    """One call leaves the map that adding every finished offset would."""
    one, other = FinishedMap(0), FinishedMap(0)
    for offset in known - unfinished:
        one.add(offset)
        other.add(offset)
    left = sorted(offset for offset in unfinished if offset < end)
    one.add_below(end, unfinished=left)
    for offset in range(end):
        if offset not in left:
            other.add(offset)
    assert one == other


def test_unfinished_offsets_beyond_the_span_are_refused() -> None:
    """A map never grows beyond its bound, and never takes a finished offset back."""
    with pytest.raises(ValueError, match="do not fit"):
        FinishedMap(0).add_below(SPAN_MAX + 1, unfinished=[0])
    with pytest.raises(ValueError, match="do not fit"):
        FinishedMap(5).add_below(9, unfinished=[3])
