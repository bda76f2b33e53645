"""The requests of a name server: one function per request code, and the table of them.

Codes, fields, remarks and bodies are RocketMQ's, compared with the replies of a real name server
(tests/golden/nameserver). A BrokerError raised here becomes the reply.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from inorder.access.records import decode_book, unplain
from inorder.errors import (
    BrokerError,
    CodeNotSupported,
    NoPermission,
    NotFound,
    RemoteProtocolError,
    StoreError,
    SystemError_,
    not_supported,
)
from inorder.model import DataVersion
from inorder.nameserver.rules import (
    UNIT_FLAG,
    UNIT_SUBSCRIPTION_FLAG,
    KvTable,
    Registration,
    RouteTable,
    only_zone,
)
from inorder.ordering import keymap
from inorder.wire.codes import VERSION_STANDARD_ROUTE_JSON, RequestCode, ResponseCode
from inorder.wire.extensions import BROKER_IDENTITY, ExtensionCode
from inorder.wire.fields import decode_fields, encode_fields
from inorder.wire.names import ORDER_TOPIC_CONFIG
from inorder.wire.requests import nameserver, routes
from inorder.wire.requests.nameserver import encode_kv_table, encode_settings, encode_topic_list
from inorder.wire.requests.registration import RegisterBrokerBody, Steps, finish
from inorder.wire.requests.routes import TopicRoute
from inorder.wire.requests.topics import decode_data_version_request, encode_data_version

if TYPE_CHECKING:
    from inorder.access.service import Accounts
    from inorder.config import NameServerConfig
    from inorder.wire.header import Command

TIMEOUT_MS_MIN: Final = 1000
IDENTITY_CHARS_MAX: Final = 64
FAQ: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
ZONE_NAME: Final = "__ZONE_NAME"
ZONE_MODE: Final = "__ZONE_MODE"


@dataclass(frozen=True, slots=True)
class Desk:
    """The tables of the handlers. `save` makes a changed KvTable durable, or raises OSError."""

    config: NameServerConfig
    routes: RouteTable
    kv: KvTable
    save: Callable[[], None]
    accounts: Accounts | None = None
    """The users and their rules; None: access is not controlled."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request, its connection, and the time."""

    request: Command
    channel: object
    now_ms: int
    user: str = ""
    """Who asks, where access is controlled."""


Handler = Callable[[Desk, Call], "Command | Steps[Command]"]


def answer(desk: Desk, call: Call) -> Command:
    """Return the reply to a request. Only a bug raises."""
    return finish(answer_steps(desk, call))


def answer_steps(desk: Desk, call: Call) -> Steps[Command]:
    """Reply as `answer` does, in steps where it takes long."""
    handler = HANDLERS.get(call.request.code)
    try:
        if handler is None:
            raise CodeNotSupported(not_supported(call.request.code))
        result = handler(desk, call)
        return (yield from result) if isinstance(result, Generator) else result
    except BrokerError as error:
        # RocketMQ writes an empty extFields for codes whose answer has a header of its own.
        fields: dict[str, str] | None = {} if call.request.code in _WITH_HEADER else None
        return call.request.reply(error.code, error.remark, fields=fields)


# Routes.


def get_route(desk: Desk, call: Call) -> Command:
    request = call.request
    topic = request.fields.get("topic")
    route = None if topic is None else desk.routes.route(topic)
    if route is None or topic is None:
        shown = "null" if topic is None else topic
        return request.reply(
            ResponseCode.TOPIC_NOT_EXIST,
            f"No topic route info in name server for the topic: {shown}{FAQ}",
        )
    header = decode_fields(routes.GetRoute, request.fields)
    zone = request.fields.get(ZONE_NAME, "").strip()
    if zone and request.fields.get(ZONE_MODE, "").lower() == "true":
        route = only_zone(route, zone)
    if desk.config.order_message_enable:
        order_conf = desk.kv.get(ORDER_TOPIC_CONFIG, topic)
        route = TopicRoute(route.brokers, route.queues, order_conf, route.filter_servers)
    # Older clients may know number keys only bare.
    standard = (
        request.version >= VERSION_STANDARD_ROUTE_JSON or header.accept_standard_json_only is True
    )
    return request.reply(body=route.encode(standard=standard))


def get_cluster_info(desk: Desk, call: Call) -> Command:
    return call.request.reply(body=desk.routes.cluster_info().encode())


def get_member_group(desk: Desk, call: Call) -> Command:
    header = decode_fields(routes.GetBrokerMemberGroup, call.request.fields)
    group = desk.routes.members(header.cluster_name, header.broker_name)
    return call.request.reply(0, "not set any response code", body=group.encode())


# Brokers.


def register_broker(desk: Desk, call: Call) -> Steps[Command]:
    """Register a broker, in steps: it may have a hundred thousand topics."""
    request = call.request
    header = decode_fields(routes.RegisterBroker, request.fields)
    if header.body_crc32 and zlib.crc32(request.body) & 0x7FFFFFFF != header.body_crc32:
        raise SystemError_("crc32 not match")
    if request.body:
        body = yield from RegisterBrokerBody.decode_steps(
            request.body, version=request.version, compressed=header.compressed
        )
    else:
        body = RegisterBrokerBody(DataVersion())
    timeout_ms = header.heartbeat_timeout_ms
    if timeout_ms is None:
        timeout_ms = desk.config.broker_expiry_ms
    registered = yield from desk.routes.register_steps(
        Registration(
            cluster=header.cluster_name,
            broker_name=header.broker_name,
            address=header.broker_address,
            broker_id=header.broker_id,
            ha_address=header.ha_server_address,
            channel=call.channel,
            version=body.version,
            topics=body.topics,
            timeout_ms=max(timeout_ms, TIMEOUT_MS_MIN),
            acting_master=header.enable_acting_master,
            zone_name=request.fields.get(ZONE_NAME),
            filter_servers=body.filter_servers,
            identity=request.fields.get(BROKER_IDENTITY, "")[:IDENTITY_CHARS_MAX],
        ),
        now_ms=call.now_ms,
    )
    reply = routes.RegisterBrokerReply(registered.ha_address, registered.master_address)
    orders = desk.kv.namespace(ORDER_TOPIC_CONFIG) if desk.config.return_order_config else None
    return request.reply(
        fields=encode_fields(reply), body=b"" if orders is None else encode_kv_table(orders)
    )


def unregister_broker(desk: Desk, call: Call) -> Command:
    header = decode_fields(routes.UnregisterBroker, call.request.fields)
    desk.routes.unregister(header.cluster_name, header.broker_name, header.broker_address)
    return call.request.reply()


def query_data_version(desk: Desk, call: Call) -> Command:
    header = decode_fields(routes.QueryDataVersion, call.request.fields)
    version = decode_data_version_request(call.request.body)
    known = desk.routes.data_version(header.cluster_name, header.broker_address)
    desk.routes.touch(header.cluster_name, header.broker_address, now_ms=call.now_ms)
    reply = routes.QueryDataVersionReply(changed=known is None or known != version)
    return call.request.reply(
        fields=encode_fields(reply), body=b"" if known is None else encode_data_version(known)
    )


def broker_heartbeat(desk: Desk, call: Call) -> Command:
    header = decode_fields(routes.BrokerHeartbeat, call.request.fields)
    desk.routes.touch(header.cluster_name, header.broker_address, now_ms=call.now_ms)
    return call.request.reply()


def wipe_write_perm(desk: Desk, call: Call) -> Command:
    header = decode_fields(routes.WipeWritePerm, call.request.fields)
    count = desk.routes.set_writable(header.broker_name, writable=False)
    return call.request.reply(fields=encode_fields(routes.WipeWritePermReply(count)))


def add_write_perm(desk: Desk, call: Call) -> Command:
    header = decode_fields(routes.AddWritePerm, call.request.fields)
    count = desk.routes.set_writable(header.broker_name, writable=True)
    return call.request.reply(fields=encode_fields(routes.AddWritePermReply(count)))


# Topics.


def get_all_topics(desk: Desk, call: Call) -> Command:
    return call.request.reply(body=encode_topic_list(desk.routes.topics()))


def get_topics_by_cluster(desk: Desk, call: Call) -> Command:
    header = decode_fields(nameserver.GetTopicsByCluster, call.request.fields)
    return call.request.reply(body=encode_topic_list(desk.routes.topics_of_cluster(header.cluster)))


def get_system_topics(desk: Desk, call: Call) -> Command:
    topics, address = desk.routes.system_topics()
    return call.request.reply(body=encode_topic_list(topics, address))


def get_unit_topics(desk: Desk, call: Call) -> Command:
    return call.request.reply(body=encode_topic_list(desk.routes.topics_with_flags(UNIT_FLAG)))


def get_unit_subscribed_topics(desk: Desk, call: Call) -> Command:
    topics = desk.routes.topics_with_flags(UNIT_SUBSCRIPTION_FLAG)
    return call.request.reply(body=encode_topic_list(topics))


def get_unit_subscribed_plain_topics(desk: Desk, call: Call) -> Command:
    topics = desk.routes.topics_with_flags(UNIT_SUBSCRIPTION_FLAG, unwanted=UNIT_FLAG)
    return call.request.reply(body=encode_topic_list(topics))


def delete_topic(desk: Desk, call: Call) -> Command:
    header = decode_fields(nameserver.DeleteTopicInNameServer, call.request.fields)
    desk.routes.delete_topic(header.topic, header.cluster_name)
    if desk.routes.route(header.topic) is None:  # its key map goes with it
        _delete_kv(desk, keymap.NAMESPACE, header.topic)
    return call.request.reply()


def register_topic(desk: Desk, call: Call) -> Command:
    header = decode_fields(nameserver.RegisterTopicInNameServer, call.request.fields)
    if call.request.body:
        desk.routes.add_topic(header.topic, TopicRoute.decode_request(call.request.body).queues)
    return call.request.reply()


# Users and rules.


def put_access(desk: Desk, call: Call) -> Command:
    """Take the users and rules of a broker if they are newer."""
    if desk.accounts is None:
        raise CodeNotSupported(not_supported(call.request.code))
    try:
        book = decode_book(call.request.body, unplain)
        desk.accounts.replace(book, by=call.user, peer="")
    except (RemoteProtocolError, StoreError) as error:
        raise SystemError_(str(error)) from None
    return call.request.reply()


# Key-value config and settings.


def put_kv(desk: Desk, call: Call) -> Command:
    fields = call.request.fields
    if fields.get("namespace") is None or fields.get("key") is None:
        raise SystemError_("namespace or key is null")
    header = decode_fields(nameserver.PutKv, fields)
    before = desk.kv.get(header.namespace, header.key)
    desk.kv.put(header.namespace, header.key, header.value)
    try:
        desk.save()
    except OSError as error:
        if before is None:
            desk.kv.delete(header.namespace, header.key)
        else:
            desk.kv.put(header.namespace, header.key, before)
        raise SystemError_(f"the value was not kept: {error}") from error
    return call.request.reply()


def get_kv(desk: Desk, call: Call) -> Command:
    header = decode_fields(nameserver.GetKv, call.request.fields)
    value = desk.kv.get(header.namespace, header.key)
    if header.namespace == keymap.NAMESPACE:  # what brokers registered counts, too
        value = desk.routes.key_map(header.key, *([] if value is None else [value]))
    if value is None:
        raise NotFound(f"No config item, Namespace: {header.namespace} Key: {header.key}")
    return call.request.reply(fields=encode_fields(nameserver.GetKvReply(value)))


def delete_kv(desk: Desk, call: Call) -> Command:
    header = decode_fields(nameserver.DeleteKv, call.request.fields)
    _delete_kv(desk, header.namespace, header.key)
    return call.request.reply()


def _delete_kv(desk: Desk, namespace: str, key: str) -> None:
    before = desk.kv.get(namespace, key)
    if desk.kv.delete(namespace, key):
        try:
            desk.save()
        except OSError as error:
            desk.kv.put(namespace, key, before or "")
            raise SystemError_(f"the value was not deleted: {error}") from error


def get_kv_list(desk: Desk, call: Call) -> Command:
    header = decode_fields(nameserver.GetKvList, call.request.fields)
    values = desk.kv.namespace(header.namespace)
    if values is None:
        raise NotFound(f"No config item, Namespace: {header.namespace}")
    return call.request.reply(body=encode_kv_table(values))


def update_config(desk: Desk, call: Call) -> Command:
    raise NoPermission(
        "Can not update config: settings change in the configuration file, with a restart"
    )


def get_config(desk: Desk, call: Call) -> Command:
    """Return the settings that RocketMQ's tools show; no paths and no secrets."""
    config = desk.config
    settings = {
        "bindAddress": config.host,
        "clusterTest": "false",
        "deleteTopicWithBrokerRegistration": "false",
        "enableAllTopicList": "true",
        "enableTopicList": "true",
        "listenPort": str(config.port),
        "needWaitForService": "false",
        "notifyMinBrokerIdChanged": "false",
        "orderMessageEnable": str(config.order_message_enable).lower(),
        "returnOrderTopicConfigToBroker": str(config.return_order_config).lower(),
        "scanNotActiveBrokerInterval": str(config.scan_interval_ms),
        "serverChannelMaxIdleTimeSeconds": str(config.net.idle_timeout_ms // 1000),
        "supportActingMaster": "false",
    }
    return call.request.reply(body=encode_settings(settings))


HANDLERS: Final[dict[int, Handler]] = {
    RequestCode.PUT_KV_CONFIG: put_kv,
    RequestCode.GET_KV_CONFIG: get_kv,
    RequestCode.DELETE_KV_CONFIG: delete_kv,
    RequestCode.REGISTER_BROKER: register_broker,
    RequestCode.UNREGISTER_BROKER: unregister_broker,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: get_route,
    RequestCode.GET_BROKER_CLUSTER_INFO: get_cluster_info,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: wipe_write_perm,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: get_all_topics,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: delete_topic,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: register_topic,
    RequestCode.GET_KVLIST_BY_NAMESPACE: get_kv_list,
    RequestCode.GET_TOPICS_BY_CLUSTER: get_topics_by_cluster,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: get_system_topics,
    RequestCode.GET_UNIT_TOPIC_LIST: get_unit_topics,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: get_unit_subscribed_topics,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: get_unit_subscribed_plain_topics,
    RequestCode.UPDATE_NAMESRV_CONFIG: update_config,
    RequestCode.GET_NAMESRV_CONFIG: get_config,
    RequestCode.QUERY_DATA_VERSION: query_data_version,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: add_write_perm,
    RequestCode.GET_BROKER_MEMBER_GROUP: get_member_group,
    RequestCode.BROKER_HEARTBEAT: broker_heartbeat,
    ExtensionCode.PUT_ACCESS: put_access,
}

_WITH_HEADER: Final = frozenset({
    RequestCode.GET_KV_CONFIG,
    RequestCode.REGISTER_BROKER,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER,
    RequestCode.QUERY_DATA_VERSION,
    RequestCode.ADD_WRITE_PERM_OF_BROKER,
})  # fmt: skip
