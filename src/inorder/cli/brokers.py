"""`inorder up --brokers N`: a name server in this process, and N broker processes beside it.

    plan_brokers    names, ports and directories of the brokers, from the settings of the first
    child_words     the command line of one broker process
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
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Final

from inorder.errors import ConfigError, InorderError
from inorder.logs import get_logger
from inorder.tasks import Backoff, Tasks
from inorder.wire.ids import show_address

if TYPE_CHECKING:
    from inorder.clock import Clock
    from inorder.config import BrokerConfig
    from inorder.disk import Files
    from inorder.nameserver.server import NameServer

log = get_logger("inorder.serve")

BROKERS_MAX: Final = 64
PORTS_APART: Final = 10
"""RocketMQ clients may use the port two below a broker's as well: it must not be another's."""
FIRST_SUFFIX: Final = "-a"
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


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """What tells one broker from the others."""

    name: str
    port: int
    data: str


def plan_brokers(config: BrokerConfig, count: int, namesrv_port: int) -> list[BrokerPlan]:
    """Return the brokers: the first as without `--brokers`, the others derived from it.

    So a directory that `inorder up` has filled goes on as that of the first broker.
    """
    if count == 1:
        return [BrokerPlan(config.name, config.port, config.data)]
    if not config.name.endswith(FIRST_SUFFIX):
        raise ConfigError(
            f"broker name {config.name} does not end with {FIRST_SUFFIX}, and --brokers {count} "
            f"counts on from there; name the first broker {config.name}{FIRST_SUFFIX}"
        )
    plans = [BrokerPlan(config.name, config.port, config.data)]
    for number in range(1, count):
        name = _name_of(config, number)
        port = config.port and config.port + PORTS_APART * number
        plans.append(BrokerPlan(name, port, str(Path(config.data) / name)))
    if plans[-1].port > 65_535:
        raise ConfigError(
            f"--brokers {count} from port {config.port} on would need port {plans[-1].port}; "
            f"ports are {PORTS_APART} apart; choose a lower --broker-port, or 0"
        )
    if namesrv_port and namesrv_port in [plan.port for plan in plans]:
        raise ConfigError(
            f"port {namesrv_port} is the name server's and, {PORTS_APART} apart from port "
            f"{config.port}, also a broker's; choose another --broker-port or --namesrv-port"
        )
    return plans


def left_out(config: BrokerConfig, count: int, files: Files) -> list[str]:
    """Return the names of brokers that have messages below the directory, and are not started."""
    if not config.name.endswith(FIRST_SUFFIX):
        return []
    names = [_name_of(config, number) for number in range(count, BROKERS_MAX)]
    return [name for name in names if files.is_dir(config.data_path / name / "commitlog")]


def _name_of(config: BrokerConfig, number: int) -> str:
    """Return broker-a, …, broker-z, broker-aa, …"""
    high, low = divmod(number, len(ascii_lowercase))
    letters = (ascii_lowercase[high - 1] if high else "") + ascii_lowercase[low]
    return f"{config.name.removesuffix(FIRST_SUFFIX)}-{letters}"


def child_words(
    plan: BrokerPlan,
    namesrv: str,
    *,
    host: str,
    config: Path | None,
    sets: dict[str, object],
    log_level: str,
) -> list[str]:
    """Return the command line of a broker process; its options win over the settings given."""
    words = ["broker", "--supervised", "--output", "json", "--log-level", log_level]
    words += ["--name", plan.name, "--namesrv", namesrv, "--host", host]
    words += ["--port", str(plan.port), "--data", plan.data]
    if config is not None:
        words += ["--config", str(config)]
    for name, value in sets.items():
        words += ["--set", f"{name}={value}"]
    return words


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
