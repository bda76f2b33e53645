"""Delays between attempts."""

from __future__ import annotations

import pytest

from inorder.tasks import Backoff


def test_delays_double_up_to_the_limit_and_start_again() -> None:
    """Each delay is twice the last one, never above the limit; success starts over."""
    backoff = Backoff(100, 700)
    assert [backoff.next_ms() for _ in range(5)] == [100, 200, 400, 700, 700]
    backoff.reset()
    assert backoff.next_ms() == 100
    assert repr(backoff) == "Backoff(100..700 ms, attempts=1)"


def test_drawn_delays_lie_in_the_upper_half() -> None:
    """With randomness a delay is between half and all of what it would be."""
    draws = iter([0.0, 0.5, 1.0])
    backoff = Backoff(100, 100, draw=lambda: next(draws))
    assert [backoff.next_ms() for _ in range(3)] == [50, 75, 100]


def test_thousands_of_attempts_stay_at_the_limit() -> None:
    """The delay does not overflow, however long a server is away."""
    backoff = Backoff(1, 1000)
    assert [backoff.next_ms() for _ in range(5000)][-1] == 1000


@pytest.mark.parametrize(("first", "limit", "factor"), [(0, 1, 2), (5, 4, 2), (1, 2, 0.5)])
def test_senseless_settings_raise(first: int, limit: int, factor: float) -> None:
    """A delay of nothing, or one that shrinks, is a mistake."""
    with pytest.raises(ValueError, match="0 < first <= max"):
        Backoff(first, limit, factor=factor)
