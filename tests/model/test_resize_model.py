"""The resize protocol, every state of it within bounds; and what breaks without each rule."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.model.resizing import ResizeModel, Rules, key_of
from tests.model.search import search

pytestmark = pytest.mark.slow

WHOLE = os.environ.get("INORDER_MODEL") == "whole"
"""`make model`; a sample has the same story with less of it."""


def test_a_lone_coordinator_keeps_order_over_kills():
    """One coordinator, three messages of a key that changes its broker, one kill anywhere."""
    model = ResizeModel(Rules(), messages=3, kills=1, key=key_of(0, 2), coordinators=1)
    found = search(model.model())
    assert found.ok, found


def test_rival_coordinators_keep_order():
    """Two coordinators that want different queues, and know as much as they happened to hear."""
    messages = 2 if WHOLE else 1
    model = ResizeModel(Rules(), messages=messages, kills=0, key=key_of(0, 2), delayed=0)
    found = search(model.model())
    assert found.ok, found


def test_rival_coordinators_open_one_map_over_kills():
    """With two requests under way, which come late or twice, and two kills anywhere."""
    model = ResizeModel(Rules(), messages=0, kills=2, key=key_of(0, 2), delayed=2)
    found = search(model.model())
    assert found.ok, found


@pytest.mark.parametrize(("kills", "delayed"), [(1, 0), (0, 1)] if WHOLE else [(0, 0)])
def test_a_withdrawn_plan_is_opened_nowhere(kills: int, delayed: int):
    """Two coordinators, each goes on or takes back at any time; one kill, or one request late."""
    model = ResizeModel(
        Rules(), messages=0, kills=kills, key=key_of(0, 2), delayed=delayed, withdraws=True
    )
    found = search(model.model())
    assert found.ok, found


def test_taking_back_keeps_order():
    """Two messages of a key that would have changed its broker, one who resizes and takes back."""
    model = ResizeModel(
        Rules(), messages=2, kills=1, key=key_of(0, 2), coordinators=1, delayed=1, withdraws=True
    )
    found = search(model.model())
    assert found.ok, found


def test_without_the_first_brokers_agreement_a_plan_is_withdrawn_and_opened():
    """It decides between the two: who opens without asking it may be too late."""
    rules = replace(Rules(), go_first=False)
    model = ResizeModel(rules, messages=0, kills=0, key=key_of(0, 2), delayed=1, withdraws=True)
    found = search(model.model(), states_max=300_000)
    assert found.counterexample is not None
    assert "taken back and opened" in str(found)


@pytest.mark.parametrize(
    ("rule", "coordinators", "kills", "messages"),
    [
        ("gates", 1, 0, 3),
        ("stop_before_open", 1, 0, 3),
        ("stop_is_durable", 1, 1, 3),
        ("one_plan", 2, 0, 0),
        ("first_opens_last", 1, 0, 3),
        ("done_everywhere", 1, 0, 3),
        ("own_version_only", 1, 0, 3),
    ],
)
def test_no_rule_can_be_left_out(rule: str, coordinators: int, kills: int, messages: int):
    """Without it the search finds a schedule that breaks the order, or opens two maps."""
    rules = replace(Rules(), **{rule: False})
    for key in (key_of(0, 2), key_of(1, 0)):
        model = ResizeModel(
            rules, delayed=0, messages=messages, kills=kills, key=key, coordinators=coordinators
        )
        found = search(model.model(), states_max=300_000)
        if found.counterexample is not None:
            return
    pytest.fail(f"nothing breaks without {rule}: {found}")
