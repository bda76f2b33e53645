"""Is what a broker did a run of the model? One queue of one group, request by request.

The simulation writes down every request about a queue and what became of it (`simwatch.py`). Here
the model of `leases.py` is given the same requests, and must be able to answer the same: granted or
refused, under an epoch that is known or new, commit taken or lost, and the offset that stands
afterwards. Epochs of the model and of the broker are compared as names: each new one of the broker
must be a new one of the model. When a lease runs out is not asked here (the order checker judges
that by time): the model may take it as run out or not, whichever explains the answer. A request to
go on is granted only to whom the queue belongs, and a commit of its owner is lost only if the queue
ends before it, whatever befell the broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.model.leases import (
    LEASE_TICKS,
    NOBODY,
    START_BITS,
    Bounds,
    Broker,
    Ghost,
    Kept,
    Lease,
    Left,
    Packet,
    Rules,
    World,
)

_MANY = 1 << 30
_STALE = -1


@dataclass(frozen=True, slots=True)
class Happened:
    """One request, or something that befell the broker, and what stands afterwards.

    `kind` is ask, commit, release, leaving, freed, reset, kept, taken, left, killed or cut;
    `answer` is granted, refused, taken or lost. Under sync flush a release is two steps: `leaving`,
    its commit counts; `freed`, it is on disk and the queue is free. Between the two the queue is
    its owner's. So is a reset: `reset`, it counts; `kept`, no power cut undoes it.
    `end` is where the queue ends: a broker may call a commit beyond it lost.
    """

    kind: str
    owner: str = ""
    epoch: int = 0
    number: int = 0
    offset: int = 0
    answer: str = ""
    new_epoch: int = 0
    fresh: bool = False
    committed: int = 0
    end: int = _MANY

    def __str__(self) -> str:
        named = f"{self.kind} of {self.owner} epoch {self.epoch:x} number {self.number}"
        return f"{named} offset {self.offset}: {self.answer} {self.new_epoch:x} -> {self.committed}"


@dataclass
class Follower:
    """The model beside one queue."""

    broker: Broker = field(default_factory=Broker)
    _model: Lease = field(default_factory=lambda: Lease(Rules(), Bounds()))
    _owners: dict[str, int] = field(default_factory=dict)
    _epochs: dict[int, int] = field(default_factory=lambda: {0: 0})
    released: set[tuple[str, int, int]] = field(default_factory=set)
    on_their_way: list[tuple[str, int]] = field(default_factory=list)
    """Releases that wait for the disk: who, and under which epoch."""
    undoable: list[int] = field(default_factory=list)
    """What was committed before each reset that is not on disk."""

    def take(self, one: Happened) -> str:
        """Follow one step; return why the model cannot, empty if it can."""
        step = getattr(self, f"_{one.kind}")
        problem: str = step(one)
        known = self.broker.now.committed
        if not problem and known != max(0, one.committed):
            problem = f"the model has offset {known}"
        return problem

    def _world(self, *, over: bool) -> World:
        broker = self.broker._replace(remaining=0 if over else LEASE_TICKS, up=True, wait=0)
        return World(broker, (), (), Ghost(done=_MANY), Left(_MANY, 0, 0))

    def _packet(self, one: Happened, kind: str) -> Packet:
        owner = self._owners.setdefault(one.owner, len(self._owners))
        epoch = self._epochs.get(one.epoch, _STALE)
        return Packet(kind, owner, epoch, one.number, one.offset)

    def _ask(self, one: Happened) -> str:
        now = self.broker.now
        packet = self._packet(one, "ask")
        if one.answer == "granted" and one.fresh and one.epoch:
            # The owner learns that its offset was reset: the epoch is the present one.
            same = now.owner == packet.consumer and self._epochs.get(one.new_epoch) == now.epoch
            return "" if same else "not a reset of the owner's"
        if one.answer == "refused":
            return self._refused(packet)
        found = []
        for over in (False, True):
            after, answer = self._model._asked(self._world(over=over), packet)
            assert answer is not None, "nobody gives up here"
            found.append(answer.kind)
            if answer.kind == "granted" and answer.fresh == one.fresh:
                if one.fresh and one.new_epoch in self._epochs:
                    return f"epoch {one.new_epoch:x} was given before"
                if not one.fresh and self._epochs.get(one.new_epoch) != answer.epoch:
                    return "it is renewed under another epoch"
                self._epochs[one.new_epoch] = answer.epoch
                self.broker = after.broker
                return ""
        return f"the model answers {' or '.join(found)}"

    def _refused(self, packet: Packet) -> str:
        """A broker may refuse what it does not know to be free; not what is the asker's."""
        now = self.broker.now
        if packet.epoch and (now.owner, now.epoch) == (packet.consumer, packet.epoch):
            return "the queue is the asker's, under that epoch"
        return ""

    def _commit(self, one: Happened) -> str:
        before = self.broker.now
        packet = self._packet(one, "release" if one.kind == "release" else "commit")
        if one.offset < 0:  # nothing to commit: older than any commit of its epoch
            packet = packet._replace(offset=before.committed, number=0)
        after, answer = self._model._committed(self._world(over=False), packet)
        assert answer is not None, "nobody gives up here"
        if one.answer == "lost":
            return "" if answer.kind == "lost" or one.offset > one.end else "it is taken"
        if answer.kind == "lost":
            again = (one.owner, one.epoch, one.number) in self.released
            return "" if one.kind == "release" and again else "it is lost"
        if one.offset < before.committed:  # a lower value changes nothing
            after = after._replace(
                broker=after.broker._replace(
                    now=after.broker.now._replace(committed=before.committed)
                )
            )
        self.broker = after.broker
        if one.kind != "commit":
            self.released.add((one.owner, one.epoch, one.number))
        if one.kind == "leaving":
            self.on_their_way.append((one.owner, one.epoch))
        return ""

    _release = _leaving = _commit

    def _freed(self, one: Happened) -> str:
        """A release is on disk; if the queue is not its owner's any more nothing is left to do."""
        if (one.owner, one.epoch) not in self.on_their_way:
            return "nobody released it"
        self.on_their_way.remove((one.owner, one.epoch))
        self._free(one.owner, one.epoch)
        return ""

    def _free(self, owner: str, epoch: int) -> None:
        now = self.broker.now
        if (now.owner, now.epoch) == (self._owners[owner], self._epochs.get(epoch)):
            self._set(now._replace(owner=NOBODY), self.broker.counter)

    def _reset(self, one: Happened) -> str:
        now = self.broker.now
        self.undoable.append(now.committed)
        counter = self.broker.counter + 1
        epoch = (self.broker.start << START_BITS) + counter
        if one.new_epoch:
            self._epochs[one.new_epoch] = epoch
        owner = now.owner if one.new_epoch else NOBODY
        self._set(Kept(owner, epoch, max(0, one.committed), epoch, 0), counter)
        return ""

    def _kept(self, one: Happened) -> str:
        """The oldest reset is on disk."""
        if not self.undoable:
            return "nothing was reset"
        self.undoable.pop(0)
        return ""

    def _taken(self, one: Happened) -> str:
        counter = self.broker.counter + 1
        epoch = (self.broker.start << START_BITS) + counter
        self._set(self.broker.now._replace(owner=NOBODY, epoch=epoch), counter)
        return ""

    def _left(self, one: Happened) -> str:
        self._set(self.broker.now._replace(owner=NOBODY), self.broker.counter)
        return ""

    def _killed(self, one: Happened) -> str:
        for released in self.on_their_way:  # they are in the journal
            self._free(*released)
        self.on_their_way.clear()
        self.broker = self.broker._replace(start=self.broker.start + 1, counter=0)
        return ""

    def _cut(self, one: Happened) -> str:
        """Nobody resumes; how much of the commits is left is the disk's affair, never more."""
        committed = max(0, one.committed)
        if committed > max(self.broker.now.committed, *self.undoable, 0):
            return "a power cut commits nothing"
        self.undoable.clear()
        self._killed(one)
        self._set(self.broker.now._replace(owner=NOBODY, committed=committed), 0)
        return ""

    def _set(self, kept: Kept, counter: int) -> None:
        self.broker = self.broker._replace(
            now=kept, journal=kept, before=self.broker.journal, counter=counter
        )


def follow_trace(trace: Iterable[Happened]) -> str:
    """Return what the model cannot follow, with the steps before it; empty if nothing."""
    follower, told = Follower(), []
    for one in trace:
        told.append(str(one))
        problem = follower.take(one)
        if problem:
            return "\n".join([f"the model cannot follow: {problem}", *told[-8:]])
    return ""
