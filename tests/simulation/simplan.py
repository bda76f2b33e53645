"""What one seed does: the cluster, the load, and the list of faults, all drawn before it begins.

Every fault has its own random numbers, so that leaving some out (to shrink a failing run) does not
change what the others do. Which kinds of faults a seed has at all is drawn too: runs with few kinds
reach further into what those kinds do.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal

from tests.kit.simcluster import stream

KINDS: Final = (
    "join", "close", "kill", "freeze", "partition", "slow", "drop", "half-open", "copies",
    "broker killed", "power cut", "broker restarted", "clock", "disk full", "reset", "redrive",
    "taken away", "resize",
)  # fmt: skip
MORE_KINDS: Final = ("abort",)
"""Kinds that are drawn only when they are asked for: so the seeds of before stay what they are."""
LATER_KINDS: Final = ("flap", "comeback", "names")
"""Kinds that came later: a seed has one or two of them beside its others, or none. They are drawn
by themselves, so that the seeds of before can be played without them."""
LATER_RATIO: Final = 0.4
LATER_FROM: Final = 100
"""The numbers of these faults, and so their random numbers, begin here."""
KINDS_MAX: Final = 5
CALM: Final = frozenset(("join", "close", "clock"))
"""With nothing but these every message is handled once."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, or is done to the cluster, at a time."""

    number: int
    at_s: float
    kind: str

    def __str__(self) -> str:
        return f"{self.at_s:6.2f} s  {self.kind} (fault {self.number})"


@dataclass(frozen=True)
class Plan:
    """One run."""

    seed: int
    brokers: int
    queues: int
    """Of each broker."""
    members: int
    order: Literal["queue", "key"]
    sends: int
    keys: int
    gap_s: float
    """Between two sends."""
    handler_s: float
    fail_ratio: float
    """Of attempts that fail and are tried again."""
    bad_keys: int
    """Keys whose messages fail until they are parked and redriven; order="key" only."""
    sync_flush: bool
    lease_ms: int
    grace_ms: int
    faults: tuple[Fault, ...] = field(repr=False)
    only: tuple[str, ...] = ()
    """The kinds of faults that were drawn from, if not from all."""
    calls: int = 0
    """Calls of one run of a worker; 0: as the consumer decides, which is one for so few calls."""
    batch: int = 1
    """Messages of one call."""

    @classmethod
    def of(cls, seed: int, only: tuple[str, ...] = (), *, later: bool = True) -> Plan:
        """Draw the plan of a seed, with faults of all kinds or of a few.

        Without `later` it is what it was before there were `LATER_KINDS`.
        """
        draw = stream(seed, "plan")
        order: Literal["queue", "key"] = draw.choice(("queue", "key"))
        lease_ms = draw.choice((1000, 2000, 5000))
        sends = draw.randint(15, 40)
        gap_s = draw.choice((0.005, 0.05, 0.15))
        kinds = draw.sample(KINDS, k=draw.randint(1, KINDS_MAX))
        if only:
            kinds = list(only)
        span_s = max(1.5, sends * gap_s + 0.5)
        times = sorted(draw.uniform(0.1, span_s) for _ in range(draw.randint(1, 6)))
        plan = cls(
            seed=seed,
            brokers=draw.choice((1, 1, 2)),
            queues=draw.randint(1, 3),
            members=draw.randint(1, 3),
            order=order,
            sends=sends,
            keys=draw.randint(2, 8),
            gap_s=gap_s,
            handler_s=draw.choice((0.0, 0.004, 0.03, 0.3)),
            fail_ratio=draw.choice((0.0, 0.0, 0.1)),
            bad_keys=draw.choice((0, 0, 1)) if order == "key" else 0,
            sync_flush=draw.random() < 0.4,
            lease_ms=lease_ms,
            grace_ms=min(lease_ms, draw.choice((400, 1000))),
            faults=tuple(
                Fault(number, at_s, draw.choice(kinds)) for number, at_s in enumerate(times)
            ),
            only=only,
        )
        if later and not only:
            runs = stream(seed, "runs")
            plan = replace(plan, calls=runs.choice((0, 0, 3)), batch=runs.choice((1, 1, 4)))
            plan = plan._with_later(span_s)
        return replace(plan, brokers=2) if plan.names_differ else plan

    def _with_later(self, span_s: float) -> Plan:
        draw = stream(self.seed, "later")
        if draw.random() >= LATER_RATIO:
            return self
        more = [
            Fault(LATER_FROM + number, draw.uniform(0.1, span_s), draw.choice(LATER_KINDS))
            for number in range(draw.randint(1, 2))
        ]
        faults = sorted((*self.faults, *more), key=lambda fault: fault.at_s)
        return replace(self, faults=tuple(faults))

    @property
    def names_differ(self) -> bool:
        """Tell whether there are two name servers, of which the second knows one broker less."""
        return any(fault.kind == "names" for fault in self.faults)

    @property
    def is_calm(self) -> bool:
        """Tell whether nothing may be handled twice."""
        return all(fault.kind in CALM for fault in self.faults)

    def without(self, *faults: Fault) -> Plan:
        """Return the same with fewer faults."""
        return replace(self, faults=tuple(one for one in self.faults if one not in faults))
