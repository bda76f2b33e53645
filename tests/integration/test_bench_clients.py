"""The client benchmark finds lost, repeated and misplaced messages; one that believes all proves
nothing.
"""

from __future__ import annotations

import pytest

from bench import batches, pythons
from bench.compare import Plan
from bench.drivers.traffic import (
    BODY_BYTES,
    KEYS,
    Handled,
    bodies,
    key_of,
    number_of,
    wrong_effects,
    wrong_storage,
)
from bench.pythons import ARMS, GOALS, OURS, RATE, Figures

COUNT = 3 * len(KEYS)
QUEUES = 4


def all_handled() -> list[Handled]:
    return [(key_of(number), body) for number, body in enumerate(bodies(COUNT))]


def all_stored() -> tuple[dict[int, list[bytes]], list[tuple[int, int]]]:
    stored: dict[int, list[bytes]] = {queue: [] for queue in range(QUEUES)}
    receipts = []
    for number, body in enumerate(bodies(COUNT)):
        queue = number % len(KEYS) % QUEUES
        receipts.append((queue, len(stored[queue])))
        stored[queue].append(body)
    return stored, receipts


def test_bodies_say_what_they_are() -> None:
    """A body of another length, or with other bytes, has no number."""
    made = bodies(COUNT)
    assert {len(body) for body in made} == {BODY_BYTES}
    assert [number_of(body) for body in made] == list(range(COUNT))
    assert number_of(made[1][:-1]) == number_of(b"x" * BODY_BYTES + b"x") == -1


def test_right_effects_are_right() -> None:
    """Keys as text or as bytes, one key after the other or in turn."""
    handled = all_handled()
    assert wrong_effects(handled, COUNT, in_order=True) == []
    as_bytes: list[Handled] = [(str(key).encode(), body) for key, body in handled]
    assert wrong_effects(as_bytes, COUNT, in_order=True) == []
    by_key = sorted(handled, key=lambda one: str(one[0]))  # keys may take turns in any way
    assert wrong_effects(by_key, COUNT, in_order=True) == []


def test_wrong_effects_are_found() -> None:
    """Lost, repeated, out of order, under another key, not read."""
    lost = all_handled()
    del lost[7]
    assert wrong_effects(lost, COUNT, in_order=True) == [
        f"1 of {COUNT} messages not handled, first 7"
    ]
    twice = [*all_handled(), all_handled()[7]]
    assert "1 messages handled more than once" in wrong_effects(twice, COUNT, in_order=False)
    turned = all_handled()
    turned[7], turned[7 + len(KEYS)] = turned[7 + len(KEYS)], turned[7]
    assert wrong_effects(turned, COUNT, in_order=True) == [
        f"{key_of(7)}: message 7 handled after {7 + len(KEYS)}"
    ]
    assert wrong_effects(turned, COUNT, in_order=False) == []
    strange = all_handled()
    strange[7] = (key_of(8), strange[7][1])
    assert wrong_effects(strange, COUNT, in_order=True) == [
        f"message 7 has key '{key_of(8)}', not {key_of(7)}"
    ]
    unread = all_handled()
    unread[7] = (unread[7][0], b"")
    assert "a body that nobody sent: b''" in wrong_effects(unread, COUNT, in_order=True)


def test_right_storage_is_right() -> None:
    """Each message is where its receipt says."""
    assert wrong_storage(*all_stored(), COUNT) == []


def test_wrong_storage_is_found() -> None:
    """Lost, stored twice, out of order, in two queues, under a wrong receipt."""
    stored, receipts = all_stored()
    last = stored[3].pop()
    found = wrong_storage(stored, receipts, COUNT)
    assert found[0] == f"1 of {COUNT} messages not stored"
    assert "1 receipts are wrong" in found[1]
    stored[3] += [last, last]
    assert "stored twice" in wrong_storage(stored, receipts, COUNT)[0]
    stored, receipts = all_stored()
    receipts[5], receipts[9] = receipts[9], receipts[5]
    assert wrong_storage(stored, receipts, COUNT)[0].startswith("2 receipts are wrong, first of")
    assert "receipts for" in wrong_storage(stored, receipts[:-1], COUNT)[0]
    stored, receipts = all_stored()
    stored[0].reverse()
    assert "stored after" in wrong_storage(stored, receipts, COUNT)[0]
    stored, receipts = all_stored()
    stored[1].append(stored[0].pop())
    assert any("is in queues" in line for line in wrong_storage(stored, receipts, COUNT))


def test_the_table_has_every_arm_and_goal() -> None:
    """Ratios are those of rounds; without another side there are none."""
    figures = Figures()
    for arm in ARMS:
        rates = (200.0, 300.0) if arm.driver == OURS else (100.0, 300.0)
        figures.units[arm] = [
            {RATE: rate, pythons.CLIENT_CPU: 1.0, pythons.BROKER_CPU: 2.0} for rate in rates
        ]
    shown = pythons.table(figures)
    assert [shown.count(f": {arm.label} | 2") for arm in ARMS] == [1] * len(ARMS)
    assert shown.count("| 1.50 | 1.00 to 2.00 |") == len(GOALS)
    assert shown.count("NOT MET") == sum(goal.least > 1.5 for goal in GOALS) == 1
    alone = Figures({arm: units for arm, units in figures.units.items() if arm.driver == OURS})
    assert "goal" not in pythons.table(alone)


def test_a_tool_that_did_not_fill_its_batches_is_bad() -> None:
    """As is one that sent fewer messages, or said nothing."""
    said = "1000 records sent, 5000.0 records/sec (1.00 MB/sec), 1 ms avg latency\n"
    metric = "producer-metrics:batch-size-avg:{client-id=p} : %s\n"
    unit, bad = batches._read(said + metric % "6700.5", 1000, 0.002)
    assert (unit["messages_per_s"], unit["cpu_us_per_message"], bad) == (5000.0, 2.0, [])
    assert "batches of 900.0 bytes" in batches._read(said + metric % "900.0", 1000, 0.002)[1][0]
    assert "not 999 records" in batches._read(said + metric % "6700.5", 999, 0.002)[1][0]
    assert len(batches._read("it failed", 1000, 0.002)[1]) == 2


@pytest.mark.slow
def test_our_own_arms_run_and_are_right() -> None:
    """Real processes, a real broker: every way to produce and to consume."""
    lines: list[str] = []
    figures = pythons.run_pythons(Plan(units=1, warm_s=0), lines.append, count=2000)
    assert figures.wrong == []
    assert set(figures.units) == {arm for arm in ARMS if arm.driver == OURS}
