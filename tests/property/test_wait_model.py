"""PullWaits against a plain list."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from inorder.broker.pulls.rules import PullWaits, Wait

TOPICS = st.sampled_from(["t", "u"])
QUEUE_IDS = st.integers(0, 2)
CONNECTIONS = st.integers(1, 4)


@dataclass(frozen=True)
class FakePull:
    """A request of a connection."""

    connection: int
    number: int


Entry = tuple[FakePull, tuple[str, int], int]


class WaitModel(RuleBasedStateMachine):
    """The model: a list of (pull, key, deadline) in order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.number = 0
        self.waits: PullWaits[int, FakePull] = PullWaits(waits_max=12)
        self.model: list[Entry] = []

    @rule(ms=st.integers(1, 30))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(topic=TOPICS, queue_id=QUEUE_IDS, connection=CONNECTIONS, ms=st.integers(0, 60))
    def hold(self, topic: str, queue_id: int, connection: int, ms: int) -> None:
        self.number += 1
        pull = FakePull(connection, self.number)
        held = self.waits.hold((topic, queue_id), Wait(connection, pull), self.now + ms)
        assert held == (len(self.model) < 12)
        if held:
            self.model.append((pull, (topic, queue_id), self.now + ms))

    @rule(topic=TOPICS, queue_id=QUEUE_IDS)
    def something_is_stored(self, topic: str, queue_id: int) -> None:
        expected = [entry for entry in self.model if entry[1] == (topic, queue_id)]
        assert ((topic, queue_id) in self.waits) == bool(expected)
        taken = self.waits.take_ready((topic, queue_id))
        assert [(w.request, w.key, w.deadline_ms) for w in taken] == expected
        self._forget(expected)

    @rule()
    def expire(self) -> None:
        expected = sorted((e for e in self.model if e[2] <= self.now), key=lambda e: e[2])
        assert [wait.request for wait in self.waits.expire(self.now)] == [e[0] for e in expected]
        self._forget(expected)

    @rule(connection=CONNECTIONS)
    def connection_closes(self, connection: int) -> None:
        expected = [entry for entry in self.model if entry[0].connection == connection]
        assert self.waits.drop_connection(connection) == len(expected)
        self._forget(expected)

    @rule(topic=TOPICS)
    def topic_is_deleted(self, topic: str) -> None:
        expected = [entry for entry in self.model if entry[1][0] == topic]
        taken = self.waits.drop_topic(topic)
        assert {wait.request for wait in taken} == {entry[0] for entry in expected}
        self._forget(expected)

    def _forget(self, entries: list[Entry]) -> None:
        self.model = [entry for entry in self.model if entry not in entries]

    @invariant()
    def same_number(self) -> None:
        assert len(self.waits) == len(self.model)
        assert self.waits.statistics().waiting == len(self.model)

    @invariant()
    def deadlines_stay_bounded_and_none_is_missed(self) -> None:
        assert len(self.waits._deadlines) <= 2 * len(self.model) + 64
        next_ms = self.waits.next_deadline_ms()
        if self.model:
            assert next_ms is not None
            assert next_ms <= min(entry[2] for entry in self.model)
        else:
            assert next_ms is None


WaitModel.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestWaitsEndOnce = WaitModel.TestCase
