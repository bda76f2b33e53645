"""A client's view of a cluster: connections, routes, key maps, heartbeats.

The producers and consumers of a process share one session, with one connection per server. A
session asks all name servers of its list for routes and key maps, because each may know different
brokers, and merges their answers (`client/nameservers.py`, `client/rules/routes.py`,
`client/keymaps.py`).

A session keeps routes and asks for them again: every `route_refresh_ms`, when a caller finds a
route wrong, and soon when a route has lost a broker (`RouteWatch`). A known route stays when a name
server fails, or forgets the topic because its broker is away. A send then waits for its broker and
never goes to another one.

What a session does with different name servers: decision 44. Members that subscribe differently:
decision 42.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from inorder.accelerated import slower_parts
from inorder.client.api import BrokerApi, NameServerApi
from inorder.client.groups import Checks, GroupMember, Groups, SubscriptionWarnings
from inorder.client.identity import Identity, MessageIds, chosen_credentials
from inorder.client.keymaps import KeyMaps, Maker
from inorder.client.nameservers import NameServers
from inorder.client.replies import ReplyInbox
from inorder.client.rules import routes
from inorder.client.rules.nameservers import parse_name_servers
from inorder.client.rules.routes import ASK_AGAIN_MAX_MS, ASK_AGAIN_MS, Absences
from inorder.clock import Clock, SystemClock
from inorder.config import ClientConfig
from inorder.credentials import Credentials
from inorder.errors import (
    AccessDenied,
    AlreadyClosed,
    BrokerError,
    ConnectFailed,
    InorderError,
    NoWritableQueue,
    SubscriptionsDiffer,
    TopicNotFound,
    TopicNotRouted,
    TransportError,
)
from inorder.logs import get_logger
from inorder.model import MASTER_ID, TopicQueue
from inorder.net.connection import Connection, refuse_request
from inorder.net.pool import Pool
from inorder.ordering.keymap import NAMESPACE, KeyMap
from inorder.tasks import Backoff, Tasks, periodic
from inorder.wire.codes import RequestCode
from inorder.wire.extensions import ROUTE_TOPIC
from inorder.wire.header import Command
from inorder.wire.names import AUTO_CREATE_TOPIC, RESERVED_PREFIXES
from inorder.wire.requests.groups import ConsumerData
from inorder.wire.requests.routes import ClusterInfo, TopicRoute

log = get_logger(__name__)


class RouteWatch:
    """Refreshes the routes that have lost a broker, until the broker is back or has left."""

    def __init__(
        self,
        clock: Clock,
        tasks: Tasks,
        *,
        refresh: Callable[[str], Awaitable[None]],
        interval_ms: int,
    ) -> None:
        self._clock = clock
        self._tasks = tasks
        self._refresh = refresh
        self._first_ms = min(ASK_AGAIN_MS, interval_ms)
        self._max_ms = min(ASK_AGAIN_MAX_MS, interval_ms)
        self._absences = Absences()
        self._asking: dict[str, asyncio.Task[None]] = {}

    def note(self, topic: str, before: TopicRoute | None, after: TopicRoute) -> None:
        """Compare a new route with the one before; refresh it soon if it has lost a broker."""
        if self._absences.note(topic, before, after, self._clock.monotonic_ms()):
            asking = self._asking.get(topic)
            if asking is not None:
                asking.cancel()  # its pauses are long by now, for another broker
            self._asking[topic] = self._tasks.start(self._ask(topic), name=f"watch {topic}")

    def absent(self, topic: str) -> frozenset[str]:
        """Return the brokers that the route has lost and that may come back."""
        return self._absences.of(topic, self._clock.monotonic_ms())

    def forget(self, topic: str) -> None:
        """Forget a topic that was deleted."""
        self._absences.forget(topic)

    async def _ask(self, topic: str) -> None:
        backoff = Backoff(self._first_ms, self._max_ms)
        try:
            while self.absent(topic):
                await asyncio.sleep(backoff.next_ms() / 1000)
                if self.absent(topic):
                    await self._refresh(topic)
        finally:
            if self._asking.get(topic) is asyncio.current_task():
                del self._asking[topic]


T = TypeVar("T")
C = TypeVar("C", bound=Checks)
OnRequest = Callable[[Connection, Command], None]

ANSWER_KEPT_MS: Final = 120_000
"""How long the last answer of a silent name server counts: as long as it would keep a broker."""


SAY_DENIED_MS: Final = 60_000
"""How often a consumer logs the same refusal by access control."""
DENIED_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class SessionStatistics:
    """The topics and the connections of a session."""

    client_id: str
    name_server: str
    topics: tuple[str, ...]
    connected: tuple[str, ...]


class Session:
    """A client's view of a cluster, shared by its producers and consumers."""

    def __init__(
        self,
        namesrv: str,
        *,
        config: ClientConfig | None = None,
        clock: Clock | None = None,
        identity: Identity | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """Without `credentials` those of the environment count (`credentials.py`)."""
        self.credentials = chosen_credentials(credentials)
        self.config = config or ClientConfig()
        self.clock = clock or SystemClock()
        self.identity = identity or Identity.of_this_process()
        self.client_id = self.identity.client_id
        self.message_ids = MessageIds(self.identity, self.clock)  # one series for all producers
        self._pool = Pool(
            self.config.net,
            self.clock,
            on_request=self._on_request,
            on_lost=lambda connection, _: self._groups.lost(connection.address),
            on_denied=self._denied,
            tls=tls,
            credentials=self.credentials,
            greet=None if self.credentials is None else self._greet,
        )
        self._tasks = Tasks(f"session {self.client_id}")
        self._names = NameServers(
            parse_name_servers(namesrv), self._pool, self._tasks,
            timeout_ms=self.config.request_timeout_ms,
        )  # fmt: skip
        self._routes: dict[str, TopicRoute] = {}
        self._watch = RouteWatch(
            self.clock,
            self._tasks,
            refresh=self.try_refresh_route,
            interval_ms=self.config.route_refresh_ms,
        )
        self._heard: dict[str, dict[str, tuple[int, TopicRoute]]] = {}
        self._addresses: dict[str, str] = {}
        self._unreachable: set[str] = set()
        self.key_maps = KeyMaps(self.clock, self._broker_named)
        self.filters_taken: set[tuple[str, str]] = set()
        """The brokers that said that they filter by an expression."""
        self._logged: set[str] = set()
        self.denials = 0
        """How often access control refused a request of this client."""
        self._denied_ms: dict[str, int] = {}
        self._warnings = SubscriptionWarnings(self.clock)
        self._fetching: dict[str, asyncio.Task[TopicRoute]] = {}
        self._making: dict[str, asyncio.Task[bool]] = {}
        self._groups = Groups(self.client_id)
        self.replies = ReplyInbox(self.config.message_bytes_max)
        self._expects_replies = False
        self._handlers: dict[int, OnRequest] = {
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self.replies.pushed
        }
        self._introduced: dict[str, Connection] = {}
        self._introducing: dict[str, asyncio.Task[None]] = {}
        self._meets_all = False  # transactions of any broker may be asked about
        self._started = False
        self._closed = False

    async def start(self) -> None:
        """Begin to refresh routes and to send heartbeats, without connecting."""
        if self._closed:
            raise AlreadyClosed("this session was closed; make a new one")
        if self._started:
            return
        self._started = True
        if slower := slower_parts():
            log.info("slower than an install from a wheel, with the same results: %s", slower)
        for action, interval_ms, name in (
            (self._refresh_all, self.config.route_refresh_ms, "routes"),
            (self.heartbeat, self.config.heartbeat_interval_ms, "heartbeat"),
        ):
            work = periodic(action, interval_ms=interval_ms, clock=self.clock, name=name)
            self._tasks.start(work, name=name)

    async def close(self) -> None:
        """Leave all groups, close all connections, end all tasks; twice is fine."""
        if self._closed:
            return
        self._closed = True
        await self._tasks.stop()
        await self._unregister(sorted(self._groups.producers), sorted(self._groups.consumers))
        self.key_maps.cancel()
        for fetch in list(self._fetching.values()):
            fetch.cancel()
        await asyncio.gather(*self._fetching.values(), return_exceptions=True)
        await self._pool.close()

    async def __aenter__(self) -> Session:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Servers.

    async def broker_at(self, address: str) -> BrokerApi:
        """Return the requests to the broker at an address. Raises ConnectFailed."""
        try:
            connection = await self._pool.get(address)
        except ConnectFailed:
            self._unreachable.add(address)
            raise
        self._unreachable.discard(address)
        asked = self._groups.members or self._groups.checks or self._expects_replies
        if asked and self._introduced.get(address) is not connection:
            self._introduced[address] = connection
            introduce = self._introduce(address)
            task = self._tasks.start(introduce, name=f"introduce {address}")
            self._introducing[address] = task
        return BrokerApi(connection, timeout_ms=self.config.request_timeout_ms)

    async def master_of(self, queue: TopicQueue) -> BrokerApi:
        """Return the requests to the broker that takes writes for a queue."""
        route = await self.route_for_send(queue.topic)
        address = self._master_in(route, queue.broker) or await self._find_broker(queue.broker)
        if address is None:
            raise NoWritableQueue(
                f"no name server of {self._names} knows a master of broker {queue.broker} of topic "
                f"{queue.topic}; start it, or give all name servers to it"
            )
        return await self.broker_at(address)

    def _master_in(self, route: TopicRoute | None, broker: str) -> str | None:
        """Return the address of a broker's master, by this route or by any other."""
        address = None if route is None else routes.master_address(route, broker)
        return address or self._addresses.get(broker)

    async def _find_broker(self, broker: str) -> str | None:
        """Ask the name servers for a broker that no route has named."""
        with contextlib.suppress(InorderError):  # the caller says what is missing
            await self._find_all()
        return self._addresses.get(broker)

    def address_of(self, broker: str) -> str | None:
        """Return the address of a broker's master, if any route has named it."""
        return self._addresses.get(broker)

    async def _broker_named(self, topic: str, broker: str) -> BrokerApi:
        return await self.master_of(TopicQueue(topic, broker, 0))

    async def master_connection(self, queue: TopicQueue) -> Connection:
        """Return the connection to the broker that takes writes for a queue."""
        api = await self.master_of(queue)
        assert isinstance(api.connection, Connection)
        return api.connection

    async def capability(self, queue: TopicQueue) -> int:
        """Return the capability of a queue's broker beyond RocketMQ, 0: none.

        The broker names it in its answer to the first heartbeat on a connection; this waits for
        that answer. Raises InorderError if the broker does not answer.
        """
        connection = await self.master_connection(queue)
        if connection.capability is None:
            introducing = self._introducing.get(connection.address)
            if introducing is not None:
                await asyncio.wait((introducing,))
            if connection.capability is None:
                await self._beat(connection)
        assert connection.capability is not None
        return connection.capability

    async def reader_of(self, queue: TopicQueue, suggested_id: int = 0) -> BrokerApi:
        """Return the requests to a broker that holds a queue."""
        route = await self.route(queue.topic)
        address = routes.read_address(route, queue.broker, suggested_id)
        address = address or self._addresses.get(queue.broker)
        if address is None:
            raise TopicNotRouted(f"no broker {queue.broker} serves topic {queue.topic}")
        return await self.broker_at(address)

    def master_address(self, queue: TopicQueue) -> str | None:
        """Return the address of the master of a queue's broker, if it is known."""
        return self._master_in(self._routes.get(queue.topic), queue.broker)

    def drop_connection(self, queue: TopicQueue, reason: str) -> None:
        """Close the connection to a queue's broker, which does not answer."""
        address = self.master_address(queue)
        if address is not None:
            self._pool.drop(address, reason)

    async def ask_name_server(self, call: Callable[[NameServerApi], Awaitable[T]]) -> T:
        """Ask the name server that answered last; if it fails, the others in turn."""
        return await self._names.ask(call)

    async def ask_name_servers(self, call: Callable[[NameServerApi], Awaitable[T]]) -> list[T]:
        """Ask all name servers at once; return the answers. Raises if none answers."""
        answers = await self._names.ask_all(call)
        found = [one for one in answers.values() if not isinstance(one, InorderError)]
        if not found:
            raise next(one for one in answers.values() if isinstance(one, InorderError))
        return found

    async def cluster_info(self) -> ClusterInfo:
        """Return the brokers that any name server knows."""
        return routes.merged_cluster(await self.ask_name_servers(lambda api: api.cluster_info()))

    async def tell_name_servers(self, call: Callable[[NameServerApi], Awaitable[None]]) -> None:
        """Tell every name server. Raises the first failure, after all were told."""
        await self._names.tell(call)

    # Routes.

    def forget_route(self, topic: str) -> None:
        """Forget the route and the key map of a topic."""
        self._routes.pop(topic, None)
        self._watch.forget(topic)
        self._heard.pop(topic, None)
        self.key_maps.forget(topic)

    def key_map(self, topic: str) -> KeyMap | None:
        """Return the key map of a topic; None if it has none."""
        return self.key_maps.get(topic)

    def take_key_map(self, topic: str, key_map: KeyMap) -> None:
        """Use a key map, unless a newer one is known."""
        self.key_maps.take(topic, key_map)

    async def route(self, topic: str) -> TopicRoute:
        """Return the route of a topic. Raises TopicNotRouted, TransportError."""
        known = self._routes.get(topic)
        return known if known is not None else await self.refresh_route(topic)

    def known_route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic, if it is known already."""
        return self._routes.get(topic)

    def absent_brokers(self, topic: str) -> frozenset[str]:
        """Return the brokers that a topic's route lost a short while ago."""
        return self._watch.absent(topic)

    async def route_for_send(self, topic: str) -> TopicRoute:
        """Return the route of a topic, or of the template from which a send makes the topic."""
        try:
            return await self.route(topic)
        except TopicNotRouted as error:
            try:
                template = await self.route(AUTO_CREATE_TOPIC)
            except TopicNotRouted:
                raise TopicNotRouted(
                    f"no name server of {self._names} knows topic {topic}, nor "
                    f"{AUTO_CREATE_TOPIC} of which brokers make topics; create it, or start its "
                    "broker"
                ) from error
            return routes.template_route(template, self.config.default_topic_queues)

    async def make_topic(self, topic: str) -> bool:
        """Make a topic that no name server knows, with a key map; concurrent calls share the work.

        This also finishes a topic that another client began to make. False if a send must make the
        topic from the template, because one of its brokers is RocketMQ's, or older. Raises
        InorderError.
        """
        making = self._making.get(topic)
        if making is None:
            making = self._tasks.start(self._make_topic(topic), name=f"make {topic}")
            self._making[topic] = making
            making.add_done_callback(lambda _: self._making.pop(topic, None))
        made: bool = await asyncio.shield(making)
        return made

    async def finish_topic(self, topic: str) -> None:
        """Finish a topic whose map is open at some of its brokers; log a failure."""
        key_map = self.key_map(topic)
        if key_map is None:
            return

        async def addresses() -> dict[str, str]:
            await self._find_broker("")
            return dict(self._addresses)

        maker = Maker(self, topic, addresses)
        brokers = {broker for broker, _ in key_map.queues}
        try:
            wait_ms = self.config.request_timeout_ms
            await maker.make(brokers, lambda _: key_map.queues, timeout_ms=wait_ms)
        except InorderError as error:
            log.info("topic=%s is not made everywhere yet: %s", topic, error)

    async def _make_topic(self, topic: str) -> bool:
        if topic.startswith(RESERVED_PREFIXES):
            return False
        try:
            template = await self.refresh_route(AUTO_CREATE_TOPIC)
        except TopicNotRouted:
            return False
        masters = routes.broker_masters(template)
        cut = routes.template_route(template, self.config.default_topic_queues)
        places = tuple(
            (one.broker_name, index)
            for one in cut.queues if one.broker_name in masters
            for index in range(one.write_queues)
        )  # fmt: skip
        brokers = {broker for broker, _ in places}

        async def addresses() -> dict[str, str]:
            return masters

        maker = Maker(self, topic, addresses, auto=True)
        wait_ms = self.config.request_timeout_ms
        if not brokers:
            return False
        try:
            if await maker.make(brokers, lambda _: places, timeout_ms=wait_ms) is None:
                return False
        except TopicNotRouted:
            if self.known_route(topic) is None:
                raise
            return False  # it has a route, without a queue to write to
        await self.refresh_route(topic)
        return True

    async def refresh_route(self, topic: str) -> TopicRoute:
        """Ask the name servers for a route; concurrent calls share one request."""
        fetch = self._fetching.get(topic)
        if fetch is None:
            loop = asyncio.get_running_loop()
            fetch = loop.create_task(self._fetch(topic), name=f"route {topic}")
            self._fetching[topic] = fetch
            fetch.add_done_callback(lambda done: self._fetched(topic, done))
        return await asyncio.shield(fetch)

    async def _fetch(self, topic: str) -> TopicRoute:
        answers = await self._names.ask_all(lambda api: _route_and_map(api, topic))
        heard = self._hear(topic, answers)
        texts = [one[1] for one in answers.values() if not isinstance(one, InorderError)]
        if not texts:
            raise next(one for one in reversed(answers.values()) if isinstance(one, InorderError))
        if not heard:
            known = self._routes.get(topic)
            if known is not None:
                return known
            raise TopicNotRouted(
                f"no name server of {self._names} knows topic {topic}; create it, or start its "
                "broker"
            )
        before = self._routes.get(topic)
        route = self._routes[topic] = routes.merged(heard, self._unreachable)
        if topic != AUTO_CREATE_TOPIC:
            await self.key_maps.heard(topic, texts)
        if before != route:
            if not self._closed:
                self._watch.note(topic, before, route)
            self._groups.route_changed(topic)
        return route

    def _hear(
        self, topic: str, answers: dict[str, tuple[TopicRoute | None, str] | InorderError]
    ) -> list[TopicRoute]:
        """Note the answers of name servers; return the routes that count, the best first."""
        now_ms, heard = self.clock.monotonic_ms(), self._heard.setdefault(topic, {})
        for address, answer in answers.items():
            if isinstance(answer, TransportError):
                log.info("name server failed address=%s error=%s", address, answer)
            elif isinstance(answer, InorderError) or answer[0] is None:
                heard.pop(address, None)
            else:
                heard[address] = (now_ms, answer[0])
                for broker, master in routes.broker_masters(answer[0]).items():
                    self._addresses[broker] = master
        if not heard:
            del self._heard[topic]
        order = sorted(heard, key=lambda one: (one not in answers, one != self._names.current))
        return [heard[one][1] for one in order if now_ms - heard[one][0] <= ANSWER_KEPT_MS]

    def say_once(self, what: str, text: str, *args: object) -> None:
        """Log a warning once."""
        if what not in self._logged:
            self._logged.add(what)
            log.warning(text, *args)

    def _denied(self, connection: Connection, remark: str) -> None:
        """Log a refusal by access control for a consumer, which goes on asking; others raise it."""
        self.denials += 1
        said, now_ms = f"{connection.address} {remark}", self.clock.monotonic_ms()
        last_ms = self._denied_ms.get(said)
        if not self._groups.consumers or (last_ms is not None and now_ms - last_ms < SAY_DENIED_MS):
            return
        if len(self._denied_ms) >= DENIED_MAX:
            self._denied_ms.clear()
        self._denied_ms[said] = now_ms
        groups = ",".join(sorted(self._groups.consumers))
        log.warning("access denied groups=%s server=%s: %s", groups, connection.address, remark)

    def _fetched(self, topic: str, fetch: asyncio.Task[TopicRoute]) -> None:
        self._fetching.pop(topic, None)
        if not fetch.cancelled():
            fetch.exception()  # read here, in case all callers have gone

    async def try_refresh_route(self, topic: str) -> None:
        """Refresh a route; log a failure."""
        try:
            await self.refresh_route(topic)
        except InorderError as error:
            log.info("route not refreshed topic=%s error=%s", topic, error)

    async def _refresh_all(self) -> None:
        for topic in list(self._routes):
            await self.try_refresh_route(topic)

    # Groups.

    def add_producer(self, group: str) -> None:
        """Count a producer of a group; the next heartbeat names it."""
        self._groups.add_producer(group)

    def expect_replies(self) -> None:
        """Let connected brokers know the producers of this client now, before a request is sent.

        Other brokers will learn of them over new connections at once, and not with the next
        heartbeat: only a broker that knows this client can push it a reply.
        """
        self._expects_replies = True
        body = self._groups.heartbeat().encode()
        for address in set(self._addresses.values()):
            connection = self._pool.peek(address)
            if connection is not None:
                connection.notify(Command.request(RequestCode.HEART_BEAT, {}, body, oneway=True))

    def remove_producer(self, group: str) -> None:
        """Count one producer less."""
        self._groups.remove_producer(group)

    def answer_checks(self, group: str, make: Callable[[], C], *, everywhere: bool) -> C:
        """Answer the questions of brokers about a producer group's transactions.

        Returns what answers for the group; its producers share it. `everywhere`: also questions of
        brokers that this client sends nothing to.
        """
        if group in self._groups.checks:
            answering = cast("C", self._groups.checks[group])
        else:
            answering = make()
            self._groups.checks[group] = answering
        if everywhere and not self._meets_all:
            self._meets_all = True
            self._tasks.start(self._meet(), name="brokers that may ask")
        for address in self._broker_addresses():
            connection = self._pool.peek(address)
            if connection is not None:
                self._tasks.start(self._heartbeat(address), name=f"introduce {address}")
        return answering

    def stop_checks(self, group: str) -> None:
        """Answer no more questions about a group."""
        self._groups.checks.pop(group, None)

    async def _meet(self) -> None:
        """Send a heartbeat to all brokers of the cluster, as soon as a name server answers."""
        backoff = Backoff(ASK_AGAIN_MS, ASK_AGAIN_MAX_MS)
        while True:
            try:
                await self._find_all()
                break
            except InorderError as error:
                log.info("brokers are not known yet: %s", error)
                await asyncio.sleep(backoff.next_ms() / 1000)
        await self.heartbeat()

    async def _find_all(self) -> None:
        for data in (await self.cluster_info()).brokers.values():
            if MASTER_ID in data.addresses:
                self._addresses[data.name] = data.addresses[MASTER_ID]

    def set_consumer(self, data: ConsumerData) -> None:
        """Set the subscriptions of a consumer group."""
        self._groups.consumers[data.group] = data

    def remove_consumer(self, group: str) -> None:
        """Forget a consumer group."""
        self._groups.consumers.pop(group, None)

    def join(self, data: ConsumerData, member: GroupMember) -> None:
        """Add a consumer to its group. Raises UsageError if this client has one in the group."""
        self._groups.join(data, member)

    async def leave(self, group: str, *, unregister: bool = True) -> None:
        """Remove the member of a group; with `unregister` tell brokers at once."""
        self._groups.leave(group)
        if unregister:
            await self._unregister([], [group])

    def on_request(self, code: int, handler: OnRequest) -> None:
        """Register a handler for the servers' requests with a code."""
        self._handlers[code] = handler

    async def heartbeat(self) -> None:
        """Send a heartbeat to every known broker."""
        if self._groups:
            if self._meets_all:
                with contextlib.suppress(InorderError):  # the known ones, then
                    await self._find_all()
            await asyncio.gather(*map(self._heartbeat, self._broker_addresses()))

    async def _heartbeat(self, address: str) -> None:
        try:
            api = await self.broker_at(address)
            assert isinstance(api.connection, Connection)
            await self._beat(api.connection)
        except InorderError as error:
            log.info("heartbeat failed broker=%s error=%s", address, error)

    async def _beat(self, connection: Connection) -> None:
        api = BrokerApi(connection, timeout_ms=self.config.request_timeout_ms)
        try:
            reply = await api.heartbeat(self._groups.heartbeat())
        except SubscriptionsDiffer as error:
            connection.capability = error.capability
            self._warnings.refused(connection.address, error)
        else:
            connection.capability = reply.capability
            self._warnings.taken(connection.address, reply.differing)

    async def _greet(self, connection: Connection) -> None:
        """Ask a server for the session of a new connection, which further requests are signed with.

        RocketMQ's servers give none. A user may be set to send no request without one.
        """
        with contextlib.suppress(BrokerError):  # the next request will tell its caller
            if connection.address in self._names.addresses:
                timeout_ms = self.config.request_timeout_ms
                await NameServerApi(connection, timeout_ms=timeout_ms).route(AUTO_CREATE_TOPIC)
            else:
                await self._beat(connection)

    def refusal(self, group: str) -> SubscriptionsDiffer | None:
        """Return why a broker does not admit this client to a group, if one does not."""
        return self._warnings.refusal(group)

    async def _introduce(self, address: str) -> None:
        """Send a heartbeat over a new connection at once: to the broker, this is a new client."""
        try:
            await self._heartbeat(address)
        finally:
            if self._introducing.get(address) is asyncio.current_task():
                del self._introducing[address]
        self._groups.connected(address)

    async def _unregister(self, producers: Iterable[str], consumers: Iterable[str]) -> None:
        for address in self._broker_addresses():
            connection = self._pool.peek(address)
            if connection is None:
                continue
            api = BrokerApi(connection, timeout_ms=self.config.request_timeout_ms)
            try:
                for group in producers:
                    await api.unregister_client(self.client_id, producer_group=group)
                for group in consumers:
                    await api.unregister_client(self.client_id, consumer_group=group)
            except InorderError as error:
                log.info("unregister failed broker=%s error=%s", address, error)

    def _broker_addresses(self) -> list[str]:
        known = self._routes.values()
        found = {address for route in known for address in routes.broker_addresses(route)}
        if self._meets_all:
            found.update(self._addresses.values())
        return sorted(found)

    def _on_request(self, connection: Connection, command: Command) -> None:
        topic = command.fields.get(ROUTE_TOPIC)
        told = command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED and not self._closed
        if told and topic is not None and topic in self._routes:
            self._tasks.start(self.try_refresh_route(topic), name=f"route {topic}")
        if not self._groups.request_received(connection, command):
            self._handlers.get(command.code, refuse_request)(connection, command)

    def statistics(self) -> SessionStatistics:
        """Return a snapshot of the counters."""
        return SessionStatistics(
            client_id=self.client_id,
            name_server=self._names.current,
            topics=tuple(sorted(self._routes)),
            connected=self._pool.statistics().connected,
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else "started" if self._started else "new"
        return f"Session({self.client_id}, {self._names}, {state})"


async def _route_and_map(api: NameServerApi, topic: str) -> tuple[TopicRoute | None, str]:
    """Ask a name server for a route and a key map; RocketMQ's has no key maps."""
    route: TopicRoute | None = None
    with contextlib.suppress(TopicNotFound):
        route = await api.route(topic)
    text = ""
    if topic != AUTO_CREATE_TOPIC:
        try:
            text = await api.get_kv(NAMESPACE, topic) or ""
        except AccessDenied:
            raise
        except BrokerError:
            pass  # it knows no map
    return route, text
