"""What a broker asks consumers: 220, 221 (by 223), 307, 309."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from inorder.broker.groups.relay import tell_reset
from inorder.broker.groups.rules import Member
from inorder.errors import ConnectionLost, RequestTimeout, SystemError_
from inorder.model import TopicQueue
from inorder.wire.codes import LanguageCode
from inorder.wire.header import Command
from inorder.wire.record import decode
from inorder.wire.requests.connections import decode_consumer_statuses, encode_consumer_status
from inorder.wire.requests.offsets import decode_queue_offsets

QUEUE = TopicQueue("t", "broker-a", 1)


class Client:
    """A consumer at the other end of a connection."""

    def __init__(self, number: int, answer: Callable[[Command], Command | Exception]) -> None:
        self.id = number
        self.peer = f"10.0.0.{number}:4000"
        self.asked: list[Command] = []
        self.told: list[Command] = []
        self._answer = answer

    async def request(self, command: Command, timeout_ms: int) -> Command:
        self.asked.append(command)
        answer = self._answer(command)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def notify(self, command: Command) -> None:
        self.told.append(command)


def join(
    broker: Any, client: Client, client_id: str, *, language: int = 0, model: str = ""
) -> None:
    broker.members.register_consumer(
        "g",
        Member(client, client_id, language, 433, 0),
        consume_type="CONSUME_PASSIVELY",
        message_model=model or "CLUSTERING",
        consume_from="",
        subscriptions=[],
    )


def test_running_info_is_asked_of_the_client_and_handed_on(broker: Any) -> None:
    """Fields go there, code, remark and body come back, under the id of the request."""
    client = Client(1, lambda asked: asked.reply(0, "fine", body=b'{"mqTable":{}}'))
    join(broker, client, "c1")
    fields = {"consumerGroup": "g", "clientId": "c1", "jstackEnable": "true"}
    answer = broker.ask(307, fields)
    assert (answer.code, answer.remark, bytes(answer.body)) == (0, "fine", b'{"mqTable":{}}')
    assert (client.asked[0].code, client.asked[0].fields) == (307, fields)


def test_the_newest_connection_of_a_client_is_asked(broker: Any) -> None:
    """The older one may be dead."""
    old, new = (Client(n, lambda asked: asked.reply()) for n in (1, 2))
    join(broker, old, "c1")
    join(broker, new, "c1")
    broker.ask(307, {"consumerGroup": "g", "clientId": "c1"})
    assert (len(old.asked), len(new.asked)) == (0, 1)


@pytest.mark.parametrize("code", [307, 309])
def test_a_client_that_is_not_online_is_an_error(broker: Any, code: int) -> None:
    """RocketMQ's words; the same for a group that nobody serves."""
    join(broker, Client(1, lambda asked: asked.reply()), "c1")
    for group, client_id in (("g", "c2"), ("h", "c1")):
        with pytest.raises(SystemError_, match=f"^The Consumer <{group}> <{client_id}> not online"):
            broker.ask(code, {"consumerGroup": group, "clientId": client_id})


def test_a_client_that_does_not_answer_is_a_time_out(broker: Any) -> None:
    """Code 207; a lost connection is code 1."""
    join(broker, Client(1, lambda _: RequestTimeout("10 s")), "slow")
    join(broker, Client(2, lambda _: ConnectionLost("gone")), "gone")
    answer = broker.ask(307, {"consumerGroup": "g", "clientId": "slow"})
    assert (answer.code, answer.remark) == (207, "consumer <g> <slow> Timeout: 10 s")
    with pytest.raises(SystemError_, match="invoke consumer <g> <gone>"):
        broker.ask(307, {"consumerGroup": "g", "clientId": "gone"})


def test_a_message_is_brought_along_when_it_is_consumed_directly(broker: Any) -> None:
    """Its record is the body; the broker's name and the flags are added."""
    client = Client(1, lambda asked: asked.reply(body=b'{"consumeResult":"CR_SUCCESS"}'))
    join(broker, client, "c1")
    broker.topics.create_on_send("t", "TBW102", 4, 1)
    broker.find_group("g")
    position = broker.put("t", 0, b"again")
    fields = {
        "consumerGroup": "g", "clientId": "c1", "topic": "t",
        "msgId": f"7F00000100002A9F{position:016X}",
    }  # fmt: skip
    assert bytes(broker.ask(309, fields).body) == b'{"consumeResult":"CR_SUCCESS"}'
    (asked,) = client.asked
    assert decode(bytes(asked.body)).body == b"again"
    assert asked.fields == fields | {
        "brokerName": "broker-a", "topicSysFlag": "0", "groupSysFlag": "0",
    }  # fmt: skip
    with pytest.raises(SystemError_, match="can not find message"):
        broker.ask(309, fields | {"msgId": f"7F00000100002A9F{position + 1:016X}"})
    with pytest.raises(SystemError_, match="not a message id"):
        broker.ask(309, fields | {"msgId": "nonsense"})


def test_the_status_of_all_clients_is_gathered(broker: Any) -> None:
    """Who does not answer, or not in our language, is left out; one may be asked alone."""
    body = encode_consumer_status({QUEUE: 7})
    clients = {
        "good": Client(1, lambda asked: asked.reply(body=body)),
        "bad": Client(2, lambda asked: asked.reply(1, "no")),
        "odd": Client(3, lambda asked: asked.reply(body=b"[")),
        "slow": Client(4, lambda _: RequestTimeout("5 s")),
    }
    for client_id, client in clients.items():
        join(broker, client, client_id)
    answer = broker.ask(223, {"topic": "t", "group": "g", "clientAddr": ""})
    assert (answer.code, answer.remark) == (0, "not set any response code")
    assert decode_consumer_statuses(answer.body) == {"good": {QUEUE: 7}}
    assert all(len(client.asked) == 1 for client in clients.values())
    answer = broker.ask(223, {"topic": "t", "group": "g", "clientAddr": "bad"})
    assert decode_consumer_statuses(answer.body) == {}
    assert len(clients["good"].asked) == 1
    assert broker.ask(223, {"topic": "t", "group": "nobody"}).code == 206


def test_a_reset_is_told_in_the_language_of_the_client(broker: Any) -> None:
    """C++ wants a list; a connection that was replaced is not told."""
    java, cpp, old = (Client(n, lambda asked: asked.reply()) for n in (1, 2, 3))
    join(broker, old, "java")
    join(broker, java, "java", language=LanguageCode.JAVA)
    join(broker, cpp, "cpp", language=LanguageCode.CPP)
    assert tell_reset(broker, "g", "t", {QUEUE: 5}, 99) == 2
    (told,) = java.told
    assert (told.code, told.is_oneway) == (220, True)
    assert told.fields == {"topic": "t", "group": "g", "timestamp": "99", "isForce": "true"}
    assert decode_queue_offsets(told.body) == {QUEUE: 5}
    assert bytes(cpp.told[0].body) == (
        b'{"offsetTable":[{"brokerName":"broker-a","queueId":1,"topic":"t","offset":5}]}'
    )
    assert old.told == []
    assert tell_reset(broker, "g", "t", {}, 99) == 0
    assert tell_reset(broker, "nobody", "t", {QUEUE: 5}, 99) == 0


def test_broadcasting_consumers_keep_their_own_offsets(broker: Any) -> None:
    """The group's offsets do not concern them."""
    client = Client(1, lambda asked: asked.reply())
    join(broker, client, "c", model="BROADCASTING")
    assert tell_reset(broker, "g", "t", {QUEUE: 5}, 99) == 0


def test_who_does_not_pull_just_now_is_told_of_a_reset(broker: Any) -> None:
    """A pull that waits learns of it by its answer; the others by 220."""
    client = Client(1, lambda asked: asked.reply())
    join(broker, client, "c")
    broker.topics.create_on_send("t", "TBW102", 2, 1)
    broker.find_group("g")
    for queue_id in (0, 1):
        broker.put("t", queue_id, b"x")
    taken = broker.offsets.take_reset
    broker.wake = lambda topic, queue_id: taken("g", topic, queue_id) if queue_id == 0 else None
    answer = broker.ask(222, {"topic": "t", "group": "g", "timestamp": "-1", "isForce": "true"})
    assert len(decode_queue_offsets(answer.body)) == 2
    (told,) = client.told
    assert decode_queue_offsets(told.body) == {TopicQueue("t", "broker-a", 1): 1}
