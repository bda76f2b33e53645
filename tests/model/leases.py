"""A model of lease, hand-over and restart: one queue, its broker, and consumers that want it.

What is in it: grants with epochs, renewals, the client's trust counted from the sending, commits
with numbers, the release that commits and unlocks in one, resets; and as faults a broker that is
killed or loses power, a consumer that is stopped and goes on, a connection that closes on the
broker's side alone, requests given up and sent again (the old one arrives later), requests that
arrive twice. Time is counted in ticks: a lease is LEASE_TICKS long, the grace GRACE_TICKS.

Each rule of the contract is a switch of `Rules`; with all of them on nothing breaks, without any
single one the search finds the schedule that breaks (`test_lease_model.py`). The names of rules and
invariants are those of the ordering contract (P2, P4, P5, A9..A11, A15).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tests.model.search import Model, replaced_fast

LEASE_TICKS: Final = 2
GRACE_TICKS: Final = 1
NOBODY: Final = -1
_REQUESTS: Final = frozenset(("ask", "commit", "release"))
_ANSWERS: Final = {"ask": ("granted", "refused"), "commit": ("taken", "lost")}
START_BITS: Final = 32


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; each may be switched off, to see what it is for."""

    trust_from_sending: bool = True
    """A client counts its lease from the sending of the request, not from the answer (A10)."""
    trust_grace: bool = True
    """It trusts no longer than the grace, which is all that is left after a close (A10)."""
    epoch_on_commit: bool = True
    epoch_on_release: bool = True
    numbers: bool = True
    """An older commit of the same epoch is ignored (A11)."""
    grants_journalled: bool = True
    """A grant is written before its answer (A9)."""
    commits_journalled: bool = True
    release_commits: bool = True
    """A release is commit and unlock in one; off: the unlock, and the commit behind it (P5)."""
    reset_raises_epoch: bool = True
    start_number: bool = True
    """Epochs grow over a power cut, whatever the journal lost."""
    boot_id: bool = True
    """After a power cut nobody resumes by the journal, which may lack the last grants (A9)."""
    waits_after_cut: bool = True
    """After a power cut a lease is waited for before anybody gets the queue."""
    wait_survives: bool = True
    """A kill during that wait does not end it."""
    waits_stated_lease: bool = True
    """After a kill the journalled lease is waited for, not the grace."""
    instances: bool = True
    """An owner is a client id and an instance; off: two processes of one id are one owner (A9)."""
    begins_anew: bool = True
    """A client that lost the queue forgets its cache (O25)."""
    release_is_final: bool = True
    """Once a release was sent no handler starts under that epoch, answered or not (P2)."""
    renewal_only_renews: bool = True
    """The answer to a renewal gives nothing back that was released or lost meanwhile (P2)."""
    deadline_kept: bool = True
    """The end of a lease that a start has set is kept by the next one (A15)."""
    renewal_voids: bool = True
    """The first renewal after a start voids that, in the journal and before its answer (A15)."""
    fold_says_what_stands: bool = True
    """A fold of the journal does not bring back what was voided (A15)."""
    wait_deadline_kept: bool = True
    """A kill does not begin the wait after a power cut anew (A15)."""


@dataclass(frozen=True)
class Bounds:
    """How much may happen. `faults` is any mixture of them."""

    consumers: int = 2
    messages: int = 2
    grants: int = 3
    faults: int = 2
    resets: int = 1


@replaced_fast
class Consumer(NamedTuple):
    """One process."""

    epoch: int = 0
    trust: int = 0
    next: int = 0
    number: int = 0
    sent: int = 0
    """Up to where it has sent commits in this tenure."""
    running: int = NOBODY
    running_epoch: int = 0
    late: bool = False
    """Was stopped after it had looked at its lease and before it started the handler."""
    frozen: bool = False
    asking: bool = False
    committing: bool = False
    releasing: bool = False


@replaced_fast
class Kept(NamedTuple):
    """What the broker knows and writes down."""

    owner: int = NOBODY
    epoch: int = 0
    committed: int = 0
    commit_epoch: int = 0
    commit_number: int = 0
    dated: bool = False
    """It says when the lease ends; `due` of the broker counts down to that, up or not."""


@replaced_fast
class Broker(NamedTuple):
    """The broker and its journal."""

    up: bool = True
    now: Kept = Kept()
    journal: Kept = Kept()
    before: Kept = Kept()
    """The journal without its last record, which a power cut may take."""
    remaining: int = 0
    wait: int = 0
    start: int = 1
    counter: int = 0
    due: int = 0
    wait_dated: bool = False
    stated: bool = False
    """The lease is from before this start; kept only for a fold that says too much."""


@replaced_fast
class Ghost(NamedTuple):
    """What nobody in the system knows; for the invariants."""

    granted_to: int = NOBODY
    epoch_top: int = 0
    done: int = 0
    applied: int = 0
    floor: int = 0
    released_at: int = 0
    kept_for: int = NOBODY
    """Ticks since the first start after the broker heard of the owner; NOBODY: none since."""
    broken: str = ""


@replaced_fast
class Left(NamedTuple):
    """What may still happen."""

    grants: int
    faults: int
    resets: int


@replaced_fast
class Packet(NamedTuple):
    """A request or an answer on its way; `age` is counted from the sending of the request."""

    kind: str
    consumer: int
    epoch: int
    number: int = 0
    offset: int = 0
    age: int = 0
    fresh: bool = False
    given_up: bool = False
    """Its sender waits no longer: nobody reads the answer."""

    def __str__(self) -> str:
        place = f" {self.offset} as number {self.number}" if self.number else ""
        return f"{self.kind} of {self.consumer} under epoch {self.epoch}{place}"


@replaced_fast
class World(NamedTuple):
    """One state."""

    broker: Broker
    consumers: tuple[Consumer, ...]
    packets: tuple[Packet, ...]
    ghost: Ghost
    left: Left


Step = tuple[str, World]
Answered = tuple[World, Packet | None]


class Lease:
    """The protocol under given rules."""

    def __init__(self, rules: Rules, bounds: Bounds) -> None:
        self._rules = rules
        self._bounds = bounds
        self._age_max = GRACE_TICKS if rules.trust_grace else LEASE_TICKS

    def model(self) -> Model[World]:
        """Return what to search."""
        return Model(
            initial=lambda: [
                World(
                    Broker(),
                    (Consumer(),) * self._bounds.consumers,
                    (),
                    Ghost(),
                    Left(self._bounds.grants, self._bounds.faults, self._bounds.resets),
                )
            ],
            steps=self.steps,
            broken=lambda world: [world.ghost.broken] if world.ghost.broken else [],
            witnesses={
                "a second owner": lambda w: w.ghost.granted_to == 1 and w.broker.counter > 1,
                "everything done": lambda w: w.ghost.done == self._bounds.messages,
                "everything committed": lambda w: w.broker.now.committed == self._bounds.messages,
                "a restart": lambda w: w.broker.start > 1 and w.broker.now.owner != NOBODY,
                "a stopped owner overtaken": lambda w: any(
                    one.frozen and one.epoch and w.ghost.granted_to != number
                    for number, one in enumerate(w.consumers)
                ),
            },
        )

    def steps(self, world: World) -> Iterator[Step]:
        """Return everything that may happen next."""
        yield "time passes", self._tick(world)
        for number, consumer in enumerate(world.consumers):
            if not consumer.frozen:
                yield from self._consumer_steps(world, number, consumer)
        for packet in dict.fromkeys(world.packets):
            yield from self._arrivals(world, packet)
        yield from self._broker_steps(world)
        yield from self._recoveries(world)
        if world.left.faults:
            yield from self._faults(world)

    # Time.

    def _tick(self, world: World) -> World:
        broker, ghost = world.broker, world.ghost
        broker = broker._replace(due=max(0, broker.due - 1))
        if broker.up:
            broker = broker._replace(remaining=max(0, broker.remaining - 1))
        if broker.up or broker.wait_dated:
            broker = broker._replace(wait=max(0, broker.wait - 1))
        if ghost.kept_for != NOBODY:
            ghost = ghost._replace(kept_for=min(ghost.kept_for + 1, LEASE_TICKS))
        return world._replace(
            broker=broker,
            ghost=_judged(broker, ghost),
            consumers=tuple(one._replace(trust=max(0, one.trust - 1)) for one in world.consumers),
            packets=tuple(
                sorted(
                    p if p.given_up else p._replace(age=min(p.age + 1, self._age_max))
                    for p in world.packets
                )
            ),
        )

    def _trust(self, packet: Packet) -> int:
        whole = GRACE_TICKS if self._rules.trust_grace else LEASE_TICKS
        return whole - packet.age if self._rules.trust_from_sending else whole

    # A consumer.

    def _consumer_steps(self, world: World, number: int, one: Consumer) -> Iterator[Step]:
        name = f"consumer {number}"
        doubtful = one.trust < GRACE_TICKS and (one.epoch or one.running == NOBODY)
        if doubtful and (one.epoch or world.left.grants) and not one.asking and not one.releasing:
            asked = _with(world, number, one._replace(asking=True))
            yield from self._send(asked, Packet("ask", number, one.epoch))
        if one.late:
            yield f"{name} starts {one.next}, after its stop", self._start(world, number, one)
        elif self._may_start(one):
            yield f"{name} starts {one.next}", self._start(world, number, one)
        if one.running != NOBODY:
            yield f"{name} ends {one.running}", self._end(world, number, one)
        if one.epoch and not one.committing and not one.late:
            told = one._replace(number=one.number + 1, committing=True, sent=one.next)
            commit = Packet("commit", number, one.epoch, told.number, one.next)
            if one.next > one.sent and not one.releasing:
                yield from self._send(_with(world, number, told), commit)
            if one.running == NOBODY:
                released = _with(world, number, told._replace(releasing=True))
                if self._rules.release_commits:
                    yield from self._send(released, commit._replace(kind="release"))
                elif world.broker.up:
                    unlocked = self._unlocked(released, commit)
                    yield f"{name} unlocks, then commits", _sent(unlocked, commit)

    def _may_start(self, one: Consumer) -> bool:
        ready = one.epoch and one.running == NOBODY and not one.releasing
        return bool(ready and one.trust > 0 and one.next < self._bounds.messages)

    def _start(self, world: World, number: int, one: Consumer) -> World:
        started = one._replace(running=one.next, running_epoch=one.epoch, late=False)
        after = _with(world, number, started)
        if world.ghost.granted_to != number and not one.late:
            return _break(after, "P2: a handler starts on another's queue")
        return after

    def _end(self, world: World, number: int, one: Consumer) -> World:
        offset, ghost = one.running, world.ghost
        ended = one._replace(running=NOBODY, running_epoch=0)
        if one.epoch == one.running_epoch:
            ended = ended._replace(next=offset + 1)
        if offset == ghost.done:
            ghost = ghost._replace(done=offset + 1)
        after = _with(world._replace(ghost=ghost), number, ended)
        if offset > ghost.applied:
            return _break(after, "P7: an effect before an earlier one")
        if offset == ghost.applied:
            after = after._replace(ghost=ghost._replace(applied=offset + 1))
        return after

    # What is sent and what arrives.

    def _send(self, world: World, packet: Packet) -> Iterator[Step]:
        """Let a request be answered at once, or be slow: that is a fault."""
        if world.broker.up:
            yield from self._arrivals(_sent(world, packet), packet)
        if world.left.faults:
            yield f"{packet}: slow", _faulted(_sent(world, packet))

    def _arrivals(self, world: World, packet: Packet) -> Iterator[Step]:
        """Let a packet arrive; its answer comes in the same instant, or late: that is a fault."""
        rest = _without(world, packet)
        if packet.kind not in _REQUESTS:
            if not world.consumers[packet.consumer].frozen:
                yield f"{packet}: read late", self._answered(rest, packet)
            return
        if not world.broker.up:
            return
        act = self._asked if packet.kind == "ask" else self._committed
        after, answer = act(rest, packet)
        if answer is None:
            yield f"{packet}: arrives, given up", after
            return
        yield f"{packet}: {answer.kind}", self._deliver(after, answer)
        if world.left.faults:
            yield f"{packet}: {answer.kind}, slowly", _faulted(_sent(after, answer))
            if packet.kind != "ask":
                copied = _faulted(_sent(after, packet._replace(given_up=True, age=0)))
                yield f"{packet}: {answer.kind}, comes again", self._deliver(copied, answer)

    def _deliver(self, world: World, answer: Packet) -> World:
        if world.consumers[answer.consumer].frozen:
            return _sent(world, answer)
        return self._answered(world, answer)

    def _answered(self, world: World, packet: Packet) -> World:
        number, one = packet.consumer, world.consumers[packet.consumer]
        trust = max(one.trust, self._trust(packet), 0)
        if packet.kind == "granted":
            one = one._replace(asking=False)
            if packet.epoch == one.epoch and not packet.fresh:
                return _with(world, number, one._replace(trust=trust))
            stale = not packet.fresh and self._rules.renewal_only_renews
            if stale or one.running != NOBODY or one.releasing:
                return _with(world, number, one)
            begin = packet.offset if self._rules.begins_anew else max(one.next, 0)
            one = one._replace(
                epoch=packet.epoch, trust=max(self._trust(packet), 0), next=begin, sent=begin,
                late=False,
            )  # fmt: skip
            return _with(world, number, one)
        if packet.kind == "refused":
            return _with(world, number, self._lose(one)._replace(asking=False))
        one = one._replace(committing=False)
        if packet.kind == "lost" or one.releasing:
            return _with(world, number, self._lose(one))
        if packet.epoch == one.epoch:
            one = one._replace(trust=trust)
        return _with(world, number, one)

    def _lose(self, one: Consumer) -> Consumer:
        kept = one._replace(epoch=0, trust=0, late=False, releasing=False)
        return kept if not self._rules.begins_anew else kept._replace(next=0, sent=0)

    def _asked(self, world: World, packet: Packet) -> Answered:
        broker, kept = world.broker, world.broker.now
        asker = packet.consumer if self._rules.instances else 0
        if kept.owner == asker and packet.epoch:
            if packet.epoch != kept.epoch:
                return _answer(world, packet, kind="refused")
            world = world._replace(
                broker=self._write(
                    broker._replace(remaining=LEASE_TICKS),
                    kept._replace(dated=kept.dated and not self._rules.renewal_voids),
                    journalled=True,
                ),
                ghost=world.ghost._replace(granted_to=packet.consumer, kept_for=NOBODY),
            )
            return _answer(world, packet, kind="granted", offset=kept.committed)
        # Who asks for what it has already begins anew, under a new epoch.
        free = kept.owner == asker or (broker.remaining == 0 and broker.wait == 0)
        if packet.epoch or not free or not world.left.grants:
            return _answer(world, packet, kind="refused")
        epoch = (broker.start << START_BITS) + broker.counter + 1
        granted = self._write(
            broker._replace(remaining=LEASE_TICKS, counter=broker.counter + 1, due=0, stated=False),
            kept._replace(owner=asker, epoch=epoch, dated=False),
            journalled=self._rules.grants_journalled,
        )
        ghost = world.ghost
        world = world._replace(
            broker=granted,
            left=world.left._replace(grants=world.left.grants - 1),
            ghost=ghost._replace(granted_to=packet.consumer, epoch_top=epoch, kept_for=NOBODY),
        )
        if epoch <= ghost.epoch_top:
            world = _break(world, "P2: an epoch was given before")
        if kept.committed < ghost.released_at:
            world = _break(world, "P5: what was released is begun again")
        return _answer(
            world, packet, kind="granted", epoch=epoch, offset=kept.committed, fresh=True
        )

    def _committed(self, world: World, packet: Packet) -> Answered:
        broker, kept, ghost = world.broker, world.broker.now, world.ghost
        asker = packet.consumer if self._rules.instances else 0
        release = packet.kind == "release"
        checked = self._rules.epoch_on_release if release else self._rules.epoch_on_commit
        if checked and (kept.owner, kept.epoch) != (asker, packet.epoch):
            return _answer(world, packet, kind="lost")
        older = (packet.epoch, packet.number) <= (kept.commit_epoch, kept.commit_number)
        if not (older and self._rules.numbers):
            kept = kept._replace(
                committed=packet.offset, commit_epoch=packet.epoch, commit_number=packet.number
            )
        kept = kept._replace(dated=kept.dated and not self._rules.renewal_voids)
        ghost = ghost._replace(kept_for=NOBODY)
        broker = self._write(
            broker._replace(remaining=LEASE_TICKS),
            kept,
            journalled=self._rules.commits_journalled,
        )
        world = world._replace(broker=broker, ghost=self._account(ghost, kept.committed))
        if release:
            world = world._replace(
                broker=self._free(broker), ghost=world.ghost._replace(released_at=packet.offset)
            )
        if not release and packet.offset > kept.committed:
            world = _break(world, "P4: an answered commit is not there")
        return _answer(world, packet, kind="taken")

    def _account(self, ghost: Ghost, committed: int) -> Ghost:
        if committed > ghost.done:
            return ghost._replace(broken="P4: a commit passes what is not done")
        if committed < ghost.floor:
            return ghost._replace(broken="P4: a commit goes back")
        return ghost._replace(floor=committed)

    def _unlocked(self, world: World, packet: Packet) -> World:
        """Free the queue, with the commit still on its way: what release_commits is against."""
        kept = world.broker.now
        if (kept.owner, kept.epoch) != (packet.consumer, packet.epoch):
            return world
        ghost = world.ghost._replace(released_at=packet.offset)
        return world._replace(broker=self._free(world.broker), ghost=ghost)

    def _free(self, broker: Broker) -> Broker:
        freed = broker._replace(remaining=0, due=0, stated=False)
        return self._write(freed, broker.now._replace(owner=NOBODY, dated=False), journalled=True)

    def _write(self, broker: Broker, kept: Kept, *, journalled: bool) -> Broker:
        if not journalled or kept == broker.journal:
            return broker._replace(now=kept)
        return broker._replace(now=kept, journal=kept, before=broker.journal)

    # The broker itself, and what goes wrong.

    def _recoveries(self, world: World) -> Iterator[Step]:
        for number, one in enumerate(world.consumers):
            if one.frozen:
                yield f"consumer {number} goes on", _with(world, number, one._replace(frozen=False))
                continue
            if one.asking:
                given_up = _with(
                    _given_up(world, number, "ask"), number, one._replace(asking=False)
                )
                yield f"consumer {number} asks no longer", given_up
            if one.committing:
                releasing = one.releasing and self._rules.release_is_final
                told = one._replace(committing=False, releasing=releasing, sent=0)
                given_up = _with(_given_up(world, number, "commit", "release"), number, told)
                yield f"consumer {number} waits no longer", given_up

    def _broker_steps(self, world: World) -> Iterator[Step]:
        broker = world.broker
        if not broker.up:
            yield "the broker starts", self._begin(world)
            return
        if broker.stated and not broker.now.dated:
            folded = broker._replace(journal=broker.now._replace(dated=True))
            yield "the journal is folded", world._replace(broker=folded)
        if world.left.resets:
            yield "the offset is reset", self._reset(world)

    def _begin(self, world: World) -> World:
        """Open the port: what is left of a lease, or of a wait, has an end that is on disk."""
        broker, kept, ghost, rules = world.broker, world.broker.now, world.ghost, self._rules
        if broker.wait:
            broker = broker._replace(wait_dated=rules.wait_deadline_kept)
        if kept.owner != NOBODY:
            due = broker.due if kept.dated else LEASE_TICKS
            kept = kept._replace(dated=rules.deadline_kept)
            broker = broker._replace(
                now=kept,
                journal=kept,
                remaining=due if rules.waits_stated_lease else 0,
                due=due if rules.deadline_kept else 0,
                stated=not rules.fold_says_what_stands,
            )
        if ghost.kept_for == NOBODY and (kept.owner != NOBODY or broker.wait):
            ghost = ghost._replace(kept_for=0)
        broker = broker._replace(up=True)
        return world._replace(broker=broker, ghost=_judged(broker, ghost))

    def _reset(self, world: World) -> World:
        broker, kept = world.broker, world.broker.now._replace(committed=0)
        counter = broker.counter
        if self._rules.reset_raises_epoch:
            counter += 1
            kept = kept._replace(epoch=(broker.start << START_BITS) + counter)
        broker = self._write(broker._replace(counter=counter), kept, journalled=True)
        broker = broker._replace(before=broker.journal)
        ghost = world.ghost._replace(
            done=0, floor=0, released_at=0, epoch_top=max(world.ghost.epoch_top, kept.epoch)
        )
        left = world.left._replace(resets=world.left.resets - 1)
        return world._replace(broker=broker, ghost=ghost, left=left)

    def _faults(self, world: World) -> Iterator[Step]:
        for number, one in enumerate(world.consumers):
            if not one.frozen:
                stopped = one._replace(frozen=True)
                yield f"consumer {number} is stopped", _faulted(_with(world, number, stopped))
                if self._may_start(one):
                    late = _with(world, number, stopped._replace(late=True))
                    yield f"consumer {number} is stopped before a start", _faulted(late)
        broker = world.broker
        if broker.up and broker.remaining > GRACE_TICKS:
            closed = world._replace(broker=broker._replace(remaining=GRACE_TICKS))
            yield "the owner's connection closes on the broker's side", _faulted(closed)
        if broker.up:
            yield "the broker is killed", _faulted(self._kill(world))
            yield "the power is cut", _faulted(self._cut(world, broker.journal))
            if broker.before != broker.journal:
                yield "the power is cut, a record lost", _faulted(self._cut(world, broker.before))

    def _kill(self, world: World) -> World:
        broker = world.broker
        wait = broker.wait if self._rules.wait_survives else 0
        if wait and not self._rules.wait_deadline_kept:
            wait = LEASE_TICKS
        down = Broker(
            up=False, now=broker.journal, journal=broker.journal, before=broker.before,
            wait=wait, start=broker.start + 1, counter=0,
            due=broker.due if broker.journal.dated else 0, wait_dated=broker.wait_dated,
        )  # fmt: skip
        world = world._replace(broker=down)
        if broker.journal.committed < world.ghost.floor:
            world = _break(world, "P4: an answered commit did not survive a kill")
        return world

    def _cut(self, world: World, kept: Kept) -> World:
        broker = world.broker
        owner = NOBODY if self._rules.boot_id else kept.owner
        kept = kept._replace(owner=owner, dated=False)
        start, counter = broker.start + 1, 0
        if not self._rules.start_number:
            start, counter = kept.epoch >> START_BITS, kept.epoch & ((1 << START_BITS) - 1)
        down = Broker(
            up=False, now=kept, journal=kept, before=kept,
            wait=LEASE_TICKS if self._rules.waits_after_cut else 0,
            start=max(start, 1), counter=counter,
        )  # fmt: skip
        # Under async flush a power cut takes commits with it; they may be said again, not more.
        ghost = world.ghost._replace(
            floor=kept.committed, released_at=kept.committed, kept_for=NOBODY
        )
        return world._replace(broker=down, ghost=ghost)


def _judged(broker: Broker, ghost: Ghost) -> Ghost:
    """Say if a queue is kept for an owner that is not heard of, longer than its lease."""
    held = broker.now.owner != NOBODY and broker.remaining
    if broker.up and ghost.kept_for == LEASE_TICKS and (held or broker.wait):
        what = "P6: a restart gives a dead owner its lease again"
        return ghost._replace(broken=ghost.broken or what)
    return ghost


def _with(world: World, number: int, one: Consumer) -> World:
    consumers = world.consumers
    return world._replace(consumers=(*consumers[:number], one, *consumers[number + 1 :]))


def _sent(world: World, packet: Packet) -> World:
    return world._replace(packets=tuple(sorted((*world.packets, packet))))


def _answer(world: World, packet: Packet, **changes: Any) -> Answered:
    return world, None if packet.given_up else packet._replace(**changes)


def _without(world: World, packet: Packet) -> World:
    packets = list(world.packets)
    packets.remove(packet)
    return world._replace(packets=tuple(packets))


def _given_up(world: World, number: int, *kinds: str) -> World:
    """Let nobody wait for the answers to requests any more; the requests may still arrive."""
    packets = []
    for packet in world.packets:
        mine = packet.consumer == number
        if mine and packet.kind in kinds:
            packets.append(packet._replace(given_up=True, age=0))
        elif not (mine and packet.kind in _ANSWERS[kinds[0]]):
            packets.append(packet)
    return world._replace(packets=tuple(sorted(packets)))


def _faulted(world: World) -> World:
    return world._replace(left=world.left._replace(faults=world.left.faults - 1))


def _break(world: World, what: str) -> World:
    return world._replace(ghost=world.ghost._replace(broken=world.ghost.broken or what))
