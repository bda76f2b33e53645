"""Idempotent producers: which sequence numbers of each producer are stored, queue by queue.

    Producer              its highest incarnation, its connection, its queues
    ProducerQueueState    its last sequence number on one queue, and where its latest messages lie
    ProducerTable         all producers of the broker

A producer says hello over a connection and then numbers its messages per queue. The broker stores
the next number, repeats the reply for a known one, and refuses a gap (`ordering/sequence.py`).

**Replies as runs.** Consecutive numbers mostly get consecutive offsets. So replies are remembered
as runs (first number, offset, last number), and continuing the open run costs nothing. At least the
last 1,024 runs are kept, hence at least the last 1,024 replies.

**Bounds.** At the limit the table forgets the anonymous producer that was idle longest; it never
forgets a named one. A forgotten producer learns it: the table remembers its connection, and
`memory` changes, so that it shows over another connection too.

**Ticks.** The store calls `settle` and `roll_back` as for its queues: numbers of a tick that is not
written are undone with it.

Why: decision 10.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Generic, TypeVar

from inorder.errors import InvalidParameter, ProducersFull, ProducerStale, ProducerUnknown
from inorder.ordering.sequence import NOTHING

Connection = TypeVar("Connection")

RUNS_MAX: Final = 1024
RUN: Final = 3
"""A run has this many integers: first number, value, last number."""
RUNS_TOTAL_MAX: Final = 1_500_000
QUEUES_PER_PRODUCER: Final = 4
NAMES_SHARE: Final = 0.9
"""The share of named producers, which are never forgotten; the rest is left to the others."""
FORGOTTEN_MAX: Final = 1024
"""How many forgotten producers a connection can be told of; others are asked to say hello."""
MEMORY_STEP: Final = 1_000_000


class ProducerQueueState(Generic[Connection]):
    """What is stored of one producer in one queue.

    A remembered value is the offset of a message. For a message that lies elsewhere (one with a
    delay) it is -2 minus its log position.
    """

    __slots__ = (
        "end", "first", "last", "producer", "queue_id", "runs", "settled_end", "settled_last",
        "topic", "value",
    )  # fmt: skip

    def __init__(self, producer: Producer[Connection], topic: str, queue_id: int) -> None:
        self.producer = producer
        self.topic = topic
        self.queue_id = queue_id
        self.last = self.settled_last = NOTHING
        self.end = self.settled_end = 0  # the offset that would continue the open run
        self.first = 0
        self.value = 0
        self.runs = array("q")

    def note(self, number: int, value: int) -> int:
        """Record a message; return by how many the closed runs grew."""
        if number == self.last + 1 and value == self.end:
            self.last = number
            self.end = value + 1
            return 0
        grown = self._close_run()
        self.first, self.value, self.last = number, value, number
        self.end = value + 1 if value >= 0 else NOTHING
        return grown

    def note_many(self, sequences: Sequence[int], value: int) -> int:
        """Record messages at `value` and the offsets after it; return how the closed runs grew."""
        count, first, last = len(sequences), sequences[0], sequences[-1]
        if last - first == count - 1:  # consecutive
            if first != self.last + 1 or value != self.end:
                return self.note(first, value) + self._continue_run(last, value + count)
            return self._continue_run(last, value + count)
        before = len(self.runs)
        self._close_run()
        closed = min(count - 1, RUNS_MAX)  # earlier ones would be dropped at once
        runs = array("q", bytes(8 * RUN * closed))
        runs[0::RUN] = runs[2::RUN] = array("q", sequences[-1 - closed : -1])
        runs[1::RUN] = array("q", range(value + count - 1 - closed, value + count - 1))
        self.runs += runs
        if len(self.runs) > 2 * RUNS_MAX * RUN:
            del self.runs[: -RUNS_MAX * RUN]
        self.first = self.last = last
        self.value, self.end = value + count - 1, value + count
        return (len(self.runs) - before) // RUN

    def _continue_run(self, last: int, end: int) -> int:
        """Extend the open run."""
        self.last, self.end = last, end
        return 0

    def _close_run(self) -> int:
        if self.last < self.first:
            return 0
        runs = self.runs
        runs.extend((self.first, self.value, self.last))
        if len(runs) > 2 * RUNS_MAX * RUN:
            del runs[: RUNS_MAX * RUN]
            return 1 - RUNS_MAX
        return 1

    def find(self, number: int) -> int | None:
        """Return the remembered value of a sequence number, or None."""
        if self.first <= number <= self.last:
            return self.value + (number - self.first if self.value >= 0 else 0)
        runs = self.runs
        at = bisect_right(runs[::RUN], number) * RUN - RUN
        if at < 0 or number > runs[at + 2]:
            return None
        value = runs[at + 1]
        return value + (number - runs[at] if value >= 0 else 0)

    def places(self, since: int, most: int) -> Iterator[tuple[int, int]]:
        """Return the remembered offsets from a number on, as (first offset, count).

        -1: not remembered, or not in this queue. At most about `most` numbers are looked for.
        """
        starts = self.runs[::RUN]
        number, stop = since, min(self.last, since + most - 1)
        while number <= stop:
            end, value = number, -1
            if self.first <= number:
                end = stop
                value = self.value + (number - self.first if self.value >= 0 else 0)
            else:
                at = bisect_right(starts, number) * RUN - RUN
                if at >= 0 and number <= self.runs[at + 2]:
                    end, value = self.runs[at + 2], self.runs[at + 1]
                    value += number - self.runs[at] if value >= 0 else 0
            yield max(value, -1), min(end, stop) - number + 1
            number = end + 1

    def roll_back(self) -> int:
        """Undo everything since the last settled number; return how the closed runs grew."""
        before = len(self.runs)
        last, settled_last = self.last, self.settled_last
        while self.first > settled_last and self.runs:
            self.first, self.value, last = self.runs[-RUN:]
            del self.runs[-RUN:]
        if self.first <= last < settled_last:  # a run ends before: the open one is empty
            self.runs.extend((self.first, self.value, last))
            self.first = settled_last + 1
        self.first = min(self.first, settled_last + 1)
        self.last, self.end = settled_last, self.settled_end
        return (len(self.runs) - before) // RUN

    def forget_runs(self) -> int:
        """Forget all replies but those of the open run; return how the closed runs grew."""
        count = len(self.runs) // RUN
        self.runs = array("q")
        return -count

    def settled(self) -> ProducerQueueState[Connection]:
        """Return the state without the open tick."""
        if self.last == self.settled_last:
            return self
        copy = ProducerQueueState(self.producer, self.topic, self.queue_id)
        copy.last, copy.end, copy.first, copy.value = self.last, self.end, self.first, self.value
        copy.settled_last, copy.settled_end = self.settled_last, self.settled_end
        copy.runs = array("q", self.runs)
        copy.roll_back()
        return copy

    def __repr__(self) -> str:
        where = f"{self.topic}/{self.queue_id}"
        return f"ProducerQueueState({self.producer.id}, {where}, last={self.last})"


class Producer(Generic[Connection]):
    """One producer."""

    __slots__ = ("connection", "highest", "id", "named", "protocol", "queues")

    def __init__(self, producer_id: str, *, named: bool) -> None:
        self.id = producer_id
        self.named = named
        self.highest = 0
        self.protocol = 1
        """The protocol version that its hello named."""
        self.connection: Connection | None = None
        self.queues: dict[tuple[str, int], ProducerQueueState[Connection]] = {}

    def __repr__(self) -> str:
        return f"Producer({self.id!r}, named={self.named}, queues={len(self.queues)})"


class ProducerTable(Generic[Connection]):
    """All producers of a broker."""

    def __init__(self, *, producers_max: int = 100_000) -> None:
        self.producers_max = producers_max
        self._anonymous: OrderedDict[str, Producer[Connection]] = OrderedDict()
        self._names: dict[str, Producer[Connection]] = {}
        self._by_queue: dict[tuple[str, int], dict[str, ProducerQueueState[Connection]]] = {}
        self._spoken: dict[Connection, set[str]] = {}  # connection -> its producers
        self._forgotten: dict[
            Connection, dict[str, None]
        ] = {}  # connection -> producers that were forgotten
        self._dirty: dict[ProducerQueueState[Connection], None] = {}
        self._touch = self._anonymous.move_to_end
        self._runs = 0
        self._queues = 0
        self.memory = 0
        """Changes whenever the table forgets a producer."""
        self.revision = 0
        """Changes whenever the snapshot would differ."""

    def __len__(self) -> int:
        return len(self._anonymous) + len(self._names)

    @property
    def names(self) -> list[str]:
        """Return the named producers, sorted."""
        return sorted(self._names)

    # -- connections -----------------------------------------------------------------------------

    def hello(
        self,
        producer_id: str,
        incarnation: int,
        connection: Connection,
        *,
        named: bool,
        memory: int = -1,
        protocol: int = 1,
    ) -> Producer[Connection]:
        """Bind a producer to a connection, and fence off its earlier connections.

        `memory` is the table's value at the producer's first hello; -1 if it never said hello. An
        equal incarnation over another connection takes over: the last one wins.

        Raises:
            ProducerStale: a higher incarnation has said hello.
            ProducerUnknown: the table may have forgotten the producer.
            ProducersFull: there is no room for another producer.
        """
        producer = self.find(producer_id)
        if producer is None:
            if not named and memory not in (-1, self.memory):
                raise ProducerUnknown(
                    f"producer {producer_id} may have been forgotten; go on under a new id"
                )
            producer = self._make(producer_id, named=named)
        elif producer.named != named:
            raise InvalidParameter(
                f"producer {producer_id} is {'named' if producer.named else 'anonymous'} here"
            )
        if incarnation < producer.highest:
            raise ProducerStale(
                f"incarnation {incarnation} of producer {producer_id} is older than "
                f"{producer.highest}, which has said hello",
                highest=producer.highest,
            )
        self._silence(producer)
        producer.highest = incarnation
        producer.protocol = protocol
        producer.connection = connection
        self._spoken.setdefault(connection, set()).add(producer_id)
        if not named:
            self._touch(producer_id)
        return producer

    def _silence(self, producer: Producer[Connection]) -> Connection | None:
        """Unbind a producer from its connection, and return that connection."""
        connection, producer.connection = producer.connection, None
        if connection is not None:
            self._spoken[connection].discard(producer.id)
        return connection

    def has_heard(self, connection: Connection) -> bool:
        """Return whether a connection ever said hello: its client knows inorder's fields."""
        return connection in self._spoken

    def speaker(self, producer_id: str, connection: Connection) -> Producer[Connection]:
        """Return the producer of a send over a connection.

        Raises:
            ProducerStale: it has not said hello here, or has over another connection since.
            ProducerUnknown: it has, and was forgotten since.
        """
        producer = self.find(producer_id)
        if producer is None:
            if producer_id in self._forgotten.get(connection, ()):
                raise ProducerUnknown(f"producer {producer_id} was forgotten; use a new id")
            raise ProducerStale(f"producer {producer_id} has not said hello on this connection")
        if producer.connection is not connection:
            raise ProducerStale(
                f"producer {producer_id} has said hello over another connection since",
                highest=producer.highest,
            )
        return producer

    def connection_lost(self, connection: Connection) -> None:
        """Unbind the producers of a closed connection."""
        self._forgotten.pop(connection, None)
        for producer_id in self._spoken.pop(connection, ()):
            producer = self.find(producer_id)
            if producer is not None:
                producer.connection = None

    # -- producers -------------------------------------------------------------------------------

    def find(self, producer_id: str) -> Producer[Connection] | None:
        """Return a producer, or None."""
        return self._anonymous.get(producer_id) or self._names.get(producer_id)

    def on_queue(self, topic: str, queue_id: int) -> dict[str, ProducerQueueState[Connection]]:
        """Return the producers of a queue by id: the live dict, which the fast path keeps."""
        return self._by_queue.setdefault((topic, queue_id), {})

    def queue_state(
        self, producer_id: str, topic: str, queue_id: int
    ) -> ProducerQueueState[Connection] | None:
        """Return the state of a producer on a queue, or None."""
        found = self._by_queue.get((topic, queue_id))
        return None if found is None else found.get(producer_id)

    def add_queue(
        self, producer: Producer[Connection], topic: str, queue_id: int
    ) -> ProducerQueueState[Connection]:
        """Begin to track a producer on a queue.

        Raises:
            ProducersFull: named producers take all the room.
        """
        while self._queues >= QUEUES_PER_PRODUCER * self.producers_max:
            self._evict(keep=producer)
        made = ProducerQueueState(producer, topic, queue_id)
        producer.queues[topic, queue_id] = made
        self.on_queue(topic, queue_id)[producer.id] = made
        self._queues += 1
        return made

    def _make(self, producer_id: str, *, named: bool) -> Producer[Connection]:
        if named and len(self._names) >= self.producers_max * NAMES_SHARE:
            raise ProducersFull(
                f"there is no room for the producer {producer_id}: {len(self._names)} names are "
                "known; drop those that are not used any more"
            )
        if len(self) >= self.producers_max:
            self._evict()
        producer: Producer[Connection] = Producer(producer_id, named=named)
        (self._names if named else self._anonymous)[producer_id] = producer
        return producer

    def _evict(self, *, keep: Producer[Connection] | None = None) -> None:
        """Forget the anonymous producer that was idle longest; not `keep`, but one with queues.

        Raises:
            ProducersFull: there is none.
        """
        for producer in self._anonymous.values():
            if keep is None or (producer is not keep and producer.queues):
                break
        else:
            raise ProducersFull("there is no room; drop named producers that are not used any more")
        del self._anonymous[producer.id]
        self._drop_queues(producer)
        connection = self._silence(producer)
        if connection is not None:
            told = self._forgotten.setdefault(connection, {})
            told[producer.id] = None
            if len(told) > FORGOTTEN_MAX:
                del told[next(iter(told))]
        self.memory += 1
        self.revision += 1

    def _drop_queues(self, producer: Producer[Connection]) -> None:
        for state in producer.queues.values():
            self._forget_queue(state)
        producer.queues.clear()

    def _forget_queue(self, state: ProducerQueueState[Connection]) -> None:
        key = (state.topic, state.queue_id)
        self._by_queue[key].pop(state.producer.id, None)  # the dict stays: targets hold a reference
        self._dirty.pop(state, None)
        self._runs += state.forget_runs()
        self._queues -= 1

    def drop_name(self, producer_id: str) -> int | None:
        """Forget a named producer; return how many queues it had, or None if it is unknown."""
        producer = self._names.pop(producer_id, None)
        if producer is None:
            return None
        count = len(producer.queues)
        self._drop_queues(producer)
        self._silence(producer)
        self.revision += 1
        return count

    def drop_topic(self, topic: str) -> int:
        """Forget the states of a topic's queues; return how many."""
        count = 0
        for key in [key for key in self._by_queue if key[0] == topic]:
            for state in list(self._by_queue[key].values()):
                self._forget_queue(state)
                del state.producer.queues[key]
                count += 1
            del self._by_queue[key]
        if count:
            self.revision += 1
        return count

    # -- messages --------------------------------------------------------------------------------

    # hot: 0.4 µs
    def stored(self, state: ProducerQueueState[Connection], number: int, value: int) -> None:
        """Record a message that a tick will write."""
        last = state.last
        if last == state.settled_last:
            self._dirty[state] = None
            if not state.producer.named:
                self._touch(state.producer.id)
        if number == last + 1 and value == state.end:
            state.last = number
            state.end = value + 1
        else:
            self._runs += state.note(number, value)

    def stored_many(
        self, state: ProducerQueueState[Connection], found: Sequence[int], offset: int
    ) -> None:
        """Record messages that a tick will write, at consecutive offsets."""
        if state.last == state.settled_last:
            self._dirty[state] = None
            if not state.producer.named:
                self._touch(state.producer.id)
        self._runs += state.note_many(found, offset)

    def settle(self) -> None:
        """Keep what the tick recorded: it is written."""
        if self._dirty:
            for state in self._dirty:
                state.settled_last, state.settled_end = state.last, state.end
            self._dirty.clear()
            self.revision += 1
            if self._runs > RUNS_TOTAL_MAX:
                self._thin_out()

    def roll_back(self) -> None:
        """Undo what the tick recorded: it is not written."""
        for state in self._dirty:
            self._runs += state.roll_back()
        self._dirty.clear()

    def _thin_out(self) -> None:
        """Forget old replies, but no sequence numbers, of the producers that were idle longest."""
        for producer in [*self._anonymous.values(), *self._names.values()]:
            for state in producer.queues.values():
                self._runs += state.forget_runs()
            if self._runs <= RUNS_TOTAL_MAX * 3 // 4:
                return

    # -- snapshot and replay ---------------------------------------------------------------------

    def replayed(
        self, producer_id: str, topic: str, queue_id: int, number: int, value: int, *, named: bool
    ) -> None:
        """Record a message that the log holds.

        The log wins: higher numbers that the snapshot knew are dropped.
        """
        state = self.queue_state(producer_id, topic, queue_id)
        if state is None:
            producer = self.find(producer_id) or self._make(producer_id, named=named)
            state = self.add_queue(producer, topic, queue_id)
        if number <= state.last:
            if state.find(number) is None:  # the topic was recreated, or the number is too old
                self._runs += state.forget_runs()
                state.first = number
            state.settled_last, state.settled_end = number - 1, NOTHING
            self._runs += state.roll_back()
        self._runs += state.note(number, value)
        state.settled_last, state.settled_end = state.last, state.end
        if not state.producer.named:
            self._touch(producer_id)
        self.revision += 1

    def restore(self, producer_id: str, *, named: bool) -> Producer[Connection]:
        """Add a producer from the snapshot; the snapshot lists the longest idle first."""
        return self.find(producer_id) or self._make(producer_id, named=named)

    def restore_queue(
        self,
        producer: Producer[Connection],
        topic: str,
        queue_id: int,
        values: tuple[int, int, int, int],
        runs: Iterable[int],
    ) -> None:
        """Add a queue from the snapshot: (last, end, first, value), and closed runs."""
        state = self.add_queue(producer, topic, queue_id)
        state.last, state.end, state.first, state.value = values
        state.settled_last, state.settled_end = state.last, state.end
        state.runs.extend(runs)
        self._runs += len(state.runs) // RUN

    def restarted(self) -> None:
        """Change `memory`, so that producers notice that some of it may be lost."""
        if self.memory:
            self.memory += MEMORY_STEP

    def __iter__(self) -> Iterator[Producer[Connection]]:
        """Iterate over a copy: anonymous producers, longest idle first, then named ones."""
        return iter([*self._anonymous.values(), *self._names.values()])
