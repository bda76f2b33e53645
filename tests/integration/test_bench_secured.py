"""The benchmark of access control: both brokers serve the same client."""

from __future__ import annotations

import pytest

from bench.secured import CHECKED, OPEN, WHAT, Figures, run_secured, summary


@pytest.mark.slow
def test_both_brokers_are_measured() -> None:
    """Every load on the open broker and on the one that checks, with a user who has two rules."""
    said: list[str] = []
    table, _, figures = run_secured(1, said.append, smoke=True)
    assert set(figures.units) == {(mode, name) for mode in WHAT for name in (OPEN, CHECKED)}
    assert all(unit["messages"] > 0 for units in figures.units.values() for unit in units)
    assert (len(said), len(table.splitlines())) == (6, 5)


def test_a_rate_below_the_goal_is_told() -> None:
    """The median of the pairs counts."""
    unit = {"broker_cpu_us_per_message": 1.0, "client_cpu_us_per_message": 2.0}
    figures = Figures()
    for mode in WHAT:
        slower = (0.9, 0.94, 1.2) if mode == "sync" else (0.9, 0.96, 1.2)
        figures.units[mode, OPEN] = [{**unit, "messages_per_s": 1000.0} for _ in slower]
        figures.units[mode, CHECKED] = [{**unit, "messages_per_s": 1000 * one} for one in slower]
    table, missed = summary(figures)
    assert "| 1,000 | 940 | 0.94 | 0.90 to 1.20 | 1.00 + 2.00 | 1.00 + 2.00 |" in table
    assert missed == ["ordered sends of 1 KiB, one after the other: 0.94 of the rate, not 0.95"]
