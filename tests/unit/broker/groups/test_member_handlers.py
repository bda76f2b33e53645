"""Codes 34, 35, 38 and 46."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace
from typing import Any

import pytest

from inorder.broker.router import invoke
from inorder.errors import SubscriptionParseFailed, SystemError_
from inorder.model import GroupQueue, Subscription, TopicConfig
from inorder.wire.header import Command
from inorder.wire.requests.groups import ClientHeartbeat, ConsumerData
from inorder.wire.requests.pulls import parse_subscription


def beat(
    client: str = "c1", group: str = "g", topics: tuple[str, ...] = ("t",), **more: Any
) -> bytes:
    """Write a heartbeat."""
    model = more.pop("message_model", "CLUSTERING")
    subscriptions = tuple(Subscription(topic, version=1) for topic in topics)
    data = ConsumerData(group, message_model=model, subscriptions=subscriptions)
    return ClientHeartbeat(client, (data,), **more).encode()


def test_a_heartbeat_makes_group_and_retry_topic(broker: Any, connect: Any) -> None:
    """The first heartbeat makes and saves both, and is answered when the topic is registered."""
    connection = connect()
    answer = broker.ask(34, body=beat(), connection=connection)
    assert answer.code == 0
    assert answer.fields == {
        "IS_SUPPORT_HEART_BEAT_V2": "true",
        "IS_SUB_CHANGE": "true",
        "inorder": "2",
    }
    assert "g" in broker.groups
    assert broker.topics.get("%RETRY%g") == TopicConfig("%RETRY%g", read_queues=1, write_queues=1)
    assert sorted(broker.saved) == ["groups", "topics"]
    assert broker.registration.changed == ["%RETRY%g"]
    assert broker.registration.waited == 1
    assert broker.notified == [("g", [connection])]


def test_a_client_is_told_of_itself_after_its_answer(broker: Any, connect: Any) -> None:
    """While the answer to a first heartbeat waits, the others are told and the client is not."""
    other, connection = connect(), connect()
    broker.ask(34, body=beat("c1"), connection=other)
    broker.notified.clear()
    both = tuple(ConsumerData(group) for group in ("g", "new"))
    command = Command.request(34, {}, ClientHeartbeat("c2", both).encode(), request_id=7)
    waiting = invoke(broker, connection, command)
    assert broker.notified == [("g", [other])]
    assert inspect.iscoroutine(waiting)
    assert asyncio.run(waiting).code == 0
    assert broker.notified[1:] == [("g", [connection]), ("new", [connection])]


def test_a_repeated_heartbeat_changes_nothing(broker: Any, connect: Any) -> None:
    """The second heartbeat saves, registers and notifies nothing."""
    connection = connect()
    broker.ask(34, body=beat(), connection=connection)
    broker.saved.clear()
    broker.notified.clear()
    broker.ask(34, body=beat(), connection=connection)
    assert broker.saved == []
    assert broker.notified == []
    assert broker.registration.waited == 1


def test_many_groups_are_saved_once(broker: Any, connect: Any) -> None:
    """A heartbeat with many new groups costs one save of each table."""
    data = tuple(ConsumerData(f"g{number}") for number in range(50))
    broker.ask(34, body=ClientHeartbeat("c", data).encode(), connection=connect())
    assert sorted(broker.saved) == ["groups", "topics"]


def test_an_impossible_group_is_skipped(broker: Any, connect: Any) -> None:
    """A group that cannot exist is left out; the answer is still 0."""
    broker.config = __import__("dataclasses").replace(broker.config, auto_create_groups=False)
    answer = broker.ask(34, body=beat(), connection=connect())
    assert answer.code == 0
    assert broker.members.group("g") is None


def test_the_retry_topic_of_an_ordered_topic_is_ordered(broker: Any, connect: Any) -> None:
    """Subscribing an order topic marks the retry topic."""
    broker.topics.put(TopicConfig("t", order=True), 1)
    broker.ask(34, body=beat(), connection=connect())
    assert broker.topics.get("%RETRY%g").order


def test_no_room_for_a_retry_topic_is_no_reason_to_refuse(broker: Any, connect: Any) -> None:
    """With all topics in use the client is a member all the same."""
    broker.topics.topics_max = 0
    assert broker.ask(34, body=beat(), connection=connect()).code == 0
    assert broker.members.client_ids("g") == ["c1"]


def test_a_malformed_heartbeat_is_answered_with_1(broker: Any) -> None:
    """Text that is no JSON becomes code 1."""
    with pytest.raises(SystemError_):
        broker.ask(34, body=b"not json")


def test_heartbeats_without_subscriptions_keep_the_stored_ones(broker: Any, connect: Any) -> None:
    """With a fingerprint the subscriptions may be left out, once they are known here."""
    connection = connect()
    full = broker.ask(34, body=beat(fingerprint=5), connection=connection)
    assert full.fields["IS_SUB_CHANGE"] == "false"
    short = beat(topics=(), fingerprint=5, without_sub=True)
    assert broker.ask(34, body=short, connection=connection).fields["IS_SUB_CHANGE"] == "false"
    assert broker.members.subscription("g", "t") is not None
    other = beat("c2", topics=(), fingerprint=6, without_sub=True)
    assert broker.ask(34, body=other, connection=connect()).fields["IS_SUB_CHANGE"] == "true"


def test_a_broker_that_forgot_asks_for_the_subscriptions(broker: Any, connect: Any) -> None:
    """A heartbeat without subscriptions to a broker that has none is told to send all."""
    short = beat(topics=(), fingerprint=5, without_sub=True)
    assert broker.ask(34, body=short, connection=connect()).fields["IS_SUB_CHANGE"] == "true"


def test_producers_are_noted_and_leave(broker: Any, connect: Any) -> None:
    """A producer group has the connection until it unregisters."""
    connection = connect()
    broker.ask(34, body=ClientHeartbeat("c", (), ("p",)).encode(), connection=connection)
    assert [m.connection for m in broker.members.producers("p")] == [connection]
    fields = {"clientID": "c", "producerGroup": "p", "consumerGroup": ""}
    assert broker.ask(35, fields, connection=connection).code == 0
    assert broker.members.producers("p") == []
    assert "" not in broker.groups


def test_leaving_frees_the_locks_that_the_client_forgot(broker: Any, connect: Any) -> None:
    """Unregister releases all locks of the client and tells the others at once."""
    first, second = connect("1.1.1.1:1"), connect("2.2.2.2:2")
    broker.ask(34, body=beat("a"), connection=first)
    broker.ask(34, body=beat("b"), connection=second)
    broker.notified.clear()
    queue = GroupQueue("g", "t", 0)
    broker.locks.lock_batch([queue], "a", broker.clock.monotonic_ms())
    answer = broker.ask(35, {"clientID": "a", "consumerGroup": "g"}, connection=first)
    assert (answer.code, answer.fields) == (0, {})
    assert broker.locks.get(queue) is None
    assert broker.notified == [("g", [second])]


def test_a_client_without_membership_can_free_its_locks(broker: Any, connect: Any) -> None:
    """Locks of a client that is no member are freed by its unregister, and the group is told."""
    member = connect()
    broker.ask(34, body=beat("b"), connection=member)
    broker.notified.clear()
    broker.locks.lock_batch([GroupQueue("g", "t", 0)], "a", 0)
    broker.ask(35, {"clientID": "a", "consumerGroup": "g"}, connection=connect())
    assert len(broker.locks) == 0
    assert broker.notified == [("g", [member])]


def test_locks_of_a_client_with_another_connection_stay(broker: Any, connect: Any) -> None:
    """While a client lives on another connection its locks are not freed by the old one."""
    old, new = connect(), connect()
    broker.ask(34, body=beat("a"), connection=old)
    broker.ask(34, body=beat("a"), connection=new)
    broker.locks.lock_batch([GroupQueue("g", "t", 0)], "a", 0)
    broker.ask(35, {"clientID": "a", "consumerGroup": "g"}, connection=old)
    assert len(broker.locks) == 1


def test_coming_back_restores_the_lock_time(broker: Any, connect: Any) -> None:
    """A client that is back on a new connection has the full time of its locks again."""
    queue = GroupQueue("g", "t", 0)
    broker.locks.lock_batch([queue], "a", 0)
    broker.locks.client_lost("g", "a", 0)
    assert broker.locks.get(queue).expires_ms == 30_000
    broker.ask(34, body=beat("a"), connection=connect())
    assert broker.locks.get(queue).expires_ms == 60_000


def test_the_member_list_has_each_client_once(broker: Any, connect: Any) -> None:
    """O29: a client that reconnects is one member, though its old connection is still open."""
    broker.ask(34, body=beat("a"), connection=connect())
    broker.ask(34, body=beat("a"), connection=connect())
    b = connect()
    broker.ask(34, body=beat("b"), connection=b)
    answer = broker.ask(38, {"consumerGroup": "g"}, connection=b)
    assert (answer.code, answer.body) == (0, b'{"consumerIdList":["a","b"]}')


def test_a_client_that_is_not_back_yet_does_not_see_a_list_without_itself(
    broker: Any, connect: Any
) -> None:
    """A consumer asks on a new connection before its heartbeat: code 1, and it keeps its queues."""
    broker.ask(34, body=beat("a"), connection=connect())
    back = connect()
    answer = broker.ask(38, {"consumerGroup": "g"}, connection=back)
    assert (answer.code, answer.remark) == (1, "no consumer for this group, g")
    broker.ask(34, body=beat("b"), connection=back)
    answer = broker.ask(38, {"consumerGroup": "g"}, connection=back)
    assert (answer.code, answer.body) == (0, b'{"consumerIdList":["a","b"]}')


def test_the_member_list_is_for_everybody_when_nobody_can_be_missing(
    broker: Any, connect: Any
) -> None:
    """A tool sees it, but for the moments in which a member may be on its way back."""
    a, b, tool = connect(), connect(), connect()

    def sees(connection: Any) -> bool:
        answer = broker.ask(38, {"consumerGroup": "g"}, connection=connection)
        assert answer.code == 0 or answer.remark == "no consumer for this group, g"
        return bool(answer.code == 0)

    broker.ask(34, body=beat("a"), connection=a)
    broker.ask(34, body=beat("b"), connection=b)
    assert (sees(a), sees(tool)) == (True, False), "the others may have just learned of the topic"
    broker.clock.advance(64_999)
    assert not sees(tool)
    broker.clock.advance(1)
    assert sees(tool)
    broker.members.close(b, broker.clock.monotonic_ms())
    assert (sees(a), sees(tool)) == (True, False), "b may ask before its heartbeat"
    broker.clock.advance(35_000)
    assert sees(tool)
    broker.ask(34, body=beat("b"), connection=b)
    assert sees(tool), "a member that joins takes nothing from the others"
    broker.members.silence("g", b)
    assert not sees(tool), "b is not listed, and may be back on another connection"
    broker.members.heard("g", b)
    broker.ask(35, {"clientID": "b", "consumerGroup": "g"}, connection=b)
    assert sees(tool), "b has said that it leaves"


def test_nobody_there_is_an_error_and_not_an_empty_list(broker: Any) -> None:
    """Clients cannot stand an empty list: an unknown group is code 1."""
    answer = broker.ask(38, {"consumerGroup": "NoSuchGroup"})
    assert (answer.code, answer.remark) == (1, "no consumer for this group, NoSuchGroup")
    assert answer.has_fields


def test_broadcasting_groups_are_not_notified(broker: Any, connect: Any) -> None:
    """Members of a broadcasting group do not share queues and need not know of each other."""
    broker.ask(34, body=beat(message_model="BROADCASTING"), connection=connect())
    assert broker.notified == []


def test_a_subscription_is_checked_before_it_is_used(broker: Any) -> None:
    """Code 46 says yes to tags and to expressions, and marks the error of a bad one."""
    tag = b'{"clientId":"x","group":"g","subscriptionData":{"topic":"t","subString":"*"}}'
    assert broker.ask(46, body=tag).code == 0
    assert broker.ask(46, body=b"{}").code == 0
    sql = tag.replace(b'"*"', b'"a > 1","expressionType":"SQL92"')
    assert broker.ask(46, body=sql).code == 0
    with pytest.raises(SubscriptionParseFailed, match=r"\n  a > \(\n       \^$"):
        broker.ask(46, body=sql.replace(b"a > 1", b"a > ("))
    with pytest.raises(SubscriptionParseFailed, match="no filter of the type 'XPATH'"):
        broker.ask(46, body=sql.replace(b"SQL92", b"XPATH"))
    broker.config = replace(broker.config, property_filter=False)
    with pytest.raises(SystemError_, match="does not support consumer to filter message by SQL92"):
        broker.ask(46, body=sql)


def test_heartbeats_register_filters_and_departures_let_them_die(broker: Any, connect: Any) -> None:
    """A heartbeat without subscriptions changes nothing."""
    subscription = parse_subscription("t", "a > 1", 1, "SQL92")
    data = ConsumerData("g", subscriptions=(subscription,))
    broker.ask(34, body=ClientHeartbeat("c", (data,)).encode(), connection=connect())
    assert broker.filters.get("t", "g").filter.text == "a > 1"
    empty = ConsumerData("g", subscriptions=())
    beat = ClientHeartbeat("c", (empty,), fingerprint=5, without_sub=True).encode()
    broker.ask(34, body=beat, connection=connect())
    assert not broker.filters.get("t", "g").record.dead
    broker.filters.group_left("g")
    assert broker.filters.get("t", "g").record.dead
