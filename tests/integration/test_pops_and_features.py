"""POP beside other features: resizes, parked keys, order="key", cold messages, assignments."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from inorder.model import TopicQueue
from inorder.ordering.finished import FinishedMap
from inorder.testing.clock import FakeClock
from inorder.wire.header import Command
from inorder.wire.record import decode_all
from tests.integration.brokerkit import Rig, running, until
from tests.integration.leasekit import ours
from tests.integration.popkit import (
    GROUP,
    INVISIBLE_MS,
    TOPIC,
    ack,
    move,
    offset_of,
    pop,
    pop_fields,
    pop_in_order,
    send,
)
from tests.integration.resizekit import KEYS, Town, play
from tests.integration.test_broker_parking import Client
from tests.kit.disk import FakeFiles

ILLEGAL_OPERATION = 604


def run(scenario: Callable[[], object]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ["false", "true"])
def test_a_resize_holds_pops_as_it_holds_pulls(order: str) -> None:
    """Behind the end of the old version nothing is found until the group is done with it (A6)."""

    async def story(town: Town) -> None:
        key = KEYS[0]
        await town.send(2, keys=[key])
        number = next(n for n in (0, 1) if any(_ends(town, n).values()))
        _, session = await town.cluster.client()
        address = town.cluster.brokers[number].address
        (queue_id,) = (queue for queue, end in _ends(town, number).items() if end)

        async def popped() -> Command:
            fields = pop_fields(
                topic="orders", consumerGroup="g", queueId=str(queue_id), order=order,
                maxMsgNums="1", invisibleTime="60000",
            )  # fmt: skip
            api = await session.broker_at(address)
            return await api.connection.request(Command.request(200050, fields), 5000)

        async def done(found: Command, offset: int) -> int:
            fields = found.fields
            extra = (
                f"0 {fields['popTime']} 60000 {fields['reviveQid']} 0 broker {queue_id} {offset}"
            )
            api = await session.broker_at(address)
            answer = await api.connection.request(
                Command.request(200051, {
                    "consumerGroup": "g", "topic": "orders", "queueId": str(queue_id),
                    "offset": str(offset), "extraInfo": extra,
                }),
                5000,
            )  # fmt: skip
            return answer.code

        first = await popped()
        assert len(decode_all(first.body)) == 1
        await town.admin.topics.resize("orders", queues=12)
        await town.send(2, keys=[key])
        assert await done(first, 0) == 0
        second = await popped()
        assert len(decode_all(second.body)) == 1
        assert (await popped()).code == 210
        assert await done(second, 1) == 0
        held = town.broker(number).resizing.held_at("orders", "g", queue_id, leased=True)
        if held is not None:
            assert (await popped()).code == 210
        for index in (0, 1):
            town.broker(index).find_group("g")
            api = await session.broker_at(town.cluster.brokers[index].address)
            for queue, end in _ends(town, index).items():
                if (index, queue) != (number, queue_id):
                    name = town.broker(index).config.name
                    await api.update_offset("g", TopicQueue("orders", name, queue), end)
        await town.released(2, "g")
        end = town.broker(number).store.end_offset("orders", queue_id)
        assert len(decode_all((await popped()).body)) == min(1, end - 2)
        await session.close()

    play(story)


def _ends(town: Town, number: int) -> dict[int, int]:
    """Return the ends of the queues of a broker."""
    return {
        queue.queue_id: queue.visible_offset
        for queue in town.broker(number).store.queues_of("orders")
    }


@pytest.mark.parametrize("order", ["false", "true"])
def test_a_queue_with_parked_keys_is_not_popped(order: str) -> None:
    """The answer says what to do; another queue and another group pop."""

    async def scenario() -> None:
        async with running() as rig:
            client = Client(rig)
            await client.send(3)
            assert await client.park(0, error="no") == "parked"
            fields = {"consumerGroup": "billing", "order": order}
            refused = await pop(rig, queueId="1", **fields)
            assert refused.code == ILLEGAL_OPERATION
            assert "inorder redrive" in (refused.answer.remark or "")
            assert (await pop(rig, **fields)).code == ILLEGAL_OPERATION
            assert (await pop(rig, queueId="2", **fields)).code == 210
            assert len((await pop(rig, order=order)).records) == 3

    run(scenario)


@pytest.mark.parametrize("order", ["false", "true"])
def test_a_queue_handled_by_key_is_popped_when_nothing_is_finished_above_its_offset(
    order: str,
) -> None:
    """Or messages would be handed out that are done."""

    async def scenario() -> None:
        async with running(clock=FakeClock()) as rig, ours(rig, "a") as (a,):
            await send(rig, 4)
            await a.take(1)
            finished = FinishedMap(1)
            finished.add(2)
            assert await a.commit(1, finished.encode(), queue=1)
            await a.release(queue=1)
            refused = await pop(rig, queueId="1", order=order)
            assert refused.code == ILLEGAL_OPERATION
            assert 'order="key"' in (refused.answer.remark or "")
            await a.take(1)
            assert await a.commit(3, queue=1)
            await a.release(3, queue=1)
            assert (await pop(rig, queueId="1", order=order)).bodies == [b"m3"]

    run(scenario)


def test_a_group_that_consumes_by_broadcast_does_not_pop() -> None:
    """Each of its members wants all messages."""

    async def scenario() -> None:
        async with running(clock=FakeClock()) as rig:
            await send(rig, 1)
            await heart_beat(rig, "c1", model="BROADCASTING")
            refused = await pop(rig)
            assert (refused.code, "broadcast" in (refused.answer.remark or "")) == (16, True)

    run(scenario)


async def heart_beat(rig: Rig, client_id: str, model: str = "CLUSTERING") -> None:
    body: dict[str, Any] = {
        "clientID": client_id, "producerDataSet": [],
        "consumerDataSet": [{
            "groupName": GROUP, "consumeType": "CONSUME_PASSIVELY", "messageModel": model,
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": False,
            "subscriptionDataSet": [{
                "topic": TOPIC, "subString": "*", "subVersion": 1, "expressionType": "TAG",
                "tagsSet": [], "codeSet": [], "classFilterMode": False,
            }],
        }],
    }  # fmt: skip
    assert (await rig.ask(34, {}, json.dumps(body).encode())).code == 0


@pytest.mark.parametrize(
    ("filtering", "bodies"),
    [
        ({}, [b"m0", b"m1", b"m2", b"m3"]),
        ({"exp": "B"}, [b"m1", b"m3"]),
        ({"exp": "n > 1", "expType": "SQL92"}, [b"m2", b"m3"]),
    ],
)
@pytest.mark.parametrize("order", ["false", "true"])
def test_messages_that_are_not_in_memory_are_popped_too(
    filtering: dict[str, str], bodies: list[bytes], order: str
) -> None:
    """They are read in a thread; with time over they go to the retry topic in the same way."""

    async def scenario() -> None:
        clock = FakeClock()
        async with running(clock=clock) as rig:
            for number in range(4):
                tag = "AB"[number % 2]
                await rig.send(b"m%d" % number, i=f"TAGS\x01{tag}\x02n\x01{number}\x02")
            rig.broker.store.reader.hot_bytes = 0
            fields = {"order": order, "queueId": "1", **filtering}
            found = await pop(rig, maxMsgNums="3", **fields)
            assert found.bodies == bodies[:3]
            for record in found.records[1:]:
                assert (await ack(rig, found, 1, record.queue_offset)).code == 0
            peeked = await rig.ask(200052, {
                "consumerGroup": "G2", "topic": TOPIC, "queueId": "1", "maxMsgNums": "2",
            })  # fmt: skip
            assert [one.body for one in decode_all(peeked.body)] == [b"m0", b"m1"]
            await move(rig, clock, INVISIBLE_MS)
            if order == "false":
                await until(lambda: rig.broker.revival.revived == 1)
            again = [*(await pop(rig, **fields)).bodies, *(await pop(rig, **fields)).bodies]
            assert bodies[0] in again

    run(scenario)


def test_pops_at_once_of_cold_messages_share_them_out() -> None:
    """No message is handed out twice while it is read."""

    async def scenario() -> None:
        async with running(clock=FakeClock()) as rig:
            await send(rig, 6)
            rig.broker.store.reader.hot_bytes = 0
            found = await asyncio.gather(*(pop(rig, queueId="1", maxMsgNums="2") for _ in range(3)))
            offsets = [offset for one in found for _, offset in one.places]
            assert len(offsets) == len(set(offsets))

    run(scenario)


def test_a_waiting_pop_reads_cold_messages_in_a_thread() -> None:
    """Its block ended, and the messages are old."""

    async def scenario() -> None:
        clock = FakeClock()
        async with running(clock=clock) as rig:
            await send(rig, 2)
            await pop_in_order(rig, attemptId="a")
            rig.broker.store.reader.hot_bytes = 0
            waiting = asyncio.create_task(pop_in_order(rig, attemptId="b", pollTime="60000"))
            await until(lambda: len(rig.broker.pop_polls) == 1)
            await move(rig, clock, INVISIBLE_MS)
            assert (await waiting).bodies == [b"m0", b"m1"]

    run(scenario)


async def assigned(rig: Rig, client_id: str, **changes: str) -> Any:
    body = {
        "topic": TOPIC, "consumerGroup": GROUP, "clientId": client_id, "strategyName": "AVG",
        "messageModel": "CLUSTERING", **changes,
    }  # fmt: skip
    answer = await rig.ask(400, None, json.dumps(body).encode())
    assert answer.code == 0, answer.remark
    found = json.loads(bytes(answer.body)).get("messageQueueAssignments")
    if found is None:
        return None
    return [(one["messageQueue"]["queueId"], one["mode"]) for one in found]


async def modes(rig: Rig) -> Any:
    return json.loads(bytes((await rig.ask(402)).body))


async def set_mode(rig: Rig, **changes: object) -> Command:
    body = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 0, **changes}
    return await rig.ask(401, None, json.dumps(body).encode())


def test_members_get_their_queues_from_the_broker() -> None:
    """By pull; by pop all get the queue -1; the mode survives a kill and goes with its topic."""

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files, stop=False) as rig:
            await send(rig, 1)
            assert await assigned(rig, "c1") is None, "the group is not online"
            await heart_beat(rig, "c1")
            assert await assigned(rig, "c1") == [(queue, "PULL") for queue in range(4)]
            assert await assigned(rig, "cx") == []
            assert await assigned(rig, "c1", strategyName="NONE") is None
            assert await assigned(rig, "c1", topic="NoSuch") is None
            assert (await set_mode(rig)).code == 0
            assert await assigned(rig, "c1") == [(-1, "POP")]
        async with running(files) as rig:
            await heart_beat(rig, "c1")
            assert await assigned(rig, "c1") == [(-1, "POP")]
            found = (await modes(rig))["messageRequestModeMap"]
            assert found == {
                TOPIC: {
                    GROUP: {
                        "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 0,
                        "topic": TOPIC,
                    }
                }
            }  # fmt: skip
            await rig.ask(215, {"topic": TOPIC})
            assert (await modes(rig)) == {"messageRequestModeMap": {}}

    run(scenario)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "%RETRY%CG"}, 16),
        ({"topic": "NoSuch"}, 17),
        ({"consumerGroup": "bad group!"}, 26),
        ({"mode": "PUSH"}, 1),
        ({"popShareQueueNum": "x"}, 1),
    ],
)
def test_bad_modes_are_refused(changes: dict[str, object], code: int) -> None:
    """With RocketMQ's codes; nothing is set."""

    async def scenario() -> None:
        async with running() as rig:
            await send(rig, 1)
            assert (await set_mode(rig, **changes)).code == code
            assert (await modes(rig)) == {"messageRequestModeMap": {}}
            for body in (b"", b"[]", b"{}"):
                assert (await rig.ask(401, None, body)).code == 1
                assert (await rig.ask(400, None, body)).code == 1

    run(scenario)


def test_the_default_mode_is_a_setting() -> None:
    """Retry topics are pulled whatever it is."""

    async def scenario() -> None:
        async with running(default_request_mode="POP") as rig:
            await send(rig, 1)
            await heart_beat(rig, "c1")
            assert await assigned(rig, "c1") == [(-1, "POP")]
            assert offset_of(rig) == -1

    run(scenario)
