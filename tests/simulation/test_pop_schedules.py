"""The schedules that break orderly POP elsewhere (O19 to O21), and others, one by one.

Each is played on the wire, with a clock that runs as fast as nothing happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from inorder.client.admin import Admin
from inorder.client.api import BrokerApi
from inorder.client.consume.consumer import Consumer
from inorder.config import BrokerConfig, ClientConfig, ConsumerConfig, NetConfig, StoreConfig
from inorder.model import ReceivedMessage, TopicConfig, TopicQueue
from inorder.net.connection import Connection
from inorder.wire.header import Command
from inorder.wire.requests.sends import SendMessage
from tests.kit.popclient import Batch, Handle, PopClient
from tests.kit.simcluster import BROKER_HOST, PORT, SimCluster
from tests.kit.simloop import SimLoop, run

TOPIC: Final = "orders"
GROUP: Final = "billing"
INVISIBLE_MS: Final = 2000
SMALL: Final = StoreConfig(
    segment_bytes=64 * 1024, queue_file_bytes=20 * 500, index_slots=50, index_entries=200
)


class Stage:
    """A broker with one queue, and connections to it."""

    def __init__(self, loop: SimLoop, *, sync_flush: bool = False, queues: int = 1) -> None:
        store = StoreConfig(
            segment_bytes=SMALL.segment_bytes, queue_file_bytes=SMALL.queue_file_bytes,
            index_slots=SMALL.index_slots, index_entries=SMALL.index_entries,
            sync_flush=sync_flush,
        )  # fmt: skip
        self.cluster = SimCluster(loop, broker=BrokerConfig(store=store))
        self.loop = loop
        self._queues = queues

    async def start(self, count: int) -> PopClient:
        """Start, send numbers to queue 0, and return a client."""
        await self.cluster.start()
        await (await self.api()).create_topic(TopicConfig(TOPIC, self._queues, self._queues))
        await self.send(count)
        return await self.client()

    async def connect(self) -> Connection:
        """Return a new connection."""
        return await Connection.open(f"{BROKER_HOST}:{PORT}", NetConfig(tls_mode="disabled"))

    async def api(self) -> BrokerApi:
        """Return the requests of others."""
        return BrokerApi(await self.connect(), timeout_ms=3000)

    async def client(self) -> PopClient:
        """Return a client that pops."""
        return PopClient(await self.connect(), GROUP)

    async def send(self, count: int, *, first: int = 0, queue_id: int = 0) -> None:
        """Send numbers."""
        api = await self.api()
        for number in range(first, first + count):
            text = f"UNIQ_KEY\x01{number:032X}\x02__SHARDINGKEY\x01k\x02"
            header = SendMessage("p", TOPIC, "TBW102", 1, queue_id, 0, 0, 0, text)
            await api.send_message(header, str(number).encode())

    async def committed(self, queue_id: int = 0) -> int:
        """Return the group's offset; -1: none."""
        queue = TopicQueue(TOPIC, "broker-a", queue_id)
        return await (await self.api()).query_offset(GROUP, queue)

    async def kill(self) -> PopClient:
        """Kill the broker, start it again, and return a new client."""
        self.cluster.kill_broker()
        await self.cluster.start_broker()
        return await self.client()

    async def cut_power(self) -> PopClient:
        """Cut the broker's power, start it again, and return a new client."""
        self.cluster.cut_power()
        await self.cluster.start_broker()
        return await self.client()


def play(scene: Callable[[SimLoop], Awaitable[None]], seed: int = 1) -> None:
    """Play a scene."""

    async def main(loop: SimLoop) -> None:
        await scene(loop)

    run(main, seed)


async def pop(client: PopClient, attempt: str, *, count: int = 32, **more: int) -> Batch:
    """Pop in order."""
    batch = await client.pop(
        TOPIC, count=count, order=True, attempt=attempt,
        **{"invisible_ms": INVISIBLE_MS, **more},
    )  # fmt: skip
    assert not batch.refused, batch
    return batch


def numbers(batch: Batch) -> list[int]:
    """Return what came."""
    return [int(one.body) for one in batch.messages]


def handles(batch: Batch) -> list[Handle]:
    """Return the handles of what came."""
    return [one.handle for one in batch.messages]


async def past_invisible(ms: int = INVISIBLE_MS) -> None:
    """Wait until an invisible time is over."""
    await asyncio.sleep((ms + 50) / 1000)


def test_a_batch_holds_its_queue_until_all_of_it_is_acknowledged() -> None:
    """In whatever order that happens; what comes next is not what was acknowledged."""

    async def scene(loop: SimLoop) -> None:
        stage = Stage(loop)
        one = await stage.start(6)
        other = await stage.client()
        batch = await pop(one, "a", count=3)
        assert numbers(batch) == [0, 1, 2]
        assert numbers(await pop(other, "b")) == []
        first, second, third = handles(batch)
        assert [await one.ack(handle) for handle in (third, first)] == [0, 0]
        assert numbers(await pop(other, "c")) == []
        assert await stage.committed() == 1
        assert await one.ack(second) == 0
        assert await stage.committed() == 3
        assert numbers(await pop(other, "d")) == [3, 4, 5]

    play(scene)


def test_o19_who_is_late_changes_and_acknowledges_nothing() -> None:
    """The next batch has another token; the old one moves neither the offset nor the time."""

    async def scene(loop: SimLoop) -> None:
        stage = Stage(loop)
        late, heir = await stage.start(4), await stage.client()
        old = handles(await pop(late, "a", count=2))
        await past_invisible()
        batch = await pop(heir, "b", count=2)
        assert numbers(batch) == [0, 1]
        assert [one.times for one in batch.messages] == [1, 1]
        assert batch.pop_time > old[0].pop_time
        assert all([await late.ack(handle) for handle in old])
        assert await late.ack_all(old) != 0
        assert (await late.change(old[0], 60_000))[0] != 0
        assert await stage.committed() <= 0
        assert await heir.ack_all(handles(batch)) == 0
        assert await stage.committed() == 2
        assert all([await late.ack(handle) for handle in old])
        assert numbers(await pop(heir, "c")) == [2, 3]

    play(scene)


def test_o19_what_comes_after_the_time_begins_at_the_first_unacknowledged() -> None:
    """Nothing before it comes again, whatever was acknowledged behind it."""

    async def scene(loop: SimLoop) -> None:
        stage = Stage(loop)
        client = await stage.start(5)
        zero, _, two, *_ = handles(await pop(client, "a", count=4))
        assert [await client.ack(handle) for handle in (zero, two)] == [0, 0]
        await past_invisible()
        again = await pop(client, "b")
        assert numbers(again)[0] == 1
        assert numbers(again) == sorted(numbers(again))
        assert {1, 3, 4} <= set(numbers(again)) <= {1, 2, 3, 4}

    play(scene)


def test_o20_a_batch_is_known_after_its_broker_died() -> None:
    """It holds its queue, its acknowledgements count, and the rest of it is not passed over."""

    async def scene(loop: SimLoop) -> None:
        stage = Stage(loop)
        client = await stage.start(6)
        zero, one, two = handles(await pop(client, "a", count=3))
        client = await stage.kill()
        assert numbers(await pop(client, "b")) == []
        assert await client.ack(zero) == 0
        client = await stage.kill()
        assert numbers(await pop(client, "c")) == []
        assert await stage.committed() == 1
        assert await client.ack(two) == 0
        assert await stage.committed() == 1
        client = await stage.kill()
        assert await client.ack(one) == 0
        assert await stage.committed() == 3
        assert numbers(await pop(client, "d")) == [3, 4, 5]

    play(scene)


def test_o20_a_batch_holds_its_queue_over_a_power_cut() -> None:
    """Nobody goes on under a token of before; what was acknowledged and on disk stays so."""

    async def scene(loop: SimLoop) -> None:
        stage = Stage(loop, sync_flush=True)
        client = await stage.start(6)
        zero, _, two = handles(await pop(client, "a", count=3))
        assert await client.ack(zero) == 0
        client = await stage.cut_power()
        assert numbers(await pop(client, "b")) == []
        await client.ack(two)
        assert await stage.committed() == 1
        again = await pop(client, "c", poll_ms=15_000)
        assert numbers(again)[0] == 1

    play(scene)


def test_o20_an_acknowledgement_of_what_was_not_popped_passes_nothing() -> None:
    """Neither before any pop, nor of another token, nor of another offset."""

    async def scene(loop: SimLoop) -> None:
        stage = Stage(loop)
        client = await stage.start(6)
        made_up = Handle(TOPIC, 0, 1_700_000_000_000, INVISIBLE_MS, 999, "0", "broker-a", 0, 4)
        assert await client.ack(made_up) != 0
        assert await client.ack_all([made_up]) != 0
        assert await stage.committed() <= 0
        batch = await pop(client, "a", count=2)
        beyond = Handle(TOPIC, 0, batch.pop_time, INVISIBLE_MS, 999, "0", "broker-a", 0, 4)
        assert await client.ack(beyond) != 0
        assert await client.ack(made_up) != 0
        assert await stage.committed() <= 0
        assert await client.ack_all(handles(batch)) == 0
        assert numbers(await pop(client, "b")) == [2, 3, 4, 5]

    play(scene)


def test_o21_a_long_handler_keeps_its_queue() -> None:
    """No janitor takes away what is in use for minutes, and changes of the time add up."""

    async def scene(loop: SimLoop) -> None:
        stage = Stage(loop)
        client = await stage.start(3)
        (handle,) = handles(await pop(client, "a", count=1, invisible_ms=150_000))
        await asyncio.sleep(140)  # connections without a word end meanwhile
        assert numbers(await pop(await stage.client(), "b")) == []
        code, changed = await (await stage.client()).change(handle, 200_000)
        assert code == 0
        assert changed is not None
        for name in ("c", "d", "e"):
            await asyncio.sleep(60)
            assert numbers(await pop(await stage.client(), name)) == []
        client = await stage.client()
        assert await client.ack(changed) == 0
        assert numbers(await pop(client, "f")) == [1, 2]

    play(scene)


def test_a_shorter_time_gives_the_queue_away_sooner() -> None:
    """A handler that failed need not wait for the end of its time."""

    async def scene(loop: SimLoop) -> None:
        stage = Stage(loop)
        client = await stage.start(2)
        (handle,) = handles(await pop(client, "a", count=1, invisible_ms=60_000))
        assert (await client.change(handle, 100))[0] == 0
        await past_invisible(100)
        again = await pop(client, "b", count=1)
        assert (numbers(again), again.messages[0].times) == ([0], 1)

    play(scene)


@pytest.mark.parametrize("killed", [False, True])
def test_the_same_attempt_has_the_same_batch(killed: bool) -> None:
    """Whose answer was lost asks again and gets it, also from the next life of the broker."""

    async def scene(loop: SimLoop) -> None:
        stage = Stage(loop)
        client = await stage.start(3)
        first = await pop(client, "a")
        await stage.send(2, first=3)
        if killed:
            client = await stage.kill()
        assert numbers(await pop(client, "b")) == []
        again = await pop(client, "a")
        assert numbers(again) == numbers(first) == [0, 1, 2]
        assert again.pop_time >= first.pop_time
        assert [one.times for one in again.messages] == [0, 0, 0]
        assert await client.ack_all(handles(again)) == 0
        assert await stage.committed() == 3

    play(scene)


def test_a_pop_that_waits_gets_what_the_end_of_a_batch_sets_free() -> None:
    """By the last acknowledgement, or when the time is over."""

    async def scene(loop: SimLoop) -> None:
        stage = Stage(loop)
        client, other = await stage.start(3), await stage.client()
        batch = await pop(client, "a", count=1)
        waiting = asyncio.ensure_future(pop(other, "b", count=1, poll_ms=15_000))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        began = loop.time()
        assert await client.ack_all(handles(batch)) == 0
        assert numbers(await waiting) == [1]
        assert loop.time() - began < 0.5
        began = loop.time()
        assert numbers(await pop(client, "c", count=1, poll_ms=15_000)) == [1]
        assert loop.time() - began < INVISIBLE_MS / 1000 + 0.5

    play(scene)


def test_tokens_grow_though_the_clock_goes_back() -> None:
    """By hours, over a kill, too; and a batch lasts as long as it should."""

    async def scene(loop: SimLoop) -> None:
        stage = Stage(loop)
        client = await stage.start(4)
        tokens = []
        for number, skew_ms in enumerate((0, -86_400_000, 86_400_000, 0)):
            stage.cluster.brokers[0].clock.skew_ms = skew_ms
            if number == 2:
                client = await stage.kill()
            batch = await pop(client, f"a{number}", count=1)
            tokens.append(batch.pop_time)
            stage.cluster.brokers[0].clock.skew_ms = skew_ms + 40_000_000
            await asyncio.sleep(0.5)
            assert numbers(await pop(client, f"b{number}")) == []
            assert await client.ack_all(handles(batch)) == 0
        assert tokens == sorted(set(tokens))

    play(scene)


def test_no_lock_while_a_batch_is_out_and_no_batch_while_there_is_a_lock() -> None:
    """RocketMQ's own ordered consumers and those that pop in order take turns."""

    async def scene(loop: SimLoop) -> None:
        stage = Stage(loop)
        client, api = await stage.start(3), await stage.api()
        queue = TopicQueue(TOPIC, "broker-a", 0)
        batch = await pop(client, "a", count=2)
        assert queue not in await api.lock("c1@1", GROUP, [queue])
        assert await client.ack_all(handles(batch)) == 0
        assert queue in await api.lock("c1@1", GROUP, [queue])
        found = await client.pop(TOPIC, invisible_ms=INVISIBLE_MS, order=True, attempt="b")
        assert not found.messages
        await api.unlock("c1@1", GROUP, [queue])
        assert numbers(await pop(client, "c")) == [2]

    play(scene)


def test_no_lock_while_messages_without_order_are_out() -> None:
    """The owner of a queue begins when what others have of it is done."""

    async def scene(loop: SimLoop) -> None:
        stage = Stage(loop)
        client, api = await stage.start(3), await stage.api()
        queue = TopicQueue(TOPIC, "broker-a", 0)
        batch = await take(client)
        assert queue not in await api.lock("c1@1", GROUP, [queue])
        assert not (await client.pop(TOPIC, invisible_ms=INVISIBLE_MS, order=True)).messages
        assert await client.ack_all(handles(batch)) == 0
        assert queue in await api.lock("c1@1", GROUP, [queue])
        await stage.send(1, first=3)
        found = await client.pop(TOPIC, invisible_ms=INVISIBLE_MS)
        assert not found.messages

    play(scene)


def test_no_lease_while_a_batch_is_out() -> None:
    """A consumer of ours begins when the batch is over, behind what was acknowledged of it."""

    async def scene(loop: SimLoop) -> None:
        stage = Stage(loop)
        client = await stage.start(4)
        zero, one, _ = handles(await pop(client, "a", count=3))
        began_s = loop.time()
        config = ClientConfig(consumer=ConsumerConfig(lease_ms=1000, grace_ms=300))
        node, session = await stage.cluster.client(config)
        consumer = Consumer(session, group=GROUP, consume_from="first")
        handled: list[tuple[float, int]] = []

        async def handle(message: ReceivedMessage) -> None:
            handled.append((loop.time(), int(message.body)))

        consumer.on(TOPIC, order="queue")(handle)
        await node.run(consumer.start())
        await asyncio.sleep(1.0)
        assert [await client.ack(handle) for handle in (zero, one)] == [0, 0]
        await asyncio.sleep(20)
        assert [number for _, number in handled] == [2, 3]
        assert handled[0][0] >= began_s + INVISIBLE_MS / 1000 - 0.1
        await node.run(consumer.close())
        await stage.send(1, first=4)
        assert numbers(await pop(client, "b")) == [4]
        await node.run(session.close())

    play(scene)


def test_a_reset_lets_the_batch_that_is_out_end() -> None:
    """Its acknowledgements count; then the group goes on at the target."""

    async def scene(loop: SimLoop) -> None:
        stage = Stage(loop)
        client = await stage.start(6)
        assert await client.ack_all(handles(await pop(client, "a", count=2))) == 0
        batch = await pop(client, "b", count=2)
        _, session = await stage.cluster.client()
        queue = TopicQueue(TOPIC, "broker-a", 0)
        resetting = asyncio.ensure_future(Admin(session).offsets.reset_queue(GROUP, queue, 1))
        await asyncio.sleep(0.3)
        assert numbers(await pop(client, "c")) == []
        assert [await client.ack(handle) for handle in handles(batch)] == [0, 0]
        await resetting
        again = await pop(client, "d", poll_ms=3000)
        assert numbers(again)[:4] == [1, 2, 3, 4]
        assert await client.ack_all(handles(again)) == 0

    play(scene)


def test_a_reset_counts_when_the_batch_that_is_out_is_never_acknowledged() -> None:
    """Its consumer is dead: the time of the batch ends it."""

    async def scene(loop: SimLoop) -> None:
        stage = Stage(loop)
        client = await stage.start(6)
        assert await client.ack_all(handles(await pop(client, "a", count=2))) == 0
        await pop(client, "b", count=2)
        _, session = await stage.cluster.client()
        queue = TopicQueue(TOPIC, "broker-a", 0)
        resetting = asyncio.ensure_future(Admin(session).offsets.reset_queue(GROUP, queue, 0))
        await past_invisible(2 * INVISIBLE_MS)
        await resetting
        assert numbers(await pop(client, "c", poll_ms=3000))[:2] == [0, 1]

    play(scene)


# Plain POP.


async def take(client: PopClient, **more: int) -> Batch:
    """Pop without order."""
    batch = await client.pop(TOPIC, **{"invisible_ms": INVISIBLE_MS, **more})
    assert not batch.refused, batch
    return batch


async def take_until(client: PopClient, count: int, seconds: float) -> list[tuple[int, int, str]]:
    """Pop and acknowledge until so many came; return numbers, counts and retry flags."""
    found: list[tuple[int, int, str]] = []
    for _ in range(int(seconds / 0.2)):
        batch = await take(client)
        found += [(int(one.body), one.times, one.handle.retry) for one in batch.messages]
        if batch.messages:
            assert await client.ack_all(handles(batch)) == 0
        if len(found) >= count:
            break
        await asyncio.sleep(0.2)
    return found


@pytest.mark.parametrize("killed", [False, True])
def test_what_is_acknowledged_never_comes_again_and_the_rest_does(killed: bool) -> None:
    """From the retry topic, counted up, when its invisible time is over and not before."""

    async def scene(loop: SimLoop) -> None:
        stage = Stage(loop)
        client = await stage.start(6)
        batch = await take(client)
        assert sorted(numbers(batch)) == [0, 1, 2, 3, 4, 5]
        by_number = {int(one.body): one.handle for one in batch.messages}
        assert [await client.ack(by_number[n]) for n in (1, 4)] == [0, 0]
        assert await client.ack_all([by_number[2], by_number[5]]) == 0
        assert await stage.committed() <= 0
        if killed:
            client = await stage.kill()
        assert numbers(await take(client)) == []
        await past_invisible()
        found = await take_until(client, 2, 30)
        assert sorted(found) == [(0, 1, "1"), (3, 1, "1")]
        if killed:
            client = await stage.kill()
        await asyncio.sleep(10 * INVISIBLE_MS / 1000)
        assert numbers(await take(client)) == []
        assert await stage.committed() == 6

    play(scene)


def test_a_late_acknowledgement_is_refused_or_ends_it() -> None:
    """The message has moved to the retry topic: success would mean that it never comes again."""

    async def scene(loop: SimLoop) -> None:
        stage = Stage(loop)
        client = await stage.start(1)
        (handle,) = handles(await take(client))
        again: list[int] = []
        while not again:
            await asyncio.sleep(0.2)
            again = numbers(await take(client))
        code = await client.ack(handle)
        await past_invisible(3 * INVISIBLE_MS)
        third = numbers(await take(client, poll_ms=5000))
        assert (code == 0) == (third == [])

    play(scene)


@pytest.mark.parametrize("sync_flush", [False, True])
@pytest.mark.parametrize("seed", range(1, 5))
def test_an_acknowledgement_at_the_end_of_the_time_counts_or_is_refused(
    seed: int, sync_flush: bool
) -> None:
    """Also while the copy for the retry topic is on its way to the disk."""

    async def scene(loop: SimLoop) -> None:
        stage = Stage(loop, sync_flush=sync_flush)
        client = await stage.start(32)
        batch = await take(client)
        popped_s = loop.time()  # a moment after the broker's count began
        codes: dict[int, int] = {}

        async def acknowledge(place: int, handle: Handle, number: int) -> None:
            await asyncio.sleep(popped_s + (INVISIBLE_MS - 5 + place * 0.25) / 1000 - loop.time())
            codes[number] = await client.ack(handle)

        await asyncio.gather(
            *(
                acknowledge(place, one.handle, int(one.body))
                for place, one in enumerate(batch.messages)
            )
        )
        assert 0 in codes.values()
        again = {number for number, _, _ in await take_until(client, 40, 20)}
        assert again == {number for number, code in codes.items() if code}

    play(scene, seed)


def test_another_invisible_time_counts_from_the_change() -> None:
    """The handle of before is of no use any more; the new one acknowledges."""

    async def scene(loop: SimLoop) -> None:
        stage = Stage(loop)
        client = await stage.start(2)
        batch = await take(client)
        code, longer = await client.change(batch.messages[0].handle, 20_000)
        assert code == 0
        assert longer is not None
        code, _ = await client.change(batch.messages[1].handle, 300)
        assert code == 0
        found = await take_until(client, 1, 10)
        assert [number for number, _, _ in found] == [int(batch.messages[1].body)]
        await asyncio.sleep(10)
        assert numbers(await take(client)) == []
        assert await client.ack(longer) == 0
        await asyncio.sleep(40)
        assert numbers(await take(client)) == []

    play(scene)


def test_pops_of_too_many_and_of_nothing_are_refused() -> None:
    """29 for more than 32 messages, 17 for no topic, 29 for a queue that there is not."""

    async def scene(loop: SimLoop) -> None:
        stage = Stage(loop)
        client = await stage.start(1)
        assert (await client.pop(TOPIC, invisible_ms=1000, count=33)).code == 29
        assert (await client.pop("nowhere", invisible_ms=1000)).code == 17
        assert (await client.pop(TOPIC, invisible_ms=1000, queue_id=7)).code == 29
        connection = await stage.connect()
        for code in (200050, 200051, 200151, 200053, 200054, 200055):
            for fields in ({}, {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "x"}):
                answer = await connection.request(Command.request(code, fields, b"{"), 3000)
                assert answer.code not in (0, 3), (code, fields)
        words = ("", "1 2 3", "0 1 1 0 0 broker-a 0 x", "9" * 400)
        for text in words:
            named = {
                "consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "offset": "0",
                "extraInfo": text, "invisibleTime": "1000",
            }  # fmt: skip
            for code in (200051, 200053):
                answer = await connection.request(Command.request(code, named), 3000)
                assert answer.code not in (0, 3), (code, text)
        assert numbers(await take(client)) == [0]

    play(scene)
