"""A redrive over several lists of a key: pointers that are stale, and lists that come meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from inorder.broker.parking.records import Installed, Moved, Parked, Redriving, Unparked
from inorder.broker.parking.records import Redriven as RedrivenNote
from inorder.broker.parking.rules import ParkingTable
from inorder.client.consume.parking import Redriver, _KeyRedrive
from inorder.client.consume.rules.parking import UNKNOWN, ParkedView, RedrivePace
from inorder.model import GroupQueue, TopicQueue
from inorder.wire.requests.parking import (
    OwnedKey,
    QueueParking,
    QueuePlace,
    Redriven,
    RedrivenBody,
    Unpark,
)
from tests.kit.simloop import SimLoop, run

BROKER, KEY = "broker-a", "k"
OLD, OWN, OTHER = 0, 7, 3


def at(queue_id: int) -> QueuePlace:
    return QueuePlace(BROKER, queue_id)


@dataclass
class Lists:
    """The parked keys of a broker, by its own table, and an owner of queue 7 that redrives one."""

    table: ParkingTable = field(default_factory=ParkingTable)
    view: ParkedView = field(default_factory=ParkedView)
    handled: list[tuple[int, int]] = field(default_factory=list)
    position: int = 0
    gives: int = 2

    def happens(self, event: Any) -> None:
        self.position += 1
        self.table.apply("g", event, self.position)

    def park(self, queue_id: int, *offsets: int) -> None:
        for offset in offsets:
            self.happens(Parked("t", queue_id, offset, KEY, 1, "no", 0, 10))

    def known(self, queue_id: int) -> list[OwnedKey]:
        queue = self.table.places.get(GroupQueue("g", "t", queue_id))
        return [
            OwnedKey(one.key, one.end, one.redrive, one.rate, list(one.older),
                     one.moved_to is not None)
            for one in (queue.keys.values() if queue is not None else ())
        ]  # fmt: skip

    def look(self, *_: object) -> bool:
        self.view.load(QueueParking(self.table.version("g", "t", OWN), self.known(OWN), []))
        return True

    # The requests of an owner.

    async def keys(self, _group: str, _topic: str, queue_id: int) -> QueueParking:
        return QueueParking(1, self.known(queue_id), [])

    async def redriven(self, request: Redriven, body: RedrivenBody) -> Any:
        version = self.table.version("g", "t", request.queue_id)
        note = RedrivenNote("t", request.queue_id, KEY, body.done, body.error, body.older)
        self.happens(note)
        return SimpleNamespace(before=version, version=self.position + 1)

    async def unpark(self, request: Unpark) -> Any:
        place = GroupQueue("g", "t", request.queue_id)
        why = self.table.may_unpark(place, KEY, request.end, successor=request.heir)
        if not why and self.table.find(place, KEY) is not None:
            self.happens(Unparked("t", request.queue_id, KEY))
        version = self.table.version(*place)
        return SimpleNamespace(live=not why, why=why, before=version, version=version)

    def redrive(self) -> _KeyRedrive:
        self.happens(Redriving("t", OWN, KEY, 0))
        self.look()

        async def api(_queue: TopicQueue) -> Lists:
            return self

        async def handle(_assigned: object, message: Any) -> Any:
            self.handled.append((message.queue_id, message.offset))
            return SimpleNamespace(done=1, result=None, error=None)

        parker = SimpleNamespace(view=lambda _: self.view, is_known=self.look)
        assigned: Any = SimpleNamespace(
            queue=TopicQueue("t", BROKER, OWN), live=True, lease=SimpleNamespace(epoch=1),
            enter=lambda: None, leave=lambda: None,
        )  # fmt: skip
        clock = SimpleNamespace(monotonic_ms=lambda: 0)
        redriver: Any = SimpleNamespace(
            parker=parker, session=SimpleNamespace(clock=clock), suspend_ms=20, api=api,
            owner=lambda: ("g", "c", "i"),
        )  # fmt: skip
        runs: Any = SimpleNamespace(run_apart=handle)
        (one,) = self.view.wanted(())
        return _KeyRedrive(redriver, assigned, runs, one, RedrivePace())


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch) -> Lists:
    made = Lists()

    async def read(_self: object, place: QueuePlace) -> tuple[list[Any], int]:
        one = made.table.find(GroupQueue("g", "t", place.queue_id), KEY)
        given = one.messages[: made.gives] if one is not None else []
        found = [
            SimpleNamespace(offset=message.origin, queue_id=place.queue_id) for message in given
        ]
        return found, 0 if one is None else len(one.messages)

    monkeypatch.setattr(_KeyRedrive, "_read", read)
    return made


def complete(redrive: _KeyRedrive, *, meanwhile: Any = None) -> None:
    """Run a redrive to its end, within a virtual minute."""

    async def main(_: SimLoop) -> None:
        async with asyncio.timeout(60):
            beside = asyncio.ensure_future(redrive.run())
            if meanwhile is not None:
                await asyncio.sleep(0.1)
                meanwhile()
            await beside

    run(main, 1)


def test_older_lists_are_drained_first_and_forgotten(lists: Lists) -> None:
    """The plain case: what was parked before the resize, then what joined it."""
    lists.park(OLD, 5, 6, 7)
    lists.happens(Moved("t", OLD, KEY, at(OWN)))
    lists.happens(Installed("t", OWN, KEY, at(OLD), 0, "no", 1, KEY))
    lists.park(OWN, 1, 2)
    complete(lists.redrive())
    assert lists.handled == [(OLD, 5), (OLD, 6), (OLD, 7), (OWN, 1), (OWN, 2)]
    assert lists.known(OLD) == lists.known(OWN) == []


def test_a_pointer_to_a_queue_where_the_key_lives_drains_nothing_there(lists: Lists) -> None:
    """Its owner died before it forgot the list; by now another key's messages lie there.

    They are that queue's owner's to redrive. The redrive here ends all the same.
    """
    lists.happens(Installed("t", OWN, KEY, at(OLD), 0, "no", 1, KEY))
    lists.park(OWN, 1)
    lists.park(OLD, 9)
    complete(lists.redrive())
    assert lists.handled == [(OWN, 1)]
    assert [one.key for one in lists.known(OLD)] == [KEY]
    assert lists.known(OWN) == []


def test_a_pointer_to_a_list_that_is_closed_goes(lists: Lists) -> None:
    """The plain leftover of an owner that died."""
    lists.happens(Installed("t", OWN, KEY, at(OLD), 0, "no", 1, KEY))
    lists.park(OWN, 1)
    complete(lists.redrive())
    assert lists.handled == [(OWN, 1)]


def test_lists_that_point_at_each_other_are_drained(lists: Lists) -> None:
    """The key went from 7 to 0, was redriven there by half, and came back."""
    lists.park(OLD, 4)
    lists.happens(Installed("t", OLD, KEY, at(OWN), 0, "no", 1, KEY))
    lists.happens(Moved("t", OLD, KEY, at(OWN)))
    lists.happens(Installed("t", OWN, KEY, at(OLD), 0, "no", 1, KEY))
    lists.park(OWN, 8)
    complete(lists.redrive())
    assert lists.handled == [(OLD, 4), (OWN, 8)]
    assert lists.known(OLD) == lists.known(OWN) == []


def test_an_older_list_that_comes_meanwhile_is_drained_too(lists: Lists) -> None:
    """The broker does not let the key go before; the redrive finds out why."""
    lists.park(OWN, 1)
    redrive = lists.redrive()
    let_go = lists.unpark

    async def comes(request: Unpark) -> Any:
        if OTHER not in {place.queue_id for place in lists.table.places}:
            lists.park(OTHER, 6)
            lists.happens(Moved("t", OTHER, KEY, at(OWN)))
            lists.happens(Installed("t", OWN, KEY, at(OTHER), 0, "no", 1, KEY))
        return await let_go(request)

    lists.unpark = comes  # type: ignore[method-assign]
    complete(redrive)
    assert lists.handled == [(OWN, 1), (OTHER, 6)]
    assert lists.known(OTHER) == lists.known(OWN) == []


@pytest.mark.parametrize(
    ("waits", "known", "active", "asks"),
    [
        (True, 0, set(), True),
        (True, 9, set(), False),  # it is begun by what is known
        (True, 0, {"other"}, False),
        (False, 0, set(), False),
    ],
)
def test_a_redrive_that_waits_and_is_not_known_is_asked_for(
    waits: bool, known: int, active: set[str], asks: bool
) -> None:
    """A broker that was restarted may name a version of the parked keys that we had."""
    view = ParkedView()
    view.load(QueueParking(5, [OwnedKey(KEY, 3, known)], []))
    parker: Any = SimpleNamespace(view=lambda _: view)
    parts: Any = {"leases": None, "tasks": None, "events": None}
    session: Any = None
    redriver = Redriver(session, "g", parker=parker, suspend_ms=1, **parts)
    assigned: Any = _Queue(waits)
    redriver._active[assigned] = active
    redriver.check(assigned)
    assert view.version == (UNKNOWN if asks else 5)


@dataclass(eq=False)
class _Queue:
    redrive: bool
