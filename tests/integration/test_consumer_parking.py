"""Parked keys from the consumer's side, on a real broker in simulated time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from inorder.client.admin import Admin
from inorder.client.api import ParkingApi
from inorder.client.consume.consumer import Consumer
from inorder.client.consume.rules.outcomes import Park, Retry
from inorder.config import BrokerConfig, ClientConfig, ConsumerConfig
from inorder.errors import NotFound, RequestTimeout, UsageError
from inorder.model import ReceivedMessage, TopicQueue
from inorder.wire.requests.parking import ParkAnswer, ParkBody
from tests.integration.consumerkit import GROUP, TOPIC, Kit, begin, consumer_of, play

QUICK = ClientConfig(consumer=ConsumerConfig(suspend_ms=20))
BAD = "k1"


class Story:
    """A consumer whose handler fails for one key while `bad` says so."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.bad: set[str] = {BAD}
        self.tries: list[ReceivedMessage] = []
        self.running: set[str] = set()
        self.slow_s = 0.0

    async def consumer(self, *, attempts: int = 2, **options: Any) -> Consumer:
        """Return a consumer that is started."""
        consumer = await consumer_of(self.kit, QUICK)

        @consumer.on(
            TOPIC, order="key", concurrency=8, on_failure=Park(attempts=attempts), **options
        )
        async def handle(message: ReceivedMessage) -> None:
            key = message.key or ""
            assert key not in self.running, f"two handlers of {key}"
            self.running.add(key)
            try:
                await asyncio.sleep(self.slow_s)
                self.tries.append(message)
                if key in self.bad or message.body.decode() in self.bad:
                    raise ValueError(f"bad {message.body!r}")
                self.kit.got.append(message)
            finally:
                self.running.discard(key)

        await begin(self.kit, consumer)
        return consumer

    def handled(self, key: str) -> list[int]:
        """Return what was handled of a key, in order."""
        return [int(message.body) for message in self.kit.got if message.key == key]

    async def admin(self) -> Admin:
        """Return an operator."""
        _, session = await self.kit.client()
        return Admin(session)

    async def stop(self, consumer: Consumer) -> None:
        """Stop a consumer cleanly."""
        node = next(node for node, _, one in self.kit.started if one is consumer)
        await node.run(consumer.close())
        self.kit.started = [entry for entry in self.kit.started if entry[2] is not consumer]


def test_a_bad_key_is_parked_and_the_others_flow() -> None:
    """P8: tried as often as said, then parked with its first error; all is done for the queue."""

    async def tale(kit: Kit) -> None:
        story = Story(kit)
        consumer = await story.consumer(attempts=2)
        await kit.send(50)
        await kit.until(lambda: len(kit.got) == 40)
        await kit.until(lambda: consumer.statistics().parked == 10)
        assert [message.attempt for message in story.tries if message.key == BAD] == [1, 2, 3]
        admin = await story.admin()
        (one,) = await admin.parked.list(GROUP)
        assert (one.key, one.messages, one.tries, one.first_offset) == (BAD, 10, 3, 1)
        assert one.first_error == "ValueError: bad b'1'"
        shown = await admin.parked.show(GROUP, BAD)
        assert [int(message.body) for message in shown] == list(range(1, 50, 5))
        assert [(m.topic, m.offset, m.key) for m in shown[:2]] == [(TOPIC, 1, BAD), (TOPIC, 6, BAD)]
        await asyncio.sleep(3)
        assert await kit.committed() == 50
        with pytest.raises(NotFound, match="has not parked"):
            await admin.parked.show(GROUP, "other")

    play(tale)


def test_a_redriven_key_goes_live_in_order() -> None:
    """New messages join the list while it is redriven; then they are handled as they come."""

    async def tale(kit: Kit) -> None:
        story = Story(kit)
        consumer = await story.consumer()
        await kit.send(50)
        await kit.until(lambda: consumer.statistics().parked == 10)
        admin = await story.admin()
        story.bad.clear()
        story.slow_s = 0.01
        (dry,) = await admin.parked.redrive(GROUP, dry_run=True)
        assert (dry.key, dry.messages) == (BAD, 10)
        await asyncio.sleep(2)
        assert story.handled(BAD) == []
        await admin.parked.redrive(GROUP, [BAD])
        await kit.until(lambda: len(story.handled(BAD)) >= 2)
        for number in range(100, 120):  # while the redrive runs, and after it
            await kit.producer.send(TOPIC, str(number).encode(), key=BAD)
            await asyncio.sleep(0.01)
        await kit.until(lambda: len(story.handled(BAD)) == 30)
        assert story.handled(BAD) == [*range(1, 50, 5), *range(100, 120)]
        await kit.until(lambda: not consumer.statistics().running)
        await asyncio.sleep(1)
        assert await admin.parked.list() == []
        await kit.producer.send(TOPIC, b"200", key=BAD)
        await kit.until(lambda: story.handled(BAD)[-1] == 200)

    play(tale)


class Lossy:
    """Lets requests to park be carried out and loses their answers, while it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loses = 0
        self.lost = 0
        park = ParkingApi.park

        async def lossy(api: ParkingApi, request: Any, body: ParkBody) -> ParkAnswer:
            answer = await park(api, request, body)
            if self.loses:
                self.loses -= 1
                self.lost += 1
                raise RequestTimeout("no answer")
            return answer

        monkeypatch.setattr(ParkingApi, "park", lossy)


def test_a_park_without_an_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message may be set aside: no handler has it before that is known."""

    async def tale(kit: Kit) -> None:
        story, lossy = Story(kit), Lossy(monkeypatch)
        lossy.loses = 3
        consumer = await story.consumer(attempts=0)
        await kit.send(1, key=BAD)
        await kit.until(lambda: consumer.statistics().parked == 1)
        assert (lossy.lost, len(story.tries)) == (3, 1)
        (one,) = await (await story.admin()).parked.list()
        assert one.messages == 1

    play(tale)


def test_a_join_without_an_answer_is_not_handled_beside_its_redrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A8: it was parked and redriven, its key is live again, and only the answer is missing."""

    async def tale(kit: Kit) -> None:
        story, lossy = Story(kit), Lossy(monkeypatch)
        consumer = await story.consumer(attempts=0)
        await kit.send(1, key=BAD)
        await kit.until(lambda: consumer.statistics().parked == 1)
        story.bad.clear()
        lossy.loses = 1000
        await kit.producer.send(TOPIC, b"1", key=BAD)
        await kit.until(lambda: lossy.lost > 2)
        admin = await story.admin()
        await admin.parked.redrive(GROUP)
        await kit.until(lambda: story.handled(BAD) == [0, 1])
        table = kit.cluster.broker.parking.table
        await kit.until(lambda: not table.groups())
        await asyncio.sleep(3)
        lossy.loses = 0
        await kit.producer.send(TOPIC, b"2", key=BAD)
        await kit.until(lambda: len(story.handled(BAD)) >= 3)
        assert story.handled(BAD) == [0, 1, 2]

    play(tale)


def test_of_two_operators_one_redrive_comes() -> None:
    """A8: the second request is about what is under way already; each message is handled once."""

    async def tale(kit: Kit) -> None:
        story = Story(kit)
        consumer = await story.consumer()
        await kit.send(50)
        await kit.until(lambda: consumer.statistics().parked == 10)
        story.bad.clear()
        story.slow_s = 0.2
        one, other = await story.admin(), await story.admin()
        await asyncio.gather(one.parked.redrive(GROUP), other.parked.redrive(GROUP, [BAD]))
        await asyncio.sleep(0.7)
        await one.parked.redrive(GROUP, rate=100)
        await kit.until(lambda: len(story.handled(BAD)) == 10)
        assert story.handled(BAD) == list(range(1, 50, 5))
        await asyncio.sleep(2)
        assert await one.parked.list() == []
        assert len(story.handled(BAD)) == 10

    play(tale)


def test_a_redriven_message_keeps_the_fence_of_its_origin() -> None:
    """The effect of an older message is refused by whoever compares; a later one's is not."""

    async def tale(kit: Kit) -> None:
        story = Story(kit)
        consumer = await story.consumer()
        await kit.send(12)
        await kit.until(lambda: consumer.statistics().parked == 3)
        story.bad.clear()
        await (await story.admin()).parked.redrive(GROUP)
        await kit.until(lambda: len(kit.got) == 12)
        tried = {message.offset: message.fence.sequence for message in story.tries[:3]}
        fences = {message.offset: message.fence for message in kit.got}
        assert fences[1].sequence is not None
        assert all(fences[offset].sequence == seen for offset, seen in tried.items())
        numbers = [fences[offset].sequence or -1 for offset in (1, 6, 11)]
        assert numbers == sorted(numbers)
        assert fences[1].epoch == fences[0].epoch

    play(tale)


def test_a_redrive_that_fails_leaves_the_key_parked() -> None:
    """What was handled is gone from the list, the new error is there, nobody else is held."""

    async def tale(kit: Kit) -> None:
        story = Story(kit)
        consumer = await story.consumer()
        await kit.send(25)
        await kit.until(lambda: consumer.statistics().parked == 5)
        story.bad = {"11"}
        admin = await story.admin()
        await admin.parked.redrive(GROUP)
        await kit.until(lambda: any(message.body == b"11" for message in story.tries))
        await asyncio.sleep(2)
        assert story.handled(BAD) == [1, 6]
        assert [message.body for message in story.tries].count(b"11") == 1
        (one,) = await admin.parked.list(GROUP)
        assert (one.messages, one.redriving) == (3, False)
        assert (one.first_error, one.last_error) == (
            "ValueError: bad b'1'", "ValueError: bad b'11'",
        )  # fmt: skip
        story.bad.clear()
        await admin.parked.redrive(GROUP)
        await kit.until(lambda: len(story.handled(BAD)) == 5)
        assert story.handled(BAD) == [1, 6, 11, 16, 21]

    play(tale)


def test_a_redrive_keeps_to_its_rate_and_can_be_cancelled() -> None:
    """At most so many messages a second; a cancelled one stops with its key parked."""

    async def tale(kit: Kit) -> None:
        story = Story(kit)
        consumer = await story.consumer()
        await kit.send(100)
        await kit.until(lambda: consumer.statistics().parked == 20)
        story.bad.clear()
        admin = await story.admin()
        with pytest.raises(UsageError):
            await admin.parked.redrive(GROUP, rate=0)
        await admin.parked.redrive(GROUP, rate=2)
        await kit.until(lambda: story.handled(BAD) != [])
        began = kit.loop.time()
        await kit.until(lambda: len(story.handled(BAD)) == 9)
        assert 3.9 <= kit.loop.time() - began <= 4.6
        await admin.parked.cancel(GROUP)
        await asyncio.sleep(10)
        assert len(story.handled(BAD)) <= 10
        (one,) = await admin.parked.list()
        assert not one.redriving

    play(tale)


def test_retry_only_makes_a_key_wait() -> None:
    """It is no failure, neither before the key is parked nor in a redrive."""

    async def tale(kit: Kit) -> None:
        consumer = await consumer_of(kit, QUICK)
        waits: list[Exception | None] = [Retry(after=1) for _ in range(4)]
        mood = [*waits, ValueError("no"), ValueError("no"), Retry(after=5), None]

        @consumer.on(TOPIC, order="key", concurrency=8, on_failure=Park(attempts=1))
        async def handle(message: ReceivedMessage) -> None:
            error = mood.pop(0)
            if error is not None:
                raise error
            kit.got.append(message)

        await begin(kit, consumer)
        await kit.send(1)
        await kit.until(lambda: consumer.statistics().parked == 1)
        admin = await Story(kit).admin()
        assert [one.tries for one in await admin.parked.list()] == [2]
        await admin.parked.redrive(GROUP)
        await kit.until(lambda: len(mood) == 1)
        began = kit.loop.time()
        await kit.until(lambda: len(kit.got) == 1)
        assert kit.loop.time() - began >= 4.9
        await asyncio.sleep(1)
        assert await admin.parked.list() == []

    play(tale)


def test_parked_keys_survive_consumer_and_broker() -> None:
    """A new owner knows them before its first handler; a killed broker knows them again."""

    async def tale(kit: Kit) -> None:
        story = Story(kit)
        first = await story.consumer()
        await kit.send(25)
        await kit.until(lambda: first.statistics().parked == 5)
        await story.stop(first)
        await kit.send(25)
        story.bad.clear()
        kit.cluster.kill_broker()
        await kit.cluster.start_broker()
        second = await story.consumer()
        await kit.until(lambda: second.statistics().parked == 5)
        await kit.until(lambda: len(kit.got) == 40)
        assert story.handled(BAD) == []
        admin = await story.admin()
        await admin.parked.redrive(GROUP)
        await kit.until(lambda: len(kit.got) == 50)
        assert story.handled(BAD) == [*range(1, 25, 5), *range(1, 25, 5)]
        assert len(kit.got) == 50

    play(tale)


def test_what_was_parked_is_not_handled_by_the_next_owner() -> None:
    """The owner dies right after parking, its commit never came: parked is done all the same."""

    async def tale(kit: Kit) -> None:
        story = Story(kit)
        first = await story.consumer(attempts=0)
        await kit.send(10)
        await kit.until(lambda: first.statistics().parked == 2)
        node = next(node for node, _, one in kit.started if one is first)
        kit.loop.kill(node)
        kit.started = [entry for entry in kit.started if entry[2] is not first]
        story.bad.clear()
        second = await story.consumer()
        await kit.send(10)
        await kit.until(lambda: second.statistics().parked == 2)
        await asyncio.sleep(3)
        assert story.handled(BAD) == []
        assert await kit.committed() == 20
        admin = await story.admin()
        (one,) = await admin.parked.list()
        assert one.messages == 4

    play(tale)


def test_a_dropped_key_goes_live_behind_what_was_dropped() -> None:
    """The head alone, for a poisonous message; or all of it."""

    async def tale(kit: Kit) -> None:
        story = Story(kit)
        consumer = await story.consumer()
        await kit.send(25)
        await kit.until(lambda: consumer.statistics().parked == 5)
        story.bad.clear()
        admin = await story.admin()
        with pytest.raises(UsageError):
            await admin.parked.drop(GROUP, [BAD], reason=" ")
        assert await admin.parked.drop(GROUP, [BAD], reason="poison", first=True) == 1
        await asyncio.sleep(2)
        assert story.handled(BAD) == []
        assert await admin.parked.drop(GROUP, [BAD], reason="test data") == 4
        await asyncio.sleep(2)
        assert await admin.parked.list() == []
        await kit.producer.send(TOPIC, b"99", key=BAD)
        await kit.until(lambda: story.handled(BAD) == [99])

    play(tale)


def test_at_the_bound_keys_block() -> None:
    """Nothing is lost or handled out of order; there is room again when a key is dropped."""

    async def tale(kit: Kit) -> None:
        story = Story(kit)
        story.bad = {"k1", "k2"}
        consumer = await story.consumer()
        await kit.send(25)
        await kit.until(lambda: len(kit.got) == 15)
        await kit.until(lambda: consumer.statistics().parked == 5)
        await asyncio.sleep(2)
        admin = await story.admin()
        ((where, why),) = (await admin.parked.full()).items()
        assert (where, "parked_keys_max" in why) == ((GROUP, "broker-a"), True)
        (one,) = await admin.parked.list()
        story.bad.clear()
        blocked = {"k1": "k2", "k2": "k1"}[one.key]
        await kit.until(lambda: len(story.handled(blocked)) == 5)
        assert story.handled(blocked) == sorted(story.handled(blocked))

    play(tale, broker=BrokerConfig(parked_keys_max=1))


def test_a_message_without_a_key_blocks_or_stands_alone() -> None:
    """A barrier cannot be set aside; with keyless="concurrent" it is parked by itself."""

    async def tale(kit: Kit) -> None:
        consumer = await consumer_of(kit, QUICK)

        @consumer.on(
            TOPIC, order="key", concurrency=8, keyless="concurrent", on_failure=Park(attempts=0)
        )
        async def handle(message: ReceivedMessage) -> None:
            if message.body == b"bad":
                raise ValueError("no")
            kit.got.append(message)

        await begin(kit, consumer)
        await kit.producer.send(TOPIC, b"bad")
        await kit.producer.send(TOPIC, b"good")
        await kit.until(lambda: kit.bodies() == [b"good"])
        await kit.until(lambda: consumer.statistics().parked == 1)
        (one,) = await (await Story(kit).admin()).parked.list()
        assert one.key == "(no key) broker-a 0 0"

    play(tale)


@pytest.mark.parametrize("order", ["queue", None])
def test_park_is_for_keys(order: Any) -> None:
    """Elsewhere it is refused, with the way out."""
    consumer = Consumer("127.0.0.1:1", group=GROUP)
    with pytest.raises(UsageError, match="order='key'"):
        consumer.on(TOPIC, order=order, on_failure=Park())(lambda message: None)


def test_a_job_parks_without_a_lease() -> None:
    """Who handles a queue by other means than a consumer has the same requests."""

    async def tale(kit: Kit) -> None:
        await kit.send(10)
        admin, queue = await Story(kit).admin(), TopicQueue(TOPIC, "broker-a", 0)
        parked = admin.parked
        assert await parked.park(GROUP, queue, 1, BAD, error="no") == "parked"
        assert await parked.park(GROUP, queue, 6, BAD) == "parked"
        assert await parked.park(GROUP, queue, 2, "k2") == "live"
        assert await parked.keys(GROUP, queue) == {BAD}
        shown = await parked.show(GROUP, BAD)
        await parked.redriven(GROUP, queue, BAD, [message.offset for message in shown])
        assert not await parked.unpark(GROUP, queue, BAD, 1)
        assert await parked.unpark(GROUP, queue, BAD, 6)
        assert await parked.keys(GROUP, queue) == frozenset()

    play(tale)


def test_on_rocketmq_it_is_refused_at_the_start() -> None:
    """With the reason and the way out; nothing of the consumer is left behind."""

    async def tale(kit: Kit) -> None:
        await kit.send(1)
        consumer = await consumer_of(kit)
        consumer.on(TOPIC, order="key", on_failure=Park())(_nothing)
        with pytest.raises(UsageError, match=r"broker-a is Apache RocketMQ.*DeadLetter"):
            await begin(kit, consumer)

    play(tale, stock=True)


def test_where_everybody_gets_all_it_is_refused() -> None:
    """There is no group that could set something aside."""

    async def tale(kit: Kit) -> None:
        consumer = await consumer_of(kit, message_model="broadcasting")
        consumer.on(TOPIC, order="key", on_failure=Park())(_nothing)
        with pytest.raises(UsageError, match="cannot park keys"):
            await begin(kit, consumer)

    play(tale)


async def _nothing(message: ReceivedMessage) -> None:
    """Handle nothing."""
