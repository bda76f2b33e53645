"""Requests about topics: create or change (17, 18), list (21, 305), show (351), delete (215)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inorder.broker.topics.checks import check_key_map, check_not_system, check_topic
from inorder.broker.topics.rules import parse_changes
from inorder.broker.topics.service import Dropped, drop, settle
from inorder.errors import InvalidParameter
from inorder.logs import get_logger
from inorder.model import TopicConfig
from inorder.wire.codes import NOTHING_SET, ResponseCode
from inorder.wire.names import RETRY_PREFIX
from inorder.wire.requests.nameserver import encode_topic_list
from inorder.wire.requests.topics import (
    CreateTopic,
    DeleteTopic,
    GetTopicConfig,
    TopicTable,
    decode_topic_configs,
    encode_topic_config,
)

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.router import Call, Reply
    from inorder.wire.header import Command

logger = get_logger(__name__)

"""The remark of RocketMQ's broker when it has created a topic."""


def create_topic(call: Call[CreateTopic]) -> Reply:
    """Create or change a topic; reply when the name servers know it."""
    broker, request = call.broker, call.request
    config = TopicConfig(
        request.topic,
        read_queues=request.read_queues,
        write_queues=request.write_queues,
        perm=request.perm,
        filter_type=request.filter_type,
        sys_flag=request.sys_flag or 0,
        order=request.order,
    )
    changes = parse_changes(request.attributes or "")
    check_topic(broker.topics, config)
    check_key_map(broker, config, changes)
    _apply(broker, [broker.topics.altered(config, changes)])
    logger.info("topic=%s created or changed peer=%s", request.topic, call.connection.peer)
    return _answer_registered(broker, call.reply(remark=NOTHING_SET))


def create_topic_list(call: Call[None]) -> Reply:
    """Create or change several topics, all or none."""
    broker = call.broker
    configs = decode_topic_configs(call.command.body)
    for config in configs:
        check_topic(broker.topics, config)
        check_key_map(broker, config, config.attributes)
    _apply(broker, [broker.topics.altered(config, config.attributes) for config in configs])
    logger.info("topics=%d created or changed peer=%s", len(configs), call.connection.peer)
    return _answer_registered(broker, call.reply(remark=NOTHING_SET))


def _apply(broker: Broker, configs: list[TopicConfig]) -> None:
    changed = [config for config in configs if broker.topics.get(config.name) != config]
    for config in changed:
        broker.topics.put(config, broker.clock.now_ms())
    if changed:
        broker.save_topics()
    for config in changed:
        broker.registration.topic_changed(config)


async def _answer_registered(broker: Broker, answer: Command) -> Command:
    await broker.registration.register_now()
    return answer


def delete_topic(call: Call[DeleteTopic]) -> Reply:
    """Delete a topic with its queues and offsets; name servers get a request of their own."""
    broker = call.broker
    name = call.request.topic
    if not name.strip():
        raise InvalidParameter("The specified topic is blank.")
    check_not_system(broker.topics, name)
    gone = [name]
    for group in broker.offsets.groups_of(name):
        retries = (f"{RETRY_PREFIX}{group}_{name}", f"{RETRY_PREFIX}{group}+{name}")
        gone.extend(topic for topic in retries if topic in broker.topics)
    version, dropped = broker.resizing.last_version(name), Dropped()
    for topic in gone:
        dropped |= drop(broker, topic)
    logger.info("topic=%s deleted peer=%s", name, call.connection.peer)
    if dropped.queues or dropped.numbered or version:
        return _reply_when_durable(broker, name, version, call.command, dropped)
    return call.reply()


async def _reply_when_durable(
    broker: Broker, topic: str, version: int, command: Command, dropped: Dropped
) -> Command:
    await settle(broker, topic, version, dropped)
    return command.reply()


def get_all_topics(call: Call[None]) -> Command:
    """Return all topics; the paging of newer clients is optional and not used."""
    table = TopicTable(
        call.broker.topics.data_version, {config.name: config for config in call.broker.topics}
    )
    return call.reply(fields={}, body=table.encode())


def get_topic(call: Call[GetTopicConfig]) -> Command:
    """Return one topic."""
    name = call.request.topic
    config = call.broker.topics.get(name)
    if config is None:
        return call.reply(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}")
    return call.reply(body=encode_topic_config(config))


def get_system_topics(call: Call[None]) -> Command:
    """Return the names of the system topics."""
    return call.reply(body=encode_topic_list(call.broker.topics.system_names()))
