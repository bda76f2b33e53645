"""What strangers can make a name server keep."""

from __future__ import annotations

import pytest

from inorder.errors import SystemError_
from inorder.model import DataVersion, TopicConfig
from inorder.nameserver import rules as nameserver_rules
from inorder.nameserver.rules import KvTable, Registration, RouteTable
from inorder.wire.requests.routes import QueueData


def registered(**changes: object) -> RouteTable:
    """Return a table with one broker."""
    table = RouteTable()
    values: dict[str, object] = {
        "cluster": "c", "broker_name": "b", "address": "1.2.3.4:1", "broker_id": 0,
        "ha_address": "1.2.3.4:2", "channel": object(), "version": DataVersion(),
        "topics": {name: TopicConfig(name) for name in ("t", "u")}, "timeout_ms": 1000, **changes,
    }  # fmt: skip
    table.register(Registration(**values), now_ms=1)  # type: ignore[arg-type]
    return table


@pytest.mark.parametrize("name", ["cluster", "broker_name", "address", "ha_address", "zone_name"])
def test_names_of_a_broker_are_short(name: str) -> None:
    """A registration with a long name is refused and leaves nothing."""
    registered(**{name: "x" * 255})
    with pytest.raises(SystemError_, match="255"):
        registered(**{name: "x" * 256})


def test_topics_added_by_hand_have_the_same_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The length of the name and the number of entries count for REGISTER_TOPIC_IN_NAMESRV too."""
    table = registered()
    queue = QueueData("b", 1, 1, 6, 0)
    with pytest.raises(SystemError_, match="255"):
        table.add_topic("x" * 256, [queue])
    monkeypatch.setattr(nameserver_rules, "TOPIC_ENTRIES_MAX", 3)
    table.add_topic("third", [queue])
    with pytest.raises(SystemError_, match="entries"):
        table.add_topic("fourth", [queue])
    assert sorted(table.topics()) == ["t", "third", "u"]


def test_values_have_a_limit_of_all_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole table is written with every change, so its size counts, not only its entries."""
    monkeypatch.setattr(nameserver_rules, "TABLE_CHARS_MAX", 30)
    table = KvTable()
    table.put("ns", "key", "v" * 20)
    with pytest.raises(SystemError_, match="together"):
        table.put("ns", "k2", "v" * 20)
    table.put("ns", "key", "w")
    table.put("ns", "k2", "v" * 20)
    assert table.delete("ns", "k2")
    table.put("ns", "k3", "v" * 20)
    assert len(table) == 2
    again = KvTable.decode(table.encode())
    assert len(again) == 2
    with pytest.raises(SystemError_, match="together"):
        again.put("ns", "k4", "v" * 20)


def test_empty_namespaces_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace stays when its last value goes, so putting and deleting must end somewhere."""
    monkeypatch.setattr(nameserver_rules, "NAMESPACES_MAX", 2)
    table = KvTable()
    for name in ("a", "b"):
        table.put(name, "k", "v")
        table.delete(name, "k")
    with pytest.raises(SystemError_, match="namespaces"):
        table.put("c", "k", "v")
    table.put("a", "k", "v")
