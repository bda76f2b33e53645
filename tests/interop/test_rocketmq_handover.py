"""Ordered consumers of RocketMQ clients on our broker: a member joins, stops, loses its connection,
and the broker is started again; each queue has a consumer again in time, in order.

All run at the same time, because nearly all the time they wait for timers of the clients. What a
kill does is in `test_rocketmq_scenarios.py`; `make proof-handover` runs everything beside Apache
RocketMQ, and allows nothing for a busy machine.
"""

from __future__ import annotations

import pytest

from tests.interop.handover import CASES, KILL, OURS, Case, Outcomes, measure, table
from tests.interop.stage import BUSY_S

pytestmark = [pytest.mark.interop, pytest.mark.slow]

HERE = [case for case in CASES if case.act != KILL]


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """Play all cases."""
    found = measure(HERE, [OURS])
    print(table(HERE, [OURS], found))
    return found


@pytest.mark.parametrize("case", HERE, ids=lambda case: case.name)
def test_every_queue_has_a_consumer_again_in_time(case: Case, outcomes: Outcomes) -> None:
    """Nothing is lost, first deliveries are in order, no queue stands still for too long."""
    (outcome,) = outcomes[case.name, OURS]
    if isinstance(outcome, BaseException):
        raise outcome
    assert outcome.idle_s <= case.limit_s + BUSY_S
    assert outcome.doubled <= case.doubled_max
