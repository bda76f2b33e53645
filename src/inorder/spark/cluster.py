"""The cluster as a Spark process sees it, by blocking calls: routes, offsets, key maps, messages.

Spark forks, reuses and kills workers, so a connection is kept per process and address and belongs
to the process that made it. `Cluster.read` pulls a range of a queue; the next pull is on its way
while the last reply is decoded. An inorder broker puts thousands of messages into one reply. A
RocketMQ broker puts 32 into one, so several pulls are then outstanding.

`Servers` holds the name servers, `Tls` the TLS files, `Login` who signs. The names of the options
are those of the commands and profiles: `tls`, `tls_ca`, `tls_cert`, `tls_key`, `tls_insecure`,
`credentials_file`. Options are shown in plans and logs, so they name files and do not hold them:
driver and executors have the files at the same path. How TLS works without configuration: decision
8.
"""

from __future__ import annotations

import os
import re
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from inorder.client.identity import local_ip
from inorder.client.nameservers import name_servers
from inorder.client.rules import keymaps
from inorder.client.rules.nameservers import no_name_server, parse_name_servers
from inorder.client.rules.routes import (
    master_address,
    merged,
    merged_cluster,
    read_address,
    subscribe_queues,
)
from inorder.credentials import FILE, Credentials
from inorder.errors import (
    AccessDenied,
    BrokerError,
    CodeNotSupported,
    ConfigError,
    InorderError,
    KeyMapConflict,
    NotFound,
    TopicNotFound,
    TopicNotRouted,
    TransportError,
    broker_error,
)
from inorder.model import MASTER_ID, TopicQueue
from inorder.net.blocking import BlockingConnection
from inorder.net.tls import client_context
from inorder.ordering.keymap import NAMESPACE, KeyMap
from inorder.spark.source.rules import Places
from inorder.wire.codes import ResponseCode
from inorder.wire.fields import decode_fields, encode_fields
from inorder.wire.header import Command
from inorder.wire.names import AUTO_CREATE_TOPIC, FIXED_SYSTEM_TOPICS, RESERVED_PREFIXES
from inorder.wire.replies import Request, command_of, reply_of
from inorder.wire.requests.groups import (
    CheckClientConfig,
    ClientConfigCheck,
    ClientHeartbeat,
    Heartbeat,
)
from inorder.wire.requests.nameserver import GetAllTopics, GetKv
from inorder.wire.requests.offsets import (
    GetMaxOffset,
    GetMinOffset,
    OffsetReply,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)
from inorder.wire.requests.pulls import (
    PULL_REPLY_CODES,
    PULL_SUBSCRIPTION,
    SQL92,
    TAG,
    PullMessage,
    PullReply,
    parse_subscription,
)
from inorder.wire.requests.resizing import ResizeStatus, ResizeView
from inorder.wire.requests.routes import ClusterInfo, GetClusterInfo, GetRoute, TopicRoute

NAMES: Final = ("tls", "tls_ca", "tls_cert", "tls_key", "tls_insecure", "credentials_file")
_KNOWN: Final = {name.replace("_", ""): name for name in NAMES}
_WORDS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS files in PEM form: who signs the servers' certificates, and the client's own certificate.

    Without `ca` the authorities of the system count; `insecure` trusts any certificate.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    insecure: bool = False

    def __post_init__(self) -> None:
        if self.key and not self.cert:
            raise ConfigError("tls_key is of no use without tls_cert; give both")

    def options(self) -> dict[str, str]:
        """Return the options of source and sink that mean this."""
        given = {"tls_ca": self.ca, "tls_cert": self.cert, "tls_key": self.key}
        found = {name: value for name, value in given.items() if value}
        return {"tls": "true", **found, **({"tls_insecure": "true"} if self.insecure else {})}

    def context(self) -> ssl.SSLContext:
        """Return the context of this process. Raises ConfigError for a bad file."""
        return _context(self)


@lru_cache(maxsize=16)
def _context(tls: Tls) -> ssl.SSLContext:
    files = [path for path in (tls.ca, tls.cert, tls.key) if path]
    for path in files:
        if not Path(path).is_file():
            raise ConfigError(
                f"there is no file {path} here; tls_ca, tls_cert and tls_key are PEM files that "
                "the driver and all executors have at the same place"
            )
    try:
        return client_context(
            authorities=tls.ca or None, trust_any=tls.insecure, certificate=tls.cert, key=tls.key
        )
    except (OSError, ssl.SSLError) as error:
        named = ", ".join(files)
        raise ConfigError(f"TLS with {named}: {error}; are they PEM, and a pair?") from None


@dataclass(frozen=True, slots=True)
class Login:
    """Where each process finds who signs: a file, or its environment; it holds no secret."""

    file: str = ""
    user: str = ""
    """The access key that the driver found in its environment; executors must find the same."""

    @classmethod
    def of(cls, file: str | None) -> Login:
        """Return the file given, else what the environment of this process says."""
        if file:
            return cls(file)
        if os.environ.get(FILE):
            return cls(os.environ[FILE])
        found = Credentials.from_environment(os.environ)
        return cls("", "" if found is None else found.access_key)

    def options(self) -> dict[str, str]:
        """Return the options of source and sink that mean this."""
        return {"credentials_file": self.file} if self.file else {}

    def credentials(self) -> Credentials | None:
        """Return who signs in this process; None: nobody. Raises ConfigError."""
        if self.file:
            return Credentials.from_file(self.file)
        if not self.user:
            return None
        found = Credentials.from_environment(os.environ)
        if found is None or found.access_key != self.user:
            raise ConfigError(
                f"the driver signs as {self.user}, but the environment of this executor does not "
                "say so; give credentials_file, the path of a file that all processes can read"
            )
        return found


NOBODY: Final = Login()


@dataclass(frozen=True, slots=True)
class Servers:
    """The name servers of a cluster, its TLS settings, and who signs."""

    namesrv: str
    tls: Tls | None = None
    login: Login = NOBODY

    @classmethod
    def of(
        cls, namesrv: str | None, tls: Tls | None = None, credentials_file: str | None = None
    ) -> Servers:
        """Return the servers given, else those that the environment of this process names."""
        return cls(chosen_servers(namesrv), tls, Login.of(credentials_file))

    def credentials(self) -> Credentials | None:
        """Return who signs in this process; None: nobody."""
        return self.login.credentials()

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context; None: no TLS."""
        return None if self.tls is None else self.tls.context()

    def connect(self, address: str) -> BlockingConnection:
        """Return a new connection of this process. Raises ConnectFailed, ConfigError."""
        credentials = self.credentials()
        found = BlockingConnection(address, tls=self.context(), credentials=credentials)
        if credentials is not None:
            # The answer gives the session of the connection; RocketMQ's servers give none.
            try:
                if address in parse_name_servers(self.namesrv):
                    found.ask(GetRoute(AUTO_CREATE_TOPIC))
                else:
                    beat = ClientHeartbeat(f"spark@{local_ip()}@{os.getpid()}")
                    found.ask(Heartbeat(), beat.encode())
            except BrokerError:
                pass  # the next request will tell
            except BaseException:
                found.close()
                raise
        return found

    def options(self) -> dict[str, str]:
        """Return the options of source and sink that mean this."""
        tls = {} if self.tls is None else self.tls.options()
        return {"namesrv": self.namesrv, **tls, **self.login.options()}


def chosen_servers(namesrv: str | None) -> str:
    """Return `host:9876;host2:9876` as given or from the environment. Raises ConfigError.

    Executors have another environment, so this is called where the options are read.
    """
    return ";".join(name_servers(namesrv or None))


def common_name(option: str) -> str | None:
    """Return the name in NAMES of an option in any spelling (`tlsCa`, `tls-ca`), or None."""
    return _KNOWN.get(re.sub("[_.-]", "", option.lower()))


def read_tls(given: Mapping[str, str]) -> Tls | None:
    """Read the TLS options; naming a file turns TLS on. Raises ConfigError."""
    insecure = _flag(given, "tls_insecure") or False
    tls = Tls(
        given.get("tls_ca", ""), given.get("tls_cert", ""), given.get("tls_key", ""), insecure
    )
    wanted = _flag(given, "tls")
    return tls if wanted or (wanted is None and tls != Tls()) else None


def _flag(given: Mapping[str, str], name: str) -> bool | None:
    text = given.get(name)
    if text is None:
        return None
    if text.strip().lower() not in _WORDS:
        raise ConfigError(f"{name}: {text[:80]!r} is neither true nor false")
    return _WORDS[text.strip().lower()]


T = TypeVar("T")
R = TypeVar("R")

BULK_BYTES: Final = 4 * 1024 * 1024
BULK_MESSAGES: Final = 16_384
STOCK_MESSAGES: Final = 32
AHEAD: Final = 8
ATTEMPTS: Final = 5
PAUSE_S: Final = 0.2

_connections: dict[tuple[int, str, Tls | None, Login], BlockingConnection] = {}


class Pulled(NamedTuple):
    """The reply to one pull: undecoded records, and the next offset."""

    code: int
    data: bytes
    next_offset: int
    min_offset: int


class Cluster:
    """A cluster as seen from one process. Cheap to make, safe to pickle."""

    def __init__(self, servers: Servers | str, *, group: str) -> None:
        self.servers = Servers(servers) if isinstance(servers, str) else servers
        self.group = group
        self._routes: dict[str, TopicRoute] = {}
        self._mapless: set[str] = set()
        self._filters_taken: set[tuple[str, str]] = set()

    def __getstate__(self) -> dict[str, Any]:
        kept = {"servers": self.servers, "group": self.group}
        return {**kept, "_routes": {}, "_mapless": set(), "_filters_taken": set()}

    def queues(self, topic: str) -> list[TopicQueue]:
        """Return the queues of a topic, as the name server knows them now."""
        self._routes.pop(topic, None)
        return subscribe_queues(self._route(topic), topic)

    def route(self, topic: str, *, anew: bool = False) -> TopicRoute:
        """Return where a topic is. Raises TopicNotRouted."""
        if anew:
            self._routes.pop(topic, None)
        return self._route(topic)

    def key_map(self, topic: str, *, refused: bool = False) -> KeyMap | None:
        """Return the key map of a topic, as inorder name servers know it.

        Brokers are asked, too, if name servers disagree, or if a broker refused the map.

        Raises:
            KeyMapConflict: brokers use different maps of one version.
        """
        replies = self._ask_name_servers(GetKv(NAMESPACE, topic))
        texts = [reply.value or "" for reply in replies]
        found = keymaps.newest(texts)
        if not refused and len(found) < 2:
            return found[0] if found else None
        settled = keymaps.settle(texts, {view.broker: view for view in self.versions(topic)})
        if settled.conflict:
            raise KeyMapConflict(
                f"topic {topic} has {len(settled.conflict)} key maps of one version; mend it with "
                f"`inorder topic repair {topic}`"
            )
        return settled.map

    def topics(self) -> list[str]:
        """Return the topics that the name servers know now, without system topics."""
        names = self._try(lambda: self._ask_name_server(GetAllTopics()), lambda: None)
        return sorted(name for name in names if not is_system_topic(name))

    def oldest(self, queues: Iterable[TopicQueue]) -> Places:
        """Return the offsets of the oldest messages."""
        return self._offsets(queues, lambda queue: GetMinOffset(queue.topic, queue.index))

    def ends(self, queues: Iterable[TopicQueue]) -> Places:
        """Return the offsets after the newest messages."""
        return self._offsets(queues, lambda queue: GetMaxOffset(queue.topic, queue.index))

    def at_time(self, queues: Iterable[TopicQueue], time_ms: int) -> Places:
        """Return the offsets of the first messages stored then or later, the ends if none was."""
        return self._offsets(queues, lambda queue: SearchOffset(queue.topic, queue.index, time_ms))

    def versions(self, topic: str) -> list[ResizeView]:
        """Return each broker's view of the versions of a topic's key map.

        Apache RocketMQ brokers have no such view and are left out.
        """
        found = []
        for queue in {queue.broker: queue for queue in self._known_queues(topic)}.values():
            if queue.broker in self._mapless:
                continue
            try:
                found.append(self.ask(queue, ResizeStatus(topic, self.group)))
            except CodeNotSupported:
                self._mapless.add(queue.broker)
        return found

    def _known_queues(self, topic: str) -> list[TopicQueue]:
        return subscribe_queues(self._route(topic), topic)

    def committed(self, queue: TopicQueue) -> int | None:
        """Return the group's offset on a queue; None if it has none."""
        request = QueryConsumerOffset(self.group, queue.topic, queue.index, False)
        try:
            return self.ask(queue, request).offset
        except NotFound:
            return None

    def commit(self, queue: TopicQueue, offset: int) -> None:
        """Set the group's offset on a queue."""
        self.ask(queue, UpdateConsumerOffset(self.group, queue.topic, queue.index, offset))

    def ask(self, queue: TopicQueue, request: Request[R], body: bytes = b"") -> R:
        """Send a request to the broker of a queue; return its reply. Raises BrokerError.

        The request is sent again when the connection breaks, so it must be safe to repeat.
        """
        return self._try(
            lambda: self._reader(queue).ask(request, body), lambda: self._forget(queue)
        )

    def make_group(self) -> None:
        """Create the group on the brokers."""
        from inorder.model import GroupConfig
        from inorder.sync.admin import Admin

        tls, credentials = self.servers.context(), self.servers.credentials()
        with Admin(self.servers.namesrv, tls=tls, credentials=credentials) as admin:
            admin.groups.create(GroupConfig(self.group))

    def require_filter(self, queues: Iterable[TopicQueue], sql: str) -> None:
        """Ask the brokers of queues once whether they filter by an SQL92 expression.

        Apache RocketMQ answers a pull with an expression that it cannot read as if all messages
        matched.

        Raises:
            ConfigError: a broker cannot read the expression, or filters by tags only.
        """
        for queue in {queue.broker: queue for queue in queues}.values():
            if (queue.broker, sql) in self._filters_taken:
                continue
            subscription = parse_subscription(queue.topic, sql, 0, SQL92)
            check = ClientConfigCheck(f"spark@{os.getpid()}", self.group, subscription)
            try:
                self.ask(queue, CheckClientConfig(), check.encode())
            except BrokerError as error:
                raise ConfigError(f"sql: broker {queue.broker}: {error}") from None
            self._filters_taken.add((queue.broker, sql))

    def read(
        self, queue: TopicQueue, start: int, end: int, tag: str = "*", sql: str | None = None
    ) -> Iterator[Pulled]:
        """Yield the messages between two offsets, reply by reply."""
        wanted = (tag, TAG) if sql is None else (sql, SQL92)
        at, failures, depth = start, 0, 1
        while at < end:
            try:
                for pulled in self._stretch(queue, at, end, wanted, depth):
                    yield pulled
                    failures = 0
                    if pulled.next_offset <= at:
                        return  # nothing is stored there, or no longer: the caller decides
                    if pulled.next_offset - at <= STOCK_MESSAGES and wanted == ("*", TAG):
                        depth = AHEAD
                    at = pulled.next_offset
            except TransportError:
                failures += 1
                if failures >= ATTEMPTS:
                    raise
                self._forget(queue)
                time.sleep(PAUSE_S * failures)

    def _stretch(
        self, queue: TopicQueue, start: int, end: int, wanted: tuple[str, str], depth: int
    ) -> Iterator[Pulled]:
        """Pull with requests sent ahead, until a reply does not continue at the expected offset."""
        connection = self._reader(queue)
        step = STOCK_MESSAGES if depth > 1 else BULK_MESSAGES
        asked: deque[tuple[int, int]] = deque()

        def ask(offset: int) -> None:
            asked.append((offset, connection.send(self._pull(queue, offset, wanted, step))))

        at = ahead = start
        try:
            while at < end:
                if not asked:
                    ahead = at
                while ahead < end and len(asked) < depth:
                    ask(ahead)
                    ahead += step
                offset, request = asked.popleft()
                if offset != at:
                    asked.append((offset, request))
                    return
                pulled = _pulled(connection.receive(request))
                at = pulled.next_offset
                if depth == 1 and pulled.data and at < end:
                    ask(at)  # it is on its way while the caller decodes this one
                yield pulled
        finally:
            for _, request in asked:
                connection.ignore(request)

    def _pull(self, queue: TopicQueue, offset: int, wanted: tuple[str, str], count: int) -> Command:
        request = PullMessage(
            self.group, queue.topic, queue.index, offset, count, PULL_SUBSCRIPTION,
            0, 0, 0, *wanted, bulk=BULK_BYTES,
        )  # fmt: skip
        return Command.request(request.CODE, encode_fields(request))

    # Asking.

    def _offsets(
        self, queues: Iterable[TopicQueue], make: Callable[[TopicQueue], Request[OffsetReply]]
    ) -> Places:
        """Ask for one offset of each queue, all requests to a broker at once."""
        requests = {queue: make(queue) for queue in queues}

        def ask() -> Places:
            asked = []
            for queue, request in requests.items():
                reader = self._reader(queue)
                asked.append((queue, request, reader, reader.send(command_of(request))))
            return {
                queue: reply_of(request, reader.receive(number)).offset
                for queue, request, reader, number in asked
            }

        return self._try(ask, self._routes.clear)

    def _route(self, topic: str) -> TopicRoute:
        known = self._routes.get(topic)
        if known is None:
            known = self._routes[topic] = self._try(lambda: self._ask_route(topic), lambda: None)
        return known

    def _ask_route(self, topic: str) -> TopicRoute:
        answers = self._ask_name_servers(GetRoute(topic, True))
        if not answers:
            raise TopicNotRouted(
                f"no name server of {self.servers.namesrv} knows topic {topic}; create it, "
                "or start its broker"
            )
        return merged(answers)

    def _ask_name_servers(self, request: Request[R]) -> list[R]:
        """Ask all name servers; return the successful replies. Raises InorderError if all fail."""
        found: list[R] = []
        failures: list[InorderError] = []
        addresses = parse_name_servers(self.servers.namesrv)
        for address in addresses:
            try:
                found.append(self._connect(address).ask(request))
            except CodeNotSupported:  # every name server knows these requests
                failures.append(ConfigError(no_name_server(address)))
            except AccessDenied as error:
                failures.append(error)
            except BrokerError:
                continue  # this name server does not know the topic or key
            except TransportError as error:
                failures.append(error)
        if len(failures) == len(addresses):
            raise failures[0]
        return found

    def _ask_name_server(self, request: Request[R]) -> R:
        failure: InorderError | None = None
        for address in parse_name_servers(self.servers.namesrv):
            try:
                return self._connect(address).ask(request)
            except (TopicNotFound, TransportError) as error:
                failure = error
            except CodeNotSupported:  # routes and clusters: every name server knows them
                failure = ConfigError(no_name_server(address))
        assert failure is not None, "there is at least one name server"
        raise failure

    def _try(self, ask: Callable[[], T], again: Callable[[], None]) -> T:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return ask()
            except TransportError:
                if attempt == ATTEMPTS:
                    raise
                again()
                time.sleep(PAUSE_S * attempt)
        raise AssertionError("the last attempt returns or raises")

    def _reader(self, queue: TopicQueue) -> BlockingConnection:
        address = read_address(self._route(queue.topic), queue.broker)
        return self._connect(address or self._former(queue))

    def master_of(self, queue: TopicQueue) -> str:
        """Return where the broker of a queue takes writes. Raises TopicNotRouted."""
        address = master_address(self._route(queue.topic), queue.broker)
        return address or self._former(queue)

    def _former(self, queue: TopicQueue) -> str:
        """Return the address of a broker that no longer has a queue of the topic."""
        answers = self._ask_name_servers(GetClusterInfo())
        info = merged_cluster(answers or [ClusterInfo()])
        broker = info.brokers.get(queue.broker)
        if broker is None or MASTER_ID not in broker.addresses:
            raise TopicNotRouted(f"no broker {queue.broker} serves topic {queue.topic}")
        return broker.addresses[MASTER_ID]

    def _forget(self, queue: TopicQueue) -> None:
        self._routes.pop(queue.topic, None)

    def _connect(self, address: str) -> BlockingConnection:
        # A fork must not share its parent's.
        key = (os.getpid(), address, self.servers.tls, self.servers.login)
        found = _connections.get(key)
        if found is not None and found.denied:
            found.close()  # the file may hold another secret by now
        if found is None or found.closed:
            found = _connections[key] = self.servers.connect(address)
        return found


def is_system_topic(name: str) -> bool:
    """Return whether a topic is a system topic, or holds retries, dead letters or parked keys."""
    return name.startswith(RESERVED_PREFIXES) or name in FIXED_SYSTEM_TOPICS


def close_all() -> None:
    """Close the connections of this process."""
    for key in [key for key in _connections if key[0] == os.getpid()]:
        _connections.pop(key).close()


def _pulled(answer: Command) -> Pulled:
    if answer.code not in PULL_REPLY_CODES:
        raise broker_error(answer.code, answer.remark)
    reply = decode_fields(PullReply, answer.fields)
    data = bytes(answer.body) if answer.code == ResponseCode.SUCCESS else b""
    return Pulled(answer.code, data, reply.next_begin_offset, reply.min_offset)
