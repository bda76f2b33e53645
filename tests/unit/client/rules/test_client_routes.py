"""What a route means to a client."""

from __future__ import annotations

from inorder.client.rules.routes import (
    broker_addresses,
    master_address,
    merged,
    merged_cluster,
    publish_queues,
    read_address,
    subscribe_queues,
    template_route,
)
from inorder.model import TopicQueue
from inorder.ordering.keymap import KeyMap
from inorder.wire.requests.routes import BrokerData, ClusterInfo, QueueData, TopicRoute

ROUTE = TopicRoute(
    (
        BrokerData("C", "b2", {0: "10.0.0.2:1", 1: "10.0.0.3:1"}),
        BrokerData("C", "b1", {0: "10.0.0.1:1"}),
        BrokerData("C", "b3", {1: "10.0.0.4:1"}),
    ),
    (
        QueueData("b2", 2, 1, 6),
        QueueData("b1", 1, 2, 6),
        QueueData("b3", 1, 1, 6),
    ),
)


def test_publish_queues_are_sorted_and_have_a_master():
    """Write queues of brokers with id 0, sorted by broker and index."""
    assert publish_queues(ROUTE, "t") == [
        TopicQueue("t", "b1", 0),
        TopicQueue("t", "b1", 1),
        TopicQueue("t", "b2", 0),
    ]


def test_publish_queues_need_the_write_bit():
    """A broker whose write permission was wiped gets nothing."""
    route = TopicRoute(ROUTE.brokers, (QueueData("b1", 1, 1, 4), QueueData("b2", 1, 1, 2)))
    assert publish_queues(route, "t") == [TopicQueue("t", "b2", 0)]


def test_subscribe_queues_need_the_read_bit_but_no_master():
    """A slave can be read from."""
    assert subscribe_queues(ROUTE, "t") == [
        TopicQueue("t", "b1", 0),
        TopicQueue("t", "b2", 0),
        TopicQueue("t", "b2", 1),
        TopicQueue("t", "b3", 0),
    ]
    assert subscribe_queues(TopicRoute((), (QueueData("b1", 1, 1, 2),)), "t") == []


def test_an_ordered_topic_names_its_queues_itself():
    """The order config holds also for brokers that are away; rubbish in it is left out."""
    route = TopicRoute((), (), order_conf="b2:1;b1:2;;x:y")
    assert publish_queues(route, "t") == [
        TopicQueue("t", "b1", 0),
        TopicQueue("t", "b1", 1),
        TopicQueue("t", "b2", 0),
    ]


def test_writes_go_to_the_master_only():
    """There is no other place for a write."""
    assert master_address(ROUTE, "b2") == "10.0.0.2:1"
    assert master_address(ROUTE, "b3") is None
    assert master_address(ROUTE, "nobody") is None


def test_reads_go_to_the_suggested_one_then_the_master_then_any():
    """A suggestion that is gone is no reason to fail."""
    assert read_address(ROUTE, "b2", 1) == "10.0.0.3:1"
    assert read_address(ROUTE, "b2", 7) == "10.0.0.2:1"
    assert read_address(ROUTE, "b3") == "10.0.0.4:1"
    assert read_address(ROUTE, "nobody") is None


def test_all_addresses_get_heartbeats():
    """Slaves too."""
    assert len(broker_addresses(ROUTE)) == 4


def test_a_template_gives_a_new_topic_no_more_queues_than_wanted():
    """The broker makes the topic with as many."""
    template = TopicRoute(ROUTE.brokers, (QueueData("b1", 8, 8, 7), QueueData("b2", 1, 1, 7)))
    assert len(publish_queues(template_route(template, 4), "t")) == 5


POORER = TopicRoute((BrokerData("C", "b1", {0: "10.0.0.9:1"}),), (QueueData("b1", 3, 1, 6),))


def test_routes_of_several_name_servers_are_put_together():
    """Brokers and addresses of all; where they differ the first counts, and more to read."""
    both = merged([POORER, ROUTE])
    assert [data.name for data in both.brokers] == ["b1", "b2", "b3"]
    assert master_address(both, "b1") == "10.0.0.9:1"
    assert master_address(merged([POORER, ROUTE], avoid={"10.0.0.9:1"}), "b1") == "10.0.0.1:1"
    assert both.queues[0] == QueueData("b1", 3, 1, 6)
    assert merged([ROUTE, POORER]).queues[0] == QueueData("b1", 3, 2, 6)
    assert merged([ROUTE]) is ROUTE


def test_clusters_of_several_name_servers_are_put_together():
    """Each may know other brokers."""
    infos = [
        ClusterInfo({one.name: one for one in route.brokers}, {"C": names})
        for route, names in ((POORER, ("b1",)), (ROUTE, ("b2", "b3")))
    ]
    both = merged_cluster(infos)
    assert sorted(both.brokers) == ["b1", "b2", "b3"]
    assert both.clusters == {"C": ("b1", "b2", "b3")}


def test_the_queues_of_a_key_map_are_read_whatever_a_route_knows():
    """Of brokers that it does not know; a broker that it knows says itself what may be read."""
    key_map = KeyMap.of(1, [("b1", 0), ("b1", 5), ("away", 0), ("shut", 0)])
    route = TopicRoute(ROUTE.brokers, (QueueData("b1", 2, 1, 6), QueueData("shut", 1, 1, 2)))
    assert subscribe_queues(route, "t", key_map) == [
        TopicQueue("t", "away", 0), TopicQueue("t", "b1", 0), TopicQueue("t", "b1", 1),
    ]  # fmt: skip
