"""Killed at any write while keys are parked, redriven and let go: message and mark agree.

The broker dies at the nth change of its disk, for every n of the whole story; the next one goes on
from what is there. Whatever was answered is known, and what was not is there as a whole or not at
all: repeating the request never makes a second copy.
"""

from __future__ import annotations

import asyncio
import gc
from random import Random

import pytest

from inorder.client.api import BrokerApi, ParkingApi
from inorder.errors import InorderError
from inorder.model import GroupQueue
from inorder.wire.requests.parking import (
    NamedKey,
    Park,
    ParkBody,
    ParkItem,
    Redriven,
    RedrivenBody,
    Unpark,
)
from tests.integration.brokerkit import Rig, running
from tests.kit.disk import FakeFiles, Fault, Killed

# A loop that dies leaves coroutines that never began.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]

TOPIC, QUEUE, KEY = "Orders", 1, "k"
PLACE = GroupQueue("billing", TOPIC, QUEUE)
OWNER = ("billing", "client", "instance", TOPIC, QUEUE, 0)
MESSAGES = 3


class Story:
    """What an owner does, step by step; each can be done again."""

    def __init__(self) -> None:
        self.answered = 0

    def steps(self) -> list[tuple[str, object]]:
        """Return the requests in order."""
        parks = [("park", offset) for offset in range(MESSAGES)]
        return [*parks, ("redrive", None), ("done", 0), ("done", 1), ("done", 2), ("unpark", 2)]

    async def play(self, rig: Rig, start: int) -> None:
        """Ask from a step on, one after the other."""
        api = ParkingApi(BrokerApi(rig.connection, timeout_ms=20_000))
        for index, (kind, value) in enumerate(self.steps()):
            if index < start:
                continue
            if kind == "park":
                assert isinstance(value, int)
                item = ParkItem(value, KEY, 0, "no" if value == 0 else None)
                answer = await api.park(Park(*OWNER), ParkBody([item]))
                assert answer.outcomes == ["parked"]
            elif kind == "redrive":
                assert await api.redrive("billing", [NamedKey(TOPIC, QUEUE, KEY)]) == 1
            elif kind == "done":
                assert isinstance(value, int)
                await api.redriven(Redriven(*OWNER, KEY), RedrivenBody([value]))
            else:
                assert isinstance(value, int)
                assert (await api.unpark(Unpark(*OWNER, KEY, value))).live
            self.answered = index + 1


def known_offsets(rig: Rig) -> list[int]:
    """Return what lies in the key's list."""
    found = rig.broker.parking.table.find(PLACE, KEY)
    return [] if found is None else [message.origin for message in found.messages]


async def send(rig: Rig) -> None:
    """Store the messages."""
    for number in range(MESSAGES):
        properties = f"__SHARDINGKEY\x01{KEY}\x02UNIQ_KEY\x01id-{number}\x02"
        await rig.send(str(number).encode(), i=properties)


def killed_at(nth: int) -> bool:
    """Play the story on a disk that dies at its nth change; tell whether it died at all."""
    story = Story()

    async def first(files: FakeFiles) -> bool:
        try:
            async with running(files, stop=False) as rig:
                await send(rig)
                loop, failed = asyncio.get_running_loop(), asyncio.Event()
                loop.set_exception_handler(lambda *_: failed.set())
                files.fail(Fault("change", nth, error=None, kept_bytes=17))
                playing = asyncio.ensure_future(story.play(rig, 0))
                dying = asyncio.ensure_future(failed.wait())
                await asyncio.wait((playing, dying), return_when=asyncio.FIRST_COMPLETED)
                dying.cancel()
                died = not playing.done() or playing.exception() is not None
                playing.cancel()
                return died
        except (Killed, InorderError, OSError):
            return True

    async def second(files: FakeFiles) -> None:
        async with running(files, stop=False) as rig:
            steps, answered = story.steps(), story.answered
            parked = [value for kind, value in steps[:answered] if kind == "park"]
            done = [value for kind, value in steps[:answered] if kind == "done"]
            found = known_offsets(rig)
            assert set(parked) - set(done) <= {*found, *_next(steps, answered, "done")}
            assert not set(found) & set(done), "what was reported is gone for good"
            await story.play(rig, answered)
            assert known_offsets(rig) == []
            assert not rig.broker.parking.table.groups()
            assert rig.broker.parking.table.done(PLACE, 0) == [(0, MESSAGES)]

    files = FakeFiles()
    died = False
    try:
        died = asyncio.run(first(files))
    except Killed:
        died = True
    asyncio.run(second(files.kill()))
    gc.collect()  # what the dead process had begun, while its warnings are not listened to
    return died


def _next(steps: list[tuple[str, object]], answered: int, kind: str) -> set[object]:
    """Return what the request that was not answered may have done."""
    if answered < len(steps) and steps[answered][0] == kind:
        return {steps[answered][1]}
    return set()


def test_killed_at_every_write() -> None:
    """From the first change after the messages are stored to the end of the story."""
    nth = 1
    while killed_at(nth):
        nth += 1
    assert nth > len(Story().steps()), "every request writes"


@pytest.mark.parametrize("seed", range(6))
def test_killed_again_and_again(seed: int) -> None:
    """The next broker dies, too: at a write drawn from the seed."""
    draw = Random(seed)
    for _ in range(3):
        killed_at(draw.randint(1, 12))
