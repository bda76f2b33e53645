"""Who watches a broker: its admin port, the sampler of ages, and the look at the loop.

    Monitoring(broker)     made only if the admin port or the log of slow operations is on
    start_port             before the recovery, so that probes see it
    start_watching         when the broker serves
    stop                   /readyz says so first, the port closes last

The loop is looked at four times a second: a timer that comes late says how long others waited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from inorder.broker.metrics.rules import SLOW_BURST
from inorder.broker.metrics.service import Collector
from inorder.broker.ticks import PendingReplies
from inorder.clock import stopwatch_s
from inorder.logs import get_logger
from inorder.net.admin import AdminPort
from inorder.net.peerlog import QuietLog

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.ticks import Pending
    from inorder.exposition import Page
    from inorder.net.accepted import ServerConnection
    from inorder.wire.header import Command

slow_log = get_logger("inorder.slow")

LOOK_S: Final = 0.25
BEGUN_MAX: Final = 10_000
"""Requests without an answer whose beginning is remembered; further ones are not timed."""


class Monitoring:
    """What a broker shows of itself, and what is slow in it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.collector = Collector(broker)
        self.port = AdminPort(self, name=f"broker {broker.config.name}")
        self.state = "recovering"
        self.address: tuple[str, int] | None = None
        self._quiet = QuietLog(slow_log, burst=SLOW_BURST)
        self._sampling: asyncio.Task[None] | None = None
        self._look: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._begun: dict[tuple[int, int], float] = {}

    async def start_port(self) -> None:
        """Listen, if the port is set."""
        config = self._broker.config
        if config.admin_port >= 0:
            self.address = await self.port.start(config.admin_host, config.admin_port)

    def recovered(self, took_s: float) -> None:
        """Note how long the start took to open the data directory."""
        self.collector.recovery_s = took_s

    def start_watching(self) -> None:
        """Sample ages, and look at the loop."""
        self.state = ""
        if self.address is not None:
            self._sampling = asyncio.get_running_loop().create_task(
                self.collector.ages.run(), name="ages of messages"
            )
        self._arm()

    async def stop(self) -> None:
        """End everything."""
        self.cancel()
        await self.port.close()

    def cancel(self) -> None:
        """Watch no longer; the port, if it is open, says that the broker stops."""
        self.state = "stopping"
        if self._sampling is not None:
            self._sampling.cancel()
            self._sampling = None
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def abandon(self) -> None:
        """Stop as a kill does."""
        self.cancel()
        self.port.http.abandon()

    # -- what the port shows ----------------------------------------------------------------------

    def page(self, *, openmetrics: bool, only: frozenset[str]) -> Page:
        """Return an empty page."""
        return self.collector.page(openmetrics=openmetrics, only=only)

    def fill(self, page: Page) -> Iterator[None]:
        """Write the families; none before the tables are there."""
        return self.collector.fill(page) if not self.state else iter(())

    def unready(self, *, writes: bool) -> dict[str, object]:
        """Return why the broker does not serve; empty if it does."""
        if self.state:
            return {"state": self.state}
        found: dict[str, object] = {}
        registration = self._broker.registration.statistics()
        if registration.down and not registration.up:
            found["not registered with"] = list(registration.down)
        if writes and not self._broker.writable:
            found["takes no messages"] = self._broker.unwritable_reason or "the disk is full"
        return found

    # -- what is slow -----------------------------------------------------------------------------

    def _is_slow(self, took_ms: float) -> bool:
        return 0 < self._broker.config.slow_ms <= took_ms

    def _say(self, what: str, took_ms: float, about: str) -> None:
        """Log a slow operation; at most ten lines in ten seconds."""
        now_ms = self._broker.clock.monotonic_ms()
        self._quiet.warning(now_ms, "slow=%s took_ms=%d %s", what, int(took_ms), about)

    def wrote(self, pending: list[Pending], size: int, took_s: float) -> None:
        """Note a write of the log."""
        meters = self._broker.meters
        assert meters is not None
        meters.tick_messages.observe(sum(one.count for one in pending))
        meters.tick_bytes.observe(size)
        meters.write.observe(took_s)
        if self._is_slow(took_s * 1000):
            self._say("write", took_s * 1000, f"bytes={size}")

    def synced(self, took_s: float) -> None:
        """Note a sync of the log."""
        meters = self._broker.meters
        assert meters is not None
        meters.fsync.observe(took_s)
        if self._is_slow(took_s * 1000):
            self._say("sync", took_s * 1000, "of the log")

    def answered(self, pending: list[Pending]) -> None:
        """Note sends that are answered; those of a connection and a turn share two looks."""
        meters, now_ms = self._broker.meters, self._broker.clock.now_ms()
        assert meters is not None
        for one in pending:
            if isinstance(one, PendingReplies) and one.now_ms:
                took_ms = max(0, now_ms - one.now_ms)
                meters.sends.observe(took_ms, one.count)
                if self._is_slow(took_ms):
                    self._say("send", took_ms, f"peer={one.connection.peer} messages={one.count}")

    def begins(self, connection: ServerConnection, command: Command) -> None:
        """Note when a request came that is no send and no pull."""
        if len(self._begun) < BEGUN_MAX:
            self._begun[connection.id, command.request_id] = stopwatch_s()

    def forget(self, connection: ServerConnection, command: Command) -> None:
        """Note that a request is answered elsewhere, or not at all."""
        self._begun.pop((connection.id, command.request_id), None)

    def ends(self, connection: ServerConnection, command: Command, code: int) -> None:
        """Note the answer to a request."""
        began_s = self._begun.pop((connection.id, command.request_id), None)
        if began_s is None:
            return
        meters, took_ms = self._broker.meters, (stopwatch_s() - began_s) * 1000
        assert meters is not None
        meters.request(command.code, code, took_ms)
        if self._is_slow(took_ms):
            about = f"peer={connection.peer} code={command.code} answered={code}"
            self._say("request", took_ms, about)

    def _arm(self) -> None:
        self._due_s = stopwatch_s() + LOOK_S
        self._look = asyncio.get_running_loop().call_later(LOOK_S, self._looked)

    def _looked(self) -> None:
        lag_s = max(0.0, stopwatch_s() - self._due_s)
        meters = self._broker.meters
        if meters is not None:
            meters.late(lag_s)
        if self._is_slow(lag_s * 1000):
            self._say("loop", lag_s * 1000, "the event loop stood still; all connections waited")
        self._arm()
