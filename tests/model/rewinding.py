"""A model of a group that is set back into a version that is past: two or three brokers, kills.

Version 1 of the topic is past, version 2 is open. The group has finished 1 and reads 2, until an
operator sets its offset back into 1 at some broker. The decisions are those of the code itself
(`broker/resizing/rules.py`, `broker/resizing/rules.py`); what the model adds is everything around
them: each broker asks the others one by one and acts by what they said, however old it is by then;
requests are lost, come late or twice; brokers are killed between any two steps, also between what
is saved and what follows from it.

Every broker has one queue, with two messages of version 1, and always another one of version 2. At
most one message is in hand there: who has none in hand has as good as no lease. A lease is

    held        its message is handled, then committed
    recalled    the same; the broker has asked for it, and waits until it is over or runs out
    void        the offset was set since: the message may be handled, but no commit counts
    out         it ran out: its owner starts nothing, but may go on with it, message and all
    spent       it was recalled and ran out, where a kill brings it back

Bounds are the brokers, the resets, the kills and the requests under way at a time; with two brokers
up to two resets and a kill, or a late request, or one reset, two kills and a late request; with
three one reset of one message, and no lease runs out. Parked keys, power cuts and offsets that are
set forward are no part of it.

Each rule is a switch of `Rules`; without any single one the search finds what breaks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from inorder.broker.resizing import rules as resizing_rules
from inorder.broker.resizing import rules as rules_of
from inorder.broker.resizing.rules import Reading, Standing, Versions
from inorder.errors import GroupNotDone
from inorder.wire.requests.resizing import PastVersion
from tests.model.search import Model

NAMES: Final = "abc"
GROUP: Final = "g"
OLD_MESSAGES: Final = 2
PAST: Final = PastVersion(1, "1/a:0-0", {0: OLD_MESSAGES})
HANDLED: Final = ("held", "recalled", "void")


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; each may be switched off, to see what it is for."""

    rest_is_durable: bool = True
    """That a group rests is not forgotten by a kill."""
    rest_first: bool = True
    """The offset is set when the group rests, not before."""
    all_rest: bool = True
    """A group reads on when it rests at all brokers, not at one."""
    quiet: bool = True
    """And when its queues were given back, or their leases ran out."""
    recalls: bool = True
    """The queues of a group that rests are asked back from their owners."""
    past_is_freed: bool = True
    """Whose lease ran out before that cannot go on with it."""
    recalled_is_final: bool = True
    """Whose lease was recalled and then runs out cannot go on with it either."""
    recall_is_durable: bool = True
    """Also not when the broker was killed since."""
    term_on_release: bool = True
    """A broker refuses a release of who knows fewer resets than it does."""
    done_still: bool = True
    """Who was set back since it began to ask who is done releases nothing."""
    resting_is_held: bool = True
    """A group that rests is not done, and is not released."""
    term_on_go_on: bool = True
    """A broker where the group was set back once more does not let it go on by an older word."""
    newest_wins: bool = True
    """A reset where earlier ones are forgotten counts as a newer one than all that are known."""


class Request(NamedTuple):
    """What one broker asks of another, or does itself."""

    kind: Literal["rest", "over", "release"]
    version: int
    term: int


class Round(NamedTuple):
    """What a broker is about, for one group: it asks all others, then tells them, itself last."""

    kind: Literal["agree", "release"]
    said: tuple[Standing | None, ...]
    """What each broker said; its own standing is from the beginning."""
    request: Request | None = None
    left: tuple[int, ...] = ()
    """Who is yet to be told."""


class Broker(NamedTuple):
    """One broker; a kill takes `emptied` and `round`."""

    reading: Reading
    saved: Reading | None = None
    """What a kill leaves of it, if that is something else."""
    committed: int = OLD_MESSAGES
    lease: Literal["none", "held", "recalled", "void", "out", "spent"] = "none"
    hand: int = 0
    """The version of the message in hand."""
    emptied: bool = False
    """The queues were asked back in this term."""
    round: Round | None = None
    owed: bool = False
    """Messages of version 1 are to be done here, and the replay that they belong to has begun."""


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
def _back_to(reading: Reading) -> int:
    return rules_of.rewound_to(_versions(reading), GROUP)


@lru_cache(maxsize=10_000)
def _end(reading: Reading) -> int | None:
    return resizing_rules.end_for(_versions(reading), GROUP, 0)


@lru_cache(maxsize=10_000)
def _done(reading: Reading, committed: int) -> int:
    return resizing_rules.done_version(_versions(reading), GROUP, lambda _: committed, lambda _: 0)


@lru_cache(maxsize=10_000)
def _goes_back(reading: Reading, committed: int, target: int) -> int | None:
    return rules_of.version_touched(
        _versions(reading), {0: target}, lambda _: committed, lambda _: 0
    )


@lru_cache(maxsize=10_000)
def _rested(reading: Reading, version: int, term: int) -> Reading:
    return _reading(rules_of.pause(_versions(reading), GROUP, version, term))


@lru_cache(maxsize=10_000)
def _gone_on(reading: Reading, term: int) -> Reading:
    return _reading(rules_of.resume(_versions(reading), GROUP, term))


@lru_cache(maxsize=10_000)
def _agreed(said: tuple[Standing, ...]) -> rules_of.Agreement:
    return rules_of.agree(dict(zip(NAMES, said, strict=False)))


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
        term_stays: bool = True,
    ) -> None:
        self.rules = rules
        self.brokers = brokers
        self.resets = resets
        self.kills = kills
        self.late = late
        """How many requests are under way at a time: each may come late, or more than once."""
        self.targets = targets
        """To which offsets it is set back."""
        self.lapses = lapses
        """Whether leases run out."""
        self.forgot = forgot
        """How often the group was set back before the first broker forgot it; None: it did not.

        The group was deleted there alone, made again, and has read version 1 once more.
        """
        self.term_stays = term_stays
        """Whether that broker still knows the term (`forget`); one that lost its files does not."""

    def model(self) -> Model[State]:
        """Return it for the search."""
        return Model(
            self.initial,
            self.steps,
            self.broken,
            {
                "replayed and back": lambda state: state.resets == self.resets and ended(state),
                "set back, and begun": lambda state: (
                    state.resets == self.resets
                    and any(one.owed and one.reading.term >= self.resets for one in state.brokers)
                ),
                "an owner is asked": lambda state: any(
                    one.lease == "recalled" for one in state.brokers
                ),
            },
        )

    def initial(self) -> Iterator[State]:
        """Give the beginning: the group has finished version 1, and is about to read 2."""
        reading = Reading(2, member=True, term=self.forgot or 0)
        past = Reading(1, member=True, term=reading.term if self.term_stays else 0)
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

    # -- who consumes ----------------------------------------------------------------------------

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
        if broker.lease in ("held", "recalled"):
            committed = broker.committed + (broker.hand == 1)
            owed = broker.owed and committed < OLD_MESSAGES
            done = free._replace(committed=committed, owed=owed)
            yield f"a message of {broker.hand} is done at {name}", _put(state, number, done)
            if self.lapses:
                yield f"a lease runs out at {name}", _put(state, number, self._run_out(broker))
        elif broker.lease == "out":
            held = broker._replace(lease="held")
            yield f"an owner goes on at {name}", _put(state, number, held)
            yield f"an owner is gone at {name}", _put(state, number, free)
        else:
            yield f"an owner ceases at {name}", _put(state, number, free)

    def _run_out(self, broker: Broker) -> Broker:
        if broker.lease == "held" or not self.rules.recalled_is_final:
            return broker._replace(lease="out")
        if not self.rules.recall_is_durable:
            return broker._replace(lease="spent")
        return broker._replace(lease="none", hand=0)

    # -- the operator ----------------------------------------------------------------------------

    def _reset(self, state: State, number: int, broker: Broker) -> Iterator[Step]:
        for target in self.targets:
            version = _goes_back(broker.reading, broker.committed, target)
            if version is None:
                continue
            label = f"reset {NAMES[number]} to {target}"
            counted = state._replace(resets=state.resets + 1)
            term = rules_of.next_rewind_number(_versions(broker.reading), GROUP)
            rested = self._let_rest(broker, version, term)
            emptied = self._empty(rested)
            yield label, _put(counted, number, _set(emptied, target))
            stages = {"it rests": rested, "queues are recalled": emptied}
            if not self.rules.rest_first:
                stages = {"the offset is set": _set(broker, target)}
            if state.kills < self.kills:
                for when, left in stages.items():
                    killed = self._killed(_put(counted, number, left), number)
                    yield f"{label}, killed when {when}", killed

    def _counts(self, state: State, number: int) -> bool:
        """Leave out what differs by names alone: the first reset is at the first broker."""
        return bool(state.resets) or number == 0 or self.forgot is not None

    # -- what a broker does ----------------------------------------------------------------------

    def _let_rest(self, broker: Broker, version: int, term: int) -> Broker:
        """Let the group rest, on disk, as far as that is new."""
        reading = _rested(broker.reading, version, term)
        if reading == broker.reading:
            return broker
        kept = broker.emptied and broker.reading.term == reading.term
        saved = None if self.rules.rest_is_durable else broker.saved or broker.reading
        return broker._replace(reading=reading, saved=saved, emptied=kept)

    def _empty(self, broker: Broker) -> Broker:
        """Ask for the queue, once in a term."""
        if not broker.reading.rests or broker.emptied:
            return broker
        broker = broker._replace(emptied=True)
        if self.rules.recalls and broker.lease == "held":
            return broker._replace(lease="recalled")
        if self.rules.recalls and self.rules.past_is_freed and broker.lease == "out":
            return broker._replace(lease="none", hand=0)
        return broker

    def _killed(self, state: State, number: int) -> State:
        broker = state.brokers[number]
        lease = broker.lease
        if lease in ("out", "spent") or (lease == "recalled" and not self.rules.recall_is_durable):
            lease = "held"  # that it ran out is not on disk
        reading = broker.saved or broker.reading
        after = broker._replace(reading=reading, saved=None, lease=lease, emptied=False, round=None)
        return _put(state, number, after)._replace(kills=state.kills + 1)

    def _serve(self, broker: Broker, request: Request) -> Broker:
        """Do what is asked. Raises GroupNotDone."""
        before = broker.reading
        if request.kind == "rest":
            return self._empty(self._let_rest(broker, request.version, request.term))
        if request.kind == "over":
            term = request.term if self.rules.term_on_go_on else before.term
            after = _gone_on(before, term)
        else:
            after = self._released(broker, request)
        if after == before:
            return broker
        return broker._replace(reading=after, saved=None, emptied=False)

    def _released(self, broker: Broker, request: Request) -> Reading:
        before = broker.reading
        term: int | None = request.term
        if not self.rules.term_on_release:
            term = before.term
        if not self.rules.resting_is_held and before.rests and request.term >= before.term:
            term = None
        done = _done(before, broker.committed)
        now = _versions(before)
        return _reading(
            resizing_rules.release(now, GROUP, request.version, done=done, rewind_number=term)
        )

    def _standing(self, broker: Broker) -> Standing:
        reading = broker.reading
        quiet = not reading.rests or (broker.emptied and broker.lease not in ("recalled", "void"))
        quiet = quiet or not self.rules.quiet
        return Standing(reading.term, _back_to(reading), reading.rests, quiet)

    def _ready(self, broker: Broker) -> int:
        """Return the version that the group may read as far as this broker is concerned."""
        if broker.reading.rests and self.rules.resting_is_held:
            return _version(broker.reading)
        return _done(broker.reading, broker.committed)

    # -- what a broker asks ----------------------------------------------------------------------

    def _begin(self, state: State, number: int, broker: Broker) -> Iterator[Step]:
        reading, name = broker.reading, NAMES[number]
        if not _waits(reading):
            return
        if reading.rests:
            broker = self._empty(broker)
            begun = broker._replace(round=Round("agree", self._said(number, broker)))
            yield f"{name} begins to ask who rests", _put(state, number, begun)
        elif _done(reading, broker.committed) > _version(reading):
            begun = broker._replace(round=Round("release", self._said(number, broker)))
            yield f"{name} begins to ask who is done", _put(state, number, begun)

    def _said(self, number: int, broker: Broker) -> tuple[Standing | None, ...]:
        mine = self._standing(broker)
        return tuple(mine if one == number else None for one in range(self.brokers))

    def _ask(self, state: State, number: int, broker: Broker, around: Round) -> Iterator[Step]:
        """Hear what another broker says; when all have spoken, decide."""
        yield f"{NAMES[number]} gets no answer", _put(state, number, _idle(broker))
        for other, there in enumerate(state.brokers):
            if around.said[other] is not None:
                continue
            label = f"{NAMES[number]} hears {NAMES[other]}"
            if around.kind == "release" and self._ready(there) < 2:
                yield f"{label}, who is not done", _put(state, number, _idle(broker))
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
        todo = _agreed(said if self.rules.all_rest else (said[number],) * len(said))
        if not self.rules.newest_wins and todo.rewind_number > max(
            one.rewind_number for one in said
        ):
            todo = todo._replace(rewind_number=todo.rewind_number - 1, behind=(), over=True)
        names = NAMES[: self.brokers] if todo.over else todo.behind
        left = tuple(one for one in range(self.brokers) if NAMES[one] in names)
        if not left:
            return around
        kind: Literal["over", "rest"] = "over" if todo.over else "rest"
        return Round("agree", (), Request(kind, todo.version, todo.rewind_number), left)

    def _tell(self, state: State, number: int, broker: Broker, around: Round) -> Iterator[Step]:
        """Ask the next one to do it: served at once, or under way; answered, or not."""
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
            going_on = broker._replace(round=around._replace(left=left) if left else None)
            for label, after, answered in self._arrive(
                _put(state, number, going_on), target, request
            ):
                yield f"{label}, unanswered", _put(after, number, _idle(after.brokers[number]))
                if answered and left:
                    yield label, after
                    if fits:
                        yield f"{label}, and comes again", _with_late(after, copy)

    def _arrive(
        self, state: State, target: int, request: Request
    ) -> Iterator[tuple[str, State, bool]]:
        """Give what becomes of a request, and whether it is answered well."""
        broker, label = state.brokers[target], f"{_name(request, target)} arrives"
        try:
            after = self._serve(broker, request)
        except GroupNotDone:
            yield f"{label}, refused", state, False
            return
        yield label, _put(state, target, after), True
        if request.kind == "rest" and state.kills < self.kills:
            rested = self._let_rest(broker, request.version, request.term)
            killed = self._killed(_put(state, target, rested), target)
            yield f"{label}, killed when it rests", killed, False


def is_fault(label: str) -> bool:
    """Tell whether nobody can count on a step: a kill, also amid something else, or a reset."""
    return "kill" in label or label.startswith("reset")


def ended(state: State) -> bool:
    """Tell whether the replay is over: version 1 is done, the group reads 2 everywhere."""
    return all(
        one.committed == OLD_MESSAGES and one.reading.version == 2 and not one.reading.rests
        for one in state.brokers
    )


def _begun(state: State, number: int) -> State:
    """Note which messages are of the replay that a broker has just given something of."""
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
    """Set the offset: what is handled does not count, who had the queue last cannot go on."""
    if broker.lease in ("out", "spent"):
        broker = broker._replace(lease="none", hand=0)
    if broker.lease in ("held", "recalled"):
        broker = broker._replace(lease="void")
    return broker._replace(committed=target)


def _idle(broker: Broker) -> Broker:
    return broker._replace(round=None)


def _name(request: Request, target: int) -> str:
    return f"{request.kind} of term {request.term} at {NAMES[target]}"


def _with_late(state: State, copy: tuple[int, Request]) -> State:
    return state._replace(late=state.late | {copy})


def _put(state: State, number: int, broker: Broker) -> State:
    brokers = _replaced(state.brokers, number, broker)
    return State(brokers, state.late, state.resets, state.kills)  # faster than _replace


def _replaced(values: tuple, at: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:at], value, *values[at + 1 :])
