"""Groups with parked keys are rewound: what is parked waits for what comes again, not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from inorder.broker.offsets import handlers as offset_handlers
from inorder.broker.parking.rules import Limits
from inorder.broker.parking.service import Parking
from inorder.client.api import ParkingApi
from inorder.client.rules.resizing import spread
from inorder.errors import InorderError
from inorder.model import TopicQueue
from inorder.ordering.keymap import KeyMap
from inorder.wire.requests.offsets import CloneOffsets, ResetOffset
from tests.integration.resizekit import GROUP, TOPIC, Town, play
from tests.integration.test_resizing_parked import Bad

pytestmark = pytest.mark.slow

QUEUE = TopicQueue(TOPIC, "broker-a", 0)


async def parked_at_its_end(town: Town, *, count: int = 5) -> Bad:
    """Let messages 0 to 2 of a key be handled, and the others be parked."""
    bad = Bad(town, ["k"])
    bad.good_until = 2
    await bad.consumer()
    await town.send(count, keys=["k"])
    await town.until(lambda: bad.parked() == count - 3)
    await asyncio.sleep(10)
    return bad


def leave(town: Town) -> None:
    """Kill the consumer."""
    town.loop.kill(town.consumers.pop()[0])


async def redriven(town: Town, bad: Bad, numbers: Sequence[int] = range(5)) -> None:
    """Redrive at once, with a new consumer: all comes in order."""
    await town.admin.parked.redrive(GROUP)
    town.handled.clear()
    bad.keys.clear()
    await bad.consumer()
    await asyncio.sleep(60)
    assert [number for key, number in town.handled if key == "k"] == list(numbers)
    assert await town.admin.parked.list(GROUP) == []


def test_a_redrive_waits_for_what_a_reset_brings_again() -> None:
    """Messages of the key come again that are older than those that are parked."""

    async def story(town: Town) -> None:
        bad = await parked_at_its_end(town)
        leave(town)
        await town.admin.offsets.reset(GROUP, TOPIC, "beginning")
        await redriven(town, bad)

    play(story, brokers=1)


def test_also_what_was_finished_above_the_offset_is_waited_for() -> None:
    """A slow key holds the offset; a reset makes the map of what is finished void."""

    async def story(town: Town) -> None:
        bad = Bad(town, ["k"])
        bad.good_until, bad.pauses = 2, (3600.0,)
        await bad.consumer()
        await town.send(1, keys=["slow"])
        await town.until(lambda: town.handled == [("slow", 0)])
        bad.pauses = (0.0,)
        await town.send(5, keys=["k"])
        await town.until(lambda: bad.parked() == 2)
        await asyncio.sleep(10)
        assert town.broker(0).offsets.query(GROUP, TOPIC, 0) == 0
        leave(town)
        await town.admin.offsets.reset(GROUP, TOPIC, "beginning")
        await redriven(town, bad)

    play(story, brokers=1, queues=1)


def test_a_reset_that_meets_the_first_park_of_a_queue_counts_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The park is on its way into the log: nothing is known of the queue yet."""

    async def story(town: Town) -> None:
        bad = Bad(town, ["k"])
        bad.good_until = 2
        await bad.consumer()
        await town.send(3, keys=["k"])
        await town.all_handled()
        await asyncio.sleep(10)
        broker, flying, store = town.broker(0), asyncio.Event(), Parking.store

        def stored(*arguments: object) -> object:
            flying.set()
            return store(*arguments)  # type: ignore[arg-type]

        broker.ensure_topic("%PARK%" + GROUP, queues=2)
        monkeypatch.setattr(Parking, "store", stored)
        await town.send(2, keys=["k"])
        await flying.wait()
        assert not broker.parking.table.places
        request = ResetOffset(TOPIC, GROUP, 0, True)
        await asyncio.gather(*offset_handlers._reset(broker, request, {0: 0}))
        leave(town)
        await redriven(town, bad)

    play(story, brokers=1, queues=1)


def test_a_reset_that_is_repeated_after_a_kill_counts_for_what_is_parked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The offset was written, its note was not; the operator, who had no answer, asks again."""

    async def story(town: Town) -> None:
        bad = await parked_at_its_end(town)
        leave(town)
        written = asyncio.Event()

        async def never(*_: object) -> None:
            await asyncio.sleep(0.2)
            written.set()
            await asyncio.sleep(1000)

        with monkeypatch.context() as patch:
            patch.setattr(Parking, "reset", never)
            first = asyncio.ensure_future(town.admin.offsets.reset(GROUP, TOPIC, "beginning"))
            await written.wait()
            town.cluster.brokers[0].kill()
        await town.cluster.brokers[0].start()
        with pytest.raises(InorderError):
            await first
        assert town.broker(0).offsets.query(GROUP, TOPIC, 0) == 0
        await asyncio.sleep(5)
        await town.admin.offsets.reset(GROUP, TOPIC, "beginning")
        await redriven(town, bad)

    play(story, brokers=1, queues=1)


@pytest.mark.parametrize("how", ["commit", "clone", "delete"])
def test_other_ways_back_count_too(how: str) -> None:
    """An offset that is committed lower, offsets of another group, a group that begins anew."""

    async def story(town: Town) -> None:
        bad = await parked_at_its_end(town)
        leave(town)
        await asyncio.sleep(60)
        broker = town.broker(0)
        if how == "delete":
            await town.admin.groups.delete(GROUP)
        elif how == "commit":
            await (await town.session.master_of(QUEUE)).update_offset(GROUP, QUEUE, 0)
        else:
            broker.offsets.commit("other", TOPIC, 0, 0, 0)
            request = CloneOffsets("other", GROUP, TOPIC, True)
            await (await town.session.master_of(QUEUE)).ask(request)
        await redriven(town, bad)

    play(story, brokers=1, queues=1)


@pytest.mark.parametrize(
    "limits", [Limits(age_max_ms=60_000), Limits(bytes_max=860), Limits(keys_max=1)]
)
def test_a_rewound_group_at_a_limit_continues(limits: Limits) -> None:
    """What comes again joins its key, and another key that fails is parked as well."""

    async def story(town: Town) -> None:
        bad = await parked_at_its_end(town)
        await town.send(2, keys=["b"])
        await asyncio.sleep(90)
        town.broker(0).parking.table.limits = limits
        bad.keys, bad.good_until = {"b"} if limits.keys_max == 1 else set(), -1
        await town.admin.offsets.reset(GROUP, TOPIC, "beginning")
        town.handled.clear()
        await asyncio.sleep(5)
        bad.keys.clear()
        await town.admin.parked.redrive(GROUP)
        await town.all_handled()
        assert town.inversions() == []
        await asyncio.sleep(5)
        assert await town.admin.parked.list(GROUP) == []

    play(story, brokers=1, queues=1)


def test_redrives_that_wait_let_others_begin_and_ask_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight wait for a slow message that comes again; a ninth lies before it."""
    asked = dict.fromkeys(("keys", "unpark", "read_counted"), 0)

    def counted(name: str) -> None:
        call = getattr(ParkingApi, name)

        async def count(*arguments: object) -> object:
            asked[name] += 1
            return await call(*arguments)

        monkeypatch.setattr(ParkingApi, name, count)

    for name in asked:
        counted(name)

    async def story(town: Town) -> None:
        eight = [f"e{number}" for number in range(8)]
        bad = Bad(town, [*eight, "nine"])
        await bad.consumer()
        await town.send(1, keys=[*eight, "nine"])
        await town.until(lambda: bad.parked() == 9)
        bad.keys.clear()
        await town.send(1, keys=["slow"])
        await town.send(1, keys=eight)
        await town.until(lambda: bad.parked() == 17)
        await asyncio.sleep(10)
        bad.pauses = (300.0,)
        await town.admin.offsets.reset_queue(GROUP, QUEUE, 9)
        town.handled.clear()
        await asyncio.sleep(5)
        bad.pauses = (0.0,)
        asked.update(dict.fromkeys(asked, 0))
        await town.admin.parked.redrive(GROUP)
        await asyncio.sleep(100)
        assert sorted(town.handled) == [*((key, 0) for key in eight), ("nine", 0), ("slow", 0)]
        assert asked["keys"] < 60
        assert asked["unpark"] < 20
        await town.until(lambda: len(town.handled) == 18)
        assert town.inversions() == []

    play(story, brokers=1, queues=1)


def test_a_topic_that_is_made_anew_does_not_hold_what_was_parked_before() -> None:
    """There is nothing that could come again."""

    async def story(town: Town) -> None:
        bad = await parked_at_its_end(town)
        leave(town)
        await asyncio.sleep(60)
        await town.admin.offsets.reset(GROUP, TOPIC, "beginning")
        await town.admin.topics.delete(TOPIC)
        await asyncio.sleep(20)
        await town.admin.topics.create(TOPIC, queues=1)
        await redriven(town, bad, [3, 4])

    play(story, brokers=1, queues=1)


@pytest.mark.parametrize("moved", ["no", "older list", "own list"])
def test_what_a_redrive_handles_during_a_reset_comes_again(moved: str) -> None:
    """0 was handled, 1 is redriven when the group is rewound, 2 waits: then 0, 1, 2 come."""

    async def story(town: Town) -> None:
        old = KeyMap.decode(town.broker(0).resizing.versions(TOPIC).map)
        new = KeyMap.of(2, spread(["broker-a"], 11))
        key = next(n for n in map("k{}".format, range(99)) if old.queue(n) != new.queue(n))
        bad = Bad(town, [])
        await bad.consumer()
        await town.send(1, keys=[key])
        await town.all_handled()
        if moved == "own list":
            await town.admin.topics.resize(TOPIC, queues=11)
            await town.released(2)
        bad.keys = {key}
        await town.send(2, keys=[key])
        await town.until(lambda: bad.parked() == 2)
        await asyncio.sleep(3)
        if moved == "older list":
            await town.admin.topics.resize(TOPIC, queues=11)
            await town.released(2)
            await asyncio.sleep(3)
        bad.keys.clear()
        bad.pauses = (0.0, 8.0, 0.0)
        await town.admin.parked.redrive(GROUP)
        await town.until(lambda: (key, 1) in town.handled)
        await asyncio.sleep(1)
        await town.admin.offsets.reset(GROUP, TOPIC, "beginning")
        town.handled.clear()
        await asyncio.sleep(30)
        for _ in range(10):
            await town.admin.parked.redrive(GROUP)
            await asyncio.sleep(10)
        assert await town.admin.parked.list(GROUP) == []
        assert town.handled == [(key, 0), (key, 1), (key, 2)]

    play(story, brokers=1)
