"""Accounts and orders: what each step does, and which steps do not follow."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inorder.client.consume.rules.outcomes import Retry
from inorder.spark.jobs.rules import Account, GatewayBroken, OrderError, Step, handle, move
from inorder.spark.ordered.rules import OrderedMessage


def lived(steps: str) -> tuple[str, int, bool]:
    """Return status, balance and lateness of an order of 100 after these steps."""
    account, order = Account(), None
    for step in steps.split():
        order = move(account, Step("o", step, 100))
    assert order is not None
    return order.status, account.balance, order.late


@pytest.mark.parametrize(
    ("steps", "end"),
    [
        ("created", ("open", -100, False)),
        ("created paid", ("paid", 0, False)),
        ("created overdue", ("late", -100, True)),
        ("created overdue paid shipped delivered", ("delivered", 0, True)),
        ("created declined declined", ("open", -100, False)),
        ("created declined declined declined", ("cancelled", 0, False)),
        ("created overdue declined paid", ("paid", 0, True)),
        ("created cancelled", ("cancelled", 0, False)),
        ("created paid cancelled", ("cancelled", 100, False)),
    ],
)
def test_the_life_of_an_order(steps: str, end: tuple[str, int, bool]) -> None:
    """Status, balance and whether it was paid late."""
    assert lived(steps) == end


@pytest.mark.parametrize(
    "steps",
    ["paid", "created created", "created shipped", "created paid paid", "created paid overdue",
     "created paid shipped delivered shipped", "created cancelled paid", "created flown"],
)  # fmt: skip
def test_a_step_that_does_not_follow_is_an_error(steps: str) -> None:
    """It would show that the order of events was lost."""
    with pytest.raises(OrderError, match="does not follow"):
        lived(steps)


def message(attempt: int = 1, **step: Any) -> OrderedMessage:
    body = json.dumps({"order": "o", "step": "created", "amount": 7, **step}).encode()
    return OrderedMessage("t", "b", 0, 0, "account-1", body, redeliveries=attempt - 1)


def test_the_gateway_decides_by_the_attempt() -> None:
    """Busy for some tries, or broken for ever."""
    for attempt in (1, 2):
        with pytest.raises(Retry):
            handle(message(attempt, busy=2), None)
    account, (row,) = handle(message(3, busy=2), None)
    assert (account.balance, account.steps) == (-7, 1)
    assert row == ("account-1", 1, "o", "created", "open", False, 7, -7, 3)
    with pytest.raises(GatewayBroken):
        handle(message(9, broken=True), None)
