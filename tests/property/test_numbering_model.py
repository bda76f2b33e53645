"""Producers that send again, in the wrong order, through refusals, failing ticks and restarts,
against the table and the rules: each number is stored once, in order, and answered by its place."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inorder.broker.producers.records import Encoder, decode
from inorder.broker.producers.rules import ProducerQueueState, ProducerTable
from inorder.ordering.sequence import NOTHING, Verdict, judge_batch

ANONYMOUS, NAMED = ("a", "b"), ("n", "m")
PRODUCERS = st.sampled_from(ANONYMOUS + NAMED)
Row = tuple[str, int, int | None]


class NumberingModel(RuleBasedStateMachine):
    """The model is the log itself: a list of (producer, number, before) of one queue."""

    def __init__(self) -> None:
        super().__init__()
        self.table: ProducerTable[str] = ProducerTable()
        self.log: list[Row] = []
        self.open: list[Row] = []
        self.refused_by_check = False
        self.files: list[bytes] = []
        self._hello()

    def _hello(self) -> None:
        for name in ANONYMOUS + NAMED:
            self.table.hello(name, 1, "c", named=name in NAMED)

    def _numbers(self, name: str) -> ProducerQueueState[str] | None:
        return self.table.queue_state(name, "T", 0)

    def _stored(self, name: str) -> list[int]:
        return [number for producer, number, _ in self.log + self.open if producer == name]

    @rule(ordinary=st.booleans())
    def an_ordinary_check_changes_its_mind(self, ordinary: bool) -> None:
        self.refused_by_check = ordinary

    @rule(
        name=PRODUCERS,
        start=st.integers(0, 14),
        count=st.integers(1, 5),
        step=st.integers(1, 3),
        at_once=st.booleans(),
    )
    def send(self, name: str, start: int, count: int, step: int, at_once: bool) -> None:
        """Send a message or a batch: again, the next, or too early, as it falls."""
        named = name in NAMED
        stored = self._stored(name)
        last = stored[-1] if stored else NOTHING
        numbers = [start + index * (step if named else 1) for index in range(count)]
        befores: list[int | None] = [None] * count
        if named:
            earlier = [n for n in stored if n < numbers[0]]
            befores = [earlier[-1] if earlier else NOTHING, *numbers[:-1]]
        known = self._numbers(name)
        verdict, done = judge_batch(
            None if known is None else known.last, list(zip(numbers, befores, strict=True))
        )
        for number in numbers[:done]:
            assert number <= last
            if number in stored:
                assert known is not None
                offset = known.find(number)
                assert offset is not None
                assert (self.log + self.open)[offset][:2] == (name, number)
            else:
                assert named, "an anonymous number below the last was stored"
        if verdict is Verdict.NEXT and not self.refused_by_check:
            if known is None:
                producer = self.table.speaker(name, "c")
                known = self.table.add_queue(producer, "T", 0)
            if at_once:
                self.table.stored_many(known, numbers[done:], len(self.log) + len(self.open))
            for number, before in list(zip(numbers, befores, strict=True))[done:]:
                if not at_once:
                    self.table.stored(known, number, len(self.log) + len(self.open))
                self.open.append((name, number, before))
        elif verdict is Verdict.UNKNOWN:
            assert not stored

    @rule()
    def the_tick_is_written(self) -> None:
        self.table.settle()
        self.log += self.open
        self.open.clear()

    @rule()
    def the_tick_fails(self) -> None:
        self.table.roll_back()
        self.open.clear()

    @rule(steps=st.integers(1, 4))
    def save(self, steps: int) -> None:
        """Save, with the open tick in it or not."""
        encoder = Encoder(self.table, len(self.log))
        while encoder.step(steps):
            pass
        self.files.append(encoder.finish(len(self.log), 0))

    @rule(lost=st.integers(0, 4))
    @precondition(lambda self: self.log)
    def restart(self, lost: int) -> None:
        """Come back with a log that may have lost its end, and with the newest file that fits."""
        self.open.clear()
        del self.log[len(self.log) - min(lost, len(self.log)) :]
        self.table = ProducerTable()
        self.files = [file for file in self.files if decode(file).depends_on <= len(self.log)]
        start = 0
        if self.files:
            saved = decode(self.files[-1])
            saved.restore(self.table)
            start = saved.replay_from
        for offset in range(start, len(self.log)):
            name, number, before = self.log[offset]
            self.table.replayed(name, "T", 0, number, offset, named=before is not None)
        self._hello()

    @invariant()
    def each_number_is_stored_once_in_order(self) -> None:
        for name in ANONYMOUS:
            stored = self._stored(name)
            assert stored == list(range(len(stored)))
        for name in NAMED:
            rows = [row for row in self.log + self.open if row[0] == name]
            last = NOTHING
            for _, number, before in rows:
                assert before == last < number
                last = number

    @invariant()
    def the_table_knows_the_log(self) -> None:
        for name in ANONYMOUS + NAMED:
            stored = self._stored(name)
            known = self._numbers(name)
            assert (NOTHING if known is None else known.last) == (stored[-1] if stored else NOTHING)


NumberingModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestNumberingFollowsItsRules = NumberingModel.TestCase
