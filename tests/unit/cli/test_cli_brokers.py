"""`inorder up --brokers N`: what is derived, and what happens to a broker that ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inorder.cli.brokers import BROKERS_MAX, BrokerPlan, child_words, left_out, plan_brokers
from inorder.cli.supervising import (
    REGISTER_LOOK_MS,
    RESTART_FIRST_MS,
    RESTART_MAX_MS,
    STEADY_MS,
    BrokerProcess,
    Brokers,
)
from inorder.clock import Clock
from inorder.config import BrokerConfig
from inorder.disk import OsFiles
from inorder.errors import ConfigError, InorderError
from inorder.nameserver.server import NameServer


def config(name: str = "broker-a", port: int = 10911, data: str = "d") -> BrokerConfig:
    """Return the settings of the first broker."""
    return BrokerConfig(name=name, port=port, data=data)


def test_the_first_broker_is_the_one_of_a_plain_up() -> None:
    """Its directory goes on; the others lie below, on ports of which none is another's minus 2."""
    assert plan_brokers(config(), 3, 9876) == [
        BrokerPlan("broker-a", 10911, "d"),
        BrokerPlan("broker-b", 10921, "d/broker-b"),
        BrokerPlan("broker-c", 10931, "d/broker-c"),
    ]
    assert plan_brokers(config("any name"), 1, 9876) == [BrokerPlan("any name", 10911, "d")]


def test_derived_values_are_apart() -> None:
    """As many as there may be: names, directories and ports, also those of RocketMQ's VIP."""
    plans = plan_brokers(config(), BROKERS_MAX, 9876)
    assert len({plan.name for plan in plans}) == len({plan.data for plan in plans}) == BROKERS_MAX
    ports = {plan.port for plan in plans}
    assert len(ports | {port - 2 for port in ports}) == 2 * BROKERS_MAX
    assert [plans[25].name, plans[26].name, plans[-1].name] == [
        "broker-z",
        "broker-aa",
        "broker-bl",
    ]


def test_any_free_port_stays_any_free_port() -> None:
    """Port 0 for each."""
    assert [plan.port for plan in plan_brokers(config(port=0), 3, 0)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("first", "count", "namesrv", "said"),
    [
        (config("east"), 2, 9876, "name the first broker east-a"),
        (config(port=65_530), 2, 9876, "would need port 65540"),
        (config(port=9866), 2, 9876, "choose another --broker-port"),
    ],
)
def test_what_cannot_be_derived_is_said(
    first: BrokerConfig, count: int, namesrv: int, said: str
) -> None:
    """Before anything starts."""
    with pytest.raises(ConfigError, match=said):
        plan_brokers(first, count, namesrv)


def test_brokers_that_would_be_left_out_are_found(tmp_path: Path) -> None:
    """By their log; a folder of another kind is none."""
    for name in ("broker-b", "broker-c", "broker-x1"):
        (tmp_path / name / "commitlog").mkdir(parents=True)
    (tmp_path / "broker-d").mkdir()
    first = config(data=str(tmp_path))
    assert left_out(first, 1, OsFiles()) == ["broker-b", "broker-c"]
    assert left_out(first, 2, OsFiles()) == ["broker-c"]
    assert left_out(first, 3, OsFiles()) == []
    assert left_out(config("other", data=str(tmp_path)), 1, OsFiles()) == []


def test_a_child_gets_its_own_options_and_the_settings_of_all() -> None:
    """As a person would write it."""
    words = child_words(
        BrokerPlan("broker-b", 7, "d/broker-b"), "h:1", host="127.0.0.1", config=Path("f.toml"),
        sets={"flushDiskType": "SYNC_FLUSH"}, log_level="info",
    )  # fmt: skip
    assert " ".join(words) == (
        "broker --supervised --output json --log-level info --name broker-b --namesrv h:1 "
        "--host 127.0.0.1 --port 7 --data d/broker-b --config f.toml --set flushDiskType=SYNC_FLUSH"
    )


def test_each_child_has_an_admin_port_of_its_own() -> None:
    """Ports are as far apart as the brokers' own; 0 stays any port, off stays off."""

    def ports(admin_port: int) -> list[int]:
        plans = plan_brokers(replace(config("broker-a"), admin_port=admin_port), 3, 0)
        return [plan.admin_port for plan in plans]

    assert ports(5557) == [5557, 5567, 5577]
    assert ports(0) == [0, 0, 0]
    assert ports(-1) == [-1, -1, -1]
    plan = BrokerPlan("broker-b", 7, "d", 5567)
    words = child_words(plan, "h:1", host="h", config=None, sets={}, log_level="info")
    assert words[-2:] == ["--set", "admin_port=5567"]


class FakeClock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 1_000

    def monotonic_ms(self) -> int:
        """Return its time."""
        return self.now


class FakeProcess(BrokerProcess):
    """A process that does as it is told: how long it runs, and whether it starts."""

    def __init__(self, plan: BrokerPlan, clock: FakeClock, lives: list[int | None]) -> None:
        super().__init__(plan)
        self.clock = clock
        self.lives = lives  # ms of each life; None: it does not start
        self.started: list[Sequence[str]] = []
        self.over = asyncio.Event()

    async def start(self, words: Sequence[str]) -> None:
        """Start, or not."""
        self.started.append(words)
        if self.lives and self.lives[0] is None:
            raise InorderError("it did not start")
        self.address = "127.0.0.1:5000"

    @property
    def is_running(self) -> bool:
        """Return whether it has not ended."""
        return True

    async def ended(self) -> str:
        """End after the time of this life; the last life lasts."""
        if not self.lives:
            self.over.set()
            await asyncio.Event().wait()
        self.clock.now += self.lives.pop(0) or 0
        return "SIGKILL"

    async def stop(self, _timeout_ms: int) -> bool:
        """Stop."""
        return True


def pauses_of(lives: list[int | None], looks: int = 0) -> tuple[list[int], FakeProcess]:
    """Supervise a process with these lives; return the pauses before its starts.

    The name server lists it only after so many looks.
    """
    clock = FakeClock()
    pauses: list[int] = []

    async def pause(seconds: float) -> None:
        pauses.append(round(seconds * 1000))

    async def main() -> FakeProcess:
        made: list[FakeProcess] = []

        def process(plan: BrokerPlan) -> BrokerProcess:
            made.append(FakeProcess(plan, clock, lives))
            return made[-1]

        async def started() -> tuple[str, int]:
            return "127.0.0.1", 9876

        async def stopped() -> None:
            pass

        def listed() -> SimpleNamespace:
            return SimpleNamespace(brokers={"broker-a": 1} if len(pauses) >= looks else {})

        namesrv = SimpleNamespace(
            start=started, stop=stopped, routes=SimpleNamespace(cluster_info=listed)
        )
        words: Callable[[BrokerPlan, str], list[str]] = lambda plan, _: [str(plan.port)]  # noqa: E731
        several = Brokers(
            cast(NameServer, namesrv), [BrokerPlan("broker-a", 0, "d")], words, cast(Clock, clock),
            stop_ms=1, process=process, pause=cast(Any, pause),
        )  # fmt: skip
        await several.start()
        async with asyncio.timeout(5):
            await made[0].over.wait()
        await several.stop()
        return made[0]

    return pauses, asyncio.run(main())


def test_a_broker_that_ends_starts_again_at_its_port() -> None:
    """The port that it had, also if it was any free one."""
    pauses, process = pauses_of([5])
    assert pauses == [RESTART_FIRST_MS]
    assert process.started == [["0"], ["5000"]]


def test_pauses_grow_and_have_a_limit() -> None:
    """A broker that ends again and again does not keep the machine busy."""
    pauses, _ = pauses_of([5] * 10)
    assert pauses[:3] == [RESTART_FIRST_MS, 2 * RESTART_FIRST_MS, 4 * RESTART_FIRST_MS]
    assert pauses[-1] == RESTART_MAX_MS
    assert pauses == sorted(pauses)


def test_a_broker_that_ran_steadily_begins_anew() -> None:
    """An accident a day is no reason to wait."""
    pauses, _ = pauses_of([5, 5, STEADY_MS, STEADY_MS - 1])
    assert pauses == [
        RESTART_FIRST_MS, 2 * RESTART_FIRST_MS, RESTART_FIRST_MS, 2 * RESTART_FIRST_MS,
    ]  # fmt: skip


def test_a_broker_that_does_not_start_again_is_tried_again() -> None:
    """The others flow meanwhile: nothing ends because of it."""
    pauses, process = pauses_of([5, None, None])
    assert len(process.started) == 4
    assert pauses == [RESTART_FIRST_MS * 2**number for number in range(3)]


def test_nothing_is_ready_before_the_name_server_lists_all() -> None:
    """A first send spreads a topic over the brokers that are listed, and no more ever join it."""
    pauses, _ = pauses_of([], looks=3)
    assert pauses == [REGISTER_LOOK_MS] * 3
