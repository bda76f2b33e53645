"""The judge of `timers.py` sees what it is there to see."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.crash.timers import Found, Sendings, judge


def found(due: dict[int, int], came: dict[int, int], *twice: int) -> Found:
    return Found(due, came, Counter([*came, *twice]), list(came), 10_000)


def test_a_clean_run_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    """And its figures are printed; what is due later need not have come."""
    log = Sendings(acknowledged={1, 2, 3, 4}, recalled={4}, perhaps_recalled={4})
    due = {1: 1000, 2: 2000, 3: 20_000, 4: 3000}
    assert judge(log, found(due, {1: 1005, 2: 2100})) == []
    assert "lost=0 twice=0 early=0 out_of_order=0" in capsys.readouterr().out


def test_lost_doubled_early_late_recalled_and_swapped_messages_are_found() -> None:
    """Each under its name."""
    log = Sendings(acknowledged={1, 2, 3, 4, 9}, recalled={4}, perhaps_recalled={4})
    due = {1: 1000, 2: 2000, 3: 3000, 4: 4000}
    wrong = judge(log, found(due, {1: 999, 4: 4000, 2: 2500}, 4))
    assert [text.split()[1].rstrip(":") for text in wrong] == [
        "lost", "twice", "early", "recalled", "out", "66.67%",
    ]  # fmt: skip
    assert wrong[0].startswith("2 lost"), "one waits for ever, one is not there at all"


def test_a_message_that_arrived_after_its_time_and_came_at_once_is_right() -> None:
    """It never waited, so nothing says when it was due; one that is nowhere is lost."""
    log = Sendings(acknowledged={1, 2})
    assert judge(log, found({1: 1000}, {1: 1005, 2: 2100})) == []
    assert [text.split()[1] for text in judge(log, found({1: 1000}, {1: 1005}))] == ["lost:"]
