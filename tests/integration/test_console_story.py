"""The story of a key that goes through everything, against the handler's own account."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

import inorder
import inorder.aio
from inorder.checker import Handled, HandledResult, Handling, Rules, check, queue_name
from inorder.console import reads
from inorder.console.story import Kind, account, judge, tell
from inorder.ordering.keymap import KeyMap
from tests.integration.consolekit import Site, site, until

pytestmark = pytest.mark.slow


def moving_key(before: int, after: int) -> str:
    """Return a key whose queue changes with the number of queues."""
    maps = [KeyMap.of(1, [("a", index) for index in range(count)]) for count in (before, after)]
    return next(
        key for key in map("order-{}".format, range(100)) if len({m.queue(key) for m in maps}) == 2
    )


KEY = moving_key(2, 8)
OTHER = "other"


class Shop:
    """A handler that keeps an account of its own, and fails for a key until it is mended."""

    def __init__(self) -> None:
        self.runs: list[Handled] = []
        self.mended = False

    async def handle(self, message: inorder.ReceivedMessage) -> None:
        began, result = time.time_ns(), HandledResult.DONE
        try:
            await asyncio.sleep(0.01)
            if message.key == KEY and not self.mended:
                result = HandledResult.FAILED
                raise ValueError("no such customer")
        finally:
            self.runs.append(
                Handled("c1", queue_name(message.queue), message.offset, message.message_id,
                        message.key, began, time.time_ns(), result)
            )  # fmt: skip


async def live_through(found: Site, shop: Shop) -> None:
    """Send, fail, retry, park, join, resize, join again, redrive in order, go on, commit."""
    names = found.pair.namesrv_address
    async with found.admin() as admin:
        await admin.topics.create("orders", queues=2)
        async with inorder.aio.Producer(names, group="shop", trace=True) as producer:
            consumer = inorder.aio.Consumer(
                names, group="billing", consume_from="first", trace=True
            )
            consumer.on("orders", order="key", on_failure=inorder.Park(attempts=1))(shop.handle)
            for text in (b"created", b"paid"):
                for key in (KEY, OTHER):
                    await producer.send("orders", text, key=key)
            await consumer.start()

            async def parked(count: int) -> bool:
                return sum(one.messages for one in await admin.parked.list("billing")) == count

            await until(lambda: parked(2))
            await admin.topics.resize("orders", queues=8)
            for key in (KEY, OTHER):
                await producer.send("orders", b"shipped", key=key)
            await until(lambda: parked(3))
            shop.mended = True
            await admin.parked.redrive("billing", [KEY])
            await until(lambda: parked(0))
            await producer.send("orders", b"closed", key=KEY)

            async def done() -> bool:
                lags = await admin.groups.lag("billing", "orders")
                return not sum(one.lag for one in lags)

            await until(done)
            await consumer.close()


def test_the_story_of_a_key_that_went_through_everything(tmp_path: Path) -> None:
    """Every step in order, each attempt counted; the checker judges it as the handler's account."""

    async def main() -> None:
        async with site(tmp_path) as found:
            shop = Shop()
            await live_through(found, shop)
            async with found.admin() as admin:
                from inorder.clock import SystemClock

                told = await reads.evidence(admin, SystemClock(), "orders", KEY)
                steps = tell(told)
            page = await found.browser().get(f"/keys?topic=orders&key={KEY}")
            assert page.steps() == [str(one.kind) for one in steps]
            assert "in order Group billing: 4 stored, 4 below the group's offset, 4 handled" in (
                page.text
            )
            _compare(shop, told, steps)

    asyncio.run(main())


def _compare(shop: Shop, told: reads.Evidence, steps: list[object]) -> None:
    found = tell(told)
    kinds = [one.kind for one in found]
    # One message after the other, as it went.
    first = [one.kind for one in found if one.message_id == told.messages[0].message_id]
    assert first == [
        Kind.SENT, Kind.STORED, Kind.DELIVERED, Kind.FAILED, Kind.RETRIED, Kind.FAILED,
        Kind.PARKED, Kind.RETRIED, Kind.HANDLED,
    ]  # fmt: skip
    waypoints = [
        Kind.SENT, Kind.STORED, Kind.DELIVERED, Kind.FAILED, Kind.RETRIED, Kind.PARKED,
        Kind.JOINED, Kind.MOVED, Kind.STORED, Kind.JOINED, Kind.REDRIVE, Kind.REDRIVEN, Kind.LIVE,
        Kind.STORED, Kind.HANDLED, Kind.COMMITTED,
    ]  # fmt: skip
    at = 0
    for kind in waypoints:
        assert kind in kinds[at:], (kind, kinds)
        at += kinds[at:].index(kind) + 1
    move = next(one for one in found if one.kind is Kind.MOVED)
    assert "resized 2 → 8 queues: the key moves" in move.text
    assert move.derived
    assert {one.version for one in found if one.kind is Kind.STORED} == {1, 2}
    assert not any(one.derived for one in found if one.kind is Kind.SENT)
    assert found[-1].kind is Kind.COMMITTED
    # The handler's account and the story's are the same, run by run, and so is the judgement.
    runs = [one for one in shop.runs if one.key == KEY]
    events = [one for one in account(told.for_group("billing")) if isinstance(one, Handled)]
    assert sorted((one.queue, one.offset, str(one.result), one.id) for one in runs) == sorted(
        (one.queue, one.offset, str(one.result), one.id) for one in events
    )
    assert [one.id for one in runs] == [
        one.message_id for one in found if one.kind in (Kind.DELIVERED, Kind.RETRIED)
    ]
    rules = Rules(handling=Handling.KEY, dense=False, one_queue_per_key=False, acknowledged_min=0)
    own = check(runs, rules=rules)
    verdict = judge(told, "billing")
    assert own.by_kind == {}
    assert verdict.report is not None
    assert verdict.report.by_kind == own.by_kind
    assert verdict.handled == sum(one.result == HandledResult.DONE for one in runs) == 4
    assert Counter(one.kind for one in found)[Kind.FAILED] == 2
    assert len(steps) == len(found)


def test_a_reversed_account_is_found(tmp_path: Path) -> None:
    """The comparison can fail: with two calls exchanged both judges say that order was broken."""

    async def main() -> None:
        async with site(tmp_path) as found:
            shop = Shop()
            await live_through(found, shop)
            async with found.admin() as admin:
                from inorder.clock import SystemClock

                told = await reads.evidence(admin, SystemClock(), "orders", KEY)
            ids = [one.message_id for one in told.messages]
            traces = dict(told.traces)
            traces[ids[0]], traces[ids[3]] = traces[ids[3]], traces[ids[0]]
            wrong = reads.Evidence(told.topic, told.key, told.messages, told.versions, traces,
                                   progress=told.progress)  # fmt: skip
            verdict = judge(wrong, "billing")
            assert verdict.in_order is False

    asyncio.run(main())


def test_without_traces_the_story_says_what_is_missing(tmp_path: Path) -> None:
    """Sends are derived, handlers are not told, commits are; the page names the switch."""

    async def main() -> None:
        async with site(tmp_path) as found:
            async with found.admin() as admin:
                await admin.topics.create("orders", queues=2)
            async with inorder.aio.Producer(found.pair.namesrv_address) as producer:
                await producer.send("orders", b"created", key=KEY)
            consumer = inorder.aio.Consumer(
                found.pair.namesrv_address, group="billing", consume_from="first"
            )

            @consumer.on("orders", order="key")
            async def handle(message: inorder.ReceivedMessage) -> None: ...

            await consumer.start()
            browser = found.browser()

            async def committed() -> bool:
                page = await browser.get(f"/keys?topic=orders&key={KEY}")
                return page.steps() == ["sent", "stored", "committed"]

            await until(committed)
            page = await browser.get(f"/keys?topic=orders&key={KEY}")
            assert "no client of this key has trace=True" in page.text
            assert "not judged" in page.text
            assert "derived from the record in the queue" in page.text
            assert "derived from the group's offset" in page.text
            nobody = await browser.get("/keys?topic=orders&key=unknown")
            assert "No message of this key was found" in nobody.text
            await consumer.close()

    asyncio.run(main())
