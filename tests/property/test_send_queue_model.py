"""Send queues against a model broker: delay, loss, late copies, refusals, restarts, power cuts.

Whatever happens, each message is stored at most once, in the order of the calls; what was
acknowledged is stored, or the loss is reported.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inorder.client.send.messages import Outgoing
from inorder.client.send.queues import DONE, Resolution, Send, SendQueue
from inorder.model import TopicQueue
from inorder.ordering.sequence import Verdict, expected, judge_batch
from inorder.tasks import Backoff
from inorder.wire.requests.sendframes import SendTemplate


class Call(Send):
    """A send: the messages it brings, and what its caller was told."""

    def __init__(self, first: int, count: int, number: int, *, bad: bool) -> None:
        sequences = tuple(range(number, number + count)) if number >= 0 else ()
        items = None if count == 1 else ()  # those of send_batch
        part = Outgoing(("",) * count, b"", b"", 0, items=items, sequences=sequences)
        super().__init__("t", None, part, None, 0, Future())
        self.ids = list(range(first, first + count))
        self.bad = bad
        self.told = ""


def send_queue(window: int, *, named: bool) -> SendQueue:
    """Return a send queue that nobody pumps: the model asks and answers."""
    template = SendTemplate(
        group="g", topic="t", template_topic="TBW102", template_queues=4, queue_id=0, broker="b"
    )
    return SendQueue(
        cast("Any", None), TopicQueue("t", "b", 0), template, "p", window=window, named=named,
        backoff=Backoff(1, 1),
    )  # fmt: skip


@dataclass
class Request:
    """A copy of a send on its way."""

    pid: int
    call: Call
    number: int
    previous: int


@dataclass
class Wire:
    """One connection, each direction in order."""

    incarnation: int
    requests: deque[Request] = field(default_factory=deque)
    answers: deque[tuple[Call, str, int]] = field(default_factory=deque)


class Broker:
    """The rules of the idempotent producer, as short as they can be said."""

    def __init__(self, *, named: bool) -> None:
        self.named = named
        self.busy = False
        self.vague = False  # it stores, and answers that it does not know
        self.log: list[tuple[int, int, int]] = []  # producer, number, message
        self.evicted_at: dict[int, int] = {}  # what lies before is forgotten
        self.highest = 0

    def numbers(self, pid: int) -> dict[int, int]:
        known = self.log[self.evicted_at.get(pid, 0) :]
        return {number: id_ for owner, number, id_ in known if owner == pid}

    def last(self, pid: int) -> int | None:
        return max(self.numbers(pid), default=None)

    def receive(self, incarnation: int, request: Request) -> tuple[str, int]:
        last = self.last(request.pid)
        if incarnation < self.highest:
            return "stale", 0
        numbers = range(request.number, request.number + request.call.count)
        verdict, done = judge_batch(
            last, [(number, request.previous if self.named else None) for number in numbers]
        )
        known = self.numbers(request.pid)
        for number, id_ in zip(numbers[:done], request.call.ids, strict=False):
            if known.get(number) != id_:
                return "mismatch", 0
        if verdict is Verdict.UNKNOWN:
            return "unknown", 0
        if verdict is Verdict.GAP:
            return "gap", expected(last, named=True)
        if verdict is Verdict.NEXT and self.busy:
            return "busy", 0
        if verdict is Verdict.NEXT and request.call.bad and not done:
            return "bad", 0
        for number, id_ in list(zip(numbers, request.call.ids, strict=True))[done:]:
            self.log.append((request.pid, number, id_))
        return ("vague" if self.vague else "stored"), 0


class SendQueueModel(RuleBasedStateMachine):
    """A shell of a few lines around the send queue, and everything that can go wrong."""

    named = False

    @initialize(window=st.integers(1, 6))
    def start(self, window: int) -> None:
        self.broker = Broker(named=self.named)
        self.queue = send_queue(window, named=self.named)
        self.calls: list[Call] = []
        self.next_id = 0
        self.sequence = 0
        self.pid = 1
        self.incarnation = 1
        self.wire: Wire | None = None
        self.old: list[Wire] = []
        self.cut = self.reported = False

    # The caller.

    @rule(count=st.integers(1, 3), bad=st.integers(0, 9), skip=st.integers(1, 5))
    def call(self, count: int, bad: int, skip: int) -> None:
        number = -1
        if self.named:
            count, self.sequence = 1, self.sequence + skip
            number = self.sequence
        call = Call(self.next_id, count, number, bad=bad == 0)
        self.next_id += count
        self.calls.append(call)
        self.queue.add(call)

    @precondition(lambda self: self.calls)
    @rule(index=st.integers(0, 1000))
    def give_up(self, index: int) -> None:
        call = self.calls[index % len(self.calls)]
        if not call.told:
            self.queue.abandon(call)
            call.told = "unknown"

    # The shell.

    @rule()
    def write(self) -> None:
        if self.wire is None:
            return
        while (call := self.queue.next()) is not None:
            self.wire.requests.append(Request(self.pid, call, call.sequence, call.previous))

    @rule()
    def connect(self) -> None:
        if self.wire is not None:
            return
        self.incarnation += 1
        self.broker.highest = self.incarnation
        self.wire = Wire(self.incarnation)
        self.queue.connected(idempotent=True)

    @rule()
    def ask(self) -> None:
        """Learn from the broker how far it is, if that must be known."""
        if self.wire is not None and self.queue.needs_state:
            last = self.broker.last(self.pid)
            have = -1 if last is None else last
            self.resolved(self.queue.resolve(have, known=last is not None))

    def resolved(self, found: Resolution) -> None:
        for call in found.outcome_unknown:
            call.told = "unknown"
        if found.lost or found.forgotten:
            self.begin_again()

    def begin_again(self) -> None:
        self.reported = True
        if self.named:
            self.queue.lost = None
            for call in self.queue.waiting:
                if not call.told:
                    call.told = "failed"
                call.state = DONE
            return
        self.pid += 1
        for call in self.queue.restart():
            call.told = call.told or "ok"

    @precondition(lambda self: self.wire is not None and self.wire.answers)
    @rule()
    def hear(self) -> None:
        assert self.wire is not None
        call, answer, last = self.wire.answers.popleft()
        queue, forgotten = self.queue, False
        if answer == "stored":
            queue.confirm(call)
            call.told = call.told or "ok"
        elif answer == "bad":
            queue.refuse(call, final=True)
            call.told = call.told or "failed"
        elif answer == "busy":
            queue.refuse(call, final=False)
        elif answer == "gap":
            queue.gap(call, last)
        elif answer == "vague":
            queue.outcome_unknown(call)
            queue.abandon(call)
            call.told = call.told or "unknown"
        else:
            assert answer == "unknown", answer
            queue.refuse(call, final=False)
            forgotten = True
        self.forgotten = getattr(self, "forgotten", False) or forgotten
        if queue.settled:
            queue.rewind()
            if queue.lost or self.forgotten:
                self.begin_again()
            self.forgotten = False

    # What goes wrong.

    @rule(which=st.integers(0, 5))
    def arrive(self, which: int) -> None:
        wires = [wire for wire in (self.wire, *self.old) if wire is not None and wire.requests]
        if not wires:
            return
        wire = wires[which % len(wires)]
        request = wire.requests.popleft()
        answer, last = self.broker.receive(wire.incarnation, request)
        if wire is self.wire:
            assert answer != "stale"
            wire.answers.append((request.call, answer, last))

    @rule()
    def lose_connection(self) -> None:
        if self.wire is not None:
            self.old.append(self.wire)
            self.wire = None
            self.forgotten = False
            self.queue.lose()

    @rule(busy=st.booleans())
    def be_busy(self, busy: bool) -> None:
        self.broker.busy = busy

    @rule(vague=st.booleans())
    def be_vague(self, vague: bool) -> None:
        self.broker.vague = vague

    @rule()
    def kill(self) -> None:
        """The log stays, and with it the numbers; what was under way to the broker is gone."""
        self.lose_connection()
        self.old.clear()

    @rule(keep=st.integers(0, 20))
    def cut_power(self, keep: int) -> None:
        self.kill()
        lost = len(self.broker.log) > keep
        del self.broker.log[keep:]
        self.cut = self.cut or lost

    @precondition(lambda self: not self.named)
    @rule()
    def forget(self) -> None:
        """An eviction, while nothing of this producer is unknown or under way."""
        idle = self.wire is None or not (self.wire.requests or self.wire.answers)
        if idle and not self.queue.unknown and not self.queue.in_flight:
            self.broker.evicted_at[self.pid] = len(self.broker.log)
            self.old.clear()

    # What must hold.

    @invariant()
    def stored_once_and_in_order(self) -> None:
        if hasattr(self, "broker"):
            ids = [id_ for _, _, id_ in self.broker.log]
            assert ids == sorted(set(ids))

    def teardown(self) -> None:
        if not hasattr(self, "broker"):
            return
        self.broker.busy = self.broker.vague = False
        self.call(1, 1, 1)
        for _ in range(5 * len(self.calls) + 50):
            self.connect()
            self.ask()
            self.write()
            while self.wire is not None and self.wire.requests:
                self.arrive(0)
            while self.wire is not None and self.wire.answers:
                self.hear()
        stored = {id_ for _, _, id_ in self.broker.log}
        for call in self.calls:
            assert call.told, f"{call} has no outcome"
            assert call.told != "failed" or call.bad or (self.named and self.cut)
            if call.told == "ok" and not self.cut:
                assert stored.issuperset(call.ids)
            if call.told == "failed" and not self.cut:
                assert stored.isdisjoint(call.ids)
        acknowledged = {id_ for call in self.calls if call.told == "ok" for id_ in call.ids}
        assert acknowledged <= stored or self.reported


class NamedSendQueueModel(SendQueueModel):
    """The same with numbers of the caller's own, with gaps."""

    named = True


@dataclass
class JoinedRequest:
    """Messages of single calls on their way in one request."""

    pid: int
    calls: list[Call]
    number: int


@dataclass
class JoinedWire:
    """One connection of them, each direction in order."""

    incarnation: int
    requests: deque[JoinedRequest] = field(default_factory=deque)
    answers: deque[tuple[list[Call], str, int]] = field(default_factory=deque)


class JoinedSendQueueModel(SendQueueModel):
    """Messages of single calls that share requests (A18): each has an outcome of its own."""

    names_bad = True
    """The broker says which message of a request it refuses."""

    @rule(names=st.booleans())
    def name_what_is_refused(self, names: bool) -> None:
        self.names_bad = names

    @rule(bad=st.integers(0, 9), alone=st.integers(0, 9), patient=st.booleans())
    def call_joining(self, bad: int, alone: int, patient: bool) -> None:
        call = Call(self.next_id, 1, -1, bad=bad == 0)
        call.joins, call.patient = alone > 0, patient
        self.next_id += 1
        self.calls.append(call)
        self.queue.add(call)

    @rule()
    def write(self) -> None:
        if self.wire is None:
            return
        self.queue.batching = True
        while not (self.queue.requests and self.queue.gathers()):
            calls = cast("list[Call]", self.queue.take())
            if not calls:
                return
            assert len(calls) == 1 or all(call.joins for call in calls)
            assert self.queue.messages <= 1024
            self.wire.requests.append(JoinedRequest(self.pid, calls, calls[0].sequence))

    @rule()
    def connect(self) -> None:
        super().connect()
        if isinstance(self.wire, Wire):
            self.wire = JoinedWire(self.wire.incarnation)

    def arrive_joined(self, request: JoinedRequest, incarnation: int) -> tuple[str, int]:
        broker, pid = self.broker, request.pid
        ids = [id_ for call in request.calls for id_ in call.ids]
        numbers = range(request.number, request.number + len(ids))
        if incarnation < broker.highest:
            return "stale", 0
        verdict, done = judge_batch(broker.last(pid), [(number, None) for number in numbers])
        known = broker.numbers(pid)
        for number, id_ in zip(numbers[:done], ids, strict=False):
            if known.get(number) != id_:
                return "mismatch", 0
        if verdict is Verdict.UNKNOWN:
            return "unknown", 0
        if verdict is Verdict.GAP:
            return "gap", expected(broker.last(pid), named=False) - 1
        bad = [at for at, call in enumerate(request.calls) if call.bad]
        if verdict is Verdict.NEXT and bad and not done:
            return "bad", bad[0] if self.names_bad else -1
        if verdict is Verdict.NEXT and broker.busy:
            return "busy", 0
        # A batch that is stored in part is answered like one whose outcome is unknown.
        end = (done + len(ids) + 1) // 2 if broker.vague and len(ids) > 1 else len(ids)
        broker.log += [(pid, number, id_) for number, id_ in zip(numbers, ids, strict=True)][
            done:end
        ]
        return ("vague" if broker.vague else "stored"), 0

    @rule(which=st.integers(0, 5))
    def arrive(self, which: int) -> None:
        wires = [wire for wire in (self.wire, *self.old) if wire is not None and wire.requests]
        if not wires:
            return
        wire = cast("JoinedWire", wires[which % len(wires)])
        request = wire.requests.popleft()
        answer, detail = self.arrive_joined(request, wire.incarnation)
        if wire is self.wire:
            assert answer != "stale"
            wire.answers.append((request.calls, answer, detail))

    @precondition(lambda self: self.wire is not None and self.wire.answers)
    @rule()
    def hear(self) -> None:
        wire, queue = cast("JoinedWire", self.wire), self.queue
        calls, answer, detail = wire.answers.popleft()
        if len(calls) == 1:
            self.wire = cast("Any", Wire(wire.incarnation))
            assert self.wire is not None
            self.wire.answers.append((calls[0], answer, detail))
            super().hear()
            self.wire = cast("Any", wire)
            return
        if answer == "stored":
            queue.confirm_load(cast("Any", calls))
        else:
            queue.end_load()
        for at, call in enumerate(calls):
            if answer == "stored":
                call.told = call.told or "ok"
            elif answer == "bad":
                call.joins = detail >= 0
                queue.refuse(call, final=at == detail)
                if at == detail:
                    call.told = call.told or "failed"
            elif answer == "gap":
                queue.gap(call, detail)
            elif answer == "vague":
                call.joins = False
                queue.outcome_unknown(call)
            else:
                queue.refuse(call, final=False)
        self.forgotten = getattr(self, "forgotten", False) or answer == "unknown"
        if queue.settled:
            queue.rewind()
            if queue.lost or self.forgotten:
                self.begin_again()
            self.forgotten = False

    @rule()
    def ask(self) -> None:
        if self.wire is not None and self.queue.needs_state:
            last, since = self.broker.last(self.pid), self.queue.first_unknown
            have = -1 if last is None else last
            known = self.broker.numbers(self.pid)
            offsets = [known.get(number, -1) for number in range(max(since, 0), have + 1)]
            found = self.queue.resolve(
                have, known=last is not None, offsets=offsets if since >= 0 else ()
            )
            for call, offset in cast("list[tuple[Call, int]]", found.stored):
                assert [offset] == call.ids, "it is told where another message lies"
                call.told = call.told or "ok"
            self.resolved(found)


TestJoinedSendQueue = JoinedSendQueueModel.TestCase
TestJoinedSendQueue.settings = settings(max_examples=200, stateful_step_count=80, deadline=None)
TestSendQueue = SendQueueModel.TestCase
TestSendQueue.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestNamedSendQueue = NamedSendQueueModel.TestCase
TestNamedSendQueue.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
