"""The judge of `delays.py` sees what it is there to see."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.crash.delays import Found, Sendings, _lateness, judge


def found(due: dict[int, int], came: dict[int, int], *twice: int) -> Found:
    return Found(due, set(), came, Counter([*came, *twice]))


def test_a_clean_run_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    """And its figures are printed."""
    log = Sendings(acknowledged={1, 2})
    assert judge(log, found({1: 1000, 2: 2000}, {1: 1005, 2: 2100})) == []
    assert "lost=0 twice=0 early=0" in capsys.readouterr().out


def test_lost_doubled_early_and_late_messages_are_found() -> None:
    """Each under its name."""
    log = Sendings(acknowledged={1, 2, 3, 4, 9})
    wrong = judge(log, found({1: 1000, 2: 2000, 3: 3000, 4: 4000}, {1: 999, 2: 2500, 4: 4000}, 4))
    assert [text.split()[1].rstrip(":") for text in wrong] == ["lost", "twice", "early", "75.00%"]
    assert wrong[0].startswith("2 lost"), "one waits for ever, one is not there at all"


def test_what_waited_for_a_start_is_judged_apart() -> None:
    """From when the broker was back; but not what was late before it was killed."""
    log = Sendings(down_ms=[(10_000, 12_000)])
    due = {1: 9_990, 2: 11_000, 3: 12_500, 4: 9_000, 5: 20_000, 6: 5_000}
    came = {1: 12_010, 2: 12_020, 3: 12_530, 4: 12_040, 5: 20_005, 6: 5_001}
    up, down = _lateness(log, found(due, came))
    assert sorted(down) == [10, 20, 30]
    assert sorted(up) == [1, 5, 3040]


def test_a_broker_that_is_killed_again_at_once_was_not_back() -> None:
    """Messages count from the start after which they came."""
    log = Sendings(down_ms=[(10_000, 12_000), (12_100, 14_000)])
    up, down = _lateness(log, found({1: 11_000, 2: 13_000}, {1: 14_050, 2: 14_060}))
    assert (up, down) == ([], [50, 60])
