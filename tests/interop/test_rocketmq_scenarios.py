"""Every RocketMQ client plays every scenario of the table against our broker, all at the same time:
nearly all of it is waiting for timers of the clients, for delays and for locks that run out.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from bench.systems import Ours
from tests.interop.scenarios import DELAY_LEVELS, KINDS, SCENARIOS, Scenario
from tests.interop.stage import Stage
from tests.interop.stock import Kind, running

pytestmark = [pytest.mark.interop, pytest.mark.slow]

CELLS = [(kind, scenario) for kind in KINDS for scenario in SCENARIOS]
Outcomes = dict[tuple[str, str], Future[None]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    """Play everything; each client has one process for all that kills nobody."""
    wanted = [(k, s) for k, s in CELLS if k.name not in s.cannot]
    with (
        Ours(settings={"messageDelayLevel": DELAY_LEVELS}) as server,
        ExitStack() as processes,
        ThreadPoolExecutor(len(wanted)) as pool,
    ):

        def play(kind: Kind, scenarios: list[Scenario]) -> list[Future[None]]:
            folder = tmp_path_factory.mktemp(kind.name)
            main = processes.enter_context(running(kind, server, folder))
            return [
                pool.submit(
                    lambda s: s.play(
                        Stage(f"{s.name}_{kind.name}", kind, main, processes, folder / s.name)
                    ),
                    scenario,
                )
                for scenario in scenarios
            ]

        found: Outcomes = {}
        for kind in KINDS:
            scenarios = [s for k, s in wanted if k is kind]
            try:
                futures = play(kind, scenarios)
            except BaseException as error:  # the tests of this client raise or skip with it
                futures = [Future() for _ in scenarios]
                for future in futures:
                    future.set_exception(error)
            found |= {(kind.name, s.name): f for s, f in zip(scenarios, futures, strict=True)}
        yield found


@pytest.mark.parametrize(("kind", "scenario"), CELLS, ids=[f"{k.name}-{s.name}" for k, s in CELLS])
def test_a_rocketmq_client_plays_a_scenario(
    kind: Kind, scenario: Scenario, outcomes: Outcomes
) -> None:
    """What the table in docs/reference/stock-clients.md says about this client is so."""
    if (reason := scenario.cannot.get(kind.name)) is not None:
        pytest.skip(f"{kind.name}: {reason}")
    outcomes[kind.name, scenario.name].result()
