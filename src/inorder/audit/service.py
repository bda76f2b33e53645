"""The audit log of a server: takes events on the loop, writes their lines in a thread of its own.

Taking an event costs no I/O. Lines wait in memory, up to `WAITING_BYTES_MAX`; what does not fit, or
cannot be written because the disk is full, is counted, and the next line that is written says how
many are missing. A server never waits for its audit log and never stops over it. Lines reach the
page cache: a kill loses those of the last moment, a power cut those of the last seconds.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from inorder.audit.rules import CHANGES, Event, audits, line, lost_line
from inorder.audit.storage import AuditFiles
from inorder.logs import get_logger

if TYPE_CHECKING:
    from inorder.access.service import Changed, Refused
    from inorder.clock import Clock
    from inorder.config import BrokerConfig, NameServerConfig
    from inorder.disk import Files
    from inorder.wire.header import Command

logger = get_logger(__name__)

WAITING_BYTES_MAX: Final = 1024 * 1024
STOP_MS: Final = 1000
COMPLAINT_MS: Final = 60_000


class AccessEvents:
    """What the audit log hears of users and rules; a `Watcher` of `access/service.py`.

    Changes that a request asks for are left out: the answer to the request tells of them.
    """

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    def refused(self, refusal: Refused) -> None:
        """Note a request that is refused, or would be at the level `enforce`."""
        self._audit.refused(
            user=refusal.user, peer=refusal.peer, code=refusal.code, resource=refusal.resource,
            action=refusal.action, verdict="deny" if refusal.enforced else "passed",
            rule=refusal.rule, reason=refusal.reason.value, request_id=refusal.request_id,
        )  # fmt: skip

    def changed(self, change: Changed) -> None:
        """Note a change that no request of an operator asked for."""
        if not change.peer:
            self._audit.changed(
                user=change.by, peer="", code=0, resource=change.subject, action=change.what
            )


class Audit:
    """The audit log of one server. If it is off, its methods do nothing."""

    def __init__(self, config: BrokerConfig | NameServerConfig, clock: Clock, files: Files) -> None:
        self.enabled = audits(config)
        self.written_total = 0
        self.lost_total = 0
        self._clock = clock
        self._file = AuditFiles(
            files, Path(config.data) / "audit",
            file_bytes_max=config.audit.file_bytes_max, files_max=config.audit.files_max,
        )  # fmt: skip
        self._lines: list[bytes] = []
        self._waiting_bytes = 0
        self._missing = 0
        self._executor: ThreadPoolExecutor | None = None
        self._writing: asyncio.Future[None] | None = None
        self._complained_ms: int | None = None
        self._stopped = False

    def __repr__(self) -> str:
        state = f"written={self.written_total}, lost={self.lost_total}" if self.enabled else "off"
        return f"Audit({state})"

    def refused(
        self, *, user: str | None, peer: str, code: int, resource: str = "", action: str = "",
        verdict: str = "deny", rule: str = "", reason: str = "", request_id: int = 0,
    ) -> None:  # fmt: skip
        """Note that a request was refused, by which rule and for what reason."""
        if self.enabled and not self._stopped:
            self._take(Event(
                "refused", user or "", peer, code, resource, action, verdict, rule, reason,
                request_id,
            ))  # fmt: skip

    def changed(
        self, *, user: str | None, peer: str, code: int, resource: str = "", action: str = "",
        verdict: str = "done", request_id: int = 0,
    ) -> None:  # fmt: skip
        """Note that a request changed something, or tried to."""
        if self.enabled and not self._stopped:
            self._take(Event(
                "changed", user or "", peer, code, resource, action, verdict, request_id=request_id
            ))  # fmt: skip

    def answered(self, user: str | None, peer: str, request: Command, code: int) -> None:
        """Note the answer to a request if it is one that changes something."""
        change = CHANGES.get(request.code) if self.enabled else None
        if change is not None:
            self.changed(
                user=user, peer=peer, code=request.code, action=change.action,
                resource=change.resource(request.fields, bytes(request.body)),
                verdict="done" if code == 0 else f"answered {code}",
                request_id=request.request_id,
            )  # fmt: skip

    async def stop(self) -> None:
        """Write what waits, for a second at most; take no more events."""
        self._stopped = True
        self._write()
        until_ms = self._clock.monotonic_ms() + STOP_MS
        while self._writing is not None:
            left_ms = until_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                logger.error("audit log: the disk does not answer, its last lines are lost")
                break
            await asyncio.wait([self._writing], timeout=left_ms / 1000)
        self.abandon()

    def abandon(self) -> None:
        """Write nothing more."""
        self._stopped = True
        self._lines = []
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None
        if self._writing is None:
            self._file.close()

    def _take(self, event: Event) -> None:
        data = line(event, self._clock.now_ms())
        if self._waiting_bytes + len(data) > WAITING_BYTES_MAX:
            self._lose(1)
            return
        self._waiting_bytes += len(data)
        self._lines.append(data)
        if len(self._lines) == 1:
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        """Hand the lines that wait to the thread, unless it has some."""
        if self._writing is not None or not self._lines:
            return
        lines, self._lines = self._lines, []
        missing, self._missing = self._missing, 0
        if missing:
            lines.insert(0, lost_line(missing, self._clock.now_ms()))
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "inorder-audit")
        loop = asyncio.get_running_loop()
        data = b"".join(lines)
        self._writing = loop.run_in_executor(self._executor, self._file.append, data)
        self._writing.add_done_callback(lambda done: self._written(done, lines, missing))

    def _written(self, done: asyncio.Future[None], lines: list[bytes], missing: int) -> None:
        self._writing = None
        own = len(lines) - (missing > 0)
        self._waiting_bytes = sum(map(len, self._lines))
        error = None if done.cancelled() else done.exception()
        if error is None:
            self.written_total += own
        else:
            self._missing += missing
            self._lose(own)
            self._complain(error)
        if self._executor is None:  # it was abandoned meanwhile
            self._file.close()
        else:
            self._write()

    def _lose(self, count: int) -> None:
        self.lost_total += count
        self._missing += count

    def _complain(self, error: BaseException) -> None:
        now_ms = self._clock.monotonic_ms()
        if self._complained_ms is None or now_ms - self._complained_ms >= COMPLAINT_MS:
            self._complained_ms = now_ms
            logger.error(
                "audit log: lines are lost, the server goes on file=%s lost=%d: %s",
                self._file.path, self.lost_total, error,
            )  # fmt: skip
