"""Transactions without an outcome, and what is decided about them.

A transactional message waits as a *half* in the queue of RMQ_SYS_TRANS_HALF_TOPIC until its
producer ends the transaction. A half is put back when its producer is asked: a copy of it is
stored at the end of the queue, so that the queue never has to be read far back. The copies of a
half are one transaction; the log position of the first one, the *origin*, is its identity.

    half queue    0 1 2 3 4 5 6 7      2 is put back as 6; 3, 4 have ended
                  ─────── ▲ ▲ ▲ ▲
                          5 6 7 ...    pending: 5, 6 (origin: the position of 2), 7
                          └ `first_offset`: everything before it has ended or was put back

An end is counted when it is stored: a committed half as its message, a half that was given up as
its copy in TRANS_CHECK_MAX_TIME_TOPIC, a half that was rolled back as a record in
RMQ_SYS_TRANS_OP_HALF_TOPIC. The others get such a record too, some seconds later; RocketMQ looks at
nothing else. `records.py` says how a start finds the ends. Why: decision 50.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final, NamedTuple

from inorder.errors import BrokerError, SystemBusy, SystemError_
from inorder.wire.requests.transactions import TransactionEnd

REMEMBERED_MAX: Final = 65_536
"""How many ends are remembered, so that a request that comes again gets the same answer."""
PUT_BACK_BYTES: Final = 64 * 1024 * 1024
"""A half further from the end of the log is put back, so that a start has little to read."""


class Settings(NamedTuple):
    """The settings of the questions."""

    timeout_ms: int
    checks_max: int
    retention_ms: int


class Fate(Enum):
    """What a round of questions does with a half."""

    LEAVE = "leave"
    ASK = "ask"
    PUT_BACK = "put back"
    GIVE_UP = "give up"


class End(Enum):
    """How a transaction has ended."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    GIVEN_UP = "given up, its producers were asked too often or it was too old"

    @property
    def letter(self) -> str:
        """The letter in records of ended halves."""
        return self.value[0]

    @classmethod
    def of(cls, wanted: TransactionEnd) -> End:
        """Return the end that a request wants."""
        return cls.COMMITTED if wanted is TransactionEnd.COMMIT else cls.ROLLED_BACK


class Half:
    """A transaction without an outcome: its newest half."""

    __slots__ = (
        "born_at_ms", "checks", "ending", "immunity_s", "offset", "origin", "position",
        "stored_at_ms", "storing",
    )  # fmt: skip

    def __init__(
        self,
        origin: int,
        offset: int,
        position: int,
        *,
        born_at_ms: int,
        stored_at_ms: int,
        immunity_s: int | None = None,
        checks: int = 0,
    ) -> None:
        self.origin = origin
        """The log position of the first half: the identity of the transaction."""
        self.offset = offset
        self.position = position
        self.born_at_ms = born_at_ms
        self.stored_at_ms = stored_at_ms
        self.immunity_s = immunity_s
        """The producer is not asked before this age; None: the broker's setting."""
        self.checks = checks
        self.storing = False
        """The half, or its newer copy, is being stored: the log cannot be asked for it yet."""
        self.ending: Any = None
        """The end that is being stored; None: none is."""

    def __repr__(self) -> str:
        return f"Half(origin={self.origin}, offset={self.offset}, checks={self.checks})"


class Moved(NamedTuple):
    """A half whose newer copy is being stored, and where it was before."""

    half: Half
    offset: int
    position: int
    stored_at_ms: int


class _Copied(NamedTuple):
    """A half whose newer copy is stored, and may still be lost in a power cut."""

    position: int
    copy_position: int


class Transactions:
    """The pending transactions, and the ends that are remembered."""

    def __init__(self, *, pending_max: int) -> None:
        self.pending_max = pending_max
        self._by_origin: dict[int, Half] = {}
        self._by_offset: OrderedDict[int, Half] = OrderedDict()
        self._moving: dict[int, Moved] = {}  # older offset -> half whose copy is being stored
        self._copied: list[_Copied] = []
        self._ends: OrderedDict[int, End] = OrderedDict()
        self._noted: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return len(self._by_origin)

    def __iter__(self) -> Iterator[Half]:
        return iter(self._by_offset.values())

    def __repr__(self) -> str:
        return f"Transactions({len(self)} pending)"

    # Halves.

    def require_room(self) -> None:
        """Refuse a further half at the limit. Raises SystemBusy."""
        if len(self) >= self.pending_max:
            raise SystemBusy(
                f"[OVERLOAD]{len(self)} transactions have no outcome, the limit is "
                f"{self.pending_max} (transactions_max); end them, or raise the limit"
            )

    def add(self, half: Half) -> None:
        """Add a half that is being stored, or was found at a start."""
        assert half.origin not in self._by_origin, "a transaction is added once"
        assert not self._by_offset or half.offset > next(reversed(self._by_offset))
        self._by_origin[half.origin] = half
        self._by_offset[half.offset] = half

    def remove(self, half: Half) -> None:
        """Remove a half that was not stored after all."""
        if self._by_origin.get(half.origin) is half:
            del self._by_origin[half.origin]
            del self._by_offset[half.offset]

    def move(self, half: Half, offset: int, position: int, stored_at_ms: int) -> Moved:
        """Note the newer copy of a half, which is being stored; return what `settle` needs."""
        moved = Moved(half, half.offset, half.position, half.stored_at_ms)
        half.storing = True
        self._moving[half.offset] = moved
        del self._by_offset[half.offset]
        half.offset, half.position, half.stored_at_ms = offset, position, stored_at_ms
        self._by_offset[offset] = half
        return moved

    def settle(self, moved: Moved) -> None:
        """Note that the newer copy is stored."""
        moved.half.storing = False
        self._moving.pop(moved.offset, None)
        self._copied.append(_Copied(moved.position, moved.half.position))

    def undo(self, moved: Moved) -> None:
        """Note that the newer copy was not stored."""
        moved.half.storing = False
        self._moving.pop(moved.offset, None)
        half = moved.half
        if self._by_origin.get(half.origin) is not half:
            return
        del self._by_offset[half.offset]
        half.offset, half.position, half.stored_at_ms = moved[1:]
        self._by_offset[half.offset] = half
        self._by_offset = OrderedDict(sorted(self._by_offset.items()))

    def get(self, origin: int) -> Half | None:
        """Return the pending transaction of this identity."""
        return self._by_origin.get(origin)

    def at(self, offset: int) -> Half | None:
        """Return the pending transaction whose newest half has this offset."""
        return self._by_offset.get(offset)

    def first_offset(self, end: int) -> int:
        """Return the offset of the first half that counts; `end` is the end of the queue.

        A half whose newer copy is being stored counts where it was.
        """
        return min(next(iter(self._by_offset), end), min(self._moving, default=end))

    def keep_from(self, durable: int) -> int | None:
        """Return the position of the first half that may still be needed; retention keeps it.

        The log is durable up to `durable`. A half counts where it was until its copy is durable.
        Records of ended halves need no place of their own: those that tell of this half, or of
        later ones, lie behind it.
        """
        self._copied = [one for one in self._copied if one.copy_position >= durable]
        needed = [one.position for one in self._copied]
        needed += [moved.position for moved in self._moving.values()]
        needed += [half.position for half in itertools.islice(self, 1)]
        return min(needed, default=None)

    def offsets(self) -> list[int]:
        """Return the offsets of the pending halves, oldest first."""
        return list(self._by_offset)

    # Ends.

    def end(self, half: Half, how: End) -> None:
        """Note that a transaction has ended: this is stored."""
        self.remove(half)
        self.remember(half.origin, how)

    def remember(self, origin: int, how: End) -> None:
        """Remember an end, and forget the oldest one above the limit."""
        self._ends[origin] = how
        self._ends.move_to_end(origin)
        if len(self._ends) > REMEMBERED_MAX:
            self._ends.popitem(last=False)

    def forget_end(self, origin: int) -> None:
        """Forget the end of a transaction that goes on."""
        self._ends.pop(origin, None)

    def known_end(self, origin: int) -> End | None:
        """Return how a transaction has ended, None if that is not remembered."""
        return self._ends.get(origin)

    # Records of ended halves.

    def note(self, record_offset: int, highest: int) -> None:
        """Note a record of ended halves, and the highest half offset in it."""
        self._noted.append((record_offset, highest))

    def first_note(self, first_offset: int, end: int) -> int:
        """Return the offset of the first record that tells of a half at or after an offset."""
        while self._noted and self._noted[0][1] < first_offset:
            self._noted.popleft()
        return self._noted[0][0] if self._noted else end


def immunity_ms(half: Half, settings: Settings) -> int:
    """Return the age before which the producers of a half are not asked."""
    return settings.timeout_ms if half.immunity_s is None else half.immunity_s * 1000


def fate(half: Half, settings: Settings, *, now_ms: int, began_ms: int, log_end: int) -> Fate:
    """Decide what a round that began at `began_ms` does with a half, in RocketMQ's order.

    A half that was stored since then waits for the next round. A half with an immunity of its own
    is put back when it lies far from the end of the log.
    """
    if half.ending is not None or half.storing:
        return Fate.LEAVE
    age_ms = now_ms - half.born_at_ms
    if half.checks >= settings.checks_max or age_ms > settings.retention_ms:
        return Fate.GIVE_UP
    if half.stored_at_ms >= began_ms:
        return Fate.LEAVE
    immune_ms = immunity_ms(half, settings)
    if half.immunity_s is not None and age_ms <= immune_ms:
        return Fate.PUT_BACK if log_end - half.position > PUT_BACK_BYTES else Fate.LEAVE
    if 0 <= age_ms <= immune_ms:
        return Fate.LEAVE
    return Fate.ASK


def is_late(half_immunity_s: int | None, born_at_ms: int, timeout_ms: int, now_ms: int) -> bool:
    """Return whether only the answer to a question may end a transaction.

    As in RocketMQ: its message asked for an immunity of its own, at least the broker's setting, and
    that time has passed.
    """
    if half_immunity_s is None:
        return False
    return now_ms - born_at_ms > max(half_immunity_s * 1000, timeout_ms)


def judge_again(known: End | None, wanted: End) -> BrokerError | None:
    """Return the refusal of a request whose half is not pending; None: it has its effect already.

    A request that comes again is answered like the first time.
    """
    if known is wanted:
        return None
    if known is None:
        return SystemError_(
            "Find prepared transaction message failed: the transaction has ended, and how is no "
            "longer remembered; nothing was done"
        )
    return SystemError_(f"the transaction was {known.value} before; nothing was done")
