"""What a reply may be, how it is pushed, and how many replies may wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inorder.broker.replies.rules import Waiting, push_of, requester_of, require_reply
from inorder.errors import BrokerError, MessageIllegal, NoPermission
from inorder.wire.properties import parse
from inorder.wire.requests.sends import SendMessage

TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = "MSG_TYPE\x01reply\x02REPLY_TO_CLIENT\x01192.0.2.2@p1\x02CORRELATION_ID\x01abc\x02"
REPLY = SendMessage("RPG", TOPIC, "TBW102", 4, 0, 0, 5, 0, PROPERTIES, 0)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"topic": "orders"}, NoPermission),
        ({"topic": "Other_REPLY_TOPIC"}, NoPermission),
        ({"batch": True}, MessageIllegal),
        ({"sys_flag": 4}, MessageIllegal),
        ({"properties": PROPERTIES + "DELAY\x013\x02"}, MessageIllegal),
        ({"properties": PROPERTIES + "TIMER_DELAY_SEC\x013\x02"}, MessageIllegal),
        ({"properties": PROPERTIES + "TRAN_MSG\x01true\x02"}, MessageIllegal),
    ],
    ids=["topic", "cluster", "batch", "prepared", "delay", "timer", "transaction"],
)
def test_only_plain_messages_to_the_reply_topic_are_replies(
    changes: dict[str, object], error: type[BrokerError]
) -> None:
    """A reply is no way around the checks of other sends."""
    require_reply(REPLY, TOPIC)
    with pytest.raises(error):
        require_reply(replace(REPLY, **changes), TOPIC)  # type: ignore[arg-type]


def test_the_push_carries_the_reply_and_where_it_came_from() -> None:
    """RocketMQ's clients read all of these fields."""
    push = push_of(
        REPLY, region={"MSG_REGION": "R"}, born_host="1.2.3.4:5", store_host="6.7.8.9:10", now_ms=7
    )
    assert parse(push.properties or "") == {
        **parse(PROPERTIES), "MSG_REGION": "R", "PUSH_REPLY_TIME": "7",
    }  # fmt: skip
    assert (push.topic, push.queue_id, push.stored_at_ms) == (TOPIC, 0, 7)
    assert (push.born_host, push.store_host) == ("1.2.3.4:5", "6.7.8.9:10")


def test_the_requester_is_named_by_the_reply() -> None:
    """A reply without the id of a client can go nowhere."""
    assert requester_of(REPLY) == "192.0.2.2@p1"
    assert requester_of(replace(REPLY, properties=None)) is None


def test_waiting_replies_take_bounded_memory() -> None:
    """They count while their push is not answered; a single large one fits."""
    waiting = Waiting(100)
    assert waiting.enter(500)
    assert not waiting.enter(1)
    waiting.leave(500)
    assert waiting.enter(60)
    assert waiting.enter(40)
    assert not waiting.enter(1)
