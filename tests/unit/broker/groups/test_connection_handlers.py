"""Codes 203, 204, 328 and 345 against what a real broker answered."""

from __future__ import annotations

from typing import Any

import pytest

from inorder.model import Subscription
from inorder.wire import fastjson
from inorder.wire.requests.groups import ClientHeartbeat, ConsumerData

SUBSCRIPTION = {
    "classFilterMode": False, "codeSet": [], "expressionType": "TAG", "subString": "*",
    "subVersion": 1000, "tagsSet": [], "topic": "t",
}  # fmt: skip


@pytest.fixture
def online(broker: Any, connect: Any) -> Any:
    """Let client c consume t for group g and send for group p."""
    data = ConsumerData(
        "g",
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        subscriptions=(Subscription("t", version=1000),),
    )
    beat = ClientHeartbeat("c", (data,), ("p",)).encode()
    broker.ask(34, body=beat, connection=connect("10.0.0.9:50000"))
    return broker


def test_consumers_of_a_group_are_shown(online: Any) -> None:
    """Address, id, language and version of each, and what the group subscribes to."""
    answer = online.ask(203, {"consumerGroup": "g"})
    assert fastjson.loads(answer.body) == {
        "connectionSet": [
            {"clientAddr": "10.0.0.9:50000", "clientId": "c", "language": "PYTHON", "version": 479}
        ],
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "subscriptionTable": {"t": SUBSCRIPTION},
    }


def test_a_client_that_came_back_is_shown_once(online: Any, connect: Any) -> None:
    """The connection that it left behind is not a member of its own."""
    data = ConsumerData("g", subscriptions=(Subscription("t", version=1000),))
    beat = ClientHeartbeat("c", (data,)).encode()
    online.ask(34, body=beat, connection=connect("10.0.0.9:50001"))
    shown = fastjson.loads(online.ask(203, {"consumerGroup": "g"}).body)["connectionSet"]
    assert [one["clientAddr"] for one in shown] == ["10.0.0.9:50001"]


@pytest.mark.parametrize(
    ("code", "fields", "answer", "remark"),
    [
        (203, {"consumerGroup": "x"}, 206, "the consumer group[x] not online"),
        (204, {"producerGroup": "x"}, 1, "the producer group[x] not exist"),
    ],
)
def test_a_group_that_nobody_is_in(
    online: Any, code: int, fields: dict[str, str], answer: int, remark: str
) -> None:
    """The codes and texts are RocketMQ's, which tools look at."""
    found = online.ask(code, fields)
    assert (found.code, found.remark, bytes(found.body)) == (answer, remark, b"")


def test_producers_are_shown(online: Any) -> None:
    """One group's, and all with the time of their last heartbeat."""
    one = {"clientId": "c", "language": "PYTHON", "version": 479}
    answer = online.ask(204, {"producerGroup": "p"})
    assert fastjson.loads(answer.body) == {
        "connectionSet": [{"clientAddr": "10.0.0.9:50000", **one}]
    }
    seen_ms = online.clock.now_ms()
    online.clock.advance(500)
    everyone = fastjson.loads(online.ask(328).body)
    row = {**one, "lastUpdateTimestamp": seen_ms, "remoteIP": "/10.0.0.9:50000"}
    assert everyone == {"data": {"p": [row]}}


def test_a_subscription_is_shown_or_left_out(online: Any) -> None:
    """A group that does not want the topic has no subscription in the answer."""
    found = fastjson.loads(online.ask(345, {"group": "g", "topic": "t"}).body)
    assert found == {"group": "g", "subscriptionData": SUBSCRIPTION, "topic": "t"}
    other = fastjson.loads(online.ask(345, {"group": "x", "topic": "t"}).body)
    assert other == {"group": "x", "topic": "t"}


def test_an_unknown_language_is_other(online: Any, connect: Any) -> None:
    """A number that RocketMQ has no name for does not fail the list."""
    member = next(iter(online.members.group("g").members.values()))
    member.language = 99
    shown = fastjson.loads(online.ask(203, {"consumerGroup": "g"}).body)["connectionSet"]
    assert shown[0]["language"] == "OTHER"
