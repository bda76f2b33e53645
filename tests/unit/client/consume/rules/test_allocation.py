"""Allocation: the same queues as Java's client computes, for every member of every list.

The table tests/golden/consuming/allocations.json.xz was made with the strategies of rocketmq-client
5.3.3 themselves: its README says how.
"""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inorder.client.consume.rules.assignment import (
    Allocation,
    Average,
    AverageByCircle,
    ByConfig,
    ByMachineRoom,
    ConsistentHash,
    MachineRoomNearby,
    sort_ids,
    sort_queues,
)
from inorder.errors import UsageError
from inorder.model import TopicQueue

TABLE = Path(__file__).parents[4] / "golden" / "consuming" / "allocations.json.xz"
CASES: list[dict[str, Any]] = msgspec.json.decode(lzma.decompress(TABLE.read_bytes()))
NAMES = sorted({case["strategy"] for case in CASES})

EIGHT = [TopicQueue("T", "b", index) for index in range(8)]
THREE = ["C0", "C1", "C2"]


def room_of(name: str) -> str:
    return name.replace("-", "@").split("@")[0]


def strategy(name: str, queues: list[TopicQueue]) -> Allocation:
    inner = {"AVG": Average(), "AVG_BY_CIRCLE": AverageByCircle()}
    if name.startswith("MACHINE_ROOM_NEARBY-"):
        return MachineRoomNearby(
            inner[name.removeprefix("MACHINE_ROOM_NEARBY-")],
            room_of_queue=lambda queue: room_of(queue.broker),
            room_of_client=room_of,
        )
    return {
        **inner,
        "CONSISTENT_HASH": ConsistentHash(),
        "CONFIG": ByConfig(queues[: (len(queues) + 1) // 2]),
        "MACHINE_ROOM": ByMachineRoom({"east", "west"}),
    }[name]


@pytest.mark.parametrize("name", NAMES)
def test_every_allocation_is_javas(name: str) -> None:
    """Each strategy gives each member exactly what Java's gives it, in Java's order."""
    seen = 0
    for case in CASES:
        if case["strategy"] != name:
            continue
        queues = [TopicQueue("订单-orders", broker, index) for broker, index in case["queues"]]
        chosen = strategy(name, queues)
        assert chosen.name == name
        for client_id, places in case["expected"].items():
            expected = [queues[place] for place in places]
            assert chosen.allocate("g", client_id, queues, case["ids"]) == expected, case
            seen += 1
    assert seen > 500


def test_the_lists_are_sorted_as_java_sorts_them() -> None:
    """Strings by UTF-16 units: characters beyond the 16-bit plane come before some in it."""
    for case in CASES:
        queues = [TopicQueue("订单-orders", broker, index) for broker, index in case["queues"]]
        assert sort_queues(queues[::-1]) == queues
        assert sort_ids(case["ids"][::-1]) == sorted(set(case["ids"]), key=case["ids"].index)


def test_an_id_that_is_listed_twice_counts_once() -> None:
    """O29: a connection that died silently leaves its client on the list a second time."""
    ids = sort_ids(["C1", "C0", "C0"])
    shares = [Average().allocate("g", client_id, EIGHT[:4], ids) for client_id in ids]
    assert shares == [EIGHT[:2], EIGHT[2:4]]


@pytest.mark.parametrize(
    ("chosen", "places"),
    [
        (Average(), [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (AverageByCircle(), [[0, 3, 6], [1, 4, 7], [2, 5]]),
        (ConsistentHash(), [[2, 4, 6], [0, 1, 3, 5, 7], []]),
    ],
)
def test_eight_queues_and_three_consumers(chosen: Allocation, places: list[list[int]]) -> None:
    """The documented example: eight queues q0 to q7, consumers C0, C1, C2."""
    found = [chosen.allocate("g", client_id, EIGHT, THREE) for client_id in THREE]
    assert found == [[EIGHT[place] for place in share] for share in places]


def test_eight_queues_in_one_room() -> None:
    """MACHINE_ROOM: equal ranges first, then one each of those left over."""
    queues = [TopicQueue("T", "r@b", index) for index in range(8)]
    chosen = ByMachineRoom(["r"])
    found = [chosen.allocate("g", client_id, queues, THREE) for client_id in THREE]
    assert [[queue.index for queue in share] for share in found] == [[0, 1, 6], [2, 3, 7], [4, 5]]


def test_queues_of_an_empty_room_go_to_all() -> None:
    """MACHINE_ROOM_NEARBY: room A has q0-3, C0 and C1; B has q4-7 and nobody; C2 sits in C."""
    chosen = MachineRoomNearby(
        Average(),
        room_of_queue=lambda queue: "A" if queue.index < 4 else "B",
        room_of_client=lambda client_id: "C" if client_id == "C2" else "A",
    )
    found = [chosen.allocate("g", client_id, EIGHT, THREE) for client_id in THREE]
    assert [[queue.index for queue in share] for share in found] == [[0, 1, 4, 5], [2, 3, 6], [7]]


@pytest.mark.parametrize(
    "chosen", [Average(), AverageByCircle(), ConsistentHash(), ByMachineRoom(["r"])]
)
@pytest.mark.parametrize(
    ("client_id", "queues", "ids"), [("", EIGHT, THREE), ("C0", [], THREE), ("C0", EIGHT, [])]
)
def test_empty_lists_are_an_error(
    chosen: Allocation, client_id: str, queues: list[TopicQueue], ids: list[str]
) -> None:
    """As in Java: who has no list must not conclude that nothing is his."""
    with pytest.raises(UsageError):
        chosen.allocate("g", client_id, queues, ids)


def test_rooms_must_have_names() -> None:
    """MACHINE_ROOM_NEARBY refuses a queue or a consumer in no room."""
    nowhere = MachineRoomNearby(
        Average(), room_of_queue=lambda queue: "", room_of_client=lambda client_id: "A"
    )
    homeless = MachineRoomNearby(
        Average(), room_of_queue=lambda queue: "A", room_of_client=lambda client_id: ""
    )
    for chosen in (nowhere, homeless):
        with pytest.raises(UsageError, match="in no machine room"):
            chosen.allocate("g", "C0", EIGHT, THREE)


def test_a_ring_without_points_gives_nothing() -> None:
    """CONSISTENT_HASH with 0 virtual nodes allocates nothing; fewer are refused."""
    assert ConsistentHash(0).allocate("g", "C0", EIGHT, THREE) == []
    with pytest.raises(UsageError):
        ConsistentHash(-1)
