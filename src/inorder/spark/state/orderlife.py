"""Accounts with orders and balances: the rules of the job `orders`.

A message is JSON, keyed by its account: `{"order": "o-7", "step": "paid", "amount": 1250}`, amounts
in cents. What a step does to an order:

    from                 step        to           balance of the account
    -                    created     open         - amount
    open                 overdue     late
    open, late           paid        paid         + amount
    open, late           declined    the same; cancelled at the third time, then + amount
    open, late, paid     cancelled   cancelled    + amount
    paid                 shipped     shipped
    shipped              delivered   delivered

Any other step is an error: it would mean that events came in another order than they happened. A
payment says how its gateway behaves: `"busy": 2` refuses the first two tries, `"broken": true` all.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from inorder.client.consume.rules.outcomes import Retry
from inorder.errors import InorderError
from inorder.spark.state.messages import OrderedMessage

DECLINES_MAX: Final = 3
BUSY_S: Final = 0.2

TRANSITIONS: Final[dict[tuple[str, str], tuple[str, int]]] = {
    ("", "created"): ("open", -1),
    ("open", "overdue"): ("late", 0),
    ("open", "paid"): ("paid", 1),
    ("late", "paid"): ("paid", 1),
    ("open", "declined"): ("open", 0),
    ("late", "declined"): ("late", 0),
    ("open", "cancelled"): ("cancelled", 1),
    ("late", "cancelled"): ("cancelled", 1),
    ("paid", "cancelled"): ("cancelled", 1),
    ("paid", "shipped"): ("shipped", 0),
    ("shipped", "delivered"): ("delivered", 0),
}
"""(status, step) -> (status, how often the amount is added to the balance)."""


class OrderError(InorderError):
    """A step that does not follow from what the order went through."""


class GatewayBroken(InorderError):
    """A payment that fails however often it is tried."""


class Step(msgspec.Struct):
    """What a message says."""

    order: str
    step: str
    amount: int = 0
    busy: int = 0
    broken: bool = False


class Order(msgspec.Struct, array_like=True):
    """An order that is not over yet."""

    status: str
    amount: int
    late: bool = False
    declines: int = 0


class Account(msgspec.Struct):
    """The state of a key."""

    balance: int = 0
    steps: int = 0
    orders: dict[str, Order] = {}
    """Those that are not over."""


COLUMNS: Final = (
    "account string, number bigint, `order` string, step string, status string, late boolean, "
    "amount bigint, balance bigint, attempts int"
)
_OVER: Final = ("delivered", "cancelled")
_DECODE: Final = msgspec.json.Decoder(Step).decode


def handle(message: OrderedMessage, state: Account | None) -> tuple[Account, list[tuple[Any, ...]]]:
    """Take an account one step further; the row says where it is then."""
    account = state or Account()
    found = _DECODE(message.body)
    if found.broken:
        raise GatewayBroken(f"the payment of {found.order} fails whenever it is tried")
    if message.attempt <= found.busy:
        raise Retry(after=BUSY_S)
    order = move(account, found)
    account.steps += 1
    row = (
        message.key, account.steps, found.order, found.step, order.status, order.late,
        order.amount, account.balance, message.attempt,
    )  # fmt: skip
    return account, [row]


def move(account: Account, step: Step) -> Order:
    """Apply a step to its order and to the balance. Raises OrderError."""
    order = account.orders.get(step.order) or Order("", step.amount)
    target = TRANSITIONS.get((order.status, step.step))
    if target is None:
        raise OrderError(
            f"order {step.order} is {order.status or 'unknown'}: {step.step} does not follow"
        )
    order.status, sign = target
    if step.step == "overdue":
        order.late = True
    if step.step == "declined":
        order.declines += 1
        if order.declines >= DECLINES_MAX:
            order.status, sign = "cancelled", 1
    account.balance += sign * order.amount
    if order.status in _OVER:
        account.orders.pop(step.order, None)
    else:
        account.orders[step.order] = order
    return order
