"""The lease protocol, searched wholly within bounds; and each of its rules, by what breaks without.

The bounds of the sample are those of SAMPLE; `make model` takes WHOLE. Whatever breaks needs few
things to go wrong: every rule that is left out is found with at most two faults.
"""

from __future__ import annotations

import os
from dataclasses import fields, replace

import pytest

from tests.model.leases import Bounds, Lease, Rules
from tests.model.search import follow, search

SAMPLE = (
    Bounds(messages=1, faults=1, resets=1, grants=2),
    Bounds(messages=2, faults=1, resets=0, grants=2),
)
WHOLE = (
    Bounds(messages=1, faults=2, resets=0, grants=2),
    Bounds(messages=2, faults=1, resets=1, grants=2),
    Bounds(messages=1, faults=1, resets=0, grants=4),
    Bounds(consumers=3, messages=1, faults=1, resets=0, grants=3),
    Bounds(messages=2, faults=2, resets=0, grants=2),
)
BOUNDS = WHOLE if os.environ.get("INORDER_MODEL") == "whole" else SAMPLE
STATES_MAX = 8_000_000

FEW = Bounds(messages=1, faults=1, resets=0, grants=2)
CALM = replace(FEW, faults=0)
PLANTED: dict[str, tuple[Bounds, str]] = {
    "trust_from_sending": (FEW, "P2"),
    "trust_grace": (FEW, "P2"),
    "epoch_on_commit": (CALM, "P4"),
    "epoch_on_release": (CALM, "P4"),
    "numbers": (replace(FEW, messages=2), "P4"),
    "grants_journalled": (FEW, "P2"),
    "commits_journalled": (FEW, "P4"),
    "release_commits": (CALM, "P5"),
    "reset_raises_epoch": (replace(FEW, resets=1), "P4"),
    "start_number": (FEW, "P2"),
    "boot_id": (FEW, "P2"),
    "waits_after_cut": (FEW, "P2"),
    "wait_survives": (replace(FEW, faults=2), "P2"),
    "waits_stated_lease": (FEW, "P2"),
    "instances": (CALM, "P2"),
    "begins_anew": (CALM, "P4"),
    "release_is_final": (FEW, "P2"),
    "renewal_only_renews": (FEW, "P2"),
    "deadline_kept": (replace(FEW, faults=2), "P6"),
    "renewal_voids": (replace(FEW, faults=2), "P2"),
    "fold_says_what_stands": (replace(FEW, faults=2), "P2"),
    "wait_deadline_kept": (replace(FEW, faults=2), "P6"),
}


@pytest.mark.slow
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_the_protocol_keeps_its_promises(bounds: Bounds):
    """P2, P4, P5, P6 and P7 hold in every state that the bounds allow."""
    result = search(Lease(Rules(), bounds).model(), states_max=STATES_MAX)
    print(bounds, result)
    assert result.ok, str(result)


def test_every_rule_is_planted():
    """The table below names each rule of the model."""
    assert PLANTED.keys() == {field.name for field in fields(Rules)}


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(rule, marks=pytest.mark.slow) if bounds.faults > 1 else rule
        for rule, (bounds, _) in PLANTED.items()
    ],
)
def test_without_a_rule_a_promise_breaks(rule: str):
    """Each rule is there for a schedule: the search finds it, and it is a run of the model."""
    bounds, promise = PLANTED[rule]
    model = Lease(replace(Rules(), **{rule: False}), bounds).model()
    found = search(model).counterexample
    print(rule, found)
    assert found is not None, f"nothing breaks without {rule}"
    assert found.broken[0].startswith(promise)
    assert follow(model, found.labels) == len(found.labels)
