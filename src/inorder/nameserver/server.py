"""The shell of the name server: sockets, the timer that drops silent brokers, the file, metrics.

`nameserver/rules.py` and `handlers.py` make all decisions. How registrations share the loop:
decision 9.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from inorder.access.codes import NAME_SERVER, SESSION_CODES
from inorder.access.service import (
    FAILED_LOGINS,
    Guard,
    Refused,
    check_settings,
    open_accounts,
)
from inorder.access.storage import NAME, open_file, unpredictable
from inorder.audit.rules import CHANGES
from inorder.audit.service import AccessEvents, Audit
from inorder.errors import AlreadyClosed, LocalProtocolError
from inorder.exposition import Family, Page
from inorder.logs import get_logger
from inorder.nameserver import handlers
from inorder.nameserver.rules import TOPICS_PER_STEP, Gone, RouteStatistics, RouteTable
from inorder.nameserver.storage import KvFile
from inorder.net.accepted import ServerConnection, user_of_peer
from inorder.net.admin import AdminPort, process_lines
from inorder.net.fairness import SHARE_MS
from inorder.net.peerlog import QuietLog, Refusals
from inorder.net.server import Server, ServerStatistics, connections_below
from inorder.tasks import Tasks, periodic
from inorder.wire.codes import LanguageCode, RequestCode, ResponseCode
from inorder.wire.extensions import ACCESS, SESSION
from inorder.wire.header import decode_command
from inorder.wire.ids import show_address
from inorder.wire.signature import AK

if TYPE_CHECKING:
    from inorder.access.service import Accounts
    from inorder.clock import Clock
    from inorder.config import NameServerConfig
    from inorder.disk import Files
    from inorder.nameserver.rules import KvTable
    from inorder.wire.frame import RawFrame
    from inorder.wire.header import Command
    from inorder.wire.requests.registration import Steps

logger = get_logger(__name__)

_FAMILIES: Final = (
    Family("inorder_namesrv_brokers", "gauge", "Broker names in the routes"),
    Family("inorder_namesrv_topics", "gauge", "Topics in the routes"),
    Family("inorder_namesrv_requests_total", "counter", "Requests of clients and brokers"),
    Family("inorder_namesrv_brokers_lost_total", "counter", "Brokers dropped: silent, or gone"),
    Family("inorder_namesrv_kv_values", "gauge", "Values of the key-value config"),
    Family("inorder_namesrv_connections", "gauge", "Open connections"),
    Family("inorder_namesrv_connections_refused_total", "counter", "Connections closed at once"),
)
CATALOGUE: Final = {family.name: family for family in _FAMILIES}

DRAIN_MS = 1000
FILES_KEPT = 8


@dataclass(frozen=True, slots=True)
class NameServerStatistics:
    """Sizes of tables, and counters."""

    server: ServerStatistics
    routes: RouteStatistics
    requests_total: int
    kv_values: int


class NameServerSource:
    """What the admin port of a name server shows."""

    def __init__(self, server: NameServer) -> None:
        self._server = server
        self.lost = 0
        self.state = "starting"

    def page(self, *, openmetrics: bool, only: frozenset[str]) -> Page:
        """Return an empty page."""
        constant = {"node_type": "nameserver", "node_id": self._server.address}
        return Page(openmetrics=openmetrics, only=only, constant=constant)

    def fill(self, page: Page) -> Iterator[None]:
        """Write the families; there are few, whatever the number of topics."""
        process_lines(page, self._server.started_ms)
        if self.state:
            return
        found = self._server.statistics()
        values = (
            found.routes.brokers, found.routes.topics, found.requests_total, self.lost,
            found.kv_values, found.server.connections, found.server.connections_refused,
        )  # fmt: skip
        for family, value in zip(_FAMILIES, values, strict=True):
            page.begin(family)
            page.put(value)
        yield

    def unready(self, *, writes: bool) -> dict[str, object]:
        """Return why the name server does not serve."""
        return {"state": self.state} if self.state else {}


class NameServer:
    """A name server. Several may run in one process, each with its own port and directory."""

    def __init__(self, config: NameServerConfig, clock: Clock, files: Files) -> None:
        self.config = config
        self.clock = clock
        self._file = KvFile(files, Path(config.data))
        self._files = files
        self.files_kept = FILES_KEPT
        """Descriptors of this process that no connection takes; set it before `start`."""
        self._server = Server(_Frames(self), config.net, clock, name="namesrv")
        self.audit = Audit(config, clock, files)
        self._tasks = Tasks("namesrv")
        self._quiet = QuietLog(logger)
        self._refusals = Refusals(logger)
        self._desk: handlers.Desk | None = None
        self.guard: Guard | None = None
        """Who may ask what; None: access is not controlled."""
        self._requests_total = 0
        self.address = ""
        self.started_ms = clock.now_ms()
        self.source = NameServerSource(self)
        self.port = AdminPort(self.source, name="the name server")
        self.admin_address: tuple[str, int] | None = None
        self._cleaning = False
        self._stopped = False

    @property
    def routes(self) -> RouteTable:
        """Return the table of routes."""
        return self.desk.routes

    @property
    def kv(self) -> KvTable:
        """Return the key-value config."""
        return self.desk.kv

    @property
    def desk(self) -> handlers.Desk:
        """Return the tables and counters for the handlers."""
        assert self._desk is not None, "the name server was not started"
        return self._desk

    async def start(self) -> tuple[str, int]:
        """Load the key-value config, listen, and return the address that was bound."""
        if self._stopped or self._desk is not None:
            raise AlreadyClosed(f"{self!r} was started before; make a new one")
        self._server.keep_descriptors(
            connections_below(
                self._files.descriptors_max(), self.files_kept, server="the name server"
            )
        )
        kv = self._file.load()
        accounts = self._load_accounts()
        self._desk = handlers.Desk(
            self.config, RouteTable(), kv, lambda: self._file.save(kv), accounts
        )
        if self.config.admin_port >= 0:
            self.admin_address = await self.port.start(
                self.config.admin_host, self.config.admin_port
            )
        try:
            address = await self._server.start(self.config.host, self.config.port)
        except BaseException:
            await self.port.close()
            raise
        self.address, self.source.state = show_address(*address), ""
        self._tasks.start(
            periodic(
                self.drop_silent_brokers,
                interval_ms=self.config.scan_interval_ms,
                clock=self.clock,
                name="scan for silent brokers",
            ),
            name="scan",
        )
        logger.info("namesrv=%s:%d started", *address)
        return address

    def _load_accounts(self) -> Accounts | None:
        """Load the users and rules that brokers gave, where access is controlled."""
        config = self.config.access
        check_settings(config, needs_inner=True)
        if config.effective_level == "off":
            return None
        file = open_file(self._files, Path(self.config.data) / NAME, config.key_file)
        # A user made here would be newer than those of the brokers.
        accounts = open_accounts(
            file, replace(config, init_user=""), self.clock, needs_super=False,
            watchers=[AccessEvents(self.audit)],
        )  # fmt: skip
        self.guard = Guard(
            accounts, config, NAME_SERVER, handlers.HANDLERS.keys(), draw=unpredictable,
            certified=user_of_peer,
        )  # fmt: skip
        self._server.judge_long(self.guard.screen)
        return accounts

    async def stop(self) -> None:
        """Close all connections and stop; twice is fine."""
        self._stopped = True
        self.source.state = "stopping"
        await self._tasks.stop()
        await self._server.close(DRAIN_MS)
        await self.port.close()
        await self.audit.stop()

    def drop_silent_brokers(self) -> None:
        """Drop brokers that were silent for too long, and close their connections."""
        for gone in self.routes.expire(self.clock.monotonic_ms()):
            _log_gone(gone, "was silent for too long")
            self.source.lost += 1
            assert isinstance(gone.channel, ServerConnection)
            gone.channel.close("the broker was silent for too long")
        self._clean_up()

    def receive(self, connection: ServerConnection, request: Command) -> None:
        """Serve one request; a one-way request gets no reply."""
        if request.is_response:
            connection.take_response(request)
            return
        self._requests_total += 1
        now_ms = self.clock.monotonic_ms()
        user = ""
        if self.guard is not None:
            admission = self.guard.admit(connection, request)
            if isinstance(admission, Refused):
                self._refuse(connection, request, admission)
                return
            user = admission.user.name
            if not connection.admit_user("" if admission.inner or admission.passed else user):
                return
            if request.code in CHANGES:
                request.fields[AK] = "" if admission.passed else user
        steps = handlers.answer_steps(self.desk, handlers.Call(request, connection, now_ms, user))
        if not self._step(connection, request, steps):
            # Later requests of this peer wait; those of others come in between.
            connection.hold()
            self._server.turns.later(lambda: self._go_on(connection, request, steps))

    def _refuse(self, connection: ServerConnection, request: Command, refused: Refused) -> None:
        """Answer a request that the guard does not admit; the guard has told the audit log."""
        reply = request.reply(ResponseCode.NO_PERMISSION, refused.remark)
        request.body = b""  # the answer may be late
        if refused.reason in FAILED_LOGINS:
            connection.failed_login(refused.user, lambda: self._reply(connection, request, reply))
        else:
            self._reply(connection, request, reply)

    def _go_on(self, connection: ServerConnection, request: Command, steps: Steps[Command]) -> None:
        """Take one more step of a long request, unless its connection is gone."""
        if connection.closed or self._stopped:
            steps.close()
        elif self._step(connection, request, steps):
            connection.release()
        else:
            self._server.turns.later(lambda: self._go_on(connection, request, steps))

    def _step(self, connection: ServerConnection, request: Command, steps: Steps[Command]) -> bool:
        """Take a step; reply and return True if it was the last."""
        try:
            next(steps)
        except StopIteration as end:
            reply: Command = end.value
        except Exception as error:
            # Every error of a request ends here: a bug costs its reply, not the connection.
            logger.exception("peer=%s code=%d failed", connection.peer, request.code)
            reply = request.reply(ResponseCode.SYSTEM_ERROR, type(error).__name__)
        else:
            return False
        if self.audit.enabled:
            user = connection.tls_user if self.guard is None else request.fields.get(AK)
            self.audit.answered(user, connection.peer, request, reply.code)
        self._reply(connection, request, reply)
        self._clean_up()
        return True

    def _reply(self, connection: ServerConnection, request: Command, reply: Command) -> None:
        if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            now_ms = self.clock.monotonic_ms()
            self._refusals.refused(now_ms, connection.peer, request.code, reply.code, reply.remark)
        elif reply.code not in _ORDINARY:
            self._quiet.warning(
                self.clock.monotonic_ms(),
                "peer=%s code=%d answered=%d remark=%s",
                connection.peer, request.code, reply.code, reply.remark or "",
            )  # fmt: skip
        if request.is_oneway:
            return
        if self.guard is not None:
            self._tell_access(self.guard, connection, request, reply)
        try:
            connection.send(reply)
        except LocalProtocolError as error:
            connection.send(request.reply(ResponseCode.SYSTEM_ERROR, str(error)))

    def _tell_access(
        self, guard: Guard, connection: ServerConnection, request: Command, reply: Command
    ) -> None:
        """Tell clients of inorder their session, and brokers which users and rules are here."""
        if request.code in SESSION_CODES and request.language == LanguageCode.PYTHON:
            reply.fields[SESSION] = guard.session_of(connection)
        elif request.code == RequestCode.REGISTER_BROKER and not reply.code:
            reply.fields[ACCESS] = ":".join(map(str, guard.accounts.book.version))

    def _clean_up(self) -> None:
        """Remove the topics of a large broker that is gone, a few in each turn."""
        if self.routes.unclean and not self._cleaning:
            self._cleaning = True
            self._server.turns.later(self._clean_some)

    def _clean_some(self) -> None:
        self._cleaning = self.routes.clean_up(TOPICS_PER_STEP)
        if self._cleaning:
            self._server.turns.later(self._clean_some)

    def forget(self, connection: ServerConnection) -> None:
        """Drop the brokers of a connection that is gone."""
        if self.guard is not None:
            self.guard.connection_lost(connection)
        if not self._stopped:
            for gone in self.routes.channel_lost(connection):
                _log_gone(gone, "lost its connection")
                self.source.lost += 1
            self._clean_up()

    def statistics(self) -> NameServerStatistics:
        """Return a snapshot of tables and counters."""
        return NameServerStatistics(
            server=self._server.statistics(),
            routes=self.routes.statistics(),
            requests_total=self._requests_total,
            kv_values=len(self.kv),
        )

    def __repr__(self) -> str:
        if self._desk is None:
            return "NameServer(not started)"
        state = "stopped" if self._stopped else self._server.statistics().address
        return f"NameServer({state}, {self.routes!r}, {self.kv!r})"


_ORDINARY = frozenset({
    ResponseCode.SUCCESS,
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.QUERY_NOT_FOUND,
})  # fmt: skip


class _Frames:
    """The frame handler of a name server."""

    def __init__(self, owner: NameServer) -> None:
        self._owner = owner

    def connection_made(self, connection: ServerConnection) -> None:
        """Wait: a connection means nothing before a broker registers over it."""

    def frames_received(self, connection: ServerConnection, frames: list[RawFrame]) -> None:
        clock = self._owner.clock
        ends_ms = clock.monotonic_ms() + SHARE_MS
        for index, frame in enumerate(frames):
            if connection.busy:
                connection.defer(frames[index:])
                return
            self._owner.receive(connection, decode_command(frame))
            if clock.monotonic_ms() >= ends_ms:
                connection.end_share()

    def connection_lost(self, connection: ServerConnection, reason: str) -> None:
        self._owner.forget(connection)


def _log_gone(gone: Gone, why: str) -> None:
    logger.warning(
        "broker=%s address=%s cluster=%s %s; it is out of the routes until it registers again",
        gone.broker_name, gone.address, gone.cluster, why,
    )  # fmt: skip
