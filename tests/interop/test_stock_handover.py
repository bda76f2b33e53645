"""Ordered consumers of stock clients: two members share the queues, one goes, the other takes over.

All clients do it at the same time, each with a topic of its own: nearly all of the time is spent
waiting for timers of the clients and for locks that run out.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.systems import Ours
from tests.interop.driver import Message, by_queue
from tests.interop.rawclient import RawClient
from tests.interop.stock import KINDS, QUEUES, Client, Kind, as_sent, make_topic, running
from tests.interop.toolchains import Lacking

pytestmark = [pytest.mark.interop, pytest.mark.slow]

PAUSE_S = 0.02
FIRST, SECOND = "first", "second"
WAIT_S = 45.0
GET_CONSUMER_LIST = 38


@dataclass(frozen=True, slots=True)
class Case:
    """A client, how its first member goes, and what may follow."""

    kind: Kind
    killed: bool = False
    joins: bool = True
    taken_over_within_s: float = 5.0
    doubled_max: int = 0

    @property
    def name(self) -> str:
        """Return the name of the test."""
        return f"{self.kind.name}-{'killed' if self.killed else 'stopped'}"


_KINDS = {kind.name: kind for kind in KINDS}
CASES = [
    # A queue that it gives up it unlocks while its handler still runs: a message may come twice.
    Case(_KINDS["cpp-0.4.4"], doubled_max=QUEUES),
    # Queues that it gives up to a newcomer it never unlocks, and it never unregisters: those are
    # free when its connection has been closed and the last renewal is 30 s ago (60 s in RocketMQ).
    # And when it gives up one queue it forgets its progress in all others: those start again.
    Case(_KINDS["go-2.1.2"], joins=False, taken_over_within_s=35, doubled_max=500),
    Case(_KINDS["java-4.9.8-json"]),
    Case(_KINDS["java-4.9.8-binary"]),
    Case(_KINDS["java-5.3.3-json"]),
    Case(_KINDS["java-5.3.3-binary"]),
    # What a killed client handled since its last commit, up to 5 s ago, comes again.
    Case(_KINDS["cpp-0.4.4"], killed=True, taken_over_within_s=35, doubled_max=500),
    Case(_KINDS["java-5.3.3-json"], killed=True, taken_over_within_s=35, doubled_max=500),
]


@dataclass(slots=True)
class Outcome:
    """What one pair of members did."""

    joined_after_s: float | None
    going_took_s: float
    taken_over_after_s: float
    sent: int
    handled: list[Message]


class Trickle:
    """A producer in the background: numbers in turn to the queues, until it is told to end."""

    def __init__(self, address: tuple[str, int], topic: str) -> None:
        self.sent = 0
        self._address, self._topic = address, topic
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Trickle:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(10)

    def _run(self) -> None:
        with RawClient(self._address) as raw:
            while not self._ending.wait(PAUSE_S):
                number = self.sent
                raw.send_message(self._topic, number % QUEUES, str(number).encode(), {"TAGS": "A"})
                self.sent = number + 1


def hand_over(case: Case, first: Client, second: Client) -> Outcome:
    """Let one member own everything, a second join, and the first go."""
    name = case.name.replace(".", "_")
    make_topic(first.server, name)
    with Trickle(first.server.address, name) as trickle:
        first.push(FIRST, name, group=name, mode="orderly")
        wait_for(first, lambda: owned(first, FIRST) == QUEUES, "the first owns all")
        began, joined = time.monotonic(), None
        second.push(SECOND, name, group=name, mode="orderly")
        wait_for(second, lambda: members(second, name) == 2, "both are members")
        if case.joins:
            wait_for(second, lambda: owned(second, SECOND) >= QUEUES // 2, "the second owns half")
            joined = time.monotonic() - began
        began = time.monotonic()
        if case.killed:
            first.driver.process.kill()
            first.driver.process.wait()
        else:
            first.stop(FIRST)
        gone, mark = time.monotonic(), trickle.sent

        def taken_over() -> bool:
            return owned(second, SECOND, since=mark) == QUEUES

        wait_for(second, taken_over, "the second owns all")
        ended = time.monotonic()
    wait_for(second, lambda: len(numbers(first, second)) == trickle.sent, "everything is handled")
    second.stop(SECOND)
    handled = sorted(handled_by(first, second), key=lambda message: message.at_ms)
    return Outcome(joined, gone - began, ended - gone, trickle.sent, handled)


def wait_for(client: Client, condition: Callable[[], bool], what: str) -> None:
    """Wait on the events of a client."""
    client.driver.wait(condition, what, timeout_s=WAIT_S)


def owned(client: Client, name: str, *, since: int = 0) -> int:
    """Count the queues from which a member has got something, sent after some number."""
    messages = client.driver.messages("got", name)
    return len({message.queue for message in messages if message.number >= since})


def handled_by(first: Client, second: Client) -> list[Message]:
    """Return what both have handled."""
    return first.driver.messages("got", FIRST) + second.driver.messages("got", SECOND)


def numbers(first: Client, second: Client) -> set[int]:
    """Return the numbers that were handled at all."""
    return {message.number for message in handled_by(first, second)}


def members(client: Client, group: str) -> int:
    """Count the members of a group that the broker knows."""
    with RawClient(client.server.address) as raw:
        answer = raw.request(GET_CONSUMER_LIST, {"consumerGroup": group})
    return len(json.loads(answer.body)["consumerIdList"]) if answer.code == 0 else 0


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Outcome]]]:
    """Run every case at the same time; members share a process unless one is to be killed."""
    futures: dict[str, Future[Outcome]] = {}
    with Ours() as server, ExitStack() as drivers, ThreadPoolExecutor(len(CASES)) as pool:

        def start(case: Case) -> Client:
            directory: Path = tmp_path_factory.mktemp(case.name)
            return drivers.enter_context(running(case.kind, server, directory))

        for case in CASES:
            try:
                case.kind.command()
            except Lacking as lacking:
                futures[case.name] = Future()
                futures[case.name].set_exception(lacking)
                continue
            first = start(case)
            second = start(case) if case.killed else first
            futures[case.name] = pool.submit(hand_over, case, first, second)
        yield futures


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_member_that_stays_takes_over_in_order(
    case: Case, outcomes: dict[str, Future[Outcome]]
) -> None:
    """When one of two members goes the other has all queues; nothing is lost, all is in order."""
    try:
        outcome = outcomes[case.name].result()
    except Lacking as lacking:
        pytest.skip(f"{case.kind.name} cannot run here: {lacking}")
    joined = "-" if outcome.joined_after_s is None else f"{outcome.joined_after_s:.2f} s"
    doubled = len(outcome.handled) - outcome.sent
    print(
        f"{case.name}: joined after {joined}, going took {outcome.going_took_s:.2f} s, taken over "
        f"{outcome.taken_over_after_s:.2f} s later; {outcome.sent} sent, {doubled} handled twice"
    )
    assert by_queue(first_copies(outcome.handled)) == as_sent(0, outcome.sent)
    assert doubled <= case.doubled_max
    assert outcome.taken_over_after_s < case.taken_over_within_s


def first_copies(messages: list[Message]) -> list[Message]:
    """Return each number where it was first handled."""
    return list({message.number: message for message in reversed(messages)}.values())[::-1]
