"""Allocations divide: every queue has one owner, whoever computes it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from inorder.client.consume.rules.assignment import (
    Allocation,
    Average,
    AverageByCircle,
    ByMachineRoom,
    ConsistentHash,
    MachineRoomNearby,
    plan,
    sort_ids,
    sort_queues,
)
from inorder.client.consume.rules.leases import LeaseState, RevokeReason
from inorder.model import TopicQueue

NAMES = st.text("abAB@-~\U0001f600", min_size=1, max_size=4)
QUEUES = st.lists(
    st.builds(TopicQueue, st.just("orders"), NAMES.map("r@".__add__), st.integers(0, 20)),
    min_size=1,
    max_size=30,
).map(sort_queues)
IDS = st.lists(NAMES, min_size=1, max_size=8).map(sort_ids)
STRATEGIES = st.sampled_from(
    [
        Average(),
        AverageByCircle(),
        ConsistentHash(),
        MachineRoomNearby(
            Average(), room_of_queue=lambda queue: queue.broker, room_of_client=lambda name: name
        ),
        MachineRoomNearby(
            ConsistentHash(), room_of_queue=lambda queue: "r", room_of_client=lambda name: name[0]
        ),
    ]
)


@settings(deadline=None)
@given(STRATEGIES, QUEUES, IDS)
def test_every_queue_has_exactly_one_owner(
    strategy: Allocation, queues: list[TopicQueue], ids: list[str]
) -> None:
    """The shares of all members together are the list, nothing twice, nothing left out."""
    shares = [strategy.allocate("g", client_id, queues, ids) for client_id in ids]
    assert sorted(queue for share in shares for queue in share) == sorted(queues)


@settings(deadline=None)
@given(st.sampled_from([Average(), AverageByCircle()]), QUEUES, IDS)
def test_averages_are_fair(strategy: Allocation, queues: list[TopicQueue], ids: list[str]) -> None:
    """No member has more than one queue more than another."""
    sizes = [len(strategy.allocate("g", client_id, queues, ids)) for client_id in ids]
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(QUEUES, IDS)
def test_a_room_shares_out_its_own_queues_only(queues: list[TopicQueue], ids: list[str]) -> None:
    """Names that are not `room@name` go to nobody."""
    own = [
        queue
        for queue in queues
        if len(parts := queue.broker.rstrip("@").split("@")) == 2 and parts[0] == "r"
    ]
    strategy = ByMachineRoom(["r"])
    shares = [strategy.allocate("g", client_id, queues, ids) for client_id in ids]
    assert sorted(queue for share in shares for queue in share) == sorted(own)


@settings(deadline=None)
@given(QUEUES, IDS, st.integers(0, 7))
def test_a_member_that_leaves_moves_its_own_queues_only(
    queues: list[TopicQueue], ids: list[str], leaves: int
) -> None:
    """Consistent hash: who stays keeps what he has."""
    strategy = ConsistentHash()
    rest = [client_id for place, client_id in enumerate(ids) if place != leaves % len(ids)]
    for client_id in rest:
        before = set(strategy.allocate("g", client_id, queues, ids))
        assert before <= set(strategy.allocate("g", client_id, queues, rest))


@settings(deadline=None)
@given(st.data(), QUEUES, st.booleans())
def test_a_round_leads_to_what_was_allocated(
    data: st.DataObject, queues: list[TopicQueue], needs_lock: bool
) -> None:
    """Rounds and releases in any order: in the end exactly the allocated queues are owned, and no
    queue is dropped, added and kept at once."""
    owned: dict[TopicQueue, LeaseState] = {}
    some = st.lists(st.sampled_from(queues), unique=True)
    for _ in range(data.draw(st.integers(0, 4))):
        round_of(owned, data.draw(some), needs_lock=needs_lock)
        for queue in data.draw(some):
            if queue in owned and owned[queue].dropped is not None:
                owned.pop(queue).released()
    wanted = data.draw(some)
    for _ in range(2):
        round_of(owned, wanted, needs_lock=needs_lock)
        for queue in [queue for queue, lease in owned.items() if lease.dropped is not None]:
            owned.pop(queue).released()
    round_of(owned, wanted, needs_lock=needs_lock)
    assert set(owned) == set(wanted)
    assert all(lease.dropped is None for lease in owned.values())


def round_of(
    owned: dict[TopicQueue, LeaseState], allocated: list[TopicQueue], *, needs_lock: bool
) -> None:
    found = plan(owned, allocated, needs_lock=needs_lock, now_ms=0)
    dropped = {queue for queue, _ in found.drop}
    added = {*found.lock, *found.add}
    assert not dropped & added
    assert not added & set(owned)
    assert dropped <= set(owned) - set(allocated)
    assert not (found.add if needs_lock else found.lock)
    for queue, reason in found.drop:
        assert reason is RevokeReason.MOVED
        owned[queue].drop(reason)
    for queue in added:
        owned[queue] = LeaseState(queue, now_ms=0, lock_sent_ms=0 if needs_lock else None)
