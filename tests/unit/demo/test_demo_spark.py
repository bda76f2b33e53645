"""The part of the demo on Spark: what its producers send, and what its picture shows."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest

from inorder.demo.spark import AFTER_SECONDS, Samples, draw, life_cycles, shown_of
from inorder.spark.jobs.rules import Account, Step, move


def test_life_cycles_are_interleaved_and_whole() -> None:
    """Every order ends, in order, though many live at the same time; some pay late, some never."""
    accounts: dict[str, Account] = {}
    alive_most = late = cancelled = 0
    for account, body in life_cycles(Random(1), 20, 300):
        state = accounts.setdefault(account, Account())
        order = move(state, msgspec.json.decode(body, type=Step))
        alive_most = max(alive_most, sum(len(one.orders) for one in accounts.values()))
        late += order.status == "paid" and order.late
        cancelled += order.status == "cancelled"
    assert all(not one.orders and one.balance == 0 for one in accounts.values())
    assert alive_most > 20
    assert late > 5
    assert cancelled > 5


def test_the_picture_ends_soon_after_the_last_message() -> None:
    """The audit takes long and shows nothing; without samples there is nothing to show."""
    at_s = [float(second) for second in range(20)]
    done = [0] * 5 + [10] * 15
    assert shown_of(Samples(at_s, done, done)) == 5 + int(AFTER_SECONDS) + 1
    assert shown_of(Samples()) == 0


def test_the_picture_is_written(tmp_path: Path) -> None:
    """Into a folder that is made for it."""
    pytest.importorskip("matplotlib")
    samples = Samples([0.0, 1.0, 2.0], [0, 10, 10], [0, 0, 10], 0.5, 1.5)
    draw(samples, str(tmp_path / "new" / "demo.png"), 5, "all is well", in_order=True)
    assert (tmp_path / "new" / "demo.png").read_bytes().startswith(b"\x89PNG")
