"""Resizing a topic on two brokers while it is in use: P9, and the schedules A4 to A7.

A test that keeps a rule also shows what happens without it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from inorder.broker.resizing import rules as resizing_rules
from inorder.broker.resizing.service import Placement, Resizing
from inorder.errors import GroupNotDone, InvalidParameter, KeyMapChanged, ResizeUnderWay
from inorder.model import Subscription, TopicQueue
from inorder.ordering.keymap import KeyMap
from inorder.wire.codes import ResponseCode
from inorder.wire.properties import get
from inorder.wire.record import decode
from inorder.wire.requests.groups import ConsumerData
from inorder.wire.requests.pulls import PULL_SUBSCRIPTION, PullMessage
from inorder.wire.requests.resizing import ResizeDecide, ResizeOpen, ResizeRelease, ResizeStop
from tests.integration.resizekit import GROUP, KEYS, TOPIC, Town, play

pytestmark = pytest.mark.slow


async def grow(town: Town) -> None:
    """Resize under load: a slow consumer, messages before and after."""
    await town.send(6)
    await town.consume(pause=0.02)
    await town.until(lambda: len(town.handled) > 5)
    load = asyncio.ensure_future(town.send(4))
    status = await town.admin.topics.resize(TOPIC, queues=11)
    assert (status.queues, status.version, status.brokers) == (
        11,
        2,
        {"broker-a": 6, "broker-b": 5},
    )
    await load
    await town.send(4)
    await town.all_handled()


@pytest.mark.parametrize("seed", [1, 2])
def test_a_topic_grows_in_order(seed: int) -> None:
    """No key's newer message is handled before an older one (P9); the group is let go by itself."""

    async def story(town: Town) -> None:
        await grow(town)
        assert town.inversions() == []
        await town.released(2)
        assert (await town.admin.topics.resize_status(TOPIC)).is_done

    play(story, seed=seed)


def test_without_the_hold_keys_overtake(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same without the rule that holds a group at the ends (A6): the test can fail."""
    monkeypatch.setattr(Resizing, "held_at", lambda *_, **__: None)

    async def story(town: Town) -> None:
        await grow(town)
        assert town.inversions()

    play(story)


def test_there_and_back_again() -> None:
    """4 queues, 16, 5: in order; the queues that go are read to their end, then closed (O2)."""

    async def story(town: Town) -> None:
        await town.send(4)
        await town.consume(pause=0.01)
        await town.admin.topics.resize(TOPIC, queues=16)
        await town.send(4)
        status = await town.admin.topics.resize(TOPIC, queues=5)
        assert status.closing == 11
        assert [one.group for one in status.waiting] == [GROUP]
        await town.send(4)
        await town.all_handled()
        assert town.inversions() == []
        await town.released(3)
        await town.until(lambda: all(_read(town, number) == 3 - number for number in (0, 1)))
        queues = {queue.queue.index for queue in (await town.admin.topics.describe(TOPIC)).queues}
        assert queues == {0, 1, 2}

    play(story)


def _read(town: Town, number: int) -> int:
    config = town.broker(number).topics.get(TOPIC)
    assert config is not None
    return config.read_queues


def test_of_two_coordinators_one_decides() -> None:
    """Both want the next version: the first broker takes one plan, the other one is told (A6)."""

    async def story(town: Town) -> None:
        results: list[Any] = await asyncio.gather(
            town.admin.topics.resize(TOPIC, queues=6),
            town.admin.topics.resize(TOPIC, queues=8),
            return_exceptions=True,
        )
        wrong = [one for one in results if not isinstance(one, ResizeUnderWay)]
        for one in results:
            if isinstance(one, ResizeUnderWay):
                assert "resize orders --resume" in str(one)
            else:
                assert not isinstance(one, BaseException), one
        assert wrong
        status = await town.admin.topics.resize(TOPIC)
        maps = {town.broker(number).resizing.versions(TOPIC).map for number in (0, 1)}
        assert len(maps) == 1
        assert status.plan is None
        await town.send(2)

    for seed in range(1, 6):
        play(story, seed=seed)


def _plan(town: Town, queues: int, plan_id: str) -> tuple[str, str, int, str]:
    places = [("broker-a", n) for n in range(queues)] + [("broker-b", n) for n in range(queues)]
    return TOPIC, plan_id, 2, KeyMap.of(2, places).encode()


def test_others_take_no_plan_but_the_one_they_know() -> None:
    """A broker that stopped for one plan refuses another, and refuses to open what is not."""

    async def story(town: Town) -> None:
        first, second = [await town.session.broker_at(one.address) for one in town.cluster.brokers]
        plan = _plan(town, 3, "one")
        with pytest.raises(KeyMapChanged, match="so its next one is not 2"):
            await second.ask(ResizeOpen(TOPIC, "one", 2))
        with pytest.raises(InvalidParameter, match="decided at broker broker-a"):
            await second.ask(ResizeDecide(*plan))
        await first.ask(ResizeDecide(*plan))
        with pytest.raises(ResizeUnderWay):
            await first.ask(ResizeDecide(*_plan(town, 4, "two")))
        await second.ask(ResizeStop(*plan))
        with pytest.raises(ResizeUnderWay):
            await second.ask(ResizeStop(*_plan(town, 4, "two")))
        with pytest.raises(InvalidParameter, match="is not stopped here"):
            await first.ask(ResizeOpen(TOPIC, "one", 2))
        assert (await town.admin.topics.resize_status(TOPIC)).stopped == ("broker-b",)
        await town.admin.topics.resize(TOPIC)
        assert (await town.admin.topics.resize_status(TOPIC)).queues == 6

    play(story)


def test_what_is_stopped_stays_stopped_over_a_kill() -> None:
    """A broker that answered "stopped" takes no sends of that version after a kill (A6)."""

    async def story(town: Town) -> None:
        await town.send(2)
        plan = _plan(town, 4, "one")
        first = town.cluster.brokers[0]
        await (await town.session.broker_at(first.address)).ask(ResizeDecide(*plan))
        for one in town.cluster.brokers:
            await (await town.session.broker_at(one.address)).ask(ResizeStop(*plan))
            one.kill()
            await one.start()
        late = asyncio.ensure_future(town.send(1))
        await asyncio.sleep(1)
        assert not late.done(), "keyed sends wait"
        await town.admin.topics.resize(TOPIC)
        await late
        ends = [town.broker(number).resizing.versions(TOPIC).past[0].ends for number in (0, 1)]
        assert sum(sum(one.values()) for one in ends) == 2 * len(KEYS)
        await town.consume()
        await town.all_handled()
        assert town.inversions() == []

    play(story)


@pytest.mark.parametrize("flushed", [True, False])
def test_noted_ends_never_lie_behind_a_lost_tail(
    flushed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is on disk before its ends are: a power cut leaves them where they were (A1, A6)."""
    if not flushed:

        async def at_once(self: Resizing, topic: str) -> dict[int, int]:
            found = self._broker.store.queues_of(topic)
            return {queue.queue_id: queue.next_offset for queue in found}

        monkeypatch.setattr(Resizing, "_ends", at_once)

    async def story(town: Town) -> bool:
        await town.send(3)
        plan = _plan(town, 4, "one")
        one = town.cluster.brokers[0]
        await (await town.session.broker_at(one.address)).ask(ResizeStop(*plan))
        before = town.broker(0).resizing.versions(TOPIC).ends
        one.cut_power()
        await one.start()
        return town.broker(0).resizing.versions(TOPIC).ends == before

    kept = [play(story, seed=seed) for seed in range(1, 6)]
    assert all(kept) if flushed else not all(kept)


def test_a_group_waits_for_all_brokers() -> None:
    """Done here is not done: a broker asks the others, and refuses what is too early (A6)."""

    async def story(town: Town) -> None:
        await town.send(3)
        await town.admin.topics.resize(TOPIC, queues=8)
        second = await town.session.broker_at(town.cluster.brokers[1].address)
        for queue in town.broker(0).store.queues_of(TOPIC):
            town.broker(0).offsets.put(GROUP, TOPIC, queue.queue_id, queue.visible_offset, 0)
        await town.released(1)  # at the broker where it is done, too
        with pytest.raises(GroupNotDone, match="has yet to finish"):
            await second.ask(ResizeRelease(TOPIC, GROUP, 2))
        for queue in town.broker(1).store.queues_of(TOPIC):
            town.broker(1).offsets.put(GROUP, TOPIC, queue.queue_id, queue.visible_offset, 0)
        town.broker(1).resizing.releasing.note(TOPIC, GROUP)
        await town.released(2)

    play(story)


def test_a_group_that_never_came_to_a_broker_is_done_there() -> None:
    """Nothing was sent to its queues: whoever asks about the group hears so (A6)."""

    async def story(town: Town) -> None:
        here = [key for key in KEYS if _home(town, key) == "broker-a"]
        await town.send(3, keys=here)
        for queue in town.broker(0).store.queues_of(TOPIC):
            town.broker(0).offsets.put(GROUP, TOPIC, queue.queue_id, queue.visible_offset, 0)
        await town.admin.topics.resize(TOPIC, queues=8)
        assert GROUP not in town.broker(1).groups
        await town.released(2)

    play(story)


def _home(town: Town, key: str) -> str:
    return KeyMap.decode(town.broker(0).resizing.versions(TOPIC).map).queue(key)[0]


def test_a_group_that_does_not_come_back_is_named_and_can_be_left() -> None:
    """It holds back the closing of old queues; an operator may decide not to wait (P9)."""

    async def story(town: Town) -> None:
        await town.send(3)
        gone = await town.consume(group="gone", pause=0.01)
        await town.until(lambda: len(town.handled) > 2)
        await town.consumers.pop()[0].run(gone.close())
        status = await town.admin.topics.resize(TOPIC, queues=2)
        (waiting,) = status.waiting
        assert (waiting.group, waiting.online) == ("gone", False)
        assert waiting.behind > 0
        assert status.closing == 2
        assert await town.admin.topics.release_group(TOPIC, "gone") == 2
        assert (await town.admin.topics.resize_status(TOPIC)).is_done

    play(story)


def test_rocketmq_members_are_held_and_readers_are_not() -> None:
    """The gate is at the broker: a pull without a lease finds nothing behind the end (A6)."""

    async def story(town: Town) -> None:
        key = next(key for key in KEYS if _home(town, key) == "broker-a")
        await town.send(2, keys=[key])
        _, session = await town.cluster.client()
        everything = (Subscription(TOPIC, "*"),)
        session.set_consumer(ConsumerData("stock", "CONSUME_PASSIVELY", subscriptions=everything))
        await session.route(TOPIC)
        await session.heartbeat()
        await town.admin.topics.resize(TOPIC, queues=4 * 3)
        await town.send(3, keys=[key])
        (queue_id,) = {one[1] for one in _stored(town, 0)} or {-1}
        api = await session.broker_at(town.cluster.brokers[0].address)

        async def pull(group: str, offset: int) -> tuple[int, int]:
            request = PullMessage(
                group, TOPIC, queue_id, offset, 32, PULL_SUBSCRIPTION, 0, 0, 0, "*", "TAG"
            )
            answer = await api.pull_message(request)
            return answer.code, len(answer.records())

        end = town.broker(0).resizing.versions(TOPIC).past[0].ends.get(queue_id, 0)
        assert await pull("stock", end) == (ResponseCode.PULL_NOT_FOUND, 0)
        assert await pull("reader", end) == (ResponseCode.SUCCESS, 3)
        for queue in town.broker(0).store.queues_of(TOPIC):
            ends = town.broker(0).resizing.versions(TOPIC).past[0].ends
            at = ends.get(queue.queue_id, 0)
            await api.update_offset("stock", TopicQueue(TOPIC, "broker-a", queue.queue_id), at)
        await town.released(2, "stock")
        assert await pull("stock", end) == (ResponseCode.SUCCESS, 3)
        await session.close()

    play(story)


def test_a_reset_into_an_old_version_holds_a_group_again() -> None:
    """A replay over a resize is in order, too."""

    async def story(town: Town) -> None:
        await town.send(3)
        await town.consume(pause=0.01)
        await town.admin.topics.resize(TOPIC, queues=9)
        await town.send(3)
        await town.all_handled()
        await town.released(2)
        node, consumer = town.consumers.pop()
        await node.run(consumer.close())
        town.handled.clear()
        await town.admin.offsets.reset(GROUP, TOPIC, to="beginning")
        await town.consume(pause=0.01)
        await town.all_handled()
        assert town.inversions() == []

    play(story)


@pytest.mark.parametrize("trimmed", [False, True])
def test_a_broker_without_older_messages_holds_a_group_after_a_restart(
    trimmed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has of a key is newer than what another broker holds of it (P9); also without the
    rule: then the key is overtaken."""
    if trimmed:
        monkeypatch.setattr(resizing_rules, "brokers_of", lambda _: set())

    async def story(town: Town) -> None:
        key = town.keys_moved(7)[0]
        await town.send(3, keys=[key])
        await town.admin.topics.resize(TOPIC, queues=7)
        await town.send(3, keys=[key])
        empty = town.cluster.brokers[1]
        empty.kill()
        await empty.start()
        await town.consume(pause=1.0)
        await town.all_handled()
        assert bool(town.inversions()) == trimmed

    play(story)


def test_a_group_that_comes_after_queues_were_removed_reads_them() -> None:
    """They are opened for it, read in order, and closed again (O2, P9)."""

    async def story(town: Town) -> None:
        await town.send(4)
        await town.admin.topics.resize(TOPIC, queues=2)
        await town.send(2)
        assert [_read(town, number) for number in (0, 1)] == [1, 1]
        await town.consume(group="late")
        await town.all_handled()
        assert town.inversions() == []
        await town.until(lambda: [_read(town, number) for number in (0, 1)] == [1, 1])

    play(story)


def test_a_reset_reaches_removed_queues() -> None:
    """To the beginning is to the beginning of all that is stored, in order."""

    async def story(town: Town) -> None:
        await town.send(4)
        await town.consume()
        await town.admin.topics.resize(TOPIC, queues=2)
        await town.send(2)
        await town.all_handled()
        await town.until(lambda: [_read(town, number) for number in (0, 1)] == [1, 1])
        town.handled.clear()
        done = await town.admin.offsets.reset(GROUP, TOPIC, to="beginning")
        assert len(done) == 4
        await town.all_handled()
        assert town.inversions() == []
        await town.released(2)

    play(story)


def test_a_map_is_not_changed_by_other_requests() -> None:
    """Code 17 with another count, another map or none is refused and names `topic resize` (A6)."""

    async def story(town: Town) -> None:
        api = await town.session.broker_at(town.cluster.brokers[0].address)
        config = await api.topic(TOPIC)
        for change in (
            {"read_queues": 8, "write_queues": 8},
            {"attributes": {"inorder.keymap": "2/broker-a:0-3/broker-b:0-3"}},
        ):
            with pytest.raises(InvalidParameter, match="inorder topic resize"):
                await api.create_topic(replace(config, **change))  # type: ignore[arg-type]

    play(story)


@pytest.mark.parametrize(
    ("brokers", "killed", "follows"),
    [(1, False, True), (1, True, True), (2, False, True), (2, True, True), (2, False, False)],
)
def test_a_delayed_message_follows_its_key(
    brokers: int, killed: bool, follows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was sent to a queue that its key has left; when due it goes to the new one, once (A7)."""
    _check_followed(brokers, killed, follows, monkeypatch, {"delay_level": 2}, {"delay_level": 3})


@pytest.mark.parametrize(("brokers", "killed"), [(1, False), (2, True)])
def test_a_timer_follows_its_key(
    brokers: int, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message with a time goes to the queue that its key has then, once (A7)."""
    _check_followed(brokers, killed, True, monkeypatch, {"delay": 5.003}, {"delay": 10.007})


def _check_followed(
    brokers: int,
    killed: bool,
    follows: bool,
    monkeypatch: pytest.MonkeyPatch,
    *delays: dict[str, Any],
) -> None:
    if not follows:
        monkeypatch.setattr(
            Placement, "home", lambda self, _topic, queue, _: (self._broker.config.name, queue)
        )

    async def story(town: Town) -> None:
        await town.send(1)
        producer = town.producer
        assert producer is not None
        for key in KEYS:
            await producer.send(TOPIC, b"1", key=key, **delays[0])
        await town.admin.topics.resize(TOPIC, queues=5)
        for key in KEYS:
            await producer.send(TOPIC, b"2", key=key, **delays[1])
        for delay in (5.02, 0.05, 10) if killed else (16,):
            await asyncio.sleep(delay)
            for one in town.cluster.brokers if killed else ():
                one.kill()
                await one.start()
        await asyncio.sleep(8)
        newest = KeyMap.decode(town.broker(0).resizing.versions(TOPIC).map)
        found = [stored for number in range(brokers) for stored in _stored(town, number)]
        wanted = [(*newest.queue(key), key, body) for key in KEYS for body in (b"1", b"2")]
        assert (sorted(found) == sorted(wanted)) is follows

    play(story, queues=6 // brokers, brokers=brokers)


@pytest.mark.parametrize(("brokers", "killed"), [(1, False), (2, False), (2, True)])
def test_a_transaction_joins_its_key_where_it_is_when_it_is_committed(
    brokers: int, killed: bool
) -> None:
    """Its half was sent under an older map, to a queue or a broker that its key has left (A7)."""

    async def story(town: Town) -> None:
        await town.send(1)
        producer = town.producer
        assert producer is not None
        begun = [producer.transaction(TOPIC, b"t", key=key) for key in KEYS]
        for one in begun:
            await one.begin()
        await town.admin.topics.resize(TOPIC, queues=5)
        for one in town.cluster.brokers if killed else ():
            one.kill()
            await one.start()
        for one in begun:
            await one.commit()
        for key in KEYS:
            await producer.send(TOPIC, b"2", key=key)
        await asyncio.sleep(8)
        newest = KeyMap.decode(town.broker(0).resizing.versions(TOPIC).map)
        found = [stored for number in range(brokers) for stored in _stored(town, number)]
        wanted = [(*newest.queue(key), key, body) for key in KEYS for body in (b"t", b"2")]
        assert sorted(found) == sorted(wanted)
        assert not any(len(town.broker(number).transactions) for number in range(brokers))

    play(story, queues=6 // brokers, brokers=brokers)


def _stored(town: Town, number: int) -> list[tuple[str, int, str, bytes]]:
    """Return what a broker stored in its second version: broker, queue, key, body."""
    broker = town.broker(number)
    found = []
    for queue in broker.store.queues_of(TOPIC):
        start = broker.resizing.versions(TOPIC).past[0].ends.get(queue.queue_id, 0)
        for offset in range(start, queue.visible_offset):
            entry = queue.entry(offset)
            assert entry is not None
            record = decode(broker.store.log.bytes_at(entry[0], entry[1]))
            key = (get(record.properties, b"__SHARDINGKEY") or b"").decode()
            found.append((broker.config.name, queue.queue_id, key, record.body))
    return found
