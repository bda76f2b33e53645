"""A model of a group that is rewound into a past version, on two or three brokers, with kills.

Version 1 of the topic is past, version 2 is open. The group has finished 1 and reads 2, until an
operator resets its offset into 1 at some broker. The decisions are those of the code itself
(`broker/resizing/rules.py`). The model adds everything around them: each broker asks the others one
by one and acts on their answers, however old they are by then. Requests are lost, come late or come
twice. Brokers are killed between any two steps, also between a save and its consequences.

Every broker has one queue, with two messages of version 1, and always another one of version 2. At
most one message is being handled there; without one the lease does not matter. A lease is

    held        its message is handled, then committed
    revoked     the same; the broker has revoked it, and waits until it is released or expires
    void        the offset was reset since: the message may be handled, but no commit counts
    out         it expired: its owner starts nothing, but may resume it with its message
    spent       it was revoked and expired, where a kill brings it back

The bounds are the numbers of brokers, resets, kills and requests under way. With two brokers there
are up to two resets and a kill, or a late request, or one reset, two kills and a late request. With
three brokers there is one reset of one message, and no lease expires. Parked keys, power cuts and
offsets that are set forward are not part of the model.

Each rule is a switch of `Rules`; without any single one the search finds a schedule that breaks the
order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from inorder.broker.resizing import rules as resizing_rules
from inorder.broker.resizing.rules import Reading, Standing, Versions
from inorder.errors import GroupNotDone
from inorder.wire.requests.resizing import PastVersion
from tests.model.search import Model, replaced_fast

NAMES: Final = "abc"
GROUP: Final = "g"
OLD_MESSAGES: Final = 2
PAST: Final = PastVersion(1, "1/a:0-0", {0: OLD_MESSAGES})
HANDLED: Final = ("held", "revoked", "void")


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; each may be switched off, to see what it is for."""

    pause_is_durable: bool = True
    """A kill does not make a broker forget that a group is paused."""
    pause_first: bool = True
    """The group is paused before its offset is set."""
    all_pause: bool = True
    """A group resumes when it is paused at all brokers, not at one."""
    quiet: bool = True
    """A group resumes when its queues are released or their leases have expired."""
    revokes: bool = True
    """The queues of a paused group are revoked."""
    past_is_freed: bool = True
    """A lease that expired before the pause cannot be resumed."""
    revoked_is_final: bool = True
    """A lease that was revoked and then expires cannot be resumed either."""
    revoke_is_durable: bool = True
    """Nor can it after a kill of the broker."""
    number_on_release: bool = True
    """A broker refuses a release whose sender knows fewer rewinds than the broker does."""
    done_still: bool = True
    """A broker whose group was rewound while it asked the others releases nothing."""
    paused_is_held: bool = True
    """A paused group is not done, and is not released."""
    number_on_resume: bool = True
    """A request to resume does not count at a broker where the group was rewound once more."""
    newest_wins: bool = True
    """A reset at a broker that forgot earlier ones counts as newer than all that are known."""


@replaced_fast
class Request(NamedTuple):
    """A request from one broker to another, or to itself."""

    kind: Literal["pause", "resume", "release"]
    version: int
    term: int


@replaced_fast
class Round(NamedTuple):
    """One round of a broker for the group: it asks all others, then tells them, itself last."""

    kind: Literal["agree", "release"]
    said: tuple[Standing | None, ...]
    """The answer of each broker; the own standing is that of the beginning."""
    request: Request | None = None
    left: tuple[int, ...] = ()
    """The brokers that are yet to be told."""


@replaced_fast
class Broker(NamedTuple):
    """One broker; a kill takes `revoked_all` and `round`."""

    reading: Reading
    saved: Reading | None = None
    """The reading that is on disk, if it is another one."""
    committed: int = OLD_MESSAGES
    lease: Literal["none", "held", "revoked", "void", "out", "spent"] = "none"
    hand: int = 0
    """The version of the message that is being handled."""
    revoked_all: bool = False
    """The queues were revoked under this rewind number."""
    round: Round | None = None
    owed: bool = False
    """Messages of version 1 are to be done here, and the replay that they belong to has begun."""


@replaced_fast
class State(NamedTuple):
    """The whole world."""

    brokers: tuple[Broker, ...]
    late: frozenset[tuple[int, Request]] = frozenset()
    """Requests under way: each may arrive at any time, once, more often, or not at all."""
    resets: int = 0
    kills: int = 0


Step = tuple[str, State]


@lru_cache(maxsize=10_000)
def _versions(reading: Reading) -> Versions:
    return Versions(2, "2/a:0-0", past=(PAST,), groups={GROUP: reading})


def _reading(now: Versions) -> Reading:
    return now.groups[GROUP]


@lru_cache(maxsize=10_000)
def _waits(reading: Reading) -> bool:
    return GROUP in resizing_rules.waiting(_versions(reading))


@lru_cache(maxsize=10_000)
def _version(reading: Reading) -> int:
    return resizing_rules.reading(_versions(reading), GROUP)


@lru_cache(maxsize=10_000)
def _rewound_to(reading: Reading) -> int:
    return resizing_rules.rewound_to(_versions(reading), GROUP)


@lru_cache(maxsize=10_000)
def _end(reading: Reading) -> int | None:
    return resizing_rules.end_for(_versions(reading), GROUP, 0)


@lru_cache(maxsize=10_000)
def _done(reading: Reading, committed: int) -> int:
    return resizing_rules.done_version(_versions(reading), GROUP, lambda _: committed, lambda _: 0)


@lru_cache(maxsize=10_000)
def _rewinds_into(reading: Reading, committed: int, target: int) -> int | None:
    return resizing_rules.version_touched(
        _versions(reading), {0: target}, lambda _: committed, lambda _: 0
    )


@lru_cache(maxsize=10_000)
def _paused(reading: Reading, version: int, term: int) -> Reading:
    return _reading(resizing_rules.pause(_versions(reading), GROUP, version, term))


@lru_cache(maxsize=10_000)
def _resumed(reading: Reading, term: int) -> Reading:
    return _reading(resizing_rules.resume(_versions(reading), GROUP, term))


@lru_cache(maxsize=10_000)
def _agreed(said: tuple[Standing, ...]) -> resizing_rules.Agreement:
    return resizing_rules.agree(dict(zip(NAMES, said, strict=False)))


class RewindModel:
    """What can happen."""

    def __init__(
        self,
        rules: Rules,
        *,
        brokers: int = 2,
        resets: int = 1,
        kills: int = 0,
        late: int = 0,
        targets: tuple[int, ...] = (0, 1),
        lapses: bool = True,
        forgot: int | None = None,
        number_stays: bool = True,
    ) -> None:
        self.rules = rules
        self.brokers = brokers
        self.resets = resets
        self.kills = kills
        self.late = late
        """How many requests are under way at a time: each may come late, or more than once."""
        self.targets = targets
        """The offsets of resets."""
        self.lapses = lapses
        """Whether leases expire."""
        self.forgot = forgot
        """How often the group was rewound before the first broker forgot it; None: it did not.

        The group was deleted there alone, made again, and has read version 1 once more.
        """
        self.number_stays = number_stays
        """Whether that broker knows the rewind number (`forget`), or has lost its files."""

    def model(self) -> Model[State]:
        """Return it for the search."""
        return Model(
            self.initial,
            self.steps,
            self.broken,
            {
                "replayed and back": lambda state: state.resets == self.resets and ended(state),
                "rewound, and begun": lambda state: (
                    state.resets == self.resets
                    and any(one.owed and one.reading.term >= self.resets for one in state.brokers)
                ),
                "a lease is revoked": lambda state: any(
                    one.lease == "revoked" for one in state.brokers
                ),
            },
        )

    def initial(self) -> Iterator[State]:
        """Give the beginning: the group has finished version 1, and is about to read 2."""
        reading = Reading(2, member=True, term=self.forgot or 0)
        past = Reading(1, member=True, term=reading.term if self.number_stays else 0)
        if self.forgot is not None:
            yield State((Broker(past), *(Broker(reading),) * (self.brokers - 1)))
            return
        yield State((Broker(past),) * self.brokers)

    def broken(self, state: State) -> Iterator[str]:
        """Name what must not be."""
        hands = {one.hand for one in state.brokers if one.lease in HANDLED}
        if hands >= {1, 2}:
            yield "messages of both versions are handled at once"
        if 2 in hands and any(one.owed for one in state.brokers):
            yield "a message of version 2 is handled amid a replay"

    def steps(self, state: State) -> Iterator[Step]:
        """Give all that can happen next."""
        for number, broker in enumerate(state.brokers):
            yield from self._consume(state, number, broker)
            if broker.round is None:
                yield from self._begin(state, number, broker)
            elif broker.round.request is None:
                yield from self._ask(state, number, broker, broker.round)
            else:
                yield from self._tell(state, number, broker, broker.round)
            if state.resets < self.resets and self._counts(state, number):
                yield from self._reset(state, number, broker)
            if state.kills < self.kills:
                yield f"kill {NAMES[number]}", self._killed(state, number)
        for target, request in sorted(state.late):
            for label, after, _ in self._arrive(state, target, request):
                yield f"late {label}", after
            yield (
                f"late {_name(request, target)} is lost",
                state._replace(late=state.late - {(target, request)}),
            )

    # -- consumers -------------------------------------------------------------------------------

    def _consume(self, state: State, number: int, broker: Broker) -> Iterator[Step]:
        name = NAMES[number]
        if broker.lease in ("none", "spent"):
            end = _end(broker.reading)
            if end is None or broker.committed < end:
                hand = 1 if broker.committed < OLD_MESSAGES else 2
                after = _put(state, number, broker._replace(lease="held", hand=hand))
                yield f"{name} gives a message of {hand}", _begun(after, number)
            return
        free = broker._replace(lease="none", hand=0)
        if broker.lease in ("held", "revoked"):
            committed = broker.committed + (broker.hand == 1)
            owed = broker.owed and committed < OLD_MESSAGES
            done = free._replace(committed=committed, owed=owed)
            yield f"a message of {broker.hand} is done at {name}", _put(state, number, done)
            if self.lapses:
                yield f"a lease expires at {name}", _put(state, number, self._run_out(broker))
        elif broker.lease == "out":
            held = broker._replace(lease="held")
            yield f"an owner resumes at {name}", _put(state, number, held)
            yield f"an owner is gone at {name}", _put(state, number, free)
        else:
            yield f"an owner stops at {name}", _put(state, number, free)

    def _run_out(self, broker: Broker) -> Broker:
        if broker.lease == "held" or not self.rules.revoked_is_final:
            return broker._replace(lease="out")
        if not self.rules.revoke_is_durable:
            return broker._replace(lease="spent")
        return broker._replace(lease="none", hand=0)

    # -- the operator ----------------------------------------------------------------------------

    def _reset(self, state: State, number: int, broker: Broker) -> Iterator[Step]:
        for target in self.targets:
            version = _rewinds_into(broker.reading, broker.committed, target)
            if version is None:
                continue
            label = f"reset {NAMES[number]} to {target}"
            counted = state._replace(resets=state.resets + 1)
            term = resizing_rules.next_rewind_number(_versions(broker.reading), GROUP)
            paused = self._pause(broker, version, term)
            revoked_all = self._empty(paused)
            yield label, _put(counted, number, _set(revoked_all, target))
            stages = {"it is paused": paused, "queues are revoked": revoked_all}
            if not self.rules.pause_first:
                stages = {"the offset is set": _set(broker, target)}
            if state.kills < self.kills:
                for when, left in stages.items():
                    killed = self._killed(_put(counted, number, left), number)
                    yield f"{label}, killed when {when}", killed

    def _counts(self, state: State, number: int) -> bool:
        """Leave out what differs by names alone: the first reset is at the first broker."""
        return bool(state.resets) or number == 0 or self.forgot is not None

    # -- a broker acts ----------------------------------------------------------------------------

    def _pause(self, broker: Broker, version: int, term: int) -> Broker:
        """Pause the group, and save that it is paused, as far as that is new."""
        reading = _paused(broker.reading, version, term)
        if reading == broker.reading:
            return broker
        kept = broker.revoked_all and broker.reading.term == reading.term
        saved = None if self.rules.pause_is_durable else broker.saved or broker.reading
        return broker._replace(reading=reading, saved=saved, revoked_all=kept)

    def _empty(self, broker: Broker) -> Broker:
        """Revoke the queue, once under a rewind number."""
        if not broker.reading.rests or broker.revoked_all:
            return broker
        broker = broker._replace(revoked_all=True)
        if self.rules.revokes and broker.lease == "held":
            return broker._replace(lease="revoked")
        if self.rules.revokes and self.rules.past_is_freed and broker.lease == "out":
            return broker._replace(lease="none", hand=0)
        return broker

    def _killed(self, state: State, number: int) -> State:
        broker = state.brokers[number]
        lease = broker.lease
        if lease in ("out", "spent") or (lease == "revoked" and not self.rules.revoke_is_durable):
            lease = "held"  # that it ran out is not on disk
        reading = broker.saved or broker.reading
        after = broker._replace(
            reading=reading, saved=None, lease=lease, revoked_all=False, round=None
        )
        return _put(state, number, after)._replace(kills=state.kills + 1)

    def _serve(self, broker: Broker, request: Request) -> Broker:
        """Serve a request. Raises GroupNotDone."""
        before = broker.reading
        if request.kind == "pause":
            return self._empty(self._pause(broker, request.version, request.term))
        if request.kind == "resume":
            term = request.term if self.rules.number_on_resume else before.term
            after = _resumed(before, term)
        else:
            after = self._released(broker, request)
        if after == before:
            return broker
        return broker._replace(reading=after, saved=None, revoked_all=False)

    def _released(self, broker: Broker, request: Request) -> Reading:
        before = broker.reading
        term: int | None = request.term
        if not self.rules.number_on_release:
            term = before.term
        if not self.rules.paused_is_held and before.rests and request.term >= before.term:
            term = None
        done = _done(before, broker.committed)
        now = _versions(before)
        return _reading(
            resizing_rules.release(now, GROUP, request.version, done=done, rewind_number=term)
        )

    def _standing(self, broker: Broker) -> Standing:
        reading = broker.reading
        quiet = not reading.rests or (
            broker.revoked_all and broker.lease not in ("revoked", "void")
        )
        quiet = quiet or not self.rules.quiet
        return Standing(reading.term, _rewound_to(reading), reading.rests, quiet)

    def _ready(self, broker: Broker) -> int:
        """Return the version that the group may read as far as this broker is concerned."""
        if broker.reading.rests and self.rules.paused_is_held:
            return _version(broker.reading)
        return _done(broker.reading, broker.committed)

    # -- a broker asks ----------------------------------------------------------------------------

    def _begin(self, state: State, number: int, broker: Broker) -> Iterator[Step]:
        reading, name = broker.reading, NAMES[number]
        if not _waits(reading):
            return
        if reading.rests:
            broker = self._empty(broker)
            begun = broker._replace(round=Round("agree", self._said(number, broker)))
            yield f"{name} begins to ask who has paused", _put(state, number, begun)
        elif _done(reading, broker.committed) > _version(reading):
            begun = broker._replace(round=Round("release", self._said(number, broker)))
            yield f"{name} begins to ask who is done", _put(state, number, begun)

    def _said(self, number: int, broker: Broker) -> tuple[Standing | None, ...]:
        mine = self._standing(broker)
        return tuple(mine if one == number else None for one in range(self.brokers))

    def _ask(self, state: State, number: int, broker: Broker, around: Round) -> Iterator[Step]:
        """Take the answer of another broker; when all have answered, decide."""
        yield f"{NAMES[number]} gets no answer", _put(state, number, _idle(broker))
        for other, there in enumerate(state.brokers):
            if around.said[other] is not None:
                continue
            label = f"{NAMES[number]} asks {NAMES[other]}"
            if around.kind == "release" and self._ready(there) < 2:
                yield f"{label}, which is not done", _put(state, number, _idle(broker))
                continue
            said = _replaced(around.said, other, self._standing(there))
            asked = around._replace(said=said)
            if None not in said:
                asked = self._decide(number, broker, asked)
            after = broker._replace(round=asked if asked.request or None in said else None)
            yield label, _put(state, number, after)

    def _decide(self, number: int, broker: Broker, around: Round) -> Round:
        said = tuple(one for one in around.said if one is not None)
        if around.kind == "release":
            if self.rules.done_still and broker.reading.term != said[number].rewind_number:
                return around
            term = max(one.rewind_number for one in said)
            return Round("release", (), Request("release", 2, term), tuple(range(self.brokers)))
        todo = _agreed(said if self.rules.all_pause else (said[number],) * len(said))
        if not self.rules.newest_wins and todo.rewind_number > max(
            one.rewind_number for one in said
        ):
            todo = todo._replace(rewind_number=todo.rewind_number - 1, behind=(), over=True)
        names = NAMES[: self.brokers] if todo.over else todo.behind
        left = tuple(one for one in range(self.brokers) if NAMES[one] in names)
        if not left:
            return around
        kind: Literal["resume", "pause"] = "resume" if todo.over else "pause"
        return Round("agree", (), Request(kind, todo.version, todo.rewind_number), left)

    def _tell(self, state: State, number: int, broker: Broker, around: Round) -> Iterator[Step]:
        """Tell the next broker: it serves the request at once or later, and answers or not."""
        request = around.request
        assert request is not None
        given_up = _put(state, number, _idle(broker))
        if around.left == (number,):
            for label, after, _ in self._arrive(given_up, number, request):
                yield label, after
            return
        yield f"{NAMES[number]} reaches nobody", given_up
        for target in around.left:
            if target == number:
                continue  # itself last
            copy = (target, request)
            fits = len(state.late) < self.late and copy not in state.late
            if fits:
                yield f"{_name(request, target)} is late", _with_late(given_up, copy)
            left = tuple(one for one in around.left if one != target)
            continuing = broker._replace(round=around._replace(left=left) if left else None)
            for label, after, answered in self._arrive(
                _put(state, number, continuing), target, request
            ):
                yield f"{label}, unanswered", _put(after, number, _idle(after.brokers[number]))
                if answered and left:
                    yield label, after
                    if fits:
                        yield f"{label}, and comes again", _with_late(after, copy)

    def _arrive(
        self, state: State, target: int, request: Request
    ) -> Iterator[tuple[str, State, bool]]:
        """Give the results of a request, and whether its answer is a success."""
        broker, label = state.brokers[target], f"{_name(request, target)} arrives"
        try:
            after = self._serve(broker, request)
        except GroupNotDone:
            yield f"{label}, refused", state, False
            return
        yield label, _put(state, target, after), True
        if request.kind == "pause" and state.kills < self.kills:
            paused = self._pause(broker, request.version, request.term)
            killed = self._killed(_put(state, target, paused), target)
            yield f"{label}, killed when it is paused", killed, False


def is_fault(label: str) -> bool:
    """Return whether a step is a fault: a kill, also during another step, or a reset."""
    return "kill" in label or label.startswith("reset")


def ended(state: State) -> bool:
    """Return whether the replay is over: version 1 is done, the group reads 2 everywhere."""
    return all(
        one.committed == OLD_MESSAGES and one.reading.version == 2 and not one.reading.rests
        for one in state.brokers
    )


def _begun(state: State, number: int) -> State:
    """Note which messages belong to the replay whose message a broker has just delivered."""
    here = state.brokers[number]
    if here.hand != 1:
        return state
    return state._replace(
        brokers=tuple(
            one._replace(owed=True)
            if one.committed < OLD_MESSAGES and one.reading.term == here.reading.term
            else one
            for one in state.brokers
        )
    )


def _set(broker: Broker, target: int) -> Broker:
    """Set the offset: a running handler does not count, and the last owner cannot resume."""
    if broker.lease in ("out", "spent"):
        broker = broker._replace(lease="none", hand=0)
    if broker.lease in ("held", "revoked"):
        broker = broker._replace(lease="void")
    return broker._replace(committed=target)


def _idle(broker: Broker) -> Broker:
    return broker._replace(round=None)


def _name(request: Request, target: int) -> str:
    return f"{request.kind} of rewind {request.term} at {NAMES[target]}"


def _with_late(state: State, copy: tuple[int, Request]) -> State:
    return state._replace(late=state.late | {copy})


def _put(state: State, number: int, broker: Broker) -> State:
    brokers = _replaced(state.brokers, number, broker)
    return State(brokers, state.late, state.resets, state.kills)  # faster than _replace


def _replaced(values: tuple, at: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:at], value, *values[at + 1 :])
