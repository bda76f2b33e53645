"""The control plane: what the broker answers to everything but sends and pulls.

HANDLERS is the table of contents. A code that is not in it is answered with 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from inorder.broker.admin import handlers as query
from inorder.broker.admin import handlers as runtime
from inorder.broker.groups import handlers as connections
from inorder.broker.groups import handlers as groups
from inorder.broker.groups import handlers as members
from inorder.broker.groups import relay as clients
from inorder.broker.handlers.context import BrokerLike, Handler
from inorder.broker.leases import handlers as leases
from inorder.broker.locks import handlers as locks
from inorder.broker.offsets import handlers as offsets
from inorder.broker.offsets import handlers as progress
from inorder.broker.parking import handlers as parking
from inorder.broker.producers import handlers as producers
from inorder.broker.resizing import handlers as resizing
from inorder.broker.retries import handlers as retries
from inorder.broker.topics import handlers as topics
from inorder.wire.codes import RequestCode
from inorder.wire.extensions import ExtensionCode

__all__ = ["HANDLERS", "BrokerLike", "Handler"]

HANDLERS: Final[Mapping[int, Handler]] = {
    RequestCode.QUERY_CONSUMER_OFFSET: offsets.query_consumer_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: offsets.update_consumer_offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search_offset,
    RequestCode.GET_MAX_OFFSET: offsets.get_max_offset,
    RequestCode.GET_MIN_OFFSET: offsets.get_min_offset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: offsets.get_earliest,
    RequestCode.HEART_BEAT: members.heart_beat,
    RequestCode.UNREGISTER_CLIENT: members.unregister_client,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: members.get_consumer_list,
    RequestCode.CHECK_CLIENT_CONFIG: members.check_client_config,
    RequestCode.CONSUMER_SEND_MSG_BACK: retries.consumer_send_back,
    RequestCode.LOCK_BATCH_MQ: locks.lock_batch,
    RequestCode.UNLOCK_BATCH_MQ: locks.unlock_batch,
    RequestCode.VIEW_MESSAGE_BY_ID: query.view_message,
    RequestCode.QUERY_MESSAGE: query.query_message,
    RequestCode.UPDATE_AND_CREATE_TOPIC: topics.create_topic,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: topics.create_topic_list,
    RequestCode.GET_ALL_TOPIC_CONFIG: topics.get_all_topics,
    RequestCode.GET_TOPIC_CONFIG: topics.get_topic,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topics.get_system_topics,
    RequestCode.DELETE_TOPIC_IN_BROKER: topics.delete_topic,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.update_group,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: groups.update_group_list,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.get_all_groups,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: groups.get_group,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: groups.delete_group,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: groups.forbid_group,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: connections.get_consumer_connections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: connections.get_producer_connections,
    RequestCode.GET_ALL_PRODUCER_INFO: connections.get_all_producers,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: connections.get_subscription,
    RequestCode.GET_TOPIC_STATS_INFO: progress.get_topic_stats,
    RequestCode.GET_CONSUME_STATS: progress.get_consume_stats,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: progress.get_groups_of_topic,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: progress.get_topics_of_group,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: progress.reset_offset,
    RequestCode.CLONE_GROUP_OFFSET: progress.clone_offsets,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: clients.get_consumer_status,
    RequestCode.GET_CONSUMER_RUNNING_INFO: clients.get_running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: clients.consume_directly,
    RequestCode.GET_ALL_DELAY_OFFSET: clients.get_delay_offsets,
    RequestCode.GET_BROKER_RUNTIME_INFO: runtime.get_runtime_info,
    RequestCode.GET_BROKER_CONFIG: runtime.get_broker_config,
    RequestCode.UPDATE_BROKER_CONFIG: runtime.update_broker_config,
    ExtensionCode.PARK: parking.park,
    ExtensionCode.PARKED_KEYS: parking.keys,
    ExtensionCode.PARKED_LIST: parking.list_,
    ExtensionCode.PARKED_READ: parking.read,
    ExtensionCode.REDRIVE: parking.redrive,
    ExtensionCode.REDRIVEN: parking.redriven,
    ExtensionCode.UNPARK: parking.unpark,
    ExtensionCode.PARKED_DROP: parking.drop,
    ExtensionCode.PARK_MOVE: parking.move,
    ExtensionCode.PRODUCER_HELLO: producers.hello,
    ExtensionCode.PRODUCER_STATE: producers.state,
    ExtensionCode.PRODUCER_DROP: producers.drop,
    ExtensionCode.PRODUCER_LIST: producers.list_names,
    ExtensionCode.LEASE: leases.lease,
    ExtensionCode.RELEASE: leases.release,
    ExtensionCode.COMMIT: leases.commit,
    ExtensionCode.LEASES: leases.list_leases,
    ExtensionCode.LEASE_FREE: leases.free,
    ExtensionCode.RESIZE_DECIDE: resizing.decide,
    ExtensionCode.RESIZE_STOP: resizing.stop,
    ExtensionCode.RESIZE_OPEN: resizing.open_next,
    ExtensionCode.RESIZE_STATUS: resizing.status,
    ExtensionCode.RESIZE_RELEASE: resizing.release,
    ExtensionCode.RESIZE_GO: resizing.go,
    ExtensionCode.RESIZE_WITHDRAW: resizing.withdraw,
    ExtensionCode.RESIZE_REWIND: resizing.rewind,
}
