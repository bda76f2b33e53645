"""What the clients of a process have counted, also those that are gone."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import inorder.metrics
from inorder.client.registry import COUNTED, OTHER, Registry


class Client:
    """A client that has sent some messages."""

    def __init__(self, sent: int) -> None:
        self.sent = sent

    def statistics(self) -> SimpleNamespace:
        """Return a snapshot."""
        return SimpleNamespace(**dict.fromkeys(COUNTED["producer"], 0) | {"sent": self.sent})


def total(registry: Registry) -> int:
    """Return what all producers have sent, the living looked at as a page does it."""
    present, gone = registry.look()
    for entry, client in present:
        entry.note(client.statistics())
    living = sum(entry.counts["sent"] for entry, _ in present)
    return living + sum(counts["sent"] for counts in gone.values())


def test_a_client_that_was_closed_keeps_its_counts_in_the_total() -> None:
    """No look in between is needed: `close` tells."""
    registry = Registry()
    first, second = Client(3), Client(4)
    registry.made(first, "producer")
    registry.made(second, "producer")
    registry.closed(first)
    del first
    gc.collect()
    assert total(registry) == 7
    second.sent = 5
    assert total(registry) == 8


def test_a_client_that_is_dropped_keeps_what_a_page_has_shown() -> None:
    """Nobody closed it; what was shown must not go down."""
    registry = Registry()
    client = Client(3)
    registry.made(client, "producer")
    assert total(registry) == 3
    del client
    gc.collect()
    assert total(registry) == 3


def test_thousands_of_closed_clients_leave_one_total() -> None:
    """A process that makes a client for each task does not grow, also if nobody looks."""
    registry = Registry()
    for _ in range(5000):
        client = Client(1)
        registry.made(client, "producer")
        registry.closed(client)
    assert len(registry._entries) < 200
    assert total(registry) == 5000


def test_groups_above_the_bound_count_together() -> None:
    """Their totals have one name from the beginning, so that it only grows."""
    registry = Registry(groups_max=2)
    living = [Client(0) for _ in range(4)]
    for one, group in zip(living, ("a", "b", "c", "d"), strict=True):
        registry.made(one, "consumer", group)
    assert [entry.group for entry, _ in registry.look()[0]] == ["a", "b", OTHER, OTHER]


def test_every_counter_of_the_page_is_kept() -> None:
    """A counter that is added to the page must be added to what is kept."""
    for kind, families in (
        ("producer", inorder.metrics._PRODUCER),
        ("consumer", inorder.metrics._CONSUMER),
    ):
        counters = {name for name, family in families.items() if family.kind == "counter"}
        assert set(COUNTED[kind]) == counters  # type: ignore[index]
