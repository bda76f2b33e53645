"""Captured conversations with a real RocketMQ, played against our name server and broker."""

from __future__ import annotations

import pytest

from tests.golden.replay import capture
from tests.golden.replay.report import all_results, unused_later, unused_rules
from tests.golden.replay.run import result_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", capture.names())
def test_answers_are_those_of_rocketmq(name: str) -> None:
    """Each answer equals the captured one, or differs by a rule that says why."""
    unexplained = [str(d) for one in result_of(name).judged for d in one.unexplained]
    assert unexplained == []
    assert result_of(name).answered_oneway == ()


def test_clients_are_notified_as_by_rocketmq() -> None:
    """NOTIFY_CONSUMER_IDS_CHANGED goes out as often, and once more for each unlock that freed."""
    for result in filter(lambda one: one.whole, all_results()):
        captured, ours = result.notified_captured[40], result.notified[40]
        unlocks = sum(one.exchange.code == 42 for one in result.judged) + sum(
            count for (_, code), count in result.oneway.items() if code == 42
        )
        assert captured <= ours <= captured + unlocks, result.file


def test_every_rule_explains_something() -> None:
    """A deliberate difference that is no longer there loses its rule."""
    results = all_results()
    assert unused_rules(results) == []
    assert unused_later(results) == []
