"""Namespaces of 4.x clients (`INST%name`) and unit mode, over sockets as those clients use them."""

from __future__ import annotations

import asyncio

from inorder.model import TopicConfig
from inorder.wire import fastjson
from inorder.wire.record import decode_all
from tests.integration.brokerkit import pull_fields, running

TOPIC, GROUP = "MQ_INST_1%orders", "MQ_INST_1%billing"
RETRY = f"%RETRY%{GROUP}"


def beat(*, unit_mode: bool = False) -> bytes:
    def subscription(topic: str) -> dict[str, object]:
        return {
            "classFilterMode": False, "codeSet": [], "expressionType": "TAG", "subString": "*",
            "subVersion": 1, "tagsSet": [], "topic": topic,
        }  # fmt: skip

    consumer = {
        "groupName": GROUP, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": unit_mode,
        "subscriptionDataSet": [subscription(TOPIC), subscription(RETRY)],
    }  # fmt: skip
    return fastjson.dumps({"clientID": "10.0.0.9@1", "consumerDataSet": [consumer]})


def test_names_with_a_namespace_are_names_like_any_other() -> None:
    """Send, pull, retry and dead letters; the same topic without a namespace is another one."""

    async def scenario() -> None:
        async with running() as rig:
            assert (await rig.send(b"in it", b=TOPIC, e="0")).code == 0
            assert (await rig.send(b"outside", b="orders", e="0")).code == 0
            assert (await rig.ask(34, body=beat())).code == 0
            members = await rig.ask(38, {"consumerGroup": GROUP})
            assert bytes(members.body) == b'{"consumerIdList":["10.0.0.9@1"]}'
            fields = pull_fields(topic=TOPIC, consumerGroup=GROUP, queueId="0")
            pulled = await rig.ask(11, fields)
            (record,) = decode_all(pulled.body)
            assert (record.topic, record.body) == (TOPIC, b"in it")
            assert rig.broker.topics.get(RETRY) is not None
            back = {
                "offset": str(record.position), "group": GROUP, "delayLevel": "-1",
                "originMsgId": "X", "originTopic": TOPIC, "maxReconsumeTimes": "16",
            }  # fmt: skip
            assert (await rig.ask(36, back)).code == 0
            assert rig.broker.store.end_offset(f"%DLQ%{GROUP}", 0) == 1
            stats = await rig.ask(208, {"consumerGroup": GROUP, "topic": TOPIC})
            assert f'"topic":"{TOPIC}"'.encode() in stats.body

    asyncio.run(scenario())


def test_unit_mode_marks_the_topics_that_it_creates() -> None:
    """A producer's topic has flag 1, a group's retry topic flag 2, as in RocketMQ's lists."""

    async def scenario() -> None:
        async with running() as rig:
            assert (await rig.send(b"x", b="Unit", e="0", k="true")).code == 0
            assert (await rig.send(b"x", b="Plain", e="0", k="false")).code == 0
            assert (await rig.ask(34, body=beat(unit_mode=True))).code == 0

            def flag(topic: str) -> int:
                config = rig.broker.topics.get(topic)
                assert isinstance(config, TopicConfig)
                return config.sys_flag

            assert [flag(topic) for topic in ("Unit", "Plain", RETRY)] == [1, 0, 2]

    asyncio.run(scenario())
