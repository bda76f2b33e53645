"""Setting a group back to before a resize, every state within bounds; what breaks without a rule.

`make model` takes the bounds of WHOLE, the sample has the same story with less of it.
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
"""One message to replay, and leases that do not run out: or there would be too many states."""
WHOLE: list[dict[str, Any]] = [
    {"resets": 2, "kills": 1},
    {"resets": 2, "late": 1},
    {"resets": 1, "kills": 2, "late": 1},
    THREE,
]
PLANTED: dict[str, dict[str, Any]] = {
    "rest_is_durable": {"kills": 1},
    "rest_first": {"kills": 1},
    "all_rest": {},
    "quiet": {},
    "recalls": {},
    "past_is_freed": {},
    "recalled_is_final": {},
    "recall_is_durable": {"kills": 1},
    "term_on_release": {},
    "done_still": {"resets": 2},
    "resting_is_held": THREE,
    "term_on_go_on": {"resets": 2},
}
FORGETFUL: dict[str, Any] = {"forgot": 2, "term_stays": False}


@pytest.mark.parametrize("bounds", WHOLE if IS_WHOLE else SAMPLE, ids=str)
def test_nobody_handles_a_newer_version_amid_a_replay(bounds: dict[str, Any]):
    """Nor beside it, whatever is late, lost or killed, and wherever it is set back once more."""
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
def test_a_group_is_deleted_at_one_broker_made_again_and_set_back(forgot: int):
    """The term of before is remembered there, so that the next one is new to all."""
    model = RewindModel(Rules(), resets=2 if IS_WHOLE else 1, forgot=forgot).model()
    found = search(model)
    assert found.ok, found
    assert stuck(model, ended, fault=is_fault) is None
    without = RewindModel(Rules(), forgot=1, term_stays=False).model()
    assert search(without).counterexample is not None


def test_a_broker_that_knows_an_older_term_sets_a_group_back():
    """Its term is below those of the others, and it is a newer one all the same; it can end."""
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
