"""One typed method per request: values in, values out, a BrokerError for any other answer.

`BrokerApi` and `NameServerApi` ask one server over one connection; they know no routes and no
retries. Every request goes through `ask`; the class of the request names its reply
(`wire/replies.py`). Many methods take `timeout_ms`; without it the default of the object counts.

`LeaseApi` and `ParkingApi` hold the requests about leases and parked keys. Only inorder brokers
answer them; Apache RocketMQ's raise CodeNotSupported.
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
from inorder.wire.record import Record, decode_all
from inorder.wire.replies import Request, command_of, reply_of
from inorder.wire.requests import (
    groups,
    leases,
    nameserver,
    offsets,
    parking,
    pulls,
    routes,
    topics,
)
from inorder.wire.requests.connections import (
    ClientConnection,
    ConsumerConnections,
    SendBack,
)
from inorder.wire.requests.groups import (
    ClientConfigCheck,
    ClientHeartbeat,
    encode_group_config,
)
from inorder.wire.requests.leases import (
    CommitAnswer,
    CommitBody,
    HeldLease,
    LeaseAnswer,
    LeaseBody,
    LockBatchBody,
)
from inorder.wire.requests.nameserver import encode_settings
from inorder.wire.requests.offsets import ConsumeStats, TopicStats
from inorder.wire.requests.producers import (
    NamedProducer,
    ProducerDrop,
    ProducerHello,
    ProducerHelloReply,
    ProducerList,
    ProducerState,
    ProducerStateReply,
)
from inorder.wire.requests.pulls import PULL_REPLY_CODES, PullMessage, PullReply
from inorder.wire.requests.resizing import ResizeView
from inorder.wire.requests.routes import ClusterInfo, TopicRoute
from inorder.wire.requests.sends import SendMessage, SendReply
from inorder.wire.requests.timers import Recall, TimerMetrics
from inorder.wire.requests.transactions import (
    PendingTransaction,
    ResumeCheck,
    TransactionsPending,
)

R = TypeVar("R")

TIMEOUT_MS: Final = 3000
WRITE_TIMEOUT_MS: Final = 10_000
"""Time for a request whose answer waits for the disk and for other requests of its queue."""


class Caller(Protocol):
    """The part of a connection that requests need."""

    async def request(self, command: Command, timeout_ms: int) -> Command:
        """Send a request and return its answer."""
        ...

    def notify(self, command: Command) -> None:
        """Send a request that gets no answer."""
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


def _one_of(codes: Container[int], answer: Command) -> Command:
    """Return an answer that has one of the codes. Raises the BrokerError of any other code."""
    if answer.code not in codes:
        raise broker_error(answer.code, answer.remark, answer.fields)
    return answer


class _Api:
    """One server and its connection."""

    __slots__ = ("_connection", "_timeout_ms")

    def __init__(self, connection: Caller, *, timeout_ms: int = TIMEOUT_MS) -> None:
        self._connection = connection
        self._timeout_ms = timeout_ms

    @property
    def connection(self) -> Caller:
        """The connection to the server."""
        return self._connection

    @property
    def compares_offsets(self) -> bool:
        """Return whether the broker knows `onlyUp`; it says so in its answer to a heartbeat."""
        return (getattr(self._connection, "capability", None) or 0) >= ONLY_UP_SINCE

    async def ask(
        self,
        request: Request[R],
        body: bytes | memoryview = b"",
        *,
        timeout_ms: int | None = None,
    ) -> R:
        """Send a request and return its reply. Raises BrokerError for any code but SUCCESS."""
        return reply_of(request, await self._answer(command_of(request, body), timeout_ms))

    async def _answer(self, command: Command, timeout_ms: int | None) -> Command:
        return await self._connection.request(command, timeout_ms or self._timeout_ms)

    def _tell(self, request: Any, body: bytes = b"") -> None:
        self._connection.notify(
            Command.request(request.CODE, encode_fields(request), body, oneway=True)
        )


class BrokerApi(_Api):
    """The requests that a broker answers."""

    __slots__ = ()

    # Messages.

    async def send_message(
        self, request: SendMessage, body: bytes, *, timeout_ms: int | None = None
    ) -> SendReply:
        """Store a message, or a batch if the request says so. Producers do not use this."""
        code = RequestCode.SEND_BATCH_MESSAGE if request.batch else RequestCode.SEND_MESSAGE_V2
        command = Command.request(code, request.to_fields_v2(), body)
        answer = _one_of(STATUSES, await self._answer(command, timeout_ms))
        return decode_fields(SendReply, answer.fields)

    async def send_reply(
        self, request: SendMessage, body: bytes, *, timeout_ms: int | None = None
    ) -> None:
        """Send a reply to the client that asked for it. SystemError_ if it did not get it."""
        command = Command.request(RequestCode.SEND_REPLY_MESSAGE_V2, request.to_fields_v2(), body)
        _one_of(STATUSES, await self._answer(command, timeout_ms))

    async def recall(self, topic: str, handle: str, group: str) -> str:
        """Recall a message that waits for its time; return its id."""
        return (await self.ask(Recall(topic, handle, group))).msg_id

    async def timer_counts(self) -> dict[str, int]:
        """Return how many messages of each topic wait for their time."""
        return await self.ask(TimerMetrics())

    async def producer_hello(self, request: ProducerHello) -> ProducerHelloReply:
        """Bind a producer to this connection. CodeNotSupported: no inorder broker."""
        return await self.ask(request)

    async def producer_state(
        self, producer_id: str, queue: TopicQueue, *, since: int = -1, timeout_ms: int | None = None
    ) -> ProducerStateReply:
        """Return the last sequence number of a producer on a queue.

        With `since`, also where its messages from that number on lie.
        """
        request = ProducerState(producer_id, queue.topic, queue.index, since)
        return await self.ask(request, timeout_ms=timeout_ms)

    async def drop_producer(self, producer_id: str) -> int:
        """Forget a named producer; return how many queues knew it."""
        return (await self.ask(ProducerDrop(producer_id))).queues

    async def named_producers(self, prefix: str = "") -> list[NamedProducer]:
        """Return the named producers with this prefix, the first 10,000 of them."""
        return (await self.ask(ProducerList(prefix)))[0]

    async def pending_transactions(
        self, topic: str = "", *, count: int = 1000
    ) -> tuple[list[PendingTransaction], int]:
        """Return the oldest transactions without an outcome, and how many there are."""
        return await self.ask(TransactionsPending(topic, count))

    async def resume_transaction(self, message_id: str) -> None:
        """Let a broker ask again about a transaction that it has given up."""
        await self.ask(ResumeCheck(message_id))

    async def pull_message(self, request: PullMessage, *, timeout_ms: int | None = None) -> Pulled:
        """Ask for messages; nothing found and a moved offset are answers, not errors."""
        command = Command.request(request.CODE, encode_fields(request))
        answer = _one_of(PULL_REPLY_CODES, await self._answer(command, timeout_ms))
        return Pulled(answer.code, decode_fields(PullReply, answer.fields), answer.body)

    async def check_subscription(self, check: ClientConfigCheck) -> None:
        """Ask whether a subscription may be used.

        Raises:
            SubscriptionParseFailed: the broker cannot read its expression.
            SystemError_: the broker filters by tags only.
        """
        await self.ask(groups.CheckClientConfig(), check.encode())

    async def send_back(self, request: SendBack, *, timeout_ms: int | None = None) -> None:
        """Give back a message that the consumer could not handle."""
        await self.ask(request, timeout_ms=timeout_ms)

    async def view_message(self, position: int, topic: str | None = None) -> Record:
        """Return the record at a position of the log."""
        return await self.ask(pulls.ViewMessage(position, topic))

    async def query_message(self, request: pulls.QueryMessage) -> list[Record]:
        """Return the records of a key; NotFound if none. Keys with equal hashes come along."""
        return await self.ask(request)

    # Offsets.

    async def query_offset(
        self, group: str, queue: TopicQueue, *, set_zero_if_not_found: bool | None = None
    ) -> int:
        """Return the offset of a group; NotFound if it never committed one."""
        request = offsets.QueryConsumerOffset(
            group, queue.topic, queue.index, set_zero_if_not_found
        )
        return await self._offset(request)

    async def update_offset(
        self, group: str, queue: TopicQueue, offset: int, *, only_up: bool = False
    ) -> None:
        """Store the offset of a group, and wait for the answer.

        With `only_up` an inorder broker ignores an offset below the stored one.
        """
        up = True if only_up else None
        request = offsets.UpdateConsumerOffset(group, queue.topic, queue.index, offset, only_up=up)
        await self.ask(request)

    def update_offset_oneway(self, group: str, queue: TopicQueue, offset: int) -> None:
        """Store the offset of a group, without an answer."""
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
        return (await self.ask(offsets.GetEarliest(queue.topic, queue.index))).timestamp_ms

    async def _offset(self, request: Request[offsets.OffsetReply]) -> int:
        return (await self.ask(request)).offset

    # Clients and groups.

    async def heartbeat(self, heartbeat: ClientHeartbeat) -> groups.HeartbeatReply:
        """Name the client's groups; return the broker's capability and its warnings.

        Raises SubscriptionsDiffer if a group does not admit this client.
        """
        return await self.ask(groups.Heartbeat(), heartbeat.encode())

    async def unregister_client(
        self,
        client_id: str,
        *,
        producer_group: str | None = None,
        consumer_group: str | None = None,
    ) -> None:
        """Leave a group."""
        await self.ask(groups.UnregisterClient(client_id, producer_group, consumer_group))

    async def consumer_ids(self, group: str) -> list[str]:
        """Return the client ids of a group; SystemError_ if it has no members."""
        return await self.ask(groups.GetConsumerList(group))

    async def lock(
        self, client_id: str, group: str, queues: list[TopicQueue]
    ) -> tuple[TopicQueue, ...]:
        """Lock queues, or renew locks; return the queues that this client has locked."""
        body = LockBatchBody(client_id, group, tuple(queues)).encode()
        return (await self.ask(leases.LockBatch(), body)).queues

    async def unlock(self, client_id: str, group: str, queues: list[TopicQueue]) -> None:
        """Unlock queues."""
        body = LockBatchBody(client_id, group, tuple(queues)).encode()
        await self.ask(leases.UnlockBatch(), body=body)

    async def consumer_connections(self, group: str) -> ConsumerConnections:
        """Return the consumers of a group and their subscriptions; ConsumerNotOnline if none."""
        return await self.ask(offsets.GetConsumerConnections(group))

    async def producer_connections(self, group: str) -> list[ClientConnection]:
        """Return the clients of a producer group; SystemError_ if none."""
        return await self.ask(offsets.GetProducerConnections(group))

    async def producers(self) -> dict[str, list[ClientConnection]]:
        """Return the clients of all producer groups."""
        return await self.ask(offsets.GetAllProducers())

    async def consume_stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """Return the progress of a group on one topic, or on all topics with its offsets."""
        return await self.ask(offsets.GetConsumeStats(group, topic))

    async def groups_of(self, topic: str) -> list[str]:
        """Return the groups that consume a topic."""
        return await self.ask(offsets.GetGroupsOfTopic(topic))

    async def reset_offset(self, request: offsets.ResetOffset) -> dict[TopicQueue, int]:
        """Set the offsets of a group; return the new offsets."""
        return await self.ask(request)

    async def update_group(self, config: GroupConfig) -> None:
        """Create or change a group."""
        await self.ask(groups.UpdateGroup(), body=encode_group_config(config))

    async def groups(self) -> dict[str, GroupConfig]:
        """Return all groups of the broker."""
        return (await self.ask(groups.GetAllGroupConfig())).groups

    async def delete_group(self, group: str, *, clean_offset: bool = False) -> None:
        """Delete a group."""
        await self.ask(groups.DeleteGroup(group, clean_offset))

    # Topics.

    async def create_topic(
        self, config: TopicConfig, *, default_topic: str = AUTO_CREATE_TOPIC
    ) -> None:
        """Create or change a topic."""
        attributes = ",".join(f"+{name}={value}" for name, value in config.attributes.items())
        await self.ask(
            topics.CreateTopic(
                config.name,
                default_topic,
                config.read_queues,
                config.write_queues,
                config.perm,
                config.filter_type,
                config.sys_flag,
                config.order,
                attributes or None,
            ),
        )

    async def topics(self) -> dict[str, TopicConfig]:
        """Return all topics of the broker."""
        return (await self.ask(topics.GetAllTopicConfig())).topics

    async def topic(self, name: str) -> TopicConfig:
        """Return one topic; TopicNotFound if the broker has none of that name."""
        return await self.ask(topics.GetTopicConfig(name, True))

    async def topic_stats(self, topic: str) -> TopicStats:
        """Return the offsets and times of a topic's queues."""
        return await self.ask(offsets.GetTopicStats(topic))

    async def system_topics(self) -> list[str]:
        """Return the system topics of the broker."""
        return await self.ask(topics.GetSystemTopics())

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic on the broker."""
        await self.ask(topics.DeleteTopic(topic))

    async def resize(
        self, request: Request[ResizeView], *, timeout_ms: int | None = None
    ) -> ResizeView:
        """Send a request about a resize; return the broker's view of the topic."""
        return await self.ask(request, timeout_ms=timeout_ms)

    # The broker itself.

    async def runtime_info(self) -> dict[str, str]:
        """Return figures of the running broker."""
        return await self.ask(topics.GetBrokerRuntimeInfo())

    async def settings(self) -> dict[str, str]:
        """Return the broker's settings under RocketMQ's names."""
        return await self.ask(topics.GetBrokerConfig())

    async def update_settings(self, settings: dict[str, str]) -> None:
        """Change settings."""
        await self.ask(topics.UpdateBrokerConfig(), body=encode_settings(settings))


class NameServerApi(_Api):
    """The requests that a name server answers."""

    __slots__ = ()

    async def route(self, topic: str) -> TopicRoute:
        """Return the route of a topic; TopicNotFound if no broker serves it."""
        return await self.ask(routes.GetRoute(topic, True))

    async def cluster_info(self) -> ClusterInfo:
        """Return all brokers and clusters."""
        return await self.ask(routes.GetClusterInfo())

    async def topics(self) -> list[str]:
        """Return all topics."""
        return await self.ask(nameserver.GetAllTopics())

    async def topics_by_cluster(self, cluster: str) -> list[str]:
        """Return the topics of a cluster."""
        return await self.ask(nameserver.GetTopicsByCluster(cluster))

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete the route of a topic."""
        await self.ask(nameserver.DeleteTopicInNameServer(topic, cluster))

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Store a value."""
        await self.ask(nameserver.PutKv(namespace, key, value))

    async def get_kv(self, namespace: str, key: str) -> str | None:
        """Return a value; NotFound if there is none."""
        return (await self.ask(nameserver.GetKv(namespace, key))).value

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Delete a value."""
        await self.ask(nameserver.DeleteKv(namespace, key))

    async def kv_list(self, namespace: str) -> dict[str, str]:
        """Return all values of a namespace; NotFound if there is none."""
        return await self.ask(nameserver.GetKvList(namespace))

    async def wipe_write_perm(self, broker: str) -> int:
        """Remove the write permission of a broker's topics; return how many."""
        return (await self.ask(routes.WipeWritePerm(broker))).topics

    async def add_write_perm(self, broker: str) -> int:
        """Restore the write permission of a broker's topics; return how many."""
        return (await self.ask(routes.AddWritePerm(broker))).topics


class LeaseApi:
    """The requests about leases."""

    __slots__ = ("_api",)

    def __init__(self, api: BrokerApi) -> None:
        self._api = api

    async def lease(
        self, request: leases.Lease, body: LeaseBody, *, timeout_ms: int | None = None
    ) -> LeaseAnswer:
        """Take or renew queues under a lease."""
        return await self._api.ask(request, body.encode(), timeout_ms=timeout_ms)

    async def commit(
        self, request: leases.Commit, body: CommitBody, *, timeout_ms: int | None = None
    ) -> CommitAnswer:
        """Commit queues under their epochs."""
        return await self._api.ask(request, body.encode(), timeout_ms=timeout_ms)

    async def release(self, request: leases.Release, *, timeout_ms: int | None = None) -> None:
        """Commit a queue and release its lease; LeaseLost if another member owns it."""
        await self._api.ask(request, timeout_ms=timeout_ms)

    async def list(self, group: str = "") -> list[HeldLease]:
        """Return the leases of a group, or of all groups, in order."""
        found: list[HeldLease] = []
        after = ""
        while True:
            page = await self._api.ask(leases.Leases(group, after))
            found += page.leases
            if not page.next or page.next == after:
                return found
            after = page.next

    async def free(self, group: str, topic: str, queue_id: int) -> str:
        """Force the release of a queue; return the owner's client id, empty if there was none."""
        return (await self._api.ask(leases.LeaseFree(group, topic, queue_id))).holder


class ParkingApi:
    """The requests about parked keys."""

    __slots__ = ("_api",)

    def __init__(self, api: BrokerApi) -> None:
        self._api = api

    async def park(self, request: parking.Park, body: parking.ParkBody) -> parking.ParkAnswer:
        """Park messages. Raises LeaseLost."""
        return await self._api.ask(request, body.encode(), timeout_ms=WRITE_TIMEOUT_MS)

    async def keys(self, group: str, topic: str, queue_id: int) -> parking.QueueParking:
        """Return the parked keys of a queue, for its owner."""
        return await self._api.ask(
            parking.ParkedKeys(group, topic, queue_id),
            timeout_ms=WRITE_TIMEOUT_MS,
        )

    async def entries(self, group: str = "") -> tuple[list[parking.ParkedEntry], dict[str, str]]:
        """Return the parked keys of a group (default: all), and groups that cannot park more."""
        found: list[parking.ParkedEntry] = []
        full: dict[str, str] = {}
        after = ""
        while True:
            request = parking.ParkedList(group, after)
            page = await self._api.ask(request)
            found += page.entries
            full |= page.full
            after = page.next
            if not after:
                return found, full

    async def read(self, request: parking.ParkedRead) -> list[Record]:
        """Return the next messages of a parked key, as %PARK%group stores them."""
        return (await self.read_counted(request)).records

    async def read_counted(self, request: parking.ParkedRead) -> parking.ParkedRecords:
        """Return the next messages of a parked key, and how many messages the key has."""
        return await self._api.ask(request)

    async def redrive(
        self, group: str, keys: list[parking.NamedKey], *, cancel: bool = False
    ) -> int:
        """Order a redrive of keys, or cancel one; return how many keys it concerns."""
        request = parking.Redrive(group, cancel)
        return sum([one.keys for one in await self._for_keys(request, keys)])

    async def redriven(
        self, request: parking.Redriven, body: parking.RedrivenBody
    ) -> parking.RedrivenReply:
        """Report the outcome of redriven messages. Raises LeaseLost."""
        return await self._api.ask(request, body.encode(), timeout_ms=WRITE_TIMEOUT_MS)

    async def unpark(self, request: parking.Unpark) -> parking.UnparkReply:
        """Unpark a key: its next messages are live again. Raises LeaseLost."""
        return await self._api.ask(request, timeout_ms=WRITE_TIMEOUT_MS)

    async def drop(
        self, group: str, keys: list[parking.NamedKey], *, reason: str, first: bool = False
    ) -> int:
        """Drop the messages of keys; return how many messages."""
        request = parking.ParkedDrop(group, reason, first)
        return sum([one.messages for one in await self._for_keys(request, keys)])

    async def _for_keys(self, request: Request[R], keys: list[parking.NamedKey]) -> list[R]:
        """Send a request for many keys in parts; return the replies."""
        replies = []
        for at in range(0, len(keys), parking.ITEMS_MAX):
            body = parking.KeyList(keys[at : at + parking.ITEMS_MAX]).encode()
            replies.append(await self._api.ask(request, body, timeout_ms=WRITE_TIMEOUT_MS))
        return replies
