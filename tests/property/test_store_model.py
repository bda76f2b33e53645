"""The store against a model of lists: any mix of ticks, housekeeping, kills, cuts and restarts."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from inorder.config import StoreConfig
from inorder.disk import DiskUsage
from inorder.errors import DiskFull
from inorder.store.store import Store
from inorder.testing.clock import FakeClock
from tests.kit.disk import FakeFiles, Fault
from tests.kit.storing import append, contents

ROOT = Path("/data")
CONFIG = StoreConfig(segment_bytes=1500, queue_file_bytes=80, index_slots=5, index_entries=25)

Queue = tuple[str, int]

steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("tick"),
            st.lists(
                st.tuples(st.sampled_from("ABC"), st.integers(0, 2), st.integers(0, 400)),
                min_size=1,
                max_size=6,
            ),
        ),
        st.tuples(st.just("refused tick"), st.integers(0, 300)),
        st.tuples(st.just("housekeep"), st.integers(1, 4)),
        st.tuples(st.just("flush"), st.none()),
        st.tuples(st.just("kill"), st.none()),
        st.tuples(st.just("crash"), st.integers(0, 1 << 30)),
        st.tuples(st.just("close"), st.none()),
        st.tuples(st.just("clean"), st.none()),
        st.tuples(st.just("drop"), st.sampled_from("ABC")),
        st.tuples(st.just("rebuild"), st.sampled_from(("consumequeue", "index", "inorder"))),
    ),
    max_size=30,
)


class Model:
    """What must be in the store: for each queue its messages, all under sync flush."""

    def __init__(self) -> None:
        self.files = FakeFiles()
        self.clock = FakeClock()
        self.store = self.open()
        self.queues: dict[Queue, list[tuple[int, bytes]]] = {}
        self.following: dict[Queue, int] = {}
        self.dropped: set[str] = set()
        self.number = 0

    def open(self) -> Store:
        return Store.open(ROOT, CONFIG, self.files, self.clock)

    def tick(self, messages: list[tuple[str, int, int]]) -> None:
        for topic, queue_id, size in messages:
            key = (topic, queue_id)
            body = b"%06d" % self.number + b"." * size
            keys = f"n{self.number} m{self.number % 10}"
            offset = append(
                self.store, topic, queue_id, body, now_ms=self.clock.now_ms(), keys=keys
            )
            assert offset == self.following.get(key, 0), "offsets have no gaps (S1)"
            self.following[key] = offset + 1
            self.queues.setdefault(key, []).append((offset, body))
            self.number += 1
        self.clock.advance(7)
        tick = self.store.write_tick()
        assert tick is not None
        assert self.store.sync() == tick.end_position
        self.store.publish(tick)

    def refused_tick(self, kept_bytes: int) -> None:
        append(self.store, "A", 0, b"refused" * 20, keys="refused")
        self.files.fail(Fault("write", 1, error=28, kept_bytes=kept_bytes))
        with pytest.raises(DiskFull):
            self.store.write_tick()
        self.files.heal()

    def restart(self, how: str, seed: int = 0) -> None:
        if how == "close":
            self.store.close()
        else:
            self.store.abandon()
            self.files = self.files.kill() if how == "kill" else self.files.crash(Random(seed))
        self.store = self.open()

    def clean(self) -> None:
        if self.dropped:
            return  # which life of a queue survives a rebuild then depends on what was cut
        self.store.clean(self.clock.now_ms(), 0, DiskUsage(100, 12))
        oldest = self.store.log.min_position
        for (topic, queue_id), entries in self.queues.items():
            queue = self.store.queue(topic, queue_id)
            gone = queue.min_offset - entries[0][0] if entries else 0
            for offset, _ in entries[: max(gone, 0)]:
                entry = queue.entry(offset)
                assert entry is None or entry[0] < oldest, "dropped although the log has it"
            del entries[: max(gone, 0)]

    def rebuild(self, folder: str) -> None:
        if any(first > 0 for first in self.firsts()) or self.dropped:
            return  # numbers of queues that have expired wholly are only in the files
        self.store.close()
        self.files.remove_tree(ROOT / folder)
        self.store = self.open()

    def firsts(self) -> list[int]:
        return [
            entries[0][0] if entries else self.following[key]
            for key, entries in self.queues.items()
        ]

    def drop(self, topic: str) -> None:
        self.store.drop_topic(topic)
        self.dropped.add(topic)
        for key in [key for key in self.queues if key[0] == topic]:
            del self.queues[key]
            del self.following[key]

    def check(self) -> None:
        assert contents(self.store) == {k: entries for k, entries in self.queues.items() if entries}
        assert self.store.recovery.problems == []
        for (topic, _), entries in self.queues.items():
            for _, body in entries[:1] + entries[-1:]:
                number = int(body[:6])
                hits = self.store.query_keys(topic, f"n{number}", 9, 0, 1 << 62).positions
                assert len(hits) == 1
        assert self.store.query_keys("A", "refused", 9, 0, 1 << 62).positions == []

    def run(self, step: tuple[str, object]) -> None:
        match step:
            case ("tick", list() as messages):
                self.tick(messages)
            case ("refused tick", int() as kept_bytes):
                self.refused_tick(kept_bytes)
            case ("housekeep", int() as budget):
                self.clock.advance(1500)
                self.store.housekeep(self.clock.now_ms(), budget=budget)
            case ("flush", _):
                self.store.flush_indexes()
            case ("kill" | "close" as how, _):
                self.restart(how)
            case ("crash", int() as seed):
                self.restart("crash", seed)
            case ("clean", _):
                self.clean()
            case ("drop", str() as topic):
                self.drop(topic)
            case ("rebuild", str() as folder):
                self.rebuild(folder)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps)
@example(
    [("tick", [("A", 0, 0)]), ("drop", "A"), ("tick", [("A", 0, 0)]), ("drop", "B"), ("crash", 0)]
)
@example([("tick", [("A", 0, 0)]), ("drop", "A"), ("tick", [("A", 0, 0)]), ("close", None),
          ("tick", [("A", 0, 0)]), ("crash", 0)])  # fmt: skip
def test_the_store_is_a_list_per_queue_whatever_happens(plan: list[tuple[str, object]]) -> None:
    """Under sync flush nothing acknowledged is ever lost, moved, doubled or shown too early."""
    model = Model()
    for step in plan:
        model.run(step)
        if step[0] not in ("tick", "housekeep"):
            model.check()
    model.check()
    model.restart("close")
    model.check()
    model.store.abandon()
