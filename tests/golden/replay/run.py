"""Play the conversations against a name server and a broker of ours, once per process."""

from __future__ import annotations

import asyncio
import functools
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from inorder.broker.broker import Broker
from inorder.clock import SystemClock
from inorder.config import BrokerConfig, NameServerConfig, StoreConfig
from inorder.nameserver.server import NameServer
from inorder.wire.codes import RequestCode
from inorder.wire.frame import encode_frame
from inorder.wire.header import Command
from tests.golden.replay import capture
from tests.golden.replay.capture import BROKER, NAMESRV
from tests.golden.replay.channels import Channel, SocketChannel
from tests.golden.replay.compare import Difference, Exchange, compare
from tests.golden.replay.player import Played, Player
from tests.golden.replay.rules import Rule, is_later, rule_for
from tests.kit.disk import FakeFiles

MIB = 1024 * 1024
NOT_SUPPORTED = 3
_WITHOUT_FILTERS = ("-sql-off", "-pull", "probe-json")
"""The conversations from before enablePropertyFilter was switched on."""
_SLOWER = 5


class _CapturedClock:
    """Wall-clock time as in the capture; time that waits goes on, but slowly.

    No conversation lasts as long as a pull may be held. If the machine stands still for so long,
    the pull must still be answered where the capture has its answer.
    """

    def __init__(self) -> None:
        self._now_ms = 1_794_700_000_000
        self._system = SystemClock()

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._system.monotonic_ms() // _SLOWER

    def set(self, now_ms: int) -> None:
        self._now_ms = max(self._now_ms, now_ms)


class _CapturedChoice(random.Random):
    """Chooses the queue that the real broker chose."""

    queue_id = 0

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return self.queue_id % (start if stop is None else stop)


class LocalServers:
    """A name server and a broker in this process, reached over sockets."""

    can_prepare = True

    def __init__(self, namesrv: NameServer, broker: Broker | None, clock: _CapturedClock) -> None:
        self._namesrv = namesrv
        self._broker = broker
        self._clock = clock
        self.addresses: dict[str, tuple[str, int]] = {}

    async def connect(self, peer: str) -> Channel:
        """Open a connection."""
        streams = await asyncio.open_connection(*self.addresses[peer])
        return SocketChannel(*streams, self._connections(peer))

    def _connections(self, peer: str) -> Callable[[], int]:
        if peer == NAMESRV:
            return lambda: self._namesrv.statistics().server.connections
        broker = self._broker
        assert broker is not None
        return lambda: broker.server.statistics().connections

    async def settle(self) -> None:
        """Wait until the name server knows the broker's topics."""
        if self._broker is not None:
            await self._broker.registration.register_now()

    def set_time(self, now_ms: int) -> None:
        """Set the wall clock."""
        self._clock.set(now_ms)
        if self._broker is not None:
            self._end_pops(self._broker, now_ms)

    @staticmethod
    def _end_pops(broker: Broker, now_ms: int) -> None:
        """End the time of popped messages by the captured clock."""
        table = broker.pop_table
        for key, queue in table.queues.items():
            for point in queue.check_points():
                if point.pop_ms + point.invisible_ms <= now_ms and not point.reviving:
                    table.put_off(key, point, 0)
        broker.revival.on_deadline()

    def ask_producers(self) -> None:
        """Ask about the transactions without an outcome, now."""
        if self._broker is not None:
            self._broker.transaction_service.begin_round()

    def choose_queue(self, queue_id: int) -> None:
        """Say which queue to choose next."""
        if self._broker is not None:
            assert isinstance(self._broker.random, _CapturedChoice)
            self._broker.random.queue_id = queue_id


@asynccontextmanager
async def local_servers(
    *, with_broker: bool = True, property_filter: bool = True
) -> AsyncIterator[LocalServers]:
    """Start servers named as in the capture, on a disk in memory: what is played is answers."""
    clock, files = _CapturedClock(), FakeFiles()
    namesrv = NameServer(NameServerConfig(port=0, data="/names"), clock, files)
    host, port = await namesrv.start()
    broker = None
    try:
        if with_broker:
            config = BrokerConfig(
                name="broker-a",
                cluster="DefaultCluster",
                port=0,
                data="/data",
                advertised_host="127.0.0.1",
                namesrv=f"{host}:{port}",
                property_filter=property_filter,
                store=StoreConfig(
                    segment_bytes=8 * MIB,
                    queue_file_bytes=20_000,
                    index_slots=500,
                    index_entries=2000,
                ),
            )
            broker = Broker(config, clock, files, randomness=_CapturedChoice(1))
        servers = LocalServers(namesrv, broker, clock)
        servers.addresses[NAMESRV] = host, port
        if broker is not None:
            servers.addresses[BROKER] = await broker.start()
        yield servers
    finally:
        if broker is not None:
            await broker.stop()
        await namesrv.stop()


@dataclass(frozen=True, slots=True)
class Judged:
    """One exchange and what is to be said about it."""

    exchange: Exchange
    later: bool
    deliberate: tuple[tuple[Difference, Rule], ...]
    unexplained: tuple[Difference, ...]

    @property
    def rules(self) -> frozenset[Rule]:
        """Return the rules that say something about this answer."""
        return frozenset(rule for _, rule in self.deliberate if not rule.everywhere)

    @property
    def equal(self) -> bool:
        """Tell whether our answer is the captured one."""
        return not (self.later or self.rules or self.unexplained)

    @property
    def follows(self) -> bool:
        """Tell whether it differs only by what it cannot know."""
        return bool(self.rules) and all(rule.state for rule in self.rules)


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one conversation."""

    file: str
    whole: bool
    judged: tuple[Judged, ...]
    oneway: Counter[tuple[str, int]]
    answered_oneway: tuple[int, ...]
    unanswered: Counter[tuple[str, int]]
    notified: Counter[int]
    notified_captured: Counter[int]


@functools.cache
def result_of(name: str) -> Result:
    """Play one conversation."""
    conversation = capture.load(name)
    played = asyncio.run(_play(conversation))
    return Result(
        file=name,
        whole=conversation.whole,
        judged=tuple(judge(exchange) for exchange in played.exchanges),
        oneway=played.oneway,
        answered_oneway=tuple(row.seq for row in played.answered_oneway),
        unanswered=Counter((row.peer, row.command.code) for row in played.unanswered),
        notified=played.notified,
        notified_captured=played.notified_captured,
    )


async def _play(conversation: capture.Conversation) -> Played:
    filters = not conversation.name.endswith(_WITHOUT_FILTERS)
    async with local_servers(
        with_broker=not conversation.namesrv_only, property_filter=filters
    ) as servers:
        return await Player(conversation, servers).play()


def judge(exchange: Exchange) -> Judged:
    """Compare an exchange and explain its differences."""
    if is_later(exchange):
        return _judge_later(exchange)
    deliberate, unexplained = [], []
    for difference in compare(exchange):
        rule = rule_for(difference)
        if rule is None:
            unexplained.append(difference)
        else:
            deliberate.append((difference, rule))
    return Judged(exchange, False, tuple(deliberate), tuple(unexplained))


def _judge_later(exchange: Exchange) -> Judged:
    """A code that comes later is answered 3, and with nothing else."""
    wrong: tuple[Difference, ...] = ()
    if exchange.ours.code != NOT_SUPPORTED:
        wrong = (
            Difference(
                exchange, "code", f"{NOT_SUPPORTED} until it is served", str(exchange.ours.code)
            ),
        )
    return Judged(exchange, True, (), wrong)


@functools.cache
def census() -> dict[tuple[str, int], bool]:
    """Ask both servers for every code there is; tell which of them they serve."""
    return asyncio.run(_census())


async def _census() -> dict[tuple[str, int], bool]:
    served = {}
    async with local_servers() as servers:
        for peer in (NAMESRV, BROKER):
            for code in RequestCode:
                channel = await servers.connect(peer)
                await channel.send(encode_frame(Command.request(code, {}, request_id=1)))
                served[peer, int(code)] = (await channel.answer(1)).code != NOT_SUPPORTED
                await channel.close()
    return served
