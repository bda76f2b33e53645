"""Keys follow the topic's map: over brokers that are down, and from one version to the next."""

from __future__ import annotations

import asyncio

import pytest

from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.model import Message
from inorder.ordering.keymap import KeyMap, queue_for_key
from inorder.wire.codes import RequestCode
from inorder.wire.extensions import ExtensionAnswer, ExtensionCode
from inorder.wire.requests.sends import SendMessage
from tests.kit.simloop import SimLoop, run
from tests.unit.client.scripted import QUEUES, refuse, session
from tests.unit.client.send.numbering import Numbering, numbered, until

SEND = RequestCode.SEND_MESSAGE_V2
STATE = ExtensionCode.PRODUCER_STATE
Items = list[tuple[bytes, bytes]]
FIRST = KeyMap.of(1, [("broker-a", 0)])
SECOND = KeyMap.of(2, [("broker-a", index) for index in range(QUEUES)])
MOVED = next(f"k{n}" for n in range(99) if queue_for_key(f"k{n}", QUEUES) == 1)
STAYS = next(f"k{n}" for n in range(99) if queue_for_key(f"k{n}", QUEUES) == 0)


def bodies(*texts: str) -> list[bytes]:
    return [text.encode() for text in texts]


def test_keys_follow_the_map_and_sends_carry_its_version():
    """The map, not the route, says which queues there are for keys."""

    async def scenario(server: Numbering, client: Session) -> None:
        server.kv["t"], server.key_map = FIRST.encode(), FIRST
        producer = Producer(client)
        for key in (MOVED, STAYS):
            assert (await producer.send("t", b"x", key=key)).queue.index == 0
        batch = [Message("t", b"x", key=MOVED)] * 2
        assert {receipt.queue.index for receipt in await producer.send_batch(batch)} == {0}
        assert server.versions == ["1", "1", "1"]
        await producer.send("t", b"x")
        assert server.versions[-1] is None

    numbered(scenario)


def test_a_broker_of_the_map_that_is_down_keeps_its_keys():
    """They wait or fail; they never go elsewhere."""

    async def main(loop: SimLoop) -> None:
        server = Numbering(loop)
        await server.start()
        full = KeyMap.of(1, [("broker-a", 0), ("broker-b", 0)])
        server.kv["t"], server.key_map = full.encode(), full
        away = next(f"k{n}" for n in range(99) if queue_for_key(f"k{n}", 2) == 1)
        here = next(f"k{n}" for n in range(99) if queue_for_key(f"k{n}", 2) == 0)
        async with session(loop) as client:
            producer = Producer(client)
            with pytest.raises(Exception, match="broker-b"):
                await producer.send("t", b"x", key=away, timeout=1)
            waiting = producer.send_nowait("t", b"waits", key=away, timeout=60)
            await producer.send("t", b"y", key=here)
            assert server.bodies() == [[b"y"], []]
            other = Numbering(loop, "10.0.0.2", "broker-b")
            other.key_map = full
            await other.start()
            server.others.append(other)
            await client.refresh_route("t")
            assert (await waiting).queue.broker == "broker-b"
            assert other.bodies() == [[b"waits"], []]

    for seed in range(3):
        run(main, seed)


def test_a_newer_map_takes_keys_along_in_their_order():
    """The refused ones and those called meanwhile; keys that stay are not disturbed."""

    async def scenario(server: Numbering, client: Session) -> None:
        server.kv["t"], server.key_map = FIRST.encode(), FIRST
        producer = Producer(client)
        await producer.send("t", b"m0", key=MOVED)
        server.hold = True
        sends = [producer.send_nowait("t", b"m%d" % n, key=MOVED) for n in range(1, 4)]
        sends += [producer.send_nowait("t", b"s%d" % n, key=STAYS) for n in range(3)]
        await until(lambda: len(server.held) == 6)
        server.key_map, server.hold = SECOND, False
        server.let_go(2)
        await asyncio.sleep(0.01)
        sends += [producer.send_nowait("t", b"m%d" % n, key=MOVED) for n in range(4, 6)]
        server.let_go()
        await asyncio.gather(*sends)
        assert server.bodies() == [
            bodies("m0", "s0", "s1", "s2"),
            bodies("m1", "m2", "m3", "m4", "m5"),
        ]

    numbered(scenario)


def test_a_message_stored_under_the_old_map_is_not_stored_again():
    """A4: its answer is lost, the map changes; the retry gets its first answer, in the old queue.

    What comes after it for that key waits until that is known.
    """

    async def scenario(server: Numbering, client: Session) -> None:
        server.kv["t"], server.key_map = FIRST.encode(), FIRST
        producer = Producer(client)

        def lose(command: object) -> None:
            server.lose_answer(command)  # type: ignore[arg-type]
            server.key_map = SECOND

        server.answers[SEND] = [lose]
        first = producer.send_nowait("t", b"m0", key=MOVED)
        await until(lambda: server.key_map is SECOND)
        client.take_key_map("t", SECOND)
        keep, settled = server.keep, []

        def note(request: SendMessage, who: str, items: Items, numbers: list[int]) -> None:
            if items:  # not of the retry, which is stored already
                settled.append(STATE in [command.code for command in server.requests])
            keep(request, who, items, numbers)

        server.keep = note  # type: ignore[method-assign]
        second = producer.send_nowait("t", b"m1", key=MOVED)
        assert ((await first).queue.index, (await first).offset) == (0, 0)
        assert (await second).queue.index == 1
        assert server.bodies() == [[b"m0"], [b"m1"]]
        assert settled == [True], "m1 was stored when the broker had been asked about m0"

    numbered(scenario)


def test_a_broker_with_an_older_map_is_waited_for():
    """Its refusal is definite; the send goes again a little later, to the same queue."""

    async def main(loop: SimLoop) -> None:
        server, other = Numbering(loop), Numbering(loop, "10.0.0.2", "broker-b")
        full = KeyMap.of(2, [("broker-a", 0), ("broker-b", 0)])
        key = next(f"k{n}" for n in range(99) if queue_for_key(f"k{n}", 2) == 0)
        server.kv["t"], server.key_map, other.key_map = full.encode(), FIRST, full
        server.others.append(other)
        for one in (server, other):
            await one.start()
        async with session(loop) as client:
            producer = Producer(client)
            future = producer.send_nowait("t", b"x", key=key)
            await asyncio.sleep(1)
            assert not future.done()
            server.key_map = full
            assert (await future).queue.broker == "broker-a"

    for seed in range(3):
        run(main, seed)


def test_a_map_of_a_name_server_that_no_broker_holds_is_void():
    """The brokers' own, older one counts, whatever the name server goes on to say."""

    async def scenario(server: Numbering, client: Session) -> None:
        server.kv["t"], server.key_map = SECOND.encode(), FIRST
        producer = Producer(client)
        assert (await producer.send("t", b"x", key=MOVED)).queue.index == 0
        await client.refresh_route("t")
        assert (await producer.send("t", b"y", key=MOVED)).queue.index == 0
        assert server.versions == ["2", "1", "1"]

    numbered(scenario)


def test_a_map_that_nobody_keeps_is_dropped():
    """The topic was made anew without one: keys go by the route again."""

    async def scenario(server: Numbering, client: Session) -> None:
        server.kv["t"] = FIRST.encode()
        producer = Producer(client)
        server.answers[SEND] = [refuse(ExtensionAnswer.KEY_MAP_CHANGED)]
        future = producer.send_nowait("t", b"x", key=MOVED)
        await client.route("t")
        server.kv.clear()
        assert (await future).queue.index == 1

    numbered(scenario)


def test_topics_without_a_map_cost_no_retry():
    """One question to the name server beside the route, whatever it answers."""

    async def scenario(server: Numbering, client: Session) -> None:
        await client.route("t")
        assert server.count(RequestCode.GET_KV_CONFIG) == 1
        assert client.key_map("t") is None
        server.kv["t"] = "nonsense"
        await client.refresh_route("t")
        assert client.key_map("t") is None
        server.answers[RequestCode.GET_KV_CONFIG] = [refuse(3)]
        await client.refresh_route("t")
        assert server.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) == 3

    numbered(scenario)


def test_a_queue_is_drained_by_answers_alone():
    """What was under way is stored under the old map; then the key goes to its new queue."""

    async def scenario(server: Numbering, client: Session) -> None:
        server.kv["t"], server.key_map = FIRST.encode(), FIRST
        producer = Producer(client)
        await producer.send("t", b"m0", key=MOVED)
        server.hold = True
        first = producer.send_nowait("t", b"m1", key=MOVED)
        await until(lambda: server.held)
        client.take_key_map("t", SECOND)
        second = producer.send_nowait("t", b"m2", key=MOVED)
        await asyncio.sleep(0.05)
        assert len(server.held) == 1
        server.let_go()
        server.key_map, server.hold = SECOND, False
        assert ((await first).queue.index, (await second).queue.index) == (0, 1)
        assert (await producer.send("t", b"m3", key=MOVED)).queue.index == 1
        assert server.bodies() == [bodies("m0", "m1"), bodies("m2", "m3")]

    numbered(scenario)


def test_a_batch_over_a_map_change_is_regrouped():
    """Its messages are not stored, so they go to their new queues; receipts in the callers' order.

    What is called meanwhile, single or in a batch, stays behind them.
    """

    async def scenario(server: Numbering, client: Session) -> None:
        server.kv["t"], server.key_map = FIRST.encode(), FIRST
        producer = Producer(client)
        await producer.send("t", b"m0", key=MOVED)
        server.hold = True
        held = producer.send_nowait("t", b"m1", key=MOVED)
        first = asyncio.ensure_future(
            producer.send_batch(
                [
                    Message("t", b"s1", key=STAYS),
                    Message("t", b"m2", key=MOVED),
                    Message("t", b"n1"),
                    Message("t", b"m3", key=MOVED),
                    Message("t", b"s2", key=STAYS),
                ]
            )
        )
        await until(lambda: len(server.held) == 2)
        server.key_map = SECOND
        client.take_key_map("t", SECOND)
        again = [Message("t", b"m4", key=MOVED), Message("t", b"s3", key=STAYS)]
        second = asyncio.ensure_future(producer.send_batch(again))
        await asyncio.sleep(0.01)
        third = producer.send_nowait("t", b"m5", key=MOVED)
        await asyncio.sleep(0.01)
        server.hold = False
        server.let_go()
        await asyncio.gather(held, first, second, third)
        assert [one.queue.index for one in first.result()] == [0, 1, 0, 1, 0]
        assert [one.queue.index for one in second.result()] == [1, 0]
        zero, one = server.bodies()
        assert zero == bodies("m0", "s1", "n1", "s2", "s3")
        assert one == bodies("m1", "m2", "m3", "m4", "m5")
        for receipt, body in zip(first.result(), bodies("s1", "m2", "n1", "m3", "s2"), strict=True):
            assert server.bodies()[receipt.queue.index][receipt.offset] == body

    numbered(scenario)


def test_a_message_without_a_key_leaves_a_removed_queue():
    """Its queue is closed by a resize: it goes to one that is left."""

    async def scenario(server: Numbering, client: Session) -> None:
        server.kv["t"], server.key_map = SECOND.encode(), SECOND
        producer = Producer(client)
        await producer.send("t", b"k", key=MOVED)
        shrunk = KeyMap.of(3, [("broker-a", 0)])
        told = {"version": "3", "map": shrunk.encode()}
        closed = ExtensionAnswer.KEY_MAP_CHANGED
        server.answers[SEND] = [lambda command: command.reply(closed, "closed", fields=told)]
        server.key_map = shrunk
        receipts = [await producer.send("t", b"x%d" % number) for number in range(3)]
        assert {receipt.queue.index for receipt in receipts} == {0}
        assert (await producer.send("t", b"k", key=MOVED)).queue.index == 0

    numbered(scenario)
