"""Members against a table of (connection, client id) and who superseded whom."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from inorder.broker.groups.rules import Departure, Member, Members
from inorder.model import Subscription

CONNECTIONS = st.integers(1, 5)
CLIENTS = st.sampled_from(["a", "b"])
TOPICS = st.lists(st.sampled_from(["t", "u", "v"]), max_size=3, unique=True)


class MemberModel(RuleBasedStateMachine):
    """One clustering group."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.version = 0
        self.members: Members[int] = Members()
        self.model: dict[int, tuple[str, int, bool]] = {}  # client id, seen, superseded
        self.topics: set[str] = set()

    @rule(ms=st.integers(1, 60))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(connection=CONNECTIONS, client=CLIENTS, topics=TOPICS)
    def heartbeat(self, connection: int, client: str, topics: list[str]) -> None:
        known = self.model.get(connection)
        self.version += 1
        notice = self.members.register_consumer(
            "g",
            Member(connection, client, 0, 0, self.now),
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from="CONSUME_FROM_LAST_OFFSET",
            subscriptions=[Subscription(topic, version=self.version) for topic in topics],
        )
        if known is None or known[0] != client:
            for other, (name, seen, _superseded) in self.model.items():
                if name == client and other != connection:
                    self.model[other] = (name, seen, True)
        self.model[connection] = (client, self.now, False)
        changed = known is None or self.topics != set(topics)
        self.topics = set(topics)
        assert (notice is not None) == changed
        if notice is not None:
            assert set(notice.connections) == set(self.model)

    @rule(connection=CONNECTIONS)
    def connection_closes(self, connection: int) -> None:
        before = self._ids()
        departure = self.members.close(connection)
        self._leave(connection)
        self._check(before, departure)

    @rule(connection=CONNECTIONS)
    def unregister(self, connection: int) -> None:
        before = self._ids()
        departure = self.members.unregister_consumer("g", connection)
        self._leave(connection)
        self._check(before, departure)

    @rule()
    def silence(self) -> None:
        silent = {c for c, (_name, seen, _s) in self.model.items() if self.now - seen > 100}
        departure = self.members.expire(self.now, 100)
        assert set(departure.connections) == silent
        for connection in list(self.model):
            if connection in silent:
                self._leave(connection)
        assert {d.client_id for d in departure.departed}.isdisjoint(self._ids())

    def _leave(self, connection: int) -> None:
        gone = self.model.pop(connection, None)
        if gone is None:
            return
        rest = [c for c, entry in self.model.items() if entry[0] == gone[0]]
        if all(self.model[c][2] for c in rest):
            for other in rest:
                del self.model[other]
        if not self.model:
            self.topics = set()

    def _ids(self) -> set[str]:
        return {client for client, _seen, _superseded in self.model.values()}

    def _check(self, before: set[str], departure: Departure[int]) -> None:
        gone = before - self._ids()
        assert {d.client_id for d in departure.departed} == gone
        if gone and self.model:
            (notice,) = departure.notices
            assert set(notice.connections) == set(self.model)
        else:
            assert departure.notices == []

    @invariant()
    def each_client_id_once(self) -> None:
        ids = self.members.client_ids("g")
        assert len(ids) == len(set(ids))
        assert set(ids) == self._ids()
        assert set(self.members.connections("g")) == set(self.model)

    @invariant()
    def subscriptions_are_those_of_the_last_heartbeat(self) -> None:
        group = self.members.group("g")
        assert (set() if group is None else set(group.subscriptions)) == self.topics
        assert (group is None) == (not self.model)


MemberModel.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestMembersFollowTheirRules = MemberModel.TestCase
