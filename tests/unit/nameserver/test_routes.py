"""The rules of registration, expiry and routes, on the pure table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inorder.errors import BrokerNameTaken, SystemError_
from inorder.model import DataVersion, TopicConfig
from inorder.nameserver import rules as nameserver_rules
from inorder.nameserver.rules import Registered, Registration, RouteTable, only_zone
from inorder.wire.requests.registration import finish
from inorder.wire.requests.routes import QueueData, TopicRoute

A, B = "10.0.0.1:10911", "10.0.0.2:10911"
NAMES = ("SELF_TEST_TOPIC", "TBW102", "orders")


def topics(*names: str, perm: int = 6, queues: int = 4, flag: int = 0) -> dict[str, TopicConfig]:
    """Return equal configs of some names."""
    return {name: TopicConfig(name, queues, queues, perm, sys_flag=flag) for name in names}


MASTER = Registration(
    cluster="C", broker_name="broker-a", address=A, broker_id=0, ha_address="10.0.0.1:10912",
    channel="channel-a", version=DataVersion(0, 1, 1), topics=topics(*NAMES), timeout_ms=120_000,
    acting_master=False,
)  # fmt: skip
SLAVE = replace(MASTER, address=B, broker_id=1, channel="channel-b", ha_address="10.0.0.2:10912")


def table(*registrations: Registration) -> RouteTable:
    """Return a table after some registrations at time 0."""
    made = RouteTable()
    for registration in registrations:
        made.register(registration, now_ms=0)
    return made


def queue_of(made: RouteTable, topic: str, broker: str = "broker-a") -> QueueData | None:
    """Return a broker's entry of a topic."""
    route = made.route(topic)
    found = [q for q in route.queues if q.broker_name == broker] if route else []
    return found[0] if found else None


def addresses(made: RouteTable, broker: str = "broker-a") -> dict[int, str]:
    """Return the addresses of a broker name."""
    return made.members("C", broker).addresses


def test_a_master_brings_its_topics() -> None:
    """After a registration the route names broker, address and queues."""
    route = table(MASTER).route("orders")
    assert route is not None
    assert [(b.name, b.cluster, b.addresses) for b in route.brokers] == [("broker-a", "C", {0: A})]
    assert route.queues == (QueueData("broker-a", 4, 4, 6, 0),)
    assert table(MASTER).route("unknown") is None


def test_a_topic_of_two_brokers_has_both_in_order() -> None:
    """The global queue list is that of the brokers, sorted by name."""
    other = replace(MASTER, broker_name="broker-0", address=B, channel="channel-b")
    route = table(MASTER, other).route("orders")
    assert route is not None
    assert [broker.name for broker in route.brokers] == ["broker-0", "broker-a"]
    assert [queue.broker_name for queue in route.queues] == ["broker-0", "broker-a"]


def test_a_slave_learns_its_master_and_brings_no_topics() -> None:
    """Topic tables are taken from masters; the answer to a slave names the master."""
    made = table(MASTER)
    slave = replace(SLAVE, topics=topics("only", "on", "slave"))
    assert made.register(slave, now_ms=0) == Registered(A, "10.0.0.1:10912")
    assert made.route("slave") is None
    assert addresses(made) == {0: A, 1: B}
    assert made.register(MASTER, now_ms=0) == Registered(None, None)


def test_a_slave_without_a_master_gets_no_address() -> None:
    """There is nobody to follow yet."""
    assert RouteTable().register(SLAVE, now_ms=0) == Registered(None, None)


@pytest.mark.parametrize(
    ("acting", "perm"),
    [(None, None), (False, 6), (True, 4)],
    ids=["4.9", "5.x", "5.x acting master"],
)
def test_the_slave_with_the_lowest_id_speaks_for_a_missing_master(
    acting: bool | None, perm: int | None
) -> None:
    """From 5.x on it brings topics, without write permission if it acts as master."""
    made = table(replace(SLAVE, acting_master=acting))
    queue = queue_of(made, "orders")
    assert (queue and queue.perm) == perm


@pytest.mark.parametrize(
    ("version", "updated"),
    [(DataVersion(0, 1, 1), False), (DataVersion(0, 1, 2), True), (DataVersion(0, 2, 1), True)],
)
def test_a_topic_changes_only_with_the_data_version(version: DataVersion, updated: bool) -> None:
    """The same version is not read again; any difference is."""
    made = table(MASTER)
    made.register(replace(MASTER, version=version, topics=topics(*NAMES, queues=9)), now_ms=1)
    queue = queue_of(made, "orders")
    assert queue is not None
    assert queue.read_queues == (9 if updated else 4)


def test_a_new_topic_is_taken_even_with_the_same_version() -> None:
    """A topic and broker pair that is not there yet is added in any case."""
    made = table(MASTER)
    made.register(replace(MASTER, topics=topics(*NAMES, "new")), now_ms=1)
    assert queue_of(made, "new") is not None


def test_registration_removes_nothing() -> None:
    """A registration with a part of the table, as after one change, loses no topic."""
    made = table(MASTER)
    change = replace(MASTER, version=DataVersion(0, 2, 2), topics=topics("orders", queues=8))
    made.register(change, now_ms=1)
    assert sorted(made.topics()) == sorted(NAMES)


def test_a_stranger_with_one_topic_is_refused_without_a_trace() -> None:
    """An unknown broker id must register its whole table first."""
    made = RouteTable()
    with pytest.raises(SystemError_, match="register broker failed"):
        made.register(replace(MASTER, topics=topics("orders")), now_ms=0)
    assert made.cluster_info().brokers == {}
    assert made.statistics().addresses == 0
    made.register(replace(MASTER, topics={}), now_ms=0)
    assert addresses(made) == {0: A}


def test_the_same_address_under_another_id_is_moved() -> None:
    """A slave that becomes master leaves its old id."""
    made = table(MASTER, SLAVE)
    made.unregister("C", "broker-a", A)
    made.register(replace(SLAVE, broker_id=0), now_ms=1)
    assert addresses(made) == {0: B}


@pytest.mark.parametrize(("old", "new", "holder"), [(2, 1, A), (1, 1, B), (1, 2, B)])
def test_of_two_addresses_the_higher_state_version_holds_the_id(
    old: int, new: int, holder: str
) -> None:
    """A lower one is ignored (and answered as if all were well)."""
    made = table(replace(MASTER, version=DataVersion(old, 1, 1)))
    rival = replace(MASTER, address=B, channel="channel-b", version=DataVersion(new, 1, 1))
    assert made.register(rival, now_ms=1) == Registered()
    assert addresses(made) == {0: holder}
    assert (made.data_version("C", B) is None) is (holder == A)


def test_an_address_that_comes_back_with_another_name_leaves_the_old_one() -> None:
    """No broker name stays behind that nothing would ever remove."""
    made = table(MASTER)
    made.register(replace(MASTER, broker_name="broker-b", channel="new"), now_ms=1)
    assert list(made.cluster_info().brokers) == ["broker-b"]
    assert made.channel_lost("new")
    assert made.topics() == []


def test_farewell_of_the_last_address_takes_the_topics_along() -> None:
    """While a slave is there the topics stay readable; after it nothing is left."""
    made = table(MASTER, SLAVE)
    made.unregister("C", "broker-a", A)
    queue = queue_of(made, "orders")
    assert queue is not None
    assert queue.perm == 6
    made.unregister("C", "broker-a", B)
    assert made.topics() == []
    assert made.cluster_info().clusters == {}
    made.unregister("C", "broker-a", B)


def test_without_its_master_an_acting_group_is_read_only() -> None:
    """With acting masters the write bit goes with the master."""
    made = table(replace(MASTER, acting_master=True), replace(SLAVE, acting_master=True))
    made.unregister("C", "broker-a", A)
    queue = queue_of(made, "orders")
    assert queue is not None
    assert queue.perm == 4


def test_a_closed_channel_drops_all_its_brokers_at_once() -> None:
    """The connection that carried the registration is the broker's life."""
    second = replace(MASTER, broker_name="broker-b", address=B)
    made = table(MASTER, second)
    assert made.channel_lost("another") == []
    gone = made.channel_lost("channel-a")
    assert [(g.cluster, g.broker_name, g.address) for g in gone] == [
        ("C", "broker-a", A), ("C", "broker-b", B),
    ]  # fmt: skip
    assert made.topics() == []


def test_a_reconnected_broker_survives_the_end_of_its_old_channel() -> None:
    """Only the latest channel counts."""
    made = table(MASTER)
    made.register(replace(MASTER, channel="second"), now_ms=1)
    assert made.channel_lost("channel-a") == []
    assert queue_of(made, "orders") is not None
    assert len(made.channel_lost("second")) == 1


@pytest.mark.parametrize(
    ("timeout_ms", "now_ms", "gone"),
    [(120_000, 120_000, 0), (120_000, 120_001, 1), (10_000, 10_001, 1)],
)
def test_silence_expires_by_the_brokers_own_timeout(
    timeout_ms: int, now_ms: int, gone: int
) -> None:
    """At the timeout it still lives, after it it is gone."""
    made = table(replace(MASTER, timeout_ms=timeout_ms))
    assert len(made.expire(now_ms)) == gone
    assert len(made.topics()) == (0 if gone else 3)


def test_signs_of_life_put_expiry_off() -> None:
    """Heartbeats count; those of strangers change nothing."""
    made = table(MASTER)
    made.touch("C", A, now_ms=100_000)
    made.touch("C", B, now_ms=100_000)
    assert made.expire(220_000) == []
    assert [gone.channel for gone in made.expire(220_001)] == ["channel-a"]


def test_data_versions_are_kept_by_value() -> None:
    """A later change of the caller's object does not reach the table."""
    version = DataVersion(0, 1, 1)
    made = table(replace(MASTER, version=version))
    version.next(5)
    assert made.data_version("C", A) == DataVersion(0, 1, 1)
    assert made.data_version("C", B) is None


def test_write_permission_is_wiped_and_given() -> None:
    """All topics of the broker and no others; giving sets read and write."""
    other = replace(
        MASTER, broker_name="broker-b", address=B, channel="b", topics=topics(*NAMES, perm=7)
    )
    made = table(replace(MASTER, topics=topics(*NAMES, perm=7)), other)
    assert made.set_writable("broker-a", writable=False) == 3
    assert [q.perm for q in _route(made, "orders").queues] == [5, 7]
    assert made.set_writable("broker-a", writable=True) == 3
    assert [q.perm for q in _route(made, "orders").queues] == [6, 7]
    assert made.set_writable("nobody", writable=False) == 0


def test_a_wiped_permission_lasts_until_the_broker_changes() -> None:
    """The same registration does not bring it back, a changed one does."""
    made = table(MASTER)
    made.set_writable("broker-a", writable=False)
    made.register(MASTER, now_ms=1)
    assert [q.perm for q in _route(made, "orders").queues] == [4]
    made.register(replace(MASTER, version=DataVersion(0, 9, 9)), now_ms=2)
    assert [q.perm for q in _route(made, "orders").queues] == [6]


@pytest.mark.parametrize(
    ("cluster", "left"),
    [(None, []), ("", []), ("C", ["broker-b"]), ("nowhere", ["broker-a", "broker-b"])],
)
def test_a_topic_is_deleted_everywhere_or_in_one_cluster(
    cluster: str | None, left: list[str]
) -> None:
    """With a cluster only its brokers lose the topic."""
    other = replace(MASTER, cluster="D", broker_name="broker-b", address=B, channel="b")
    made = table(MASTER, other)
    made.delete_topic("orders", cluster)
    made.delete_topic("unknown", cluster)
    route = made.route("orders")
    assert [q.broker_name for q in route.queues] == left if route else left == []


def test_topics_added_by_hand_need_known_brokers() -> None:
    """One unknown broker, and nothing is added."""
    made = table(MASTER)
    made.add_topic("good", [QueueData("broker-a", 1, 1, 6)])
    made.add_topic("bad", [QueueData("broker-a", 1, 1, 6), QueueData("nobody", 1, 1, 6)])
    made.add_topic("empty", [])
    assert made.route("good") is not None
    assert made.route("bad") is None
    assert made.route("empty") is None


def test_lists_of_topics() -> None:
    """By cluster, by unit flags, and the names that are topics too."""
    other = replace(
        MASTER, cluster="D", broker_name="broker-b", address=B, channel="b",
        topics=topics("unit", flag=1) | topics("both", flag=3) | topics("sub", flag=2),
    )  # fmt: skip
    made = table(MASTER, other)
    assert sorted(made.topics_of_cluster("D")) == ["both", "sub", "unit"]
    assert made.topics_of_cluster("nowhere") == []
    assert made.topics_with_flags(1) == ["unit", "both"]
    assert made.topics_with_flags(2) == ["both", "sub"]
    assert made.topics_with_flags(2, unwanted=1) == ["sub"]
    assert made.system_topics() == (["C", "broker-a", "D", "broker-b"], A)
    assert RouteTable().system_topics() == ([], None)


def test_filter_servers_are_part_of_the_route() -> None:
    """As long as the broker names some."""
    made = table(replace(MASTER, filter_servers=("10.0.0.1:9999",)))
    assert _route(made, "orders").filter_servers == {A: ["10.0.0.1:9999"]}
    made.register(MASTER, now_ms=1)
    assert _route(made, "orders").filter_servers == {}


def test_a_zone_keeps_its_brokers_and_those_without_master() -> None:
    """Clients of a zone see near brokers only; a lone slave breaks the rule."""
    near = replace(MASTER, zone_name="East")
    far = replace(MASTER, broker_name="broker-f", address=B, channel="f", zone_name="west")
    lone = replace(
        SLAVE, broker_name="broker-s", address="10.0.0.3:1", channel="s", zone_name="west"
    )
    route = only_zone(_route(table(near, far, lone), "orders"), "east")
    assert [broker.name for broker in route.brokers] == ["broker-a", "broker-s"]
    assert [queue.broker_name for queue in route.queues] == ["broker-a", "broker-s"]


def test_limits_refuse_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many brokers, too many entries, too long names: refused, the rest stays."""
    made = table(MASTER)
    monkeypatch.setattr(nameserver_rules, "BROKERS_MAX", 1)
    with pytest.raises(SystemError_, match="1 brokers already"):
        made.register(SLAVE, now_ms=0)
    made.register(MASTER, now_ms=1)
    monkeypatch.setattr(nameserver_rules, "TOPIC_ENTRIES_MAX", 4)
    made.register(replace(MASTER, topics=topics(*NAMES, "fourth")), now_ms=1)
    with pytest.raises(SystemError_, match="4 topic entries"):
        made.register(replace(MASTER, topics=topics(*NAMES, "fifth")), now_ms=1)
    with pytest.raises(SystemError_, match="255 characters"):
        made.register(replace(MASTER, topics=topics("x" * 256)), now_ms=1)
    assert made.statistics().topic_entries == 4
    assert repr(made) == "RouteTable(brokers=1, topics=4)"


def _route(made: RouteTable, topic: str) -> TopicRoute:
    route = made.route(topic)
    assert route is not None
    return route


def test_many_topics_are_taken_and_removed_in_steps() -> None:
    """A step takes some hundreds; a broker that goes leaves the routes at once all the same."""
    made = RouteTable()
    names = [f"topic{number}" for number in range(3 * nameserver_rules.TOPICS_PER_STEP)]
    steps = made.register_steps(replace(MASTER, topics=topics(*names)), now_ms=0)
    next(steps)
    assert made.statistics().topics == nameserver_rules.TOPICS_PER_STEP
    assert finish(steps) == Registered()
    assert made.statistics().topics == len(names)
    made.unregister("C", "broker-a", A)
    assert made.route(names[-1]) is None
    assert made.unclean
    while made.clean_up(nameserver_rules.TOPICS_PER_STEP):
        pass
    assert made.statistics().topics == 0
    assert not made.unclean


def test_a_broker_that_comes_back_while_it_is_removed_keeps_its_topics() -> None:
    """What it has registered again stays, what it has no more goes."""
    names = [f"topic{number}" for number in range(3 * nameserver_rules.TOPICS_PER_STEP)]
    made = table(replace(MASTER, topics=topics(*names)))
    made.unregister("C", "broker-a", A)
    made.register(replace(MASTER, topics=topics(*names[-2:])), now_ms=1)
    while made.clean_up(nameserver_rules.TOPICS_PER_STEP):
        pass
    assert sorted(made.topics()) == sorted(names[-2:])
    assert queue_of(made, names[-1]) == QueueData("broker-a", 4, 4, 6, 0)


def test_a_broker_that_goes_while_it_registers_leaves_nothing() -> None:
    """The rest of its topics is not taken any more."""
    made = RouteTable()
    names = [f"topic{number}" for number in range(3 * nameserver_rules.TOPICS_PER_STEP)]
    steps = made.register_steps(replace(MASTER, topics=topics(*names)), now_ms=0)
    next(steps)
    made.channel_lost("channel-a")
    with pytest.raises(SystemError_, match="meanwhile"):
        finish(steps)
    while made.clean_up(nameserver_rules.TOPICS_PER_STEP):
        pass
    assert made.statistics().topics == 0


def test_key_maps_come_with_topics_and_go_with_them() -> None:
    """The newest of all brokers' counts; a broker that leaves, or a deletion, takes its own."""

    def mapped(text: str) -> dict[str, TopicConfig]:
        config = TopicConfig("orders", 4, 4, attributes={"inorder.keymap": text} if text else {})
        return {**topics("TBW102"), "orders": config}

    made = table(
        replace(MASTER, topics=mapped("1/broker-a:0-3")),
        replace(
            MASTER, broker_name="broker-b", address=B, channel="b", topics=mapped("2/broker-b:0-3")
        ),
    )
    assert made.key_map("orders") == "2/broker-b:0-3"
    assert made.key_map("orders", "3/broker-c:0-0") == "3/broker-c:0-0"
    made.unregister("C", "broker-b", B)
    assert made.key_map("orders") == "1/broker-a:0-3"
    newer = replace(MASTER, version=DataVersion(0, 1, 2), topics=mapped(""))
    made.register(newer, now_ms=0)
    assert made.key_map("orders") is None
    made.register(replace(newer, version=DataVersion(0, 1, 3), topics=mapped("2/b:0-0")), now_ms=0)
    made.delete_topic("orders")
    assert made.key_map("orders") is None


OURS = replace(MASTER, identity="one")


@pytest.mark.parametrize(
    ("holder", "new", "taken"),
    [
        (OURS, replace(OURS, identity="two", channel="c"), True),
        (OURS, replace(OURS, identity="two", address=B, channel="c"), True),
        (OURS, replace(OURS, address=B, channel="c"), True),  # a copied directory
        (OURS, replace(OURS, channel="c"), False),  # it is back before its old connection is gone
        (OURS, replace(OURS, address=B), False),  # over the same connection
        (OURS, replace(OURS, identity="two", broker_id=1, address=B, channel="c"), False),
        (OURS, replace(OURS, identity="", address=B, channel="c"), False),  # a RocketMQ broker
        (MASTER, replace(OURS, address=B, channel="c"), False),
    ],
)
def test_the_name_of_a_connected_broker_is_taken(
    holder: Registration, new: Registration, taken: bool
) -> None:
    """By another directory, or a copy of it, while it is connected; then whoever comes gets it."""
    made = table(holder)
    if not taken:
        made.register(new, now_ms=0)
        return
    with pytest.raises(BrokerNameTaken, match="broker-a with id 0 is connected from 10"):
        made.register(new, now_ms=0)
    assert addresses(made) == {0: A}, "a refused registration leaves no trace"
    assert [gone.address for gone in made.channel_lost(holder.channel)] == [A]
    made.register(new, now_ms=0)
    assert addresses(made) == {0: new.address}
