"""The shell of the name server: sockets, the timer that drops silent brokers, and the file.

`nameserver/rules.py` and `handlers.py` make all decisions. How registrations share the loop:
decision 9.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from inorder.access.codes import NAME_SERVER, SESSION_CODES
from inorder.access.service import Guard, Refused, check_settings, open_accounts
from inorder.access.storage import NAME, open_file, unpredictable
from inorder.errors import AlreadyClosed, LocalProtocolError
from inorder.logs import get_logger
from inorder.nameserver import handlers
from inorder.nameserver.rules import TOPICS_PER_STEP, Gone, RouteStatistics, RouteTable
from inorder.nameserver.storage import KvFile
from inorder.net.accepted import ServerConnection
from inorder.net.fairness import SHARE_MS
from inorder.net.peerlog import QuietLog, Refusals
from inorder.net.server import Server, ServerStatistics, connections_below
from inorder.tasks import Tasks, periodic
from inorder.wire.codes import LanguageCode, RequestCode, ResponseCode
from inorder.wire.extensions import ACCESS, SESSION
from inorder.wire.header import decode_command

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

DRAIN_MS = 1000
FILES_KEPT = 8


@dataclass(frozen=True, slots=True)
class NameServerStatistics:
    """Sizes of tables, and counters."""

    server: ServerStatistics
    routes: RouteStatistics
    requests_total: int
    kv_values: int


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
        self._tasks = Tasks("namesrv")
        self._quiet = QuietLog(logger)
        self._refusals = Refusals(logger)
        self._desk: handlers.Desk | None = None
        self.guard: Guard | None = None
        """Who may ask what; None: access is not controlled."""
        self._requests_total = 0
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
        address = await self._server.start(self.config.host, self.config.port)
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
        accounts = open_accounts(file, config, self.clock, needs_super=False)
        self.guard = Guard(
            accounts, config, NAME_SERVER, handlers.HANDLERS.keys(), draw=unpredictable
        )
        return accounts

    async def stop(self) -> None:
        """Close all connections and stop; twice is fine."""
        self._stopped = True
        await self._tasks.stop()
        await self._server.close(DRAIN_MS)

    def drop_silent_brokers(self) -> None:
        """Drop brokers that were silent for too long, and close their connections."""
        for gone in self.routes.expire(self.clock.monotonic_ms()):
            _log_gone(gone, "was silent for too long")
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
                reply = request.reply(ResponseCode.NO_PERMISSION, admission.remark)
                self._reply(connection, request, reply)
                return
            user = admission.user.name
        steps = handlers.answer_steps(self.desk, handlers.Call(request, connection, now_ms, user))
        if not self._step(connection, request, steps):
            # Later requests of this peer wait; those of others come in between.
            connection.hold()
            self._server.turns.later(lambda: self._go_on(connection, request, steps))

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
