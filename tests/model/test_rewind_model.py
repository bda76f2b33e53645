"""Rewinding a group to before a resize: every state within bounds, and what breaks without a rule.

`make model` takes the bounds of WHOLE; the sample has the same story with lower bounds.
"""

from __future__ import annotations

import os
from dataclasses import fields, replace
from typing import Any

import pytest

from tests.model.rewinding import RewindModel, Rules, ended, is_fault
from tests.model.search import follow, search, stuck

pytestmark = pytest.mark.slow

IS_WHOLE = os.environ.get("INORDER_MODEL") == "whole"
SAMPLE: list[dict[str, Any]] = [
    {"resets": 2},
    {"resets": 1, "kills": 1, "late": 1},
]
THREE: dict[str, Any] = {"brokers": 3, "targets": (1,), "lapses": False}
"""One message to replay, and leases that do not expire, because there would be too many states."""
WHOLE: list[dict[str, Any]] = [
    {"resets": 2, "kills": 1},
    {"resets": 2, "late": 1},
    {"resets": 1, "kills": 2, "late": 1},
    THREE,
]
PLANTED: dict[str, dict[str, Any]] = {
    "pause_is_durable": {"kills": 1},
    "pause_first": {"kills": 1},
    "all_pause": {},
    "quiet": {},
    "revokes": {},
    "past_is_freed": {},
    "revoked_is_final": {},
    "revoke_is_durable": {"kills": 1},
    "number_on_release": {},
    "done_still": {"resets": 2},
    "paused_is_held": THREE,
    "number_on_resume": {"resets": 2},
}
FORGETFUL: dict[str, Any] = {"forgot": 2, "number_stays": False}


@pytest.mark.parametrize("bounds", WHOLE if IS_WHOLE else SAMPLE, ids=str)
def test_nobody_handles_a_newer_version_amid_a_replay(bounds: dict[str, Any]):
    """Nor beside it, whatever is late, lost or killed, and wherever it is rewound once more."""
    found = search(RewindModel(Rules(), **bounds).model())
    print(bounds, found)
    assert found.ok, found


@pytest.mark.parametrize(
    "bounds", [{"resets": 2, "kills": 1}, {"kills": 1, "late": 1}] if IS_WHOLE else [{"kills": 1}]
)
def test_a_replay_can_always_end(bounds: dict[str, Any]):
    """From every state all brokers can come back to the present version, without another kill."""
    model = RewindModel(Rules(), **bounds).model()
    assert stuck(model, ended, fault=is_fault) is None


@pytest.mark.parametrize("forgot", [1, 2])
def test_a_group_is_deleted_at_one_broker_made_again_and_rewound(forgot: int):
    """That broker remembers the rewind number, so that the next one is new to all."""
    model = RewindModel(Rules(), resets=2 if IS_WHOLE else 1, forgot=forgot).model()
    found = search(model)
    assert found.ok, found
    assert stuck(model, ended, fault=is_fault) is None
    without = RewindModel(Rules(), forgot=1, number_stays=False).model()
    assert search(without).counterexample is not None


def test_a_broker_that_knows_an_older_number_rewinds_a_group():
    """Its number is below those of the others, yet its rewind is the newest; the replay ends."""
    model = RewindModel(Rules(), kills=1 if IS_WHOLE else 0, **FORGETFUL).model()
    found = search(model)
    assert found.ok, found
    assert stuck(model, ended, fault=is_fault) is None
    without = RewindModel(replace(Rules(), newest_wins=False), **FORGETFUL).model()
    assert stuck(without, ended, fault=is_fault) is not None


def test_every_rule_is_planted():
    """The table names each rule of the model but the one of the test above."""
    assert {*PLANTED, "newest_wins"} == {field.name for field in fields(Rules)}


@pytest.mark.parametrize("rule", [one for one in PLANTED if IS_WHOLE or PLANTED[one] is not THREE])
def test_no_rule_can_be_left_out(rule: str):
    """Without it the search finds a schedule that breaks the order; it is a run of the model."""
    model = RewindModel(replace(Rules(), **{rule: False}), **PLANTED[rule]).model()
    found = search(model).counterexample
    print(rule, found)
    assert found is not None, f"nothing breaks without {rule}"
    assert "version" in found.broken[0]
    assert follow(model, found.labels) == len(found.labels)
