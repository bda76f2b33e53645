"""The processes of `inorder up --brokers N`: a name server in this one, and N brokers beside it.

    BrokerProcess   one broker: started until it says `ready`, ended by its lifeline
    Brokers         all of them: start, supervise, stop

A broker process is `inorder broker --supervised`. Its standard input is its lifeline: when that
closes, the broker stops as after SIGTERM, so that brokers stop with this process, whatever ends it.
The processes are in sessions of their own, so Ctrl-C reaches this process alone.

A broker that ends is started again, after a pause that grows with each failure. Until then the keys
of its queues wait, and all others flow; ending the others too would make one broker's fault
everybody's. Only at the first start is a broker that does not come up the end of all.
Why processes, and what is derived: decision 47.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from inorder.cli.brokers import BrokerPlan
from inorder.errors import InorderError
from inorder.logs import get_logger
from inorder.tasks import Backoff, Tasks
from inorder.wire.ids import show_address

if TYPE_CHECKING:
    from inorder.clock import Clock
    from inorder.nameserver.server import NameServer

log = get_logger("inorder.serve")

RESTART_FIRST_MS: Final = 200
RESTART_MAX_MS: Final = 30_000
STEADY_MS: Final = 60_000
"""A broker that ran for so long begins with the shortest pause again."""
REGISTER_WAIT_MS: Final = 30_000
REGISTER_LOOK_MS: Final = 10
STOP_MARGIN_MS: Final = 5_000
"""Time for a broker to stop beyond the time that it has to drain."""

# A server that listens on all addresses is reached from this machine at this one.
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # compared with, not bound to


class BrokerProcess:
    """One broker process, started again by whoever asks."""

    def __init__(self, plan: BrokerPlan) -> None:
        self.plan = plan
        self.address = ""
        self._process: asyncio.subprocess.Process | None = None

    @property
    def is_running(self) -> bool:
        """Return whether there is a process."""
        return self._process is not None and self._process.returncode is None

    async def start(self, words: Sequence[str]) -> None:
        """Start the process; return when it says that it is ready. Raises InorderError."""
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "inorder.cli.main", *words,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        line = await process.stdout.readline()
        try:
            self.address = json.loads(line)["broker"]
        except (ValueError, KeyError, TypeError):
            if line:  # somebody else writes to its stdout
                log.error("broker=%s says %s instead of being ready", self.plan.name, line)
                process.kill()
            ended = await self.ended()
            raise InorderError(
                f"broker {self.plan.name} did not start ({ended}); see above why"
            ) from None

    async def ended(self) -> str:
        """Wait for the end of the process; return in words how it ended."""
        if self._process is None:
            return "never started"
        code = await self._process.wait()
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name

    async def stop(self, timeout_ms: int) -> bool:
        """Stop the process cleanly, or kill it after that time; return whether it was clean."""
        process = self._process
        if process is None:
            return True
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await process.wait() == 0
        except TimeoutError:
            log.error("broker=%s does not stop, it is killed", self.plan.name)
            self.kill()
            await process.wait()
            return False

    def kill(self) -> None:
        """Kill the process, if there is one."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()


class Brokers:
    """A name server and the broker processes that are registered with it."""

    def __init__(
        self,
        namesrv: NameServer,
        plans: Sequence[BrokerPlan],
        words: Callable[[BrokerPlan, str], Sequence[str]],
        clock: Clock,
        *,
        stop_ms: int,
        process: Callable[[BrokerPlan], BrokerProcess] = BrokerProcess,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._namesrv = namesrv
        self._words = words
        self._clock = clock
        self._stop_ms = stop_ms
        self._pause = pause
        self._processes = [process(plan) for plan in plans]
        self._tasks = Tasks("brokers")
        self.namesrv_address = ""

    @property
    def addresses(self) -> dict[str, str]:
        """Return the address of each broker."""
        return {one.plan.name: one.address for one in self._processes}

    async def start(self) -> None:
        """Start the name server, then all brokers at once; return when it lists all of them."""
        host, port = await self._namesrv.start()
        self.namesrv_address = show_address(host, port)
        self._for_brokers = show_address(_WILDCARDS.get(host, host), port)
        await self._start_all()
        await self._all_listed()
        for one in self._processes:
            self._tasks.start(self._supervise(one), name=one.plan.name)

    async def stop(self) -> None:
        """Stop all brokers, then the name server. Raises InorderError if one was not clean."""
        await self._tasks.stop()
        wait_ms = self._stop_ms + STOP_MARGIN_MS
        clean = await asyncio.gather(*(one.stop(wait_ms) for one in self._processes))
        await self._namesrv.stop()
        bad = [
            one.plan.name for one, was in zip(self._processes, clean, strict=True)
            if not was and one.address
        ]  # fmt: skip
        if bad:
            raise InorderError(f"{', '.join(bad)} did not stop cleanly; see above why")

    def kill(self) -> None:
        """Kill all brokers."""
        for one in self._processes:
            one.kill()

    async def _start_all(self) -> None:
        starts = [
            asyncio.ensure_future(one.start(self._words(one.plan, self._for_brokers)))
            for one in self._processes
        ]
        try:
            await asyncio.gather(*starts)
        finally:  # if one fails, the others need not come up
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)

    async def _all_listed(self) -> None:
        """Wait until the name server lists all brokers: a first send spreads a topic over these."""
        until_ms = self._clock.monotonic_ms() + REGISTER_WAIT_MS
        while True:
            listed = self._namesrv.routes.cluster_info().brokers
            missing = [one for one in self._processes if one.plan.name not in listed]
            if not missing:
                return
            for one in missing:
                if not one.is_running:
                    raise InorderError(f"broker {one.plan.name} ended ({await one.ended()})")
            if self._clock.monotonic_ms() >= until_ms:
                names = ", ".join(one.plan.name for one in missing)
                raise InorderError(f"{names} did not register within {REGISTER_WAIT_MS // 1000} s")
            await self._pause(REGISTER_LOOK_MS / 1000)

    async def _supervise(self, one: BrokerProcess) -> None:
        """Start a broker again whenever it ends, at the port that it had."""
        backoff = Backoff(RESTART_FIRST_MS, RESTART_MAX_MS)
        plan = one.plan
        port = int(one.address.rpartition(":")[2])
        words = self._words(BrokerPlan(plan.name, port, plan.data), self._for_brokers)
        while True:
            since_ms = self._clock.monotonic_ms()
            how = await one.ended()
            if self._clock.monotonic_ms() - since_ms >= STEADY_MS:
                backoff.reset()
            pause_ms = backoff.next_ms()
            log.error(
                "broker=%s ended (%s); its keys wait, it starts again in %d ms",
                plan.name, how, pause_ms,
            )  # fmt: skip
            await self._pause(pause_ms / 1000)
            try:
                await one.start(words)
                log.warning("broker=%s is ready again", plan.name)
            except InorderError:
                continue  # its end is reported above, with the next pause
            except OSError as error:
                log.error("broker=%s: no process can be started: %s", plan.name, error)
