"""One typed method per request: values in, values out, a BrokerError for any other answer.

`BrokerApi` and `NameServerApi` know no routes and no retries; they ask one server over one
connection. Every method takes `timeout_ms`, or uses the default of its object.

The requests about leases that a broker of ours answers; a stock one knows none of them.

The requests about parked keys that a broker of ours answers; a stock one knows none of them.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from inorder.client.rules.receipts import STATUSES
from inorder.errors import broker_error
from inorder.model import GroupConfig, TopicConfig, TopicQueue
from inorder.wire.codes import RequestCode, ResponseCode
from inorder.wire.extensions import ONLY_UP_SINCE
from inorder.wire.fields import decode_fields, encode_fields
from inorder.wire.header import Command
from inorder.wire.names import AUTO_CREATE_TOPIC
from inorder.wire.record import Record, decode, decode_all
from inorder.wire.requests import groups, leases, nameserver, offsets, pulls, routes
from inorder.wire.requests import leases as lease_requests
from inorder.wire.requests import parking as bodies
from inorder.wire.requests import parking as parking_requests
from inorder.wire.requests import topics as admin
from inorder.wire.requests.connections import (
    ClientConnection,
    ConsumerConnections,
    SendBack,
    decode_producer_connections,
    decode_producers,
)
from inorder.wire.requests.groups import ClientHeartbeat, GroupTable, encode_group_config
from inorder.wire.requests.leases import (
    CommitAnswer,
    CommitBody,
    HeldLease,
    LeaseAnswer,
    LeaseBody,
    LeasePage,
    LockBatchBody,
    LockedQueues,
)
from inorder.wire.requests.nameserver import (
    decode_consumer_ids,
    decode_group_list,
    decode_kv_table,
    decode_settings,
    decode_topic_list,
    encode_settings,
)
from inorder.wire.requests.offsets import ConsumeStats, TopicStats, decode_queue_offsets
from inorder.wire.requests.producers import (
    NamedProducer,
    ProducerDrop,
    ProducerDropReply,
    ProducerHello,
    ProducerHelloReply,
    ProducerList,
    ProducerState,
    ProducerStateReply,
    decode_named_producers,
)
from inorder.wire.requests.pulls import PULL_REPLY_CODES, PullMessage, PullReply
from inorder.wire.requests.routes import ClusterInfo, TopicRoute
from inorder.wire.requests.sends import SendMessage, SendReply
from inorder.wire.requests.topics import TopicTable, decode_topic_config

T = TypeVar("T")

TIMEOUT_MS: Final = 3000


class Caller(Protocol):
    """What a connection offers."""

    async def request(self, command: Command, timeout_ms: int) -> Command:
        """Send a request and return its answer."""
        ...

    def notify(self, command: Command) -> None:
        """Send a request that is not answered."""
        ...


@dataclass(frozen=True, slots=True)
class Pulled:
    """The reply to a pull: `code` is in PULL_REPLY_CODES; with code 0 the body holds records."""

    code: int
    reply: PullReply
    body: bytes | memoryview

    def records(self) -> list[Record]:
        """Return the records, checked. Raises CorruptRecord."""
        return decode_all(self.body) if self.code == ResponseCode.SUCCESS else []


class _Api:
    """Asks one server."""

    __slots__ = ("_connection", "_timeout_ms")

    def __init__(self, connection: Caller, *, timeout_ms: int = TIMEOUT_MS) -> None:
        self._connection = connection
        self._timeout_ms = timeout_ms

    @property
    def connection(self) -> Caller:
        """Return whom it asks."""
        return self._connection

    @property
    def compares_offsets(self) -> bool:
        """Tell whether it has said that it knows `onlyUp`; not before its first heartbeat."""
        return (getattr(self._connection, "capability", None) or 0) >= ONLY_UP_SINCE

    async def _ask(
        self,
        request: Any,
        body: bytes | memoryview = b"",
        *,
        code: int | None = None,
        fields: dict[str, str] | None = None,
        timeout_ms: int | None = None,
        good: Container[int] = (ResponseCode.SUCCESS,),
    ) -> Command:
        """Send a request and return the answer if its code is good."""
        command = Command.request(
            request.CODE if code is None else code,
            encode_fields(request) if fields is None else fields,
            body,
        )
        answer = await self._connection.request(command, timeout_ms or self._timeout_ms)
        if answer.code not in good:
            raise broker_error(answer.code, answer.remark, answer.fields)
        return answer

    def _tell(self, request: Any, body: bytes = b"") -> None:
        self._connection.notify(
            Command.request(request.CODE, encode_fields(request), body, oneway=True)
        )


class BrokerApi(_Api):
    """The requests that a broker answers; of ours alone: `client/api.py`, `client/api.py`."""

    __slots__ = ()

    ask = _Api._ask

    # Messages.

    async def send_message(
        self, request: SendMessage, body: bytes, *, timeout_ms: int | None = None
    ) -> SendReply:
        """Store a message, or a batch if the request says so; producers post theirs instead."""
        code = RequestCode.SEND_BATCH_MESSAGE if request.batch else RequestCode.SEND_MESSAGE_V2
        answer = await self._ask(
            request, body, code=code, fields=request.to_fields_v2(), timeout_ms=timeout_ms,
            good=STATUSES,
        )  # fmt: skip
        return decode_fields(SendReply, answer.fields)

    async def producer_hello(self, request: ProducerHello) -> ProducerHelloReply:
        """Bind a producer to this connection. CodeNotSupported: the broker is not ours."""
        return decode_fields(ProducerHelloReply, (await self._ask(request)).fields)

    async def producer_state(
        self, producer_id: str, queue: TopicQueue, *, timeout_ms: int | None = None
    ) -> ProducerStateReply:
        """Return how far a producer is on a queue."""
        request = ProducerState(producer_id, queue.topic, queue.index)
        answer = await self._ask(request, timeout_ms=timeout_ms)
        return decode_fields(ProducerStateReply, answer.fields)

    async def drop_producer(self, producer_id: str) -> int:
        """Forget a named producer; return on how many queues it was known."""
        answer = await self._ask(ProducerDrop(producer_id))
        return decode_fields(ProducerDropReply, answer.fields).queues

    async def named_producers(self, prefix: str = "") -> list[NamedProducer]:
        """Return the named producers whose names begin so, the first 10,000 of them."""
        return decode_named_producers((await self._ask(ProducerList(prefix))).body)[0]

    async def pull_message(self, request: PullMessage, *, timeout_ms: int | None = None) -> Pulled:
        """Ask for messages; nothing found and a moved offset are answers, not errors."""
        command = Command.request(request.CODE, encode_fields(request))
        answer = await self._connection.request(command, timeout_ms or self._timeout_ms)
        if answer.code not in PULL_REPLY_CODES:
            raise broker_error(answer.code, answer.remark, answer.fields)
        return Pulled(answer.code, decode_fields(PullReply, answer.fields), answer.body)

    async def send_back(self, request: SendBack, *, timeout_ms: int | None = None) -> None:
        """Give a message back that could not be handled."""
        await self._ask(request, timeout_ms=timeout_ms)

    async def view_message(self, position: int, topic: str | None = None) -> Record:
        """Return the record at a position of the log."""
        answer = await self._ask(pulls.ViewMessage(position, topic))
        return decode(answer.body)

    async def query_message(self, request: pulls.QueryMessage) -> list[Record]:
        """Return the records that the key index knows; NotFound if none. May hold strangers."""
        return decode_all((await self._ask(request)).body)

    # Offsets.

    async def query_offset(
        self, group: str, queue: TopicQueue, *, set_zero_if_not_found: bool | None = None
    ) -> int:
        """Return how far a group is; NotFound if it never said."""
        request = offsets.QueryConsumerOffset(
            group, queue.topic, queue.index, set_zero_if_not_found
        )
        return await self._offset(request)

    async def update_offset(
        self, group: str, queue: TopicQueue, offset: int, *, only_up: bool = False
    ) -> None:
        """Say how far a group is, and wait for the answer.

        With `only_up` a broker of ours ignores an offset below what it has.
        """
        up = True if only_up else None
        await self._ask(
            offsets.UpdateConsumerOffset(group, queue.topic, queue.index, offset, only_up=up)
        )

    def update_offset_oneway(self, group: str, queue: TopicQueue, offset: int) -> None:
        """Say how far a group is."""
        self._tell(offsets.UpdateConsumerOffset(group, queue.topic, queue.index, offset))

    async def max_offset(self, queue: TopicQueue) -> int:
        """Return the offset that the next message will get."""
        return await self._offset(offsets.GetMaxOffset(queue.topic, queue.index))

    async def min_offset(self, queue: TopicQueue) -> int:
        """Return the offset of the oldest message."""
        return await self._offset(offsets.GetMinOffset(queue.topic, queue.index))

    async def search_offset(
        self, queue: TopicQueue, timestamp_ms: int, *, upper: bool = False
    ) -> int:
        """Return the first offset stored at or after a time; `upper`, the last at or before."""
        boundary = "UPPER" if upper else None
        return await self._offset(
            offsets.SearchOffset(queue.topic, queue.index, timestamp_ms, boundary)
        )

    async def earliest_ms(self, queue: TopicQueue) -> int:
        """Return when the oldest message was stored; -1 if there is none."""
        answer = await self._ask(offsets.GetEarliest(queue.topic, queue.index))
        return decode_fields(offsets.TimestampReply, answer.fields).timestamp_ms

    async def _offset(self, request: Any) -> int:
        return decode_fields(offsets.OffsetReply, (await self._ask(request)).fields).offset

    # Clients and groups.

    async def heartbeat(self, heartbeat: ClientHeartbeat) -> groups.HeartbeatReply:
        """Say which groups we serve; return what the broker can do, and what it noticed.

        Raises SubscriptionsDiffer: some of the groups do not take us.
        """
        answer = await self._ask(groups.Heartbeat(), heartbeat.encode())
        return decode_fields(groups.HeartbeatReply, answer.fields)

    async def unregister_client(
        self,
        client_id: str,
        *,
        producer_group: str | None = None,
        consumer_group: str | None = None,
    ) -> None:
        """Leave a group."""
        await self._ask(groups.UnregisterClient(client_id, producer_group, consumer_group))

    async def consumer_ids(self, group: str) -> list[str]:
        """Return the client ids of a group; SystemError_ if nobody is there."""
        answer = await self._ask(groups.GetConsumerList(group))
        return decode_consumer_ids(answer.body)

    async def lock(
        self, client_id: str, group: str, queues: list[TopicQueue]
    ) -> tuple[TopicQueue, ...]:
        """Lock queues, or renew; return those that are ours now."""
        body = LockBatchBody(client_id, group, tuple(queues)).encode()
        answer = await self._ask(leases.LockBatch(), body)
        return LockedQueues.decode(answer.body).queues

    async def unlock(self, client_id: str, group: str, queues: list[TopicQueue]) -> None:
        """Give queues back."""
        body = LockBatchBody(client_id, group, tuple(queues)).encode()
        await self._ask(leases.UnlockBatch(), body)

    async def consumer_connections(self, group: str) -> ConsumerConnections:
        """Return who consumes for a group, and what; ConsumerNotOnline if nobody."""
        answer = await self._ask(offsets.GetConsumerConnections(group))
        return ConsumerConnections.decode(answer.body)

    async def producer_connections(self, group: str) -> list[ClientConnection]:
        """Return who sends for a producer group; SystemError_ if nobody."""
        answer = await self._ask(offsets.GetProducerConnections(group))
        return decode_producer_connections(answer.body)

    async def producers(self) -> dict[str, list[ClientConnection]]:
        """Return the clients of all producer groups."""
        return decode_producers((await self._ask(offsets.GetAllProducers())).body)

    async def consume_stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """Return how far a group is, on one topic or all that it has offsets of."""
        answer = await self._ask(offsets.GetConsumeStats(group, topic))
        return ConsumeStats.decode(answer.body)

    async def groups_of(self, topic: str) -> list[str]:
        """Return the groups that consume a topic."""
        answer = await self._ask(offsets.GetGroupsOfTopic(topic))
        return decode_group_list(answer.body)

    async def reset_offset(self, request: offsets.ResetOffset) -> dict[TopicQueue, int]:
        """Set the offsets of a group; return what they are now."""
        return decode_queue_offsets((await self._ask(request)).body)

    async def update_group(self, config: GroupConfig) -> None:
        """Create or change a group."""
        await self._ask(groups.UpdateGroup(), encode_group_config(config))

    async def groups(self) -> dict[str, GroupConfig]:
        """Return all groups of the broker."""
        answer = await self._ask(groups.GetAllGroupConfig())
        return GroupTable.decode(answer.body).groups

    async def delete_group(self, group: str, *, clean_offset: bool = False) -> None:
        """Forget a group."""
        await self._ask(groups.DeleteGroup(group, clean_offset))

    # Topics.

    async def create_topic(
        self, config: TopicConfig, *, default_topic: str = AUTO_CREATE_TOPIC
    ) -> None:
        """Create or change a topic."""
        attributes = ",".join(f"+{name}={value}" for name, value in config.attributes.items())
        await self._ask(
            admin.CreateTopic(
                config.name,
                default_topic,
                config.read_queues,
                config.write_queues,
                config.perm,
                config.filter_type,
                config.sys_flag,
                config.order,
                attributes or None,
            )
        )

    async def topics(self) -> dict[str, TopicConfig]:
        """Return all topics of the broker."""
        answer = await self._ask(admin.GetAllTopicConfig())
        return TopicTable.decode(answer.body).topics

    async def topic(self, name: str) -> TopicConfig:
        """Return one topic; TopicNotFound if the broker has none of that name."""
        return decode_topic_config((await self._ask(admin.GetTopicConfig(name, True))).body)

    async def topic_stats(self, topic: str) -> TopicStats:
        """Return what the queues of a topic hold."""
        return TopicStats.decode((await self._ask(offsets.GetTopicStats(topic))).body)

    async def system_topics(self) -> list[str]:
        """Return the broker's own topics."""
        return decode_topic_list((await self._ask(admin.GetSystemTopics())).body)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic on the broker."""
        await self._ask(admin.DeleteTopic(topic))

    # The broker itself.

    async def runtime_info(self) -> dict[str, str]:
        """Return numbers about the running broker."""
        return decode_kv_table((await self._ask(admin.GetBrokerRuntimeInfo())).body)

    async def settings(self) -> dict[str, str]:
        """Return the broker's settings under RocketMQ's names."""
        return decode_settings((await self._ask(admin.GetBrokerConfig())).body)

    async def update_settings(self, settings: dict[str, str]) -> None:
        """Change settings."""
        await self._ask(admin.UpdateBrokerConfig(), encode_settings(settings))


class NameServerApi(_Api):
    """The requests that a name server answers."""

    __slots__ = ()

    async def route(self, topic: str) -> TopicRoute:
        """Return who serves a topic; TopicNotFound if nobody."""
        return TopicRoute.decode((await self._ask(routes.GetRoute(topic, True))).body)

    async def cluster_info(self) -> ClusterInfo:
        """Return all brokers and clusters."""
        return ClusterInfo.decode((await self._ask(routes.GetClusterInfo())).body)

    async def topics(self) -> list[str]:
        """Return all topics."""
        return decode_topic_list((await self._ask(nameserver.GetAllTopics())).body)

    async def topics_by_cluster(self, cluster: str) -> list[str]:
        """Return the topics of a cluster."""
        answer = await self._ask(nameserver.GetTopicsByCluster(cluster))
        return decode_topic_list(answer.body)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Forget a topic."""
        await self._ask(nameserver.DeleteTopicInNameServer(topic, cluster))

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Keep a value."""
        await self._ask(nameserver.PutKv(namespace, key, value))

    async def get_kv(self, namespace: str, key: str) -> str | None:
        """Return a value; NotFound if there is none."""
        answer = await self._ask(nameserver.GetKv(namespace, key))
        return decode_fields(nameserver.GetKvReply, answer.fields).value

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Forget a value."""
        await self._ask(nameserver.DeleteKv(namespace, key))

    async def kv_list(self, namespace: str) -> dict[str, str]:
        """Return all values of a namespace; NotFound if there is none."""
        return decode_kv_table((await self._ask(nameserver.GetKvList(namespace))).body)

    async def wipe_write_perm(self, broker: str) -> int:
        """Take the write permission from all topics of a broker; return how many."""
        answer = await self._ask(routes.WipeWritePerm(broker))
        return decode_fields(routes.WipeWritePermReply, answer.fields).topics

    async def add_write_perm(self, broker: str) -> int:
        """Give all topics of a broker the write permission again; return how many."""
        answer = await self._ask(routes.AddWritePerm(broker))
        return decode_fields(routes.AddWritePermReply, answer.fields).topics


class LeaseApi:
    """Asks one broker."""

    __slots__ = ("_api",)

    def __init__(self, api: BrokerApi) -> None:
        self._api = api

    async def lease(
        self, request: lease_requests.Lease, body: LeaseBody, *, timeout_ms: int | None = None
    ) -> LeaseAnswer:
        """Take or renew queues under a lease."""
        answer = await self._api.ask(request, body.encode(), timeout_ms=timeout_ms)
        return LeaseAnswer.decode(answer.body)

    async def commit(
        self, request: lease_requests.Commit, body: CommitBody, *, timeout_ms: int | None = None
    ) -> CommitAnswer:
        """Commit queues under their epochs."""
        answer = await self._api.ask(request, body.encode(), timeout_ms=timeout_ms)
        return CommitAnswer.decode(answer.body)

    async def release(
        self, request: lease_requests.Release, *, timeout_ms: int | None = None
    ) -> None:
        """Commit a queue and give its lease back; LeaseLost if it is not ours any more."""
        await self._api.ask(request, timeout_ms=timeout_ms)

    async def list(self, group: str = "") -> list[HeldLease]:
        """Return who holds which queues of a group, or of all, in order."""
        found: list[HeldLease] = []
        after = ""
        while True:
            page = LeasePage.decode((await self._api.ask(lease_requests.Leases(group, after))).body)
            found += page.leases
            if not page.next or page.next == after:
                return found
            after = page.next

    async def free(self, group: str, topic: str, queue_id: int) -> str:
        """Take a queue from its owner; return the owner's client id, empty if there was none."""
        answer = await self._api.ask(lease_requests.LeaseFree(group, topic, queue_id))
        return decode_fields(lease_requests.LeaseFreeReply, answer.fields).holder


WRITE_TIMEOUT_MS: Final = 10_000
"""A request that is answered when it is on disk, and waits for others of its queue."""


class ParkingApi:
    """Asks one broker."""

    __slots__ = ("_api",)

    def __init__(self, api: BrokerApi) -> None:
        self._api = api

    async def park(
        self, request: parking_requests.Park, body: bodies.ParkBody
    ) -> bodies.ParkAnswer:
        """Set messages aside. Raises LeaseLost."""
        answer = await self._api.ask(request, body.encode(), timeout_ms=WRITE_TIMEOUT_MS)
        return bodies.ParkAnswer.decode(answer.body)

    async def keys(self, group: str, topic: str, queue_id: int) -> bodies.QueueParking:
        """Return what the owner of a queue has to know."""
        answer = await self._api.ask(
            parking_requests.ParkedKeys(group, topic, queue_id), timeout_ms=WRITE_TIMEOUT_MS
        )
        return bodies.QueueParking.decode(answer.body)

    async def entries(self, group: str = "") -> tuple[list[bodies.ParkedEntry], dict[str, str]]:
        """Return the parked keys of a group (default: of all), and who cannot park more."""
        found: list[bodies.ParkedEntry] = []
        full: dict[str, str] = {}
        after = ""
        while True:
            answer = await self._api.ask(parking_requests.ParkedList(group, after))
            page = bodies.ParkedPage.decode(answer.body)
            found += page.entries
            full |= page.full
            after = page.next
            if not after:
                return found, full

    async def read(self, request: parking_requests.ParkedRead) -> list[Record]:
        """Return the next messages of a parked key, as they lie in %PARK%group."""
        return (await self.read_counted(request))[0]

    async def read_counted(self, request: parking_requests.ParkedRead) -> tuple[list[Record], int]:
        """Return them, and how many there are of the key."""
        answer = await self._api.ask(request)
        reply = decode_fields(parking_requests.ParkedReadReply, answer.fields)
        return decode_all(answer.body), reply.messages

    async def redrive(
        self, group: str, keys: list[bodies.NamedKey], *, cancel: bool = False
    ) -> int:
        """Ask for a redrive, or take that back; return for how many of the keys."""
        return await self._keys(
            parking_requests.Redrive(group, cancel), keys, parking_requests.RedriveReply
        )

    async def redriven(
        self, request: parking_requests.Redriven, body: bodies.RedrivenBody
    ) -> parking_requests.RedrivenReply:
        """Say what became of messages. Raises LeaseLost."""
        answer = await self._api.ask(request, body.encode(), timeout_ms=WRITE_TIMEOUT_MS)
        return decode_fields(parking_requests.RedrivenReply, answer.fields)

    async def unpark(self, request: parking_requests.Unpark) -> parking_requests.UnparkReply:
        """Let a key go live. Raises LeaseLost."""
        answer = await self._api.ask(request, timeout_ms=WRITE_TIMEOUT_MS)
        return decode_fields(parking_requests.UnparkReply, answer.fields)

    async def drop(
        self, group: str, keys: list[bodies.NamedKey], *, reason: str, first: bool = False
    ) -> int:
        """Throw messages away; return how many that were."""
        request = parking_requests.ParkedDrop(group, reason, first)
        return await self._keys(request, keys, parking_requests.ParkedDropReply)

    async def _keys(
        self,
        request: parking_requests.Redrive | parking_requests.ParkedDrop,
        keys: list[bodies.NamedKey],
        reply: type[parking_requests.RedriveReply] | type[parking_requests.ParkedDropReply],
    ) -> int:
        count = 0
        for at in range(0, len(keys), bodies.ITEMS_MAX):
            body = bodies.KeyList(keys[at : at + bodies.ITEMS_MAX])
            answer = await self._api.ask(request, body.encode(), timeout_ms=WRITE_TIMEOUT_MS)
            found = decode_fields(reply, answer.fields)
            count += (
                found.keys if isinstance(found, parking_requests.RedriveReply) else found.messages
            )
        return count
