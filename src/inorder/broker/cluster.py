"""How a broker reaches the rest of its cluster: registration, other brokers, and its identity.

`Registration` registers the broker with every name server, over one open connection to each. A
name server drops a broker when this connection closes. Each name server has a task of its own, so
a name server that is down delays no other.

    when                                            what is registered
    -------------------------------------------     -------------------------------------------
    after a connect, after `refresh`                all topics
    every 30 s                                      all topics; if they are many, only when the
                                                    name server lacks some
    a topic is created or changed                   this topic, with the version of the table; all
                                                    topics if an earlier registration failed

A name server accepts a topic only under a version that it has not seen. A lost change must
therefore not be followed by a later one alone.

`Peers` sends requests to the other brokers of a topic. Name servers tell their addresses, and one
connection to each broker stays open.

`load_identity` returns the identity of a broker: a random text that its first start writes into
its directory. By the identity a name server tells a broker that has restarted from another broker
with the same name (`nameserver/rules.py`). A directory of RocketMQ or of an older version gets an
identity when it is opened. Why: decision 44.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec

from inorder.access.inner import signer
from inorder.access.records import encode_book, plain
from inorder.errors import (
    BrokerError,
    BrokerNameTaken,
    CodeNotSupported,
    ConnectFailed,
    InorderError,
    RemoteProtocolError,
    broker_error,
)
from inorder.logs import get_logger
from inorder.model import MASTER_ID, READ_WRITE, TopicConfig
from inorder.net.connection import Connection
from inorder.net.tls import client_context
from inorder.store.snapshot import Snapshot
from inorder.tasks import Backoff, Tasks
from inorder.wire.extensions import ACCESS, BROKER_IDENTITY
from inorder.wire.fields import encode_fields
from inorder.wire.header import Command
from inorder.wire.record import body_crc
from inorder.wire.replies import Request, command_of, reply_of, succeeded
from inorder.wire.requests.nameserver import decode_kv_table
from inorder.wire.requests.registration import RegisterBrokerBody
from inorder.wire.requests.routes import (
    GetRoute,
    QueryDataVersion,
    RegisterBroker,
    UnregisterBroker,
)
from inorder.wire.requests.topics import encode_data_version
from inorder.wire.requests.users import PutAccess

if TYPE_CHECKING:
    from pathlib import Path

    from inorder.access.service import Accounts
    from inorder.broker.broker import Broker
    from inorder.broker.topics.rules import TopicTable
    from inorder.clock import Clock
    from inorder.config import BrokerConfig
    from inorder.disk import Files

logger = get_logger(__name__)

R = TypeVar("R")

START_WAIT_MS: Final = 1000
REGISTER_WAIT_MS: Final = 1000
STOP_WAIT_MS: Final = 1000
TAKEN_WAIT_MS: Final = 3000
"""How long a starting broker waits for another broker with its name to go."""
TAKEN_LOOK_MS: Final = 50
RETRY_FIRST_MS: Final = 100
RETRY_MAX_MS: Final = 5000
MANY_TOPICS: Final = 1000
"""From this number of topics on, the broker asks a name server whether it lacks any of them."""


class Registrant(Protocol):
    """The parts of the broker that a registration needs."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def address(self) -> str: ...
    @property
    def topics(self) -> TopicTable: ...

    @property
    def identity(self) -> str: ...

    @property
    def accounts(self) -> Accounts | None: ...

    def save_topics(self) -> None:
        """Save the topics after a change."""
        ...


@dataclass(slots=True, eq=False)
class _Link:
    """The connection to one name server; `up` is None until the first attempt has ended."""

    address: str
    up: bool | None = None
    connection: Connection | None = None
    task: asyncio.Task[None] | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    pending: dict[str, TopicConfig] = field(default_factory=dict)
    all_due: bool = True
    known_counter: int = -1
    waiting: list[tuple[int, asyncio.Future[None]]] = field(default_factory=list)
    taken: BrokerNameTaken | None = None
    """The refusal, while another broker is registered there under this broker's name."""
    order_topics: frozenset[str] | None = None

    def release(self, *, all_: bool) -> None:
        """Wake the callers whose topics the name server knows; all callers if it is down."""
        waiting = []
        for counter, future in self.waiting:
            if all_ or counter <= self.known_counter:
                if not future.done():
                    future.set_result(None)
            else:
                waiting.append((counter, future))
        self.waiting = waiting


@dataclass(frozen=True, slots=True)
class RegistrationStatistics:
    """The name servers that have registered this broker, and those that have not."""

    up: tuple[str, ...]
    down: tuple[str, ...]


class Registration:
    """Registers the broker and its topics with all name servers, and keeps them up to date."""

    def __init__(self, broker: Registrant) -> None:
        self._broker = broker
        config = broker.config
        addresses = [part.strip() for part in config.namesrv.replace(",", ";").split(";")]
        self._links = [_Link(address) for address in dict.fromkeys(filter(None, addresses))]
        self._signed = signer(config.access.inner_credentials)
        self._tasks = Tasks(f"registration of {config.name}")
        self._body: tuple[tuple[int, int], bytes] | None = None
        self._ready = False
        if broker.accounts is not None:
            broker.accounts.on_change(self.refresh)

    def __repr__(self) -> str:
        up = sum(link.up is True for link in self._links)
        return f"Registration({up} of {len(self._links)} name servers)"

    def statistics(self) -> RegistrationStatistics:
        """Return the addresses of the name servers by state."""
        return RegistrationStatistics(
            tuple(link.address for link in self._links if link.up),
            tuple(link.address for link in self._links if not link.up),
        )

    async def start(self) -> None:
        """Register with all name servers; return when each has answered or failed, or after 1 s.

        Raises BrokerNameTaken if another broker keeps the name at one of them for
        `TAKEN_WAIT_MS`. A shorter time may only mean that the name server has not yet noticed the
        end of this broker's own last run.
        """
        for link in self._links:
            link.task = self._tasks.start(self._run(link), name=link.address)
        await self._wait(START_WAIT_MS)
        until_ms = self._broker.clock.monotonic_ms() + TAKEN_WAIT_MS
        while taken := [link.taken for link in self._links if link.taken is not None]:
            if self._broker.clock.monotonic_ms() >= until_ms:
                raise taken[0]
            await asyncio.sleep(TAKEN_LOOK_MS / 1000)
        self._ready = True

    async def stop(self) -> None:
        """Unregister at the name servers that are up, within a second."""
        await self._tasks.stop()
        # At the others another broker may be registered under the same name, or even address.
        open_links = [link for link in self._links if link.connection is not None and link.up]
        results = await asyncio.gather(
            *(self._unregister(link) for link in open_links), return_exceptions=True
        )
        for link, result in zip(open_links, results, strict=True):
            if isinstance(result, BaseException):
                logger.warning("not unregistered namesrv=%s: %s", link.address, result)
        self._close("the broker stops")

    def abandon(self) -> None:
        """Drop the connections as a kill does."""
        for link in self._links:
            if link.task is not None:
                link.task.cancel()
        self._close("the broker was killed")

    def topic_changed(self, config: TopicConfig) -> None:
        """Register a new or changed topic soon."""
        for link in self._links:
            link.pending[config.name] = config
            link.wake.set()

    def refresh(self) -> None:
        """Register all topics again soon."""
        self._body = None
        for link in self._links:
            link.all_due = True
            link.wake.set()

    async def register_now(self, timeout_ms: int = REGISTER_WAIT_MS) -> None:
        """Return when every name server that is up knows the present topics, or at the timeout."""
        await self._wait(timeout_ms)

    async def ask_all(self, request: Request[R]) -> list[R]:
        """Send a request to all name servers that are up; return the successful replies.

        Name servers may know different brokers. Raises ConnectFailed if none is up, and the first
        failure if none replies with success.
        """
        up = [link.connection for link in self._links if link.connection is not None]
        timeout_ms = self._broker.config.register_timeout_ms
        answers = await asyncio.gather(
            *(
                one.request(self._signed(command_of(request)), timeout_ms)
                for one in up if not one.closed
            ),
            return_exceptions=True,
        )  # fmt: skip
        if not answers:
            raise ConnectFailed("no name server of this broker is up")
        found = [one for one in answers if not isinstance(one, BaseException) and one.code == 0]
        if not found:
            first = answers[0]
            if isinstance(first, BaseException):
                raise first
            raise broker_error(first.code, first.remark)
        return [reply_of(request, one) for one in found]

    async def _wait(self, timeout_ms: int) -> None:
        counter = self._broker.topics.data_version.counter
        futures = []
        for link in self._links:
            if link.up is not False and link.known_counter < counter:
                future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                link.waiting.append((counter, future))
                link.wake.set()
                futures.append(future)
        if futures:
            _, late = await asyncio.wait(futures, timeout=timeout_ms / 1000)
            for future in late:
                future.cancel()

    async def _run(self, link: _Link) -> None:
        retry = Backoff(RETRY_FIRST_MS, RETRY_MAX_MS)
        while True:
            link.wake.clear()
            try:
                await self._register(link)
            except (InorderError, OSError) as error:
                self._failed(link, error)
                await asyncio.sleep(retry.next_ms() / 1000)
                continue
            retry.reset()
            self._succeeded(link)
            with contextlib.suppress(TimeoutError):  # nothing changed: register all topics again
                async with asyncio.timeout(self._broker.config.register_interval_ms / 1000):
                    await self._until_due(link)

    async def _until_due(self, link: _Link) -> None:
        """Return when there is something to register; wake callers that need no registration."""
        while True:
            await link.wake.wait()
            counter = self._broker.topics.data_version.counter
            if link.all_due or link.pending or link.known_counter < counter:
                return
            link.wake.clear()
            link.release(all_=False)

    async def _register(self, link: _Link) -> None:
        connection = await self._connect(link)
        counter = self._broker.topics.data_version.counter
        if await self._is_known(link, connection):
            return
        # Topics that change from here on belong to the next registration.
        pending, link.pending = link.pending, {}
        whole, link.all_due = link.all_due or not pending, False
        try:
            body = await (self._full_body() if whole else self._encode(pending))
            answer = await connection.request(
                self._command(body), self._broker.config.register_timeout_ms
            )
            if answer.code != 0:
                raise broker_error(answer.code, answer.remark)
        except BaseException:
            link.all_due = True
            raise
        link.known_counter = counter
        await self._give_access(connection, answer)
        if answer.body:
            link.order_topics = frozenset(decode_kv_table(answer.body))
            self._apply_order_topics()

    async def _give_access(self, connection: Connection, answer: Command) -> None:
        """Give the name server the users and rules, if it controls access and has older ones."""
        known = answer.fields.get(ACCESS)
        if known is None or self._broker.accounts is None:
            return
        book = self._broker.accounts.book
        if list(map(str, book.version)) != known.split(":") and book.users:
            command = command_of(PutAccess(), encode_book(book, plain))
            succeeded(
                await connection.request(
                    self._signed(command), self._broker.config.register_timeout_ms
                )
            )

    async def _is_known(self, link: _Link, connection: Connection) -> bool:
        """Return whether the name server has all topics; it is only asked if they are many."""
        topics = self._broker.topics
        if link.all_due or link.pending or len(topics) < MANY_TOPICS:
            return False
        if link.known_counter != topics.data_version.counter:
            return False
        request = QueryDataVersion(
            broker_name=self._broker.config.name,
            broker_address=self._broker.address,
            cluster_name=self._broker.config.cluster,
            broker_id=self._broker.config.broker_id,
        )
        answer = await connection.request(
            self._signed(command_of(request, encode_data_version(topics.data_version))),
            self._broker.config.register_timeout_ms,
        )
        return answer.code == 0 and not reply_of(request, answer).changed

    async def _connect(self, link: _Link) -> Connection:
        if link.connection is None or link.connection.closed:
            link.all_due = True
            link.connection = await Connection.open(
                link.address,
                self._broker.config.net,
                on_lost=lambda connection, _reason: self._lost(link, connection),
                tls=self._tls(),
            )
        return link.connection

    def _tls(self) -> ssl.SSLContext | None:
        """Return the context of connections to name servers: TLS if this broker enforces it.

        Any certificate is trusted (decision 8).
        """
        if self._broker.config.net.tls_mode != "enforcing":
            return None
        return client_context(trust_any=True)

    def _lost(self, link: _Link, connection: Connection) -> None:
        if link.connection is not connection:
            return  # this broker closed it
        link.all_due = True
        link.known_counter = -1
        link.wake.set()

    def _succeeded(self, link: _Link) -> None:
        if not link.up:
            logger.info("registered namesrv=%s address=%s", link.address, self._broker.address)
        link.up = True
        link.taken = None
        link.release(all_=False)

    def _failed(self, link: _Link, error: Exception) -> None:
        taken = error if isinstance(error, BrokerNameTaken) else None
        if taken is not None and link.taken is None:
            logger.critical(
                "not registered namesrv=%s: %s. %s", link.address, error,
                "This broker goes on serving whoever knows it, and tries again"
                if self._ready else "This broker does not start unless that ends soon",
            )  # fmt: skip
        link.taken = taken
        if link.up is not False and taken is None:
            what = str(error)
            if isinstance(error, CodeNotSupported):
                what = "it is no name server; is it the port of a broker? (--namesrv)"
            logger.warning("not registered namesrv=%s: %s; trying again", link.address, what)
        link.up = False
        link.known_counter = -1
        link.pending = {}  # the next registration has all topics
        link.release(all_=True)
        if link.connection is not None and not isinstance(error, BrokerError):
            link.connection.close("registration failed")
            link.connection = None

    def _apply_order_topics(self) -> None:
        known = [link.order_topics for link in self._links if link.order_topics is not None]
        changed = self._broker.topics.set_order(
            frozenset().union(*known), self._broker.clock.now_ms()
        )
        if changed:
            self._broker.save_topics()
        for config in changed:
            self.topic_changed(config)

    async def _full_body(self) -> bytes:
        """Return the registration of all topics; it is encoded again only after a change."""
        version = self._broker.topics.data_version
        key = (version.counter, version.timestamp_ms)
        kept = self._body
        if kept is None or kept[0] != key:
            body = await self._encode({config.name: config for config in self._broker.topics})
            kept = self._body = (key, body)
        return kept[1]

    async def _encode(self, topics: dict[str, TopicConfig]) -> bytes:
        """Encode a registration in steps, so that many topics do not block the loop."""
        perm = self._broker.config.perm
        if perm & READ_WRITE != READ_WRITE:
            topics = {name: config.with_perm(config.perm & perm) for name, config in topics.items()}
        version = replace(self._broker.topics.data_version)
        steps = RegisterBrokerBody(version, topics).encode_steps()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                body: bytes = end.value
                return body
            await asyncio.sleep(0)

    def _command(self, body: bytes) -> Command:
        config = self._broker.config
        host, _, port = self._broker.address.rpartition(":")
        header = RegisterBroker(
            broker_name=config.name,
            broker_address=self._broker.address,
            cluster_name=config.cluster,
            ha_server_address=f"{host}:{int(port) + 1}",
            broker_id=config.broker_id,
            enable_acting_master=False,
            compressed=body[:1] != b"{",
            body_crc32=body_crc(body),
        )
        fields = {**encode_fields(header), BROKER_IDENTITY: self._broker.identity}
        return self._signed(Command.request(RegisterBroker.CODE, fields, body))

    async def _unregister(self, link: _Link) -> None:
        assert link.connection is not None
        config = self._broker.config
        request = UnregisterBroker(
            broker_name=config.name,
            broker_address=self._broker.address,
            cluster_name=config.cluster,
            broker_id=config.broker_id,
        )
        await link.connection.request(self._signed(command_of(request)), STOP_WAIT_MS)

    def _close(self, reason: str) -> None:
        for link in self._links:
            link.release(all_=True)
            if link.connection is not None:
                link.connection.close(reason)
                link.connection = None


TIMEOUT_MS: Final = 3000


class Peers:
    """Sends requests to other brokers of a topic."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._signed = signer(broker.config.access.inner_credentials)
        self._connections: dict[str, Connection] = {}

    def __repr__(self) -> str:
        return f"Peers({sorted(self._connections)})"

    async def ask(self, topic: str, name: str, request: Request[R], body: bytes = b"") -> R:
        """Send a request to a broker of a topic; return its reply.

        Raises TransportError if the broker cannot be reached, and the broker's refusal as a
        BrokerError.
        """
        return reply_of(request, await self._answer(topic, name, command_of(request, body)))

    async def send(self, topic: str, name: str, command: Command) -> None:
        """Send a message to a broker of a topic; raises as `ask`."""
        succeeded(await self._answer(topic, name, command))

    async def _answer(self, topic: str, name: str, command: Command) -> Command:
        connection = await self.connect(topic, name)
        return await connection.request(self._signed(command), TIMEOUT_MS)

    async def connect(self, topic: str, name: str) -> Connection:
        """Return the open connection to a broker of a topic; open one if there is none."""
        known = self._connections.get(name)
        if known is not None and not known.closed:
            return known
        address = await self._address(topic, name)
        config = self._broker.config.net
        tls = client_context(trust_any=True) if config.tls_mode == "enforcing" else None
        found = self._connections[name] = await Connection.open(address, config, tls=tls)
        return found

    async def _address(self, topic: str, name: str) -> str:
        """Return the address of a broker, from the first name server that knows it."""
        for route in await self._broker.registration.ask_all(GetRoute(topic)):
            for data in route.brokers:
                if data.name == name and MASTER_ID in data.addresses:
                    return data.addresses[MASTER_ID]
        raise ConnectFailed(f"no name server knows broker {name} of topic {topic} at present")

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close("the broker stops")
        self._connections.clear()


_BITS: Final = 128
_CHARS_MAX: Final = 64


class _File(msgspec.Struct, frozen=True):
    identity: str


def load_identity(files: Files, path: Path, draw: Random) -> str:
    """Return the identity of a directory; a new one is on disk when the function returns.

    Raises:
        OSError: a new identity cannot be written.
        StoreError: the file exists and cannot be read.
    """
    found = ""

    def decode(data: bytes) -> None:
        nonlocal found
        try:
            found = msgspec.json.decode(data, type=_File).identity
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise RemoteProtocolError(f"not the identity of a broker: {error}") from None
        if not 0 < len(found) <= _CHARS_MAX:
            raise RemoteProtocolError("the identity of a broker has 1 to 64 characters")

    file = Snapshot(files, path)
    file.load(decode)
    if not found:
        found = f"{draw.getrandbits(_BITS):032x}"
        file.save(msgspec.json.encode(_File(found)))
    return found
