"""The rules of two jobs, pure: the layout of archives, and accounts with their orders.

The name of an archive's file says which messages the file holds:

    <path>/topic=orders/day=2026-11-15/queue=3/
        broker-a.3.00000000000000000000-00000000000000001000.parquet

The name is the range of offsets, its end not included. So a repeated batch writes the same names
again and nothing is there twice; the names say how far an archive is; and a file whose range lies
within another's was merged into that one. Broker and topic are written as in a URL.

A message of the job `orders` is JSON, keyed by its account, amounts in cents:
`{"order": "o-7", "step": "paid", "amount": 1250}`. What a step does to an order:

    from                 step        to           balance of the account
    -                    created     open         - amount
    open                 overdue     late
    open, late           paid        paid         + amount
    open, late           declined    the same; cancelled at the third time, then + amount
    open, late, paid     cancelled   cancelled    + amount
    paid                 shipped     shipped
    shipped              delivered   delivered

Any other step is an error: events came in another order than they happened. A payment says how its
gateway behaves: `"busy": 2` refuses the first two tries, `"broken": true` all. How the jobs know
what is done: decision 36.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from inorder.client.consume.rules.outcomes import Retry
from inorder.errors import InorderError, StoreError
from inorder.model import TopicQueue
from inorder.spark.ordered.rules import OrderedMessage
from inorder.spark.source.rules import Places

_NAME: Final = re.compile(
    r"topic=([^/]+)/day=(\d{4}-\d\d-\d\d)/queue=(\d+)/([^/]+)\.(\d+)\.(\d{20})-(\d{20})\.parquet"
)


@dataclass(frozen=True, slots=True, order=True)
class ArchiveFile:
    """One file: messages of one queue, stored on one day."""

    queue: TopicQueue
    start: int
    end: int
    day: str
    size_bytes: int = 0

    @property
    def folder(self) -> str:
        """Return where it lies, from the path of the archive on."""
        topic = quote(self.queue.topic, safe="")
        return f"topic={topic}/day={self.day}/queue={self.queue.index}"

    @property
    def name(self) -> str:
        """Return its path, from that of the archive on."""
        broker = quote(self.queue.broker, safe="")
        return (
            f"{self.folder}/{broker}.{self.queue.index}.{self.start:020d}-{self.end:020d}.parquet"
        )

    def holds(self, other: ArchiveFile) -> bool:
        """Return whether the other one was merged into this one."""
        return (
            self != other
            and self.queue == other.queue
            and self.start <= other.start
            and other.end <= self.end
        )


def parse_name(name: str, size_bytes: int = 0) -> ArchiveFile | None:
    """Read the path of a file; None if it is not one of an archive."""
    found = _NAME.fullmatch(name)
    if found is None or found[3] != found[5]:
        return None
    queue = TopicQueue(unquote(found[1]), unquote(found[4]), int(found[3]))
    return ArchiveFile(queue, int(found[6]), int(found[7]), found[2], size_bytes)


def sift(files: Iterable[ArchiveFile]) -> tuple[list[ArchiveFile], list[ArchiveFile]]:
    """Return the files that count, by queue and offset, and those that were merged into others.

    Raises StoreError if ranges of two files overlap otherwise: `archive` writes no such files.
    """
    kept: list[ArchiveFile] = []
    merged: list[ArchiveFile] = []
    for one in sorted(files, key=lambda file: (file.queue, file.start, -file.end)):
        last = kept[-1] if kept and kept[-1].queue == one.queue else None
        if last is not None and last.holds(one):
            merged.append(one)
        elif last is not None and one.start < last.end:
            raise StoreError(
                f"{one.name} and {last.name} hold some messages both; an archive is written by one "
                "job at a time: remove what another one wrote"
            )
        else:
            kept.append(one)
    return kept, merged


def ends(files: Iterable[ArchiveFile]) -> Places:
    """Return how far the archive is, queue by queue."""
    found: Places = {}
    for one in files:
        found[one.queue] = max(one.end, found.get(one.queue, 0))
    return found


def starts(files: Iterable[ArchiveFile]) -> Places:
    """Return where the archive begins, queue by queue."""
    found: Places = {}
    for one in files:
        found[one.queue] = min(one.start, found.get(one.queue, one.start))
    return found


def holes(files: Iterable[ArchiveFile]) -> list[tuple[TopicQueue, int, int]]:
    """Return the ranges between files that no file holds."""
    return [
        (first.queue, first.end, second.start)
        for first, second in pairwise(sorted(files))
        if first.queue == second.queue and first.end < second.start
    ]


def to_merge(files: Iterable[ArchiveFile], *, bytes_max: int) -> Iterator[list[ArchiveFile]]:
    """Return neighbours that make one file together, of at most so many bytes."""
    for _, same in groupby(sorted(files), key=lambda file: (file.queue, file.day)):
        chosen: list[ArchiveFile] = []
        size_bytes = 0
        for one in same:
            if chosen and size_bytes + one.size_bytes > bytes_max:
                if len(chosen) > 1:
                    yield chosen
                chosen, size_bytes = [], 0
            chosen.append(one)
            size_bytes += one.size_bytes
        if len(chosen) > 1:
            yield chosen


def merged_name(files: list[ArchiveFile]) -> ArchiveFile:
    """Return the file that neighbours become."""
    first, last = files[0], files[-1]
    return ArchiveFile(first.queue, first.start, last.end, first.day)


def within(files: Iterable[ArchiveFile], start: int, end: int) -> list[ArchiveFile]:
    """Return the files that hold messages of a range."""
    return [one for one in files if one.start < end and start < one.end]


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
    """A step that cannot follow the earlier steps of the order."""


class GatewayBroken(InorderError):
    """A payment that fails however often it is tried."""


class Step(msgspec.Struct):
    """The content of a message."""

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
