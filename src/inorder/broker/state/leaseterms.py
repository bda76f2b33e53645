"""The words of leases: who, what, for how long, what was decided. `leases.py` has the table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from inorder.model import TopicQueue

STOCK_LEASE_MS: Final = 60_000
STOCK_VIEW_MS: Final = 30_000
"""How long a stock client trusts a lock that it could not renew."""
STOCK_RESTART_MS: Final = STOCK_VIEW_MS + 1_000


class Owner(NamedTuple):
    """Who holds a lease; `instance` is empty for a stock client."""

    client_id: str
    instance: str = ""

    @property
    def is_stock(self) -> bool:
        """Tell whether RocketMQ's rules apply."""
        return not self.instance


NOBODY: Final = Owner("", "\0")
"""Holds what may not be given to anybody yet; no client can have this instance id."""


class LeaseKey(NamedTuple):
    """What is leased."""

    group: str
    queue: TopicQueue


class Terms(NamedTuple):
    """For how long."""

    lease_ms: int = STOCK_LEASE_MS
    grace_ms: int = STOCK_VIEW_MS

    @property
    def trust_ms(self) -> int:
        """Return how long an owner starts handlers after a renewal."""
        return min(self)


STOCK: Final = Terms()


@dataclass(slots=True)
class Lease:
    """A grant."""

    owner: Owner
    epoch: int
    terms: Terms
    granted_ms: int
    renewed_ms: int
    expires_ms: int
    connection: int | None = None
    """The connection that renewed it last."""
    was_reset: bool = False
    recalled: bool = False
    """Its owner is to finish what it handles, and give the queue back."""
    asked: int = 0
    """The number of the request by which it was granted; earlier ones of its owner are late."""
    deadline_ms: int = 0
    """When it ends at the latest, also over restarts: nobody has renewed it since a start. 0: it
    was granted or renewed since, so the next start cannot know."""

    @property
    def client_id(self) -> str:
        """Return the owner's client id."""
        return self.owner.client_id

    @property
    def lease_ms(self) -> int:
        """Return how long it lasts without a renewal."""
        return self.terms.lease_ms


class Past(NamedTuple):
    """A lease that is over, on a queue that nobody has had since."""

    owner: Owner
    epoch: int
    terms: Terms
    released: bool
    recalled: bool = False
    deadline_ms: int = 0


def deadline_after_start(stated_ms: int, whole_ms: int, now_ms: int, *, same_boot: bool) -> int:
    """Return when what was granted before a start has run out, by the clock of the boot.

    `stated_ms`: what an earlier start has said, 0 for nothing. It holds as long as the machine is
    not restarted: whoever renews after a start has that voided before the answer. So a broker that
    restarts again and again does not keep a dead owner's queue for ever.
    """
    begun_anew_ms = now_ms + whole_ms
    return min(stated_ms, begun_anew_ms) if same_boot and stated_ms else begun_anew_ms


class Verdict(Enum):
    """What becomes of a wish."""

    RENEW = auto()
    RESUME = auto()  # it ran out, and nobody else had the queue: the same epoch
    GRANT = auto()  # a new epoch
    RESET = auto()  # it is the owner's, under another epoch than it thinks
    REFUSE = auto()
    FULL = auto()


class Decision(NamedTuple):
    """A verdict, not yet applied."""

    verdict: Verdict
    key: LeaseKey
    owner: Owner
    terms: Terms
    epoch: int = 0
    holder: Owner | None = None
    until_ms: int = 0
    is_new: bool = False
    """The journal does not know it."""

    @property
    def is_granted(self) -> bool:
        """Tell whether the queue is the owner's."""
        return self.verdict not in (Verdict.REFUSE, Verdict.FULL)

    @property
    def is_fresh(self) -> bool:
        """Tell whether the owner has to begin anew."""
        return self.verdict in (Verdict.GRANT, Verdict.RESET)

    def leaves_recalled(self, lease: Lease | None) -> bool:
        """Tell whether a queue was asked back, and is not begun anew by this."""
        return lease is not None and lease.recalled and self.verdict is not Verdict.GRANT
