"""QueueLocks against the shortest description of its rules."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from inorder.broker.locks.rules import QueueLocks
from inorder.model import GroupQueue

GROUPS = st.sampled_from(["g1", "g2"])
CLIENTS = st.sampled_from(["a", "b", "c"])
QUEUES = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(
    lambda ids: [("t", i) for i in ids]
)

ALL = [("t", i) for i in range(4)]


class LockModel(RuleBasedStateMachine):
    """The model: who renewed when, and until when it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.locks = QueueLocks(lease_ms=60, client_view_ms=30)
        self.model: dict[GroupQueue, tuple[str, int, int]] = {}  # owner, renewed, until
        self.epochs: dict[GroupQueue, int] = {}

    def _valid(self, key: GroupQueue) -> tuple[str, int, int] | None:
        found = self.model.get(key)
        return found if found is not None and found[2] > self.now else None

    @rule(ms=st.integers(1, 40))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        self.expire()

    @rule(group=GROUPS, queues=QUEUES, client=CLIENTS)
    def lock(self, group: str, queues: list[tuple[str, int]], client: str) -> None:
        keys = [GroupQueue(group, *queue) for queue in queues]
        granted = self.locks.lock_batch(keys, client, self.now)
        for key in set(keys):
            owner = self._valid(key)
            free = owner is None or owner[0] == client
            assert (key in granted) == free
            if free:
                lock = self.locks.get(key)
                assert lock is not None
                last = self.epochs.get(key, 0)
                assert lock.epoch == last if owner is not None else lock.epoch > last
                self.epochs[key] = lock.epoch
                self.model[key] = (client, self.now, self.now + 60)

    @rule(group=GROUPS, queues=QUEUES, client=CLIENTS, at_once=st.booleans())
    def leave_out(
        self, group: str, queues: list[tuple[str, int]], client: str, at_once: bool
    ) -> None:
        """Times here are far below those of a renewal; `RENEWAL_MS_MIN` counts from 10 s."""
        self.now += 10_000
        self.locks.leases.expire(self.now)
        self.model.clear()
        self.lock(group, [*queues, *ALL], client)
        self.now += 20  # not long enough to be a renewal: nothing is given up
        keys = [GroupQueue(group, *queue) for queue in queues]
        assert self.locks.omitted(group, keys, client, self.now, at_once=at_once) == []

    @rule(group=GROUPS, queues=QUEUES, client=CLIENTS)
    def unlock(self, group: str, queues: list[tuple[str, int]], client: str) -> None:
        keys = [GroupQueue(group, *queue) for queue in queues]
        released = self.locks.unlock_batch(group, keys, client)
        for key in set(keys):
            owner = self._valid(key)
            if owner is not None:
                assert (key in released) == (owner[0] == client)
            if self.model.get(key, ("",))[0] == client:
                self.model.pop(key, None)

    @rule(group=GROUPS, client=CLIENTS)
    def unregister(self, group: str, client: str) -> None:
        released = set(self.locks.release_client(group, client))
        for key in [k for k in self.model if k.group == group and self.model[k][0] == client]:
            if self._valid(key) is not None:
                assert key in released
            del self.model[key]

    @rule(group=GROUPS, client=CLIENTS)
    def connection_closes(self, group: str, client: str) -> None:
        self.locks.client_lost(group, client, self.now)
        for key, (owner, renewed, until) in list(self.model.items()):
            if key.group == group and owner == client:
                self.model[key] = (owner, renewed, min(until, renewed + 30))

    @rule(group=GROUPS, client=CLIENTS)
    def client_comes_back(self, group: str, client: str) -> None:
        self.locks.leases.expire(self.now)
        self.locks.client_back(group, client)
        for key, (owner, renewed, _until) in list(self.model.items()):
            if key.group == group and owner == client and self._valid(key) is not None:
                self.model[key] = (owner, renewed, renewed + 60)

    @rule()
    def expire(self) -> None:
        for key in self.locks.leases.expire(self.now):
            assert self._valid(key) is None
        for key in [k for k in self.model if self._valid(k) is None]:
            assert self.locks.get(key) is None
            del self.model[key]

    @invariant()
    def same_owners(self) -> None:
        for group in ("g1", "g2"):
            valid = {
                key: lock.client_id
                for key, lock in self.locks.held(group).items()
                if lock.expires_ms > self.now
            }
            expected = {
                key: found[0]
                for key in self.model
                if key.group == group and (found := self._valid(key)) is not None
            }
            assert valid == expected
            assert self.locks.holds_any(group) == bool(expected)

    @invariant()
    def deadlines_stay_bounded(self) -> None:
        assert len(self.locks.leases._deadlines) <= 2 * len(self.locks) + 64


LockModel.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestLocksFollowTheirRules = LockModel.TestCase
