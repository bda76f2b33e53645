"""A model of a resize: two brokers, rival coordinators, a producer and a group, over kills.

The decisions are those of the code itself (`broker/resizing/rules.py`, `client/rules/resizing.py`);
what the model adds is everything around them: requests that are lost, come late or twice, brokers
and consumers that are killed between any two steps, a coordinator that stops for good. A request is
served at once, or is under way, and then comes at any time, any number of times; whoever asked
learns the answer or does not.

One key, messages 1, 2, … of it stored one after the other, by producers that know any version that
is open somewhere. `late` is broken when a message is handled for the first time after a newer one.
Each rule is a switch of `Rules`; without any single one the search finds what breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from inorder.broker.resizing import rules as broker_rules
from inorder.broker.resizing.rules import Versions
from inorder.client.rules import resizing as client_rules
from inorder.client.rules.resizing import Goal, Places
from inorder.errors import BrokerError
from inorder.ordering.keymap import KeyMap
from inorder.wire.requests.resizing import Plan, ResizeView
from tests.model.search import Model, replaced_fast

NAMES: Final = ("a", "b")
GROUP: Final = "g"
VERSIONS_MAX: Final = 2
FIRST: Final = KeyMap.of(1, [("a", 0), ("b", 0)])
WANTED: Final[tuple[Places | None, ...]] = (
    (("a", 0), ("a", 1), ("b", 0)),
    (("a", 0), ("b", 0), ("b", 1)),
)


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; each may be switched off, to see what it is for."""

    gates: bool = True
    """A broker holds a group at the ends of a version that it has not finished."""
    stop_before_open: bool = True
    """A version is opened only when all brokers have stopped the one before."""
    stop_is_durable: bool = True
    """A broker that answered "stopped", or agreed that it is opened, does so after a kill."""
    one_plan: bool = True
    """A broker takes part in no plan but the one that it knows."""
    first_opens_last: bool = True
    """So the first broker tells whether all are open."""
    done_everywhere: bool = True
    """A group is released when it is done on all brokers, not on one."""
    own_version_only: bool = True
    """A broker refuses sends of versions newer than its own, too."""
    go_first: bool = True
    """A plan is opened only when the first broker has agreed that it is not taken back any more."""


@replaced_fast
class Broker(NamedTuple):
    """One broker: `durable` outlives a kill."""

    now: bytes
    """Its Versions."""
    stopping: tuple[Plan, tuple[tuple[int, int], ...]] | None
    """A plan for which it stopped, and the ends: not noted yet."""
    saved: bytes
    """What a kill leaves of them."""
    peer_done: int
    """The version for which the other broker said that the group is done."""
    logs: tuple[tuple[int, ...], ...]
    """The messages of its queues 0 and 1."""
    committed: tuple[int, ...]


@replaced_fast
class State(NamedTuple):
    """The whole world."""

    brokers: tuple[Broker, ...]
    views: tuple[tuple[bytes, ...], ...]
    """What each coordinator knows of each broker."""
    resuming: tuple[bool, ...]
    """Whether a coordinator just finishes what another one decided."""
    asked: frozenset[tuple[str, int, Plan]]
    """Requests under way: each may arrive at any time, once, more often, or not at all."""
    releases: frozenset[tuple[int, int]]
    """Releases (broker, version) that may arrive."""
    sent: int
    """How many messages are stored. Who sends one may know any version that is open somewhere."""
    read: tuple[tuple[int, ...], ...]
    handled: int
    """The messages that were handled, as bits."""
    late: bool
    published: bool
    kills: int


@lru_cache(maxsize=100_000)
def _read(data: bytes) -> Versions:
    return msgspec.json.decode(data, type=Versions)


def _write(value: Versions) -> bytes:
    return msgspec.json.encode(value)


@lru_cache(maxsize=100_000)
def _view(name: str, data: bytes) -> ResizeView:
    now = _read(data)
    return ResizeView(
        name, "t", now.version, now.map, now.version, now.plan, now.ends, now.opened, now.past,
        going=now.going, withdrawn=now.withdrawn,
    )  # fmt: skip


def key_of(source: int, target: int) -> str:
    """Return a key that the first map puts at one place of two, the second at one of three."""
    return next(
        text
        for number in range(1000)
        if FIRST.queues.index(FIRST.queue(text := f"k{number}")) == source
        and KeyMap.of(2, WANTED[0] or ()).queues.index(KeyMap.of(2, WANTED[0] or ()).queue(text))
        == target
    )


class ResizeModel:
    """What can happen."""

    def __init__(
        self,
        rules: Rules,
        *,
        messages: int,
        kills: int,
        key: str,
        coordinators: int = 2,
        delayed: int = 1,
        withdraws: bool = False,
    ) -> None:
        self.rules = rules
        self.messages = messages
        self.kills = kills
        self.key = key
        self.coordinators = coordinators
        self.delayed = delayed
        """How many requests are under way at a time: each may come late, or more than once."""
        self.withdraws = withdraws
        """Whether coordinators also take back what is under way, at any time."""

    def model(self) -> Model[State]:
        """Return it for the search."""
        return Model(
            self.initial,
            self.steps,
            self.broken,
            self._witnesses(),
        )

    def _witnesses(self) -> dict[str, Callable[[State], bool]]:
        """Return what must happen somewhere: or the model would say nothing."""
        found: dict[str, Callable[[State], bool]] = {"resized": lambda state: state.published}
        if self.coordinators > 1:
            found["a rival joined"] = lambda state: any(state.resuming)
        if self.withdraws:
            found["taken back"] = lambda state: all(
                _read(one.now).withdrawn for one in state.brokers
            )
        if self.messages:
            found["released"] = lambda state: all(
                broker_rules.reading(_read(one.now), GROUP) == 2 for one in state.brokers
            )
            found["all handled"] = lambda state: state.handled.bit_count() == self.messages
        return found

    def initial(self) -> Iterator[State]:
        """Give the beginning: version 1 is open, nothing is sent."""
        durable = _write(Versions(1, FIRST.encode()))
        broker = Broker(durable, None, durable, 0, ((), ()), (0, 0))
        views = tuple((durable, durable) for _ in range(self.coordinators))
        yield State(
            (broker, broker), views, (False,) * self.coordinators, frozenset(), frozenset(),
            0, ((0, 0), (0, 0)), 0, False, False, 0,
        )  # fmt: skip

    def broken(self, state: State) -> Iterator[str]:
        """Name what must not be."""
        if state.late:
            yield "a message was handled after a newer one of its key"
        found = [_read(one.now) for one in state.brokers]
        maps = {now.version: now.map for now in found}
        if any(maps[now.version] != now.map for now in found):
            yield "two maps of one version"
        if state.published and any(now.version < 2 for now in found):
            yield "published before all brokers were open"
        withdrawn = {one for now in found for one in now.withdrawn}
        if any(now.opened in withdrawn for now in found):
            yield "a plan was taken back and opened"

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Give all that can happen next."""
        yield from self._coordinators(state)
        for request in sorted(state.asked, key=repr):
            yield from self._arrive(state, request)
            yield "a request is lost", state._replace(asked=state.asked - {request})
        for number in (0, 1):
            yield from self._looks(state, number)
            yield from self._stop_ends(state, number)
            if self.messages:
                yield from self._release(state, number)
            if state.kills < self.kills:
                yield f"kill {NAMES[number]}", self._killed(state, number)
        yield from self._send(state)
        yield from self._consume(state)

    # -- coordinators ----------------------------------------------------------------------------

    def _goal(self, state: State, who: int) -> Goal:
        return Goal(f"p{who}", None if state.resuming[who] else WANTED[who])

    def _coordinators(self, state: State) -> Iterator[tuple[str, State]]:
        for who in range(self.coordinators):
            views = {
                name: _view(name, data) for name, data in zip(NAMES, state.views[who], strict=True)
            }
            if self.withdraws:
                yield from self._take_back(state, who, views)
            step = client_rules.next_step(views, self._goal(state, who))
            if isinstance(step, client_rules.UnderWay):
                resuming = _put(state.resuming, who, True)
                yield f"{who} resumes", state._replace(resuming=resuming)
                continue
            if isinstance(step, client_rules.Publish):
                if _view("a", state.views[who][0]).version > 1:
                    yield f"{who} publishes", state._replace(published=True)
                continue
            if step.plan.version > VERSIONS_MAX:
                continue
            for kind, number in self._requests(step, state, who):
                yield from self._ask(state, who, (kind, number, step.plan))

    def _ask(
        self, state: State, who: int, request: tuple[str, int, Plan]
    ) -> Iterator[tuple[str, State]]:
        """Let a request be served at once, or be under way."""
        yield from self._arrive(state, request)
        if len(state.asked) < self.delayed and request not in state.asked:
            asked = state.asked | {request}
            yield f"{who} asks {request[0]} {NAMES[request[1]]}", state._replace(asked=asked)

    def _take_back(
        self, state: State, who: int, views: dict[str, ResizeView]
    ) -> Iterator[tuple[str, State]]:
        step = client_rules.withdrawal(views)
        if isinstance(step, client_rules.Withdraw):
            for name in step.brokers:
                yield from self._ask(state, who, ("withdraw", NAMES.index(name), step.plan))

    def _requests(
        self,
        step: client_rules.Decide
        | client_rules.Stop
        | client_rules.Go
        | client_rules.Open
        | client_rules.Withdraw,
        state: State,
        who: int,
    ) -> Iterator[tuple[str, int]]:
        if isinstance(step, client_rules.Decide):
            yield "decide", NAMES.index(step.broker)
            return
        if isinstance(step, client_rules.Go):
            yield from [("go", 0)] if self.rules.go_first else [("open", 1), ("open", 0)]
            return
        if isinstance(step, client_rules.Withdraw):
            yield from (("withdraw", NAMES.index(name)) for name in step.brokers)
            return
        opening = isinstance(step, client_rules.Open)
        for name in step.brokers:
            yield "open" if opening else "stop", NAMES.index(name)
        stopped = [
            _view(*one).ends is not None for one in zip(NAMES, state.views[who], strict=True)
        ]
        if not self.rules.stop_before_open and any(stopped):
            yield "open", stopped.index(True)
        if not self.rules.first_opens_last and opening:
            yield "open", 0

    # -- brokers ---------------------------------------------------------------------------------

    def _arrive(self, state: State, request: tuple[str, int, Plan]) -> Iterator[tuple[str, State]]:
        kind, number, plan = request
        broker = state.brokers[number]
        now = _read(broker.now)
        try:
            if kind == "decide":
                after = _keep(broker, broker_rules.decide(self._forget_rival(now, plan), plan))
            elif kind == "go":
                agreed = broker_rules.go(now, plan.id, plan.version)
                after = _keep(broker, agreed, saved=self.rules.stop_is_durable)
            elif kind == "withdraw":
                after = self._withdrawn(broker, now, plan)
            elif kind == "open":
                after = _keep(broker, broker_rules.open_next(now, plan.id, plan.version))
            else:
                after = self._stopped(broker, now, plan)
        except BrokerError:
            return
        if after != broker:
            changed = state._replace(brokers=_put(state.brokers, number, after))
            yield f"{kind} {plan.id} arrives at {NAMES[number]}", changed

    def _stopped(self, broker: Broker, now: Versions, plan: Plan) -> Broker:
        now = self._forget_rival(now, plan)
        if now.opened == plan.id or now.ends is not None:
            return _keep(broker, broker_rules.note(now, plan, {}, {}))
        broker_rules.check_next(now, plan)
        if broker.stopping is not None:
            return broker
        ends = tuple((index, len(log)) for index, log in enumerate(broker.logs))
        return broker._replace(stopping=(plan, ends))

    @staticmethod
    def _withdrawn(broker: Broker, now: Versions, plan: Plan) -> Broker:
        if broker.stopping is not None and broker.stopping[0].id == plan.id:
            return broker  # one request about versions at a time
        return _keep(broker, broker_rules.withdraw(now, plan.id))

    def _stop_ends(self, state: State, number: int) -> Iterator[tuple[str, State]]:
        broker = state.brokers[number]
        if broker.stopping is None:
            return
        plan, ends = broker.stopping
        now = self._forget_rival(_read(broker.now), plan)
        noted = broker_rules.note(now, plan, dict(ends), {GROUP: True})
        after = _keep(broker, noted, saved=self.rules.stop_is_durable)._replace(stopping=None)
        changed = state._replace(brokers=_put(state.brokers, number, after))
        yield f"{NAMES[number]} notes its ends", changed

    def _forget_rival(self, now: Versions, plan: Plan) -> Versions:
        """Let go of another plan, where that is not forbidden."""
        if self.rules.one_plan or now.plan is None or now.plan.id == plan.id:
            return now
        return msgspec.structs.replace(now, plan=None if now.ends is None else plan)

    def _looks(self, state: State, number: int) -> Iterator[tuple[str, State]]:
        """Let anybody who asks learn what a broker says, with its answer or by a question."""
        data = state.brokers[number].now
        for who in range(self.coordinators):
            if state.views[who][number] != data:
                views = _put(state.views, who, _put(state.views[who], number, data))
                yield f"{who} hears from {NAMES[number]}", state._replace(views=views)

    def _killed(self, state: State, number: int) -> State:
        broker = state.brokers[number]
        broker = broker._replace(now=broker.saved, stopping=None, peer_done=0)
        return state._replace(brokers=_put(state.brokers, number, broker), kills=state.kills + 1)

    # -- groups ----------------------------------------------------------------------------------

    def _done(self, broker: Broker) -> int:
        return broker_rules.done_version(
            _read(broker.now), GROUP, lambda queue: broker.committed[queue], lambda _: 0
        )

    def _release(self, state: State, number: int) -> Iterator[tuple[str, State]]:
        broker, other = state.brokers[number], state.brokers[1 - number]
        now = _read(broker.now)
        version = broker_rules.reading(now, GROUP)
        if version < now.version and self._done(broker) > version:
            there = self._done(other)
            if self.rules.done_everywhere and there > broker.peer_done:
                after = broker._replace(peer_done=there)
                yield (
                    f"{NAMES[number]} hears that the group is done",
                    state._replace(brokers=_put(state.brokers, number, after)),
                )
            if broker.peer_done > version or not self.rules.done_everywhere:
                releases = state.releases | {(0, version + 1), (1, version + 1)}
                if releases != state.releases:
                    yield f"{NAMES[number]} releases", state._replace(releases=releases)
        for release in state.releases:
            if release[0] == number:
                yield from self._released(state, number, release[1])

    def _released(self, state: State, number: int, version: int) -> Iterator[tuple[str, State]]:
        broker = state.brokers[number]
        now = _read(broker.now)
        done = self._done(broker) if self.rules.done_everywhere else now.version
        try:
            new = broker_rules.release(now, GROUP, version, done=min(done, now.version))
        except BrokerError:
            return
        if new is not now:
            after = _keep(broker, new)
            yield (
                f"{NAMES[number]} lets the group go on",
                state._replace(brokers=_put(state.brokers, number, after)),
            )

    # -- the producer and the group --------------------------------------------------------------

    def _send(self, state: State) -> Iterator[tuple[str, State]]:
        message = state.sent + 1
        found = [_read(one.now) for one in state.brokers]
        if message > self.messages:
            return
        for version, text in {now.version: now.map for now in found}.items():
            name, queue = KeyMap.decode(text).queue(self.key)
            number = NAMES.index(name)
            broker, now = state.brokers[number], found[number]
            closed = broker.stopping is not None or now.stopped
            fits = now.version == version and not closed
            if not self.rules.own_version_only:
                fits = fits or now.version < version
            if fits:
                logs = _put(broker.logs, queue, (*broker.logs[queue], message))
                after = broker._replace(logs=logs)
                yield (
                    f"{message} is stored at {name}{queue} by version {version}",
                    state._replace(brokers=_put(state.brokers, number, after), sent=message),
                )

    def _consume(self, state: State) -> Iterator[tuple[str, State]]:
        for number, broker in enumerate(state.brokers):
            now = _read(broker.now)
            for queue, log in enumerate(broker.logs):
                at = state.read[number][queue]
                end = broker_rules.end_for(now, GROUP, queue) if self.rules.gates else None
                if at < len(log) and (end is None or at < end):
                    yield self._handle(state, number, queue, log[at])
                if broker.committed[queue] < at:
                    committed = _put(broker.committed, queue, at)
                    after = broker._replace(committed=committed)
                    yield (
                        f"commit {NAMES[number]}{queue}",
                        state._replace(brokers=_put(state.brokers, number, after)),
                    )
        if state.kills < self.kills:
            read = tuple(one.committed for one in state.brokers)
            if read != state.read:
                yield "kill the consumer", state._replace(read=read, kills=state.kills + 1)

    def _handle(self, state: State, number: int, queue: int, message: int) -> tuple[str, State]:
        bit = 1 << message
        late = not state.handled & bit and state.handled >= bit
        read = _put(
            state.read, number, _put(state.read[number], queue, state.read[number][queue] + 1)
        )
        return (
            f"handle {message}",
            state._replace(read=read, handled=state.handled | bit, late=state.late or late),
        )


def _keep(broker: Broker, new: Versions, *, saved: bool = True) -> Broker:
    data = _write(new)
    return broker._replace(now=data, saved=data if saved else broker.saved)


def _put(values: tuple, at: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:at], value, *values[at + 1 :])
