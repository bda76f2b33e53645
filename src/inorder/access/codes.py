"""One table: what each request code of the broker and of the name server needs.

    a function   reads the needs from the fields and the body that the handler will use
    LOGIN        any user
    SUPER        a super user
    INNER        another server of the cluster, or a super user

A need is a resource and the actions of which one suffices. All needs of a request must be allowed,
so a batch, a heartbeat or a list of locks counts as a whole. A request whose needs cannot be read
is refused, and so is a code that is served and has no row here. A topic that holds the retries,
dead letters or parked messages of a group counts as that group.

A row also says what the request *brings*: client ids, groups and producer ids, which then belong to
the user who brought them first. Why the rows are as they are: decision 55.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, NamedTuple, Protocol

from inorder.access.rules import CONSUME_READS, ROUTE_READS, Action, Kind, group_of_topic
from inorder.errors import NoPermission, RemoteProtocolError
from inorder.ordering import keymap
from inorder.wire.codes import RequestCode as R
from inorder.wire.extensions import ExtensionCode as X
from inorder.wire.header import Command
from inorder.wire.ids import parse_message_id
from inorder.wire.names import AUTO_CREATE_TOPIC
from inorder.wire.requests.assignments import decode_mode, decode_query
from inorder.wire.requests.groups import (
    ClientHeartbeat,
    decode_group_config_request,
    decode_group_configs,
)
from inorder.wire.requests.leases import CommitBody, LeaseBody, LockBatchBody
from inorder.wire.requests.parking import KeyList
from inorder.wire.requests.pops import decode_batch_ack
from inorder.wire.requests.sends import LETTER_CODES
from inorder.wire.requests.topics import decode_topic_configs
from inorder.wire.shapes import INT_CHARS_MAX

CLUSTER: Final = "*"
"""The name of the cluster in a need; a policy that names a cluster literally has its name."""


class Need(NamedTuple):
    """A resource and the actions of which one must be allowed."""

    kind: Kind
    name: str
    actions: Action


class Lookups(Protocol):
    """What only the server knows: whose message a request means by its position."""

    def topic_at(self, position: int) -> str | None:
        """Return the topic that the message at a position was sent to; None: there is none."""
        ...

    def topic_of_half(self, position: int) -> str | None:
        """Return the topic of a transaction, by the position that its producer knows."""
        ...


class NoLookups:
    """A server without messages."""

    def topic_at(self, position: int) -> str | None:
        """Return None."""
        return None

    def topic_of_half(self, position: int) -> str | None:
        """Return None."""
        return None


class Special(Enum):
    """A need that is not about a resource."""

    LOGIN = "a login"
    SUPER = "a super user"
    INNER = "the credentials of a server"


LOGIN, SUPER, INNER = Special.LOGIN, Special.SUPER, Special.INNER


class What(IntEnum):
    """What a request may bring."""

    CLIENT = 1
    GROUP = 2
    PRODUCER = 3


Brought = tuple[What, str]
Needs = Callable[[Command, Lookups], Iterable[Need]]
Brings = Callable[[Command], Iterable[Brought]]


@dataclass(frozen=True, slots=True)
class Row:
    """What one code needs and brings."""

    needs: Needs | Special
    brings: Brings | None = None


def unreadable(what: str) -> NoPermission:
    """Return the refusal of a request whose resources cannot be read."""
    return NoPermission(f"the request does not say what it is about: {what}")


# -- readers of needs -----------------------------------------------------------------------------


def _field(command: Command, name: str) -> str:
    found = command.fields.get(name)
    if not found:
        raise unreadable(f"the field {name} is missing")
    return found


def topic_need(topic: str, actions: Action) -> Need:
    """Return the need for a topic; to send to the topic of a group one must belong to it."""
    group = group_of_topic(topic)
    if group is None:
        return Need(Kind.TOPIC, topic, actions)
    if actions & Action.PUB:
        actions = (actions & ~Action.PUB) | Action.SUB
    return Need(Kind.GROUP, group, actions)


def _topic(actions: Action, name: str = "topic") -> Needs:
    return lambda command, _: (topic_need(_field(command, name), actions),)


def _group(actions: Action, name: str) -> Needs:
    return lambda command, _: (Need(Kind.GROUP, _field(command, name), actions),)


def _cluster(actions: Action) -> Needs:
    need = (Need(Kind.CLUSTER, CLUSTER, actions),)
    return lambda _command, _: need


def _if_named(name: str, needs: Needs, otherwise: Needs | None = None) -> Needs:
    """Need this if a field is given, else something else or nothing."""

    def read(command: Command, lookups: Lookups) -> Iterable[Need]:
        if command.fields.get(name, "").strip():
            return needs(command, lookups)
        return () if otherwise is None else otherwise(command, lookups)

    return read


def _all(*parts: Needs) -> Needs:
    def read(command: Command, lookups: Lookups) -> Iterator[Need]:
        for part in parts:
            yield from part(command, lookups)

    return read


def _topic_and_group(actions: Action, group: str = "consumerGroup") -> Needs:
    return _all(_topic(actions), _group(actions, group))


_CLUSTER_GET: Final = _cluster(Action.GET)
_CLUSTER_UPDATE: Final = _cluster(Action.UPDATE)
_CONSUME: Final = _topic_and_group(Action.SUB)


def _send(command: Command, _: Lookups) -> Iterable[Need]:
    name = "b" if command.code in LETTER_CODES else "topic"
    return (topic_need(_field(command, name), Action.PUB),)


def _position(command: Command, name: str) -> int:
    text = _field(command, name)
    if len(text) > INT_CHARS_MAX or not text.isascii() or not text.isdigit():
        raise unreadable(f"the field {name} is no position")
    return int(text)


def _message_of_id(command: Command) -> int:
    try:
        return parse_message_id(_field(command, "msgId"))[2]
    except RemoteProtocolError as error:
        raise unreadable(str(error)) from None


def _end_transaction(command: Command, lookups: Lookups) -> Iterable[Need]:
    """Need the topic of the half itself: what the request says of it is not used."""
    topic = lookups.topic_of_half(_position(command, "commitLogOffset"))
    if topic is None:
        raise unreadable("there is no such transaction")
    return (topic_need(topic, Action.PUB),)


def _view_message(command: Command, lookups: Lookups) -> Iterable[Need]:
    topic = lookups.topic_at(_position(command, "offset"))
    return () if topic is None else (topic_need(topic, CONSUME_READS),)


def _send_back(command: Command, lookups: Lookups) -> Iterator[Need]:
    """Need the group, and the topic of the message: its copy can be read by the group."""
    yield Need(Kind.GROUP, _field(command, "group"), Action.SUB)
    topic = lookups.topic_at(_position(command, "offset"))
    if topic is not None:
        yield topic_need(topic, Action.SUB)


def _consume_directly(command: Command, lookups: Lookups) -> Iterator[Need]:
    yield Need(Kind.GROUP, _field(command, "consumerGroup"), Action.SUB)
    topic = lookups.topic_at(_message_of_id(command))
    if topic is not None:
        yield topic_need(topic, Action.SUB)


def _heartbeat(command: Command, _: Lookups) -> Iterator[Need]:
    for consumer in ClientHeartbeat.decode(command.body).consumers:
        yield Need(Kind.GROUP, consumer.group, Action.SUB)
        for subscription in consumer.subscriptions:
            yield topic_need(subscription.topic, Action.SUB)


def _locks(command: Command, _: Lookups) -> Iterator[Need]:
    body = LockBatchBody.decode(command.body)
    yield Need(Kind.GROUP, body.group, Action.SUB)
    for topic in dict.fromkeys(queue.topic for queue in body.queues):
        yield topic_need(topic, Action.SUB)


def _lease(command: Command, _: Lookups) -> Iterator[Need]:
    yield Need(Kind.GROUP, _field(command, "group"), Action.SUB)
    for topic in dict.fromkeys(wish.topic for wish in LeaseBody.decode(command.body).queues):
        yield topic_need(topic, Action.SUB)


def _lease_commit(command: Command, _: Lookups) -> Iterator[Need]:
    yield Need(Kind.GROUP, _field(command, "group"), Action.SUB)
    for topic in dict.fromkeys(one.topic for one in CommitBody.decode(command.body).commits):
        yield topic_need(topic, Action.SUB)


def _popped_topic(group: str, topic: str) -> Iterator[Need]:
    """Need what an acknowledgement is about: `%RETRY%group_topic` is of the group that names it."""
    of = group_of_topic(topic)
    yield Need(Kind.GROUP, group, Action.SUB)
    for joint in "_+":
        if of is not None and of.startswith(group + joint):
            yield topic_need(of.removeprefix(group + joint), Action.SUB)
            return
    yield topic_need(topic, Action.SUB)


def _ack(command: Command, _: Lookups) -> Iterable[Need]:
    return _popped_topic(_field(command, "consumerGroup"), _field(command, "topic"))


def _batch_ack(command: Command, _: Lookups) -> Iterator[Need]:
    if not command.body:
        raise unreadable("there is no body")
    for group, topic in dict.fromkeys(
        (one.group, one.topic) for one in decode_batch_ack(command.body)
    ):
        yield from _popped_topic(group, topic)


def _assignment(command: Command, _: Lookups) -> Iterator[Need]:
    query = decode_query(command.body)
    yield Need(Kind.GROUP, query.group, Action.SUB)
    yield topic_need(query.topic, Action.SUB)


def _request_mode(command: Command, _: Lookups) -> Iterator[Need]:
    yield Need(Kind.GROUP, decode_mode(command.body).group, Action.UPDATE)


def _topic_list(command: Command, _: Lookups) -> Iterator[Need]:
    for config in decode_topic_configs(command.body):
        yield topic_need(config.name, Action.CREATE)


def _group_body(command: Command, _: Lookups) -> Iterator[Need]:
    yield Need(Kind.GROUP, decode_group_config_request(command.body).name, Action.CREATE)


def _group_list(command: Command, _: Lookups) -> Iterator[Need]:
    for config in decode_group_configs(command.body):
        yield Need(Kind.GROUP, config.name, Action.CREATE)


def _consume_stats(command: Command, _: Lookups) -> Iterator[Need]:
    yield Need(Kind.GROUP, _field(command, "consumerGroup"), Action.GET)
    topics = command.fields.get("topicList", "").split(";")
    for topic in (command.fields.get("topic", ""), *topics):
        if topic:
            yield topic_need(topic, Action.GET)


def _key_list(actions: Action) -> Needs:
    """Need the group whose parked keys a body lists; the topics are those that it consumed."""

    def read(command: Command, _: Lookups) -> Iterator[Need]:
        KeyList.decode(command.body)
        yield Need(Kind.GROUP, _field(command, "group"), actions)

    return read


def _parked_read(command: Command, _: Lookups) -> Iterator[Need]:
    yield Need(Kind.GROUP, _field(command, "group"), CONSUME_READS)
    yield topic_need(_field(command, "topic"), Action.SUB)


def _route(command: Command, _: Lookups) -> Iterable[Need]:
    topic = _field(command, "topic")
    if topic == AUTO_CREATE_TOPIC:  # what a producer asks for when its topic is missing
        return ()
    return (topic_need(topic, ROUTE_READS),)


def _key_value(actions: Action) -> Needs | Special:
    """Need the topic whose key map it is; other values need a super user."""

    def read(command: Command, _: Lookups) -> Iterable[Need]:
        if command.fields.get("namespace") != keymap.NAMESPACE:
            raise NoPermission("the key-value config needs a super user")
        return (topic_need(_field(command, "key"), actions),)

    return read


# -- readers of what is brought -------------------------------------------------------------------


def _client(name: str = "clientId") -> Brings:
    return lambda command: ((What.CLIENT, _field(command, name)),)


def _group_of(name: str) -> Brings:
    return lambda command: ((What.GROUP, _field(command, name)),)


def _producer(command: Command) -> Iterable[Brought]:
    return ((What.PRODUCER, _field(command, "producerId")),)


def _heartbeat_brings(command: Command) -> Iterator[Brought]:
    beat = ClientHeartbeat.decode(command.body)
    yield What.CLIENT, beat.client_id
    for consumer in beat.consumers:
        yield What.GROUP, consumer.group
    for group in beat.producers:
        yield What.GROUP, group


def _unregister_brings(command: Command) -> Iterator[Brought]:
    yield What.CLIENT, _field(command, "clientID")
    for name in ("consumerGroup", "producerGroup"):
        group = command.fields.get(name)
        if group:
            yield What.GROUP, group


def _locks_bring(command: Command) -> Iterator[Brought]:
    body = LockBatchBody.decode(command.body)
    yield What.CLIENT, body.client_id
    yield What.GROUP, body.group


def _assignment_brings(command: Command) -> Iterator[Brought]:
    client_id = decode_query(command.body).client_id
    if client_id:
        yield What.CLIENT, client_id


_MEMBER: Final = _client()


# -- the tables -----------------------------------------------------------------------------------

_USERS: Final[Mapping[int, Row]] = {
    R.AUTH_CREATE_USER: Row(SUPER),
    R.AUTH_UPDATE_USER: Row(SUPER),
    R.AUTH_DELETE_USER: Row(SUPER),
    R.AUTH_GET_USER: Row(SUPER),
    R.AUTH_LIST_USER: Row(SUPER),
    R.AUTH_CREATE_ACL: Row(SUPER),
    R.AUTH_UPDATE_ACL: Row(SUPER),
    R.AUTH_DELETE_ACL: Row(SUPER),
    R.AUTH_GET_ACL: Row(SUPER),
    R.AUTH_LIST_ACL: Row(SUPER),
}

BROKER: Final[Mapping[int, Row]] = {
    **_USERS,
    # Sends.
    R.SEND_MESSAGE: Row(_send),
    R.SEND_MESSAGE_V2: Row(_send),
    R.SEND_BATCH_MESSAGE: Row(_send),
    R.SEND_REPLY_MESSAGE: Row(_send),
    R.SEND_REPLY_MESSAGE_V2: Row(_send),
    R.RECALL_MESSAGE: Row(_topic(Action.PUB)),
    R.END_TRANSACTION: Row(_end_transaction),
    R.CONSUMER_SEND_MSG_BACK: Row(_send_back),
    # Pulls and pops.
    R.PULL_MESSAGE: Row(_CONSUME),
    R.LITE_PULL_MESSAGE: Row(_CONSUME),
    R.QUERY_MESSAGE: Row(_topic(CONSUME_READS)),
    R.VIEW_MESSAGE_BY_ID: Row(_view_message),
    R.POP_MESSAGE: Row(_CONSUME),
    R.ACK_MESSAGE: Row(_ack),
    R.BATCH_ACK_MESSAGE: Row(_batch_ack),
    R.CHANGE_MESSAGE_INVISIBLETIME: Row(_ack),
    R.PEEK_MESSAGE: Row(_CONSUME),
    R.NOTIFICATION: Row(_CONSUME),
    R.POLLING_INFO: Row(_topic_and_group(Action.GET)),
    # Members, locks and leases.
    R.HEART_BEAT: Row(_heartbeat, _heartbeat_brings),
    R.UNREGISTER_CLIENT: Row(
        _if_named("consumerGroup", _group(Action.SUB, "consumerGroup")), _unregister_brings
    ),
    R.GET_CONSUMER_LIST_BY_GROUP: Row(_group(CONSUME_READS, "consumerGroup")),
    R.CHECK_CLIENT_CONFIG: Row(LOGIN),
    R.LOCK_BATCH_MQ: Row(_locks, _locks_bring),
    R.UNLOCK_BATCH_MQ: Row(_locks, _locks_bring),
    R.QUERY_ASSIGNMENT: Row(_assignment, _assignment_brings),
    R.SET_MESSAGE_REQUEST_MODE: Row(_request_mode),
    R.GET_ALL_MESSAGE_REQUEST_MODE: Row(_CLUSTER_GET),
    X.LEASE: Row(_lease, _MEMBER),
    X.RELEASE: Row(_topic_and_group(Action.SUB, "group"), _MEMBER),
    X.COMMIT: Row(_lease_commit, _MEMBER),
    X.LEASES: Row(_if_named("group", _group(Action.GET, "group"), _CLUSTER_GET)),
    X.LEASE_FREE: Row(_group(Action.UPDATE, "group")),
    # Offsets.
    R.QUERY_CONSUMER_OFFSET: Row(_topic_and_group(CONSUME_READS)),
    R.UPDATE_CONSUMER_OFFSET: Row(
        _topic_and_group(Action.SUB | Action.UPDATE), _group_of("consumerGroup")
    ),
    R.SEARCH_OFFSET_BY_TIMESTAMP: Row(_topic(CONSUME_READS)),
    R.GET_MAX_OFFSET: Row(_topic(CONSUME_READS)),
    R.GET_MIN_OFFSET: Row(_topic(CONSUME_READS)),
    R.GET_EARLIEST_MSG_STORETIME: Row(_topic(CONSUME_READS)),
    R.GET_TOPIC_STATS_INFO: Row(_topic(Action.GET)),
    R.GET_CONSUME_STATS: Row(_consume_stats),
    R.QUERY_TOPIC_CONSUME_BY_WHO: Row(_topic(Action.GET)),
    R.QUERY_TOPICS_BY_CONSUMER: Row(_group(Action.GET, "group")),
    R.QUERY_SUBSCRIPTION_BY_CONSUMER: Row(
        _all(_group(Action.GET, "group"), _if_named("topic", _topic(Action.GET)))
    ),
    R.INVOKE_BROKER_TO_RESET_OFFSET: Row(_topic_and_group(Action.UPDATE, "group")),
    R.CLONE_GROUP_OFFSET: Row(
        _all(
            _group(Action.GET, "srcGroup"),
            _group(Action.UPDATE, "destGroup"),
            _if_named("topic", _topic(Action.UPDATE), _CLUSTER_UPDATE),
        )
    ),
    R.UPDATE_AND_GET_GROUP_FORBIDDEN: Row(_topic_and_group(Action.UPDATE, "group")),
    # Topics and groups.
    R.UPDATE_AND_CREATE_TOPIC: Row(_topic(Action.CREATE)),
    R.UPDATE_AND_CREATE_TOPIC_LIST: Row(_topic_list),
    R.DELETE_TOPIC_IN_BROKER: Row(_topic(Action.DELETE)),
    R.GET_TOPIC_CONFIG: Row(_topic(Action.GET)),
    R.GET_ALL_TOPIC_CONFIG: Row(_CLUSTER_GET),
    R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Row(_CLUSTER_GET),
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Row(_group_body),
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Row(_group_list),
    R.DELETE_SUBSCRIPTIONGROUP: Row(_group(Action.DELETE, "groupName")),
    R.GET_SUBSCRIPTIONGROUP_CONFIG: Row(_group(Action.GET, "group")),
    R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Row(_CLUSTER_GET),
    # Connections, and questions to consumers.
    R.GET_CONSUMER_CONNECTION_LIST: Row(_group(Action.GET, "consumerGroup")),
    R.GET_PRODUCER_CONNECTION_LIST: Row(_CLUSTER_GET),
    R.GET_ALL_PRODUCER_INFO: Row(_CLUSTER_GET),
    R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Row(_topic_and_group(Action.GET, "group")),
    R.GET_CONSUMER_RUNNING_INFO: Row(_group(Action.GET, "consumerGroup")),
    R.CONSUME_MESSAGE_DIRECTLY: Row(_consume_directly),
    # Statistics, settings, cleaning.
    R.GET_ALL_DELAY_OFFSET: Row(_CLUSTER_GET),
    R.GET_TIMER_CHECK_POINT: Row(_CLUSTER_GET),
    R.GET_TIMER_METRICS: Row(_CLUSTER_GET),
    R.GET_BROKER_RUNTIME_INFO: Row(_CLUSTER_GET),
    R.GET_BROKER_CONFIG: Row(_CLUSTER_GET),
    R.UPDATE_BROKER_CONFIG: Row(SUPER),
    R.QUERY_CONSUME_TIME_SPAN: Row(_topic_and_group(Action.GET, "group")),
    R.QUERY_CORRECTION_OFFSET: Row(_topic_and_group(Action.GET, "compareGroup")),
    R.VIEW_BROKER_STATS_DATA: Row(_CLUSTER_GET),
    R.GET_BROKER_CONSUME_STATS: Row(_CLUSTER_GET),
    R.QUERY_CONSUME_QUEUE: Row(
        _all(
            _topic(Action.GET),
            _if_named("consumerGroup", _group(Action.GET, "consumerGroup")),
        )
    ),
    R.CLEAN_EXPIRED_CONSUMEQUEUE: Row(SUPER),
    R.CLEAN_UNUSED_TOPIC: Row(SUPER),
    R.DELETE_EXPIRED_COMMITLOG: Row(SUPER),
    # Transactions: which half is resumed is known by its position alone.
    R.RESUME_CHECK_HALF_MESSAGE: Row(_CLUSTER_UPDATE),
    X.TRANSACTIONS_PENDING: Row(_if_named("topic", _topic(Action.GET), _CLUSTER_GET)),
    # Idempotent producers.
    X.PRODUCER_HELLO: Row(LOGIN, _producer),
    X.PRODUCER_STATE: Row(_topic(Action.PUB), _producer),
    X.PRODUCER_DROP: Row(_CLUSTER_UPDATE),
    X.PRODUCER_LIST: Row(_CLUSTER_GET),
    # Parked keys.
    X.PARK: Row(_topic_and_group(Action.SUB, "group"), _MEMBER),
    X.PARKED_KEYS: Row(_all(_group(CONSUME_READS, "group"), _topic(CONSUME_READS))),
    X.PARKED_LIST: Row(_if_named("group", _group(Action.GET, "group"), _CLUSTER_GET)),
    X.PARKED_READ: Row(_parked_read),
    X.REDRIVE: Row(_key_list(Action.UPDATE)),
    X.REDRIVEN: Row(_topic_and_group(Action.SUB, "group"), _MEMBER),
    X.UNPARK: Row(_topic_and_group(Action.SUB, "group"), _MEMBER),
    X.PARKED_DROP: Row(_key_list(Action.UPDATE)),
    X.PARK_MOVE: Row(INNER),
    # Resizes; the first keyed send of a topic that it creates decides the first map.
    X.RESIZE_DECIDE: Row(_topic(Action.UPDATE | Action.CREATE)),
    X.RESIZE_STOP: Row(_topic(Action.UPDATE | Action.CREATE)),
    X.RESIZE_OPEN: Row(_topic(Action.UPDATE | Action.CREATE)),
    X.RESIZE_GO: Row(_topic(Action.UPDATE | Action.CREATE)),
    X.RESIZE_WITHDRAW: Row(_topic(Action.UPDATE | Action.CREATE)),
    X.RESIZE_STATUS: Row(_topic(Action.UPDATE | Action.CREATE | Action.GET)),
    X.RESIZE_RELEASE: Row(_topic(Action.UPDATE)),
    X.RESIZE_REWIND: Row(_all(_group(Action.UPDATE, "group"), _topic(Action.UPDATE))),
}

NAME_SERVER: Final[Mapping[int, Row]] = {
    X.PUT_ACCESS: Row(INNER),
    R.GET_ROUTEINFO_BY_TOPIC: Row(_route),
    R.GET_BROKER_CLUSTER_INFO: Row(LOGIN),
    R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Row(LOGIN),
    R.GET_TOPICS_BY_CLUSTER: Row(LOGIN),
    R.GET_SYSTEM_TOPIC_LIST_FROM_NS: Row(_CLUSTER_GET),
    R.GET_UNIT_TOPIC_LIST: Row(_CLUSTER_GET),
    R.GET_HAS_UNIT_SUB_TOPIC_LIST: Row(_CLUSTER_GET),
    R.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: Row(_CLUSTER_GET),
    R.GET_BROKER_MEMBER_GROUP: Row(_CLUSTER_GET),
    R.REGISTER_BROKER: Row(_CLUSTER_UPDATE),
    R.UNREGISTER_BROKER: Row(_CLUSTER_UPDATE),
    R.QUERY_DATA_VERSION: Row(_CLUSTER_UPDATE),
    R.BROKER_HEARTBEAT: Row(_CLUSTER_UPDATE),
    R.WIPE_WRITE_PERM_OF_BROKER: Row(SUPER),
    R.ADD_WRITE_PERM_OF_BROKER: Row(SUPER),
    R.DELETE_TOPIC_IN_NAMESRV: Row(SUPER),
    R.REGISTER_TOPIC_IN_NAMESRV: Row(SUPER),
    R.GET_KV_CONFIG: Row(_key_value(ROUTE_READS)),
    R.PUT_KV_CONFIG: Row(_key_value(Action.CREATE | Action.UPDATE)),
    R.DELETE_KV_CONFIG: Row(_key_value(Action.DELETE)),
    R.GET_KVLIST_BY_NAMESPACE: Row(SUPER),
    R.UPDATE_NAMESRV_CONFIG: Row(SUPER),
    R.GET_NAMESRV_CONFIG: Row(_CLUSTER_GET),
}

ENFORCED_ALWAYS: Final = frozenset((*_USERS, X.PUT_ACCESS))
"""Codes that are refused at the level `log` too: they decide what `enforce` will mean."""

SESSION_CODES: Final = frozenset((R.HEART_BEAT, X.PRODUCER_HELLO, R.GET_ROUTEINFO_BY_TOPIC))
"""Codes whose answers tell a client of inorder the session of its connection."""
