"""Garbage in our own requests: leases, parked keys, resizes. Answered, bounded, nothing poisoned.

`make garbage` sends the same to a process and watches its memory.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re

import pytest

from inorder.broker.resizing.release import TRACKED_MAX
from inorder.config import NetConfig
from inorder.errors import InorderError
from inorder.model import GroupQueue, TopicQueue
from inorder.net.connection import Connection
from inorder.testing.clock import FakeClock
from inorder.wire.header import Command
from inorder.wire.requests.leases import LockBatchBody
from inorder.wire.requests.parking import MOVES_MAX, Move, MoveBody, QueuePlace
from tests.garbage.extensions import GROUP, KEY, TOPIC, hostile_extensions, plain
from tests.integration.brokerkit import Rig, running
from tests.integration.leasekit import ours
from tests.integration.leasekit import send as send_orders
from tests.kit.disk import FakeFiles

LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")


async def mapped(rig: Rig) -> None:
    """Make the topic that is attacked, with a key map and messages."""
    fields = {
        "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "2", "order": "false",
        "writeQueueNums": "2", "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
        "attributes": "+inorder.keymap=1/broker-a:0-1",
    }  # fmt: skip
    assert (await rig.ask(17, fields)).code == 0
    for number in range(4):
        properties = f"__SHARDINGKEY\x01{KEY}\x02UNIQ_KEY\x01U{number}\x02"
        await rig.send(b"x", b=TOPIC, e="0", i=properties)


@pytest.mark.slow
def test_garbage_in_our_own_requests_is_answered_and_poisons_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An answer, or a closed connection; no traceback; the broker starts again after a kill."""
    caplog.set_level(logging.ERROR)

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files, stop=False) as rig:
            await mapped(rig)
            connection = await Connection.open(rig.broker.address, NetConfig())
            unclear: list[str] = []
            count = 0
            for name, command in hostile_extensions(size=0.02):
                command.serializer = count % 2
                count += 1
                try:
                    answer = await connection.request(command, 10_000)
                    if answer.code and not answer.remark:
                        unclear.append(name)
                except InorderError:
                    if not connection.closed:
                        unclear.append(f"{name}: neither answered nor closed")
                    connection = await Connection.open(rig.broker.address, NetConfig())
            connection.close()
            assert count > 3000
            assert unclear == []
            assert [one.exc_info for one in caplog.records if one.exc_info] == []
            strange = [name for name in rig.broker.topics.names() if not LEGAL.fullmatch(name)]
            assert strange == []
            assert len(rig.broker.topics.names()) < 60
            assert {len(place.group) <= 255 for place in rig.broker.parking.table.places} <= {True}
            assert (await rig.send(b"x", b="Others")).code == 0
        async with running(files.kill()) as rig:
            assert (await rig.send(b"x", b="Others")).code == 0

    asyncio.run(scenario())


def test_honest_requests_are_not_refused() -> None:
    """What the garbage is made of is right but for one thing at a time."""

    async def scenario() -> None:
        async with running() as rig:
            await mapped(rig)
            codes = {}
            for code, honest in plain().items():
                body = b"" if honest.body is None else _json(honest.body)
                answer = await rig.ask(code, honest.fields, body)
                codes[code] = (answer.code, answer.remark)
            refused = {code for code, (answer, _) in codes.items() if answer}
            # No lease is held any more, another topic is not there, nothing was stopped.
            assert refused == {7121, 7130, 7135, 7136, 7142, 7145}, codes

    asyncio.run(scenario())


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize("text", ["0:", "0:zz", "0:+1", "0:0x1", "0:1_0", "0:" + "f" * 20_000])
@pytest.mark.parametrize("code", [7121, 7122])
def test_a_map_that_is_none_is_refused_and_the_broker_starts_again(code: int, text: str) -> None:
    """It would lie in the journal, and no start could read it."""

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files, stop=False, clock=FakeClock()) as rig, ours(rig, "a") as (a,):
            await send_orders(rig, 4)
            await a.take()
            if code == 7121:
                answer = await a.release(0, text)
            else:
                body = _json({"commits": [["Orders", 0, a.epochs[0], 1, 0, text]]})
                answer = await a.ask(7122, a.who, body)
            assert answer.code == 29, answer.remark
            assert "map" in (answer.remark or "")
            epochs = a.epochs
        async with running(files.kill(), clock=FakeClock()) as rig, ours(rig, "a") as (a,):
            a.epochs = epochs
            assert not (await a.lease(0)).refused
            assert await a.commit(1, "1:2", number=7)

    asyncio.run(scenario())


def test_the_name_of_an_owner_is_bounded() -> None:
    """Ours and a RocketMQ client's: whoever is refused the queue has to read it."""

    async def scenario() -> None:
        async with running(clock=FakeClock()) as rig, ours(rig, "a", "b") as (a, b):
            await send_orders(rig, 1)
            fields = a.who | {"leaseMs": "5000", "graceMs": "1000"}
            wishes = b'{"queues":[["Orders",0,0]]}'
            refused = await rig.ask(7120, fields | {"clientId": "c" * 1025}, wishes)
            assert refused.code == 29
            assert "client id" in (refused.remark or "")
            queue = TopicQueue("Orders", "broker-a", 0)
            for body in (
                LockBatchBody("s" * 1025, "CG", (queue,)),
                LockBatchBody("s", "g" * 1025, (queue,)),
                LockBatchBody("s", "CG", (TopicQueue("t" * 1025, "broker-a", 0),)),
            ):
                assert (await rig.ask(41, body=body.encode())).code == 1
            assert len(rig.broker.leases) == 0
            assert (await rig.ask(7120, fields | {"clientId": "c" * 1024}, wishes)).code == 0
            assert (await b.refused()).holder == "c" * 1024

    asyncio.run(scenario())


@pytest.mark.parametrize("group", ["a/../../../../evil", "..", "a b", "x" * 5000, "a\x00b"])
def test_a_group_with_an_illegal_name_parks_nothing(group: str) -> None:
    """Its topic of parked messages would have that name, too."""

    async def scenario() -> None:
        files = FakeFiles()
        async with running(files) as rig:
            await mapped(rig)
            honest = plain()
            for code in (7130, 7138):
                fields = honest[code].fields | {"group": group}
                answer = await rig.ask(code, fields, _json(honest[code].body))
                assert answer.code == 26, answer.remark
            assert [name for name in rig.broker.topics.names() if name.startswith("%PARK%")] == []
            assert rig.broker.parking.table.places == {}

    asyncio.run(scenario())


def test_parked_keys_come_to_topics_that_are_there_and_not_without_end() -> None:
    """Moves to a topic that is none are refused; beyond the bound keys cannot come yet."""

    async def scenario() -> None:
        async with running(parked_keys_max=2) as rig:
            await mapped(rig)

            async def move(topic: str, count: int) -> Command:
                coming = [Move(0, f"k{n}", QueuePlace("broker-b", 0)) for n in range(count)]
                fields = {"group": GROUP, "topic": topic}
                return await rig.ask(7138, fields, MoveBody(coming).encode())

            assert (await move("nowhere", 1)).code == 17
            assert (await move(TOPIC, MOVES_MAX + 1)).code == 1
            answer = await move(TOPIC, 40)
            assert (answer.fields["moved"], answer.fields["busy"]) == ("32", "8")
            assert (await move(TOPIC, 32)).fields["busy"] == "0", "those are here"
            assert len(rig.broker.parking.table.places[GroupQueue(GROUP, TOPIC, 0)].keys) == 32

    asyncio.run(scenario())


async def resized(rig: Rig) -> None:
    """Make the topic and give it a second version."""
    await mapped(rig)
    plan = {"topic": TOPIC, "planId": "p", "version": "2", "map": "2/broker-a:0-2"}
    for code in (7140, 7141, 7142):
        answer = await rig.ask(code, plan)
        assert answer.code == 0, answer.remark


def test_groups_that_nobody_knows_are_not_remembered_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever asks about them or releases them: neither names that are none, nor too many."""
    monkeypatch.setattr("inorder.broker.resizing.rules.GROUPS_MAX", 3)

    async def scenario() -> None:
        async with running() as rig:
            await resized(rig)
            for code in (7143, 7144):
                for name in ("x" * 5000, "a b", "../x"):
                    fields = {"topic": TOPIC, "group": name, "version": "2", "force": "true"}
                    assert (await rig.ask(code, fields)).code == 29
            answers = [
                await rig.ask(
                    7144, {"topic": TOPIC, "group": f"g{n}", "version": "2", "force": "true"}
                )
                for n in range(5)
            ]
            assert [answer.code for answer in answers] == [0, 0, 0, 29, 29]
            for number in range(TRACKED_MAX + 5):
                rig.broker.resizing.track(TOPIC, f"h{number}")
            assert len(rig.broker.resizing.releasing._tracked) == TRACKED_MAX

    asyncio.run(scenario())


@pytest.mark.parametrize("text", ["2/broker-a:5-9", "2/broker-a:0-1/broker-a:0-1"])
def test_a_plan_that_nobody_could_stop_for_is_not_decided(text: str) -> None:
    """Once decided it would be in the way of every other."""

    async def scenario() -> None:
        async with running() as rig:
            await mapped(rig)
            plan = {"topic": TOPIC, "planId": "bad", "version": "2", "map": text}
            assert (await rig.ask(7140, plan)).code == 29
            good = plan | {"planId": "good", "map": "2/broker-a:0-3"}
            assert (await rig.ask(7140, good)).code == 0

    asyncio.run(scenario())


def test_what_a_peer_calls_a_topic_does_not_reach_the_log_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A plan that is refused is not logged; no line of the log is a peer's."""
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with running() as rig:
            plan = {"topic": "t\nERROR forged", "planId": "p", "version": "2", "map": "2/a:0-1"}
            assert (await rig.ask(7140, plan)).code == 17

    asyncio.run(scenario())
    assert [one for one in caplog.records if "forged" in one.getMessage()] == []
