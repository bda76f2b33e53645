"""Pulls: every status, holding and waking, filters, checks."""

from __future__ import annotations

import asyncio

import pytest

from inorder.config import BrokerConfig
from inorder.net import accepted
from inorder.net.transport import Buffer, write_last
from inorder.testing.clock import MovableClock
from inorder.wire.codes import ResponseCode
from inorder.wire.header import BINARY
from inorder.wire.record import decode_all
from inorder.wire.requests.pulls import PullMessage
from tests.integration.brokerkit import Rig, pull_fields, running, send_fields, until
from tests.integration.consumerkit import TOPIC, Kit, play

HOLD = {"sysFlag": "6"}


def bodies(answer: object) -> list[bytes]:
    return [record.body for record in decode_all(answer.body)]  # type: ignore[attr-defined]


async def fill(rig: Rig, count: int = 3) -> None:
    for number in range(count):
        assert (await rig.send(b"m%d" % number)).code == 0


@pytest.mark.parametrize(
    ("changes", "code", "remark", "following"),
    [
        ({}, ResponseCode.SUCCESS, "FOUND", "3"),
        ({"queueOffset": "2"}, ResponseCode.SUCCESS, "FOUND", "3"),
        ({"maxMsgNums": "2"}, ResponseCode.SUCCESS, "FOUND", "2"),
        ({"maxMsgNums": "0"}, ResponseCode.SUCCESS, "FOUND", "1"),
        ({"queueOffset": "3"}, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", "3"),
        ({"queueOffset": "9"}, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", "3"),
        ({"queueOffset": "-5"}, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", "0"),
        ({"queueId": "2"}, ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", "0"),
        (
            {"queueId": "2", "queueOffset": "5"},
            ResponseCode.PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE", "0",
        ),
        (
            {"subscription": "Other"},
            ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", "3",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("serializer", [0, BINARY])
def test_each_status_has_its_code_and_next_offset(
    changes: dict[str, str], code: int, remark: str, following: str, serializer: int
) -> None:
    """The table of RocketMQ's pull statuses, in both header encodings."""

    async def scenario() -> None:
        async with running() as rig:
            await fill(rig)
            answer = await rig.ask(11, pull_fields(**changes), serializer=serializer)
            assert (answer.code, answer.remark) == (code, remark)
            assert answer.fields["nextBeginOffset"] == following
            assert answer.fields["suggestWhichBrokerId"] == "0"
            assert {"minOffset", "maxOffset"} <= answer.fields.keys()
            assert bool(answer.body) == (code == ResponseCode.SUCCESS)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"topic": "Nowhere"}, ResponseCode.TOPIC_NOT_EXIST, "not exist"),
        ({"queueId": "99"}, ResponseCode.INVALID_PARAMETER, "queueId[99] is illegal"),
        ({"queueId": "-1"}, ResponseCode.INVALID_PARAMETER, "queueId[-1] is illegal"),
        ({"subscription": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse"),
        ({"expressionType": "SQL92"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "not valid"),
        ({"expressionType": "XPATH"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "XPATH"),
        ({"sysFlag": "0"}, ResponseCode.SUBSCRIPTION_NOT_EXIST, "group info not exist"),
        ({"queueOffset": "many"}, ResponseCode.SYSTEM_ERROR, "queueOffset"),
    ],
)
def test_refused_pulls_say_why(changes: dict[str, str], code: int, text: str) -> None:
    """RocketMQ's checks in its order."""

    async def scenario() -> None:
        async with running() as rig:
            await fill(rig, 1)
            answer = await rig.pull(**changes)
            assert answer.code == code
            assert text in (answer.remark or "")

    asyncio.run(scenario())


def test_held_pull_is_woken_by_the_message_it_waits_for() -> None:
    """Not by a scan: the answer comes in the turn of the append."""

    async def scenario() -> None:
        async with running() as rig:
            await fill(rig, 1)
            pull = asyncio.ensure_future(rig.pull(queueOffset="1", **HOLD))
            await until(lambda: bool(len(rig.broker.waits)))
            turn = rig.broker.ticks.ticks
            await rig.send(b"awaited")
            answer = await pull
            assert bodies(answer) == [b"awaited"]
            assert rig.broker.ticks.ticks == turn + 1

    asyncio.run(scenario())


def test_held_pull_ignores_messages_of_other_tags() -> None:
    """It stays held, and goes on from where it looked last."""

    async def scenario() -> None:
        async with running() as rig:
            await fill(rig, 1)
            pull = asyncio.ensure_future(rig.pull(queueOffset="1", subscription="Late", **HOLD))
            await until(lambda: bool(len(rig.broker.waits)))
            for _ in range(3):
                await rig.send(b"other")
            assert not pull.done()
            await rig.send(b"mine", i="TAGS\x01Late\x02")
            answer = await pull
            assert bodies(answer) == [b"mine"]
            assert answer.fields["nextBeginOffset"] == "5"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("others", "code", "following"),
    [(0, ResponseCode.PULL_NOT_FOUND, "1"), (2, ResponseCode.PULL_RETRY_IMMEDIATELY, "3")],
)
def test_held_pull_ends_at_its_deadline(others: int, code: int, following: str) -> None:
    """With 19, or with 20 and the next offset when only unwanted messages came."""

    async def scenario() -> None:
        clock, hold_ms = MovableClock(), 20_000 if others else 120
        async with running(clock=clock) as rig:
            await fill(rig, 1)
            wait = {"suspendTimeoutMillis": str(hold_ms), **HOLD}
            pull = asyncio.ensure_future(rig.pull(queueOffset="1", subscription="Late", **wait))
            await until(lambda: bool(len(rig.broker.waits)))
            for _ in range(others):
                await rig.send(b"other")
            if others:  # the deadline comes behind them, however long they took
                assert not pull.done()
                clock.advance(hold_ms)
                rig.broker.housekeeping._expire_waits()
            answer = await pull
            assert (answer.code, answer.fields["nextBeginOffset"]) == (code, following)

    asyncio.run(scenario())


def test_held_pulls_of_a_deleted_topic_are_answered_at_once() -> None:
    """With 17, not at the end of their hold."""

    async def scenario() -> None:
        async with running() as rig:
            await fill(rig, 1)
            pull = asyncio.ensure_future(rig.pull(queueOffset="1", **HOLD))
            await until(lambda: bool(len(rig.broker.waits)))
            assert (await rig.ask(215, {"topic": "Orders"})).code == 0
            assert (await pull).code == ResponseCode.TOPIC_NOT_EXIST

    asyncio.run(scenario())


def test_messages_of_a_deleted_topic_do_not_come_back_with_its_name() -> None:
    """A topic made again starts empty at offset 0."""

    async def scenario() -> None:
        async with running() as rig:
            await fill(rig, 3)
            assert (await rig.ask(215, {"topic": "Orders"})).code == 0
            answer = await rig.send(b"new")
            assert answer.fields["queueOffset"] == "0"
            assert bodies(await rig.pull()) == [b"new"]

    asyncio.run(scenario())


def test_pull_commits_the_offset_that_it_carries() -> None:
    """Piggybacked commits are stored, once, before the messages are read."""

    async def scenario() -> None:
        async with running() as rig:
            await fill(rig)
            await rig.pull(sysFlag="5", commitOffset="2")
            answer = await rig.ask(14, {"consumerGroup": "CG", "topic": "Orders", "queueId": "1"})
            assert (answer.code, answer.fields["offset"]) == (0, "2")

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize(("long_polling", "held_s"), [(True, 15), (False, 1)])
def test_how_long_a_pull_is_held_that_finds_nothing(long_polling: bool, held_s: int) -> None:
    """As long as its client asked for; a second (`short_polling_ms`) with long polling off."""

    async def story(kit: Kit) -> None:
        await kit.send(1, key="k")
        request = PullMessage("CG", TOPIC, 0, 1, 32, 2 | 4, 0, 15_000, 0, "*")
        began = kit.loop.time()
        answer = await kit.api.pull_message(request, timeout_ms=60_000)
        assert answer.code == 19
        assert held_s <= kit.loop.time() - began < held_s + 1
        waiting = asyncio.create_task(kit.api.pull_message(request, timeout_ms=60_000))
        await asyncio.sleep(0.3)
        began = kit.loop.time()
        await kit.send(1, key="k")  # what comes meanwhile is answered at once, held for long or not
        assert (await waiting).code == 0
        assert kit.loop.time() - began < 0.5

    play(story, broker=BrokerConfig(long_polling=long_polling))


def test_a_pull_of_ours_never_lowers_an_offset() -> None:
    """With `onlyUp` a lower one is ignored, by a pull and by a request; without it is taken."""
    group = {"consumerGroup": "CG", "topic": "Orders", "queueId": "1"}

    async def scenario() -> None:
        async with running() as rig:
            await fill(rig)
            seen = []
            for commit, only_up in (("3", None), ("2", "true"), ("1", None), ("2", "true")):
                extra = {} if only_up is None else {"onlyUp": only_up}
                await rig.pull(sysFlag="5", commitOffset=commit, **extra)
                seen.append((await rig.ask(14, group)).fields["offset"])
            assert seen == ["3", "3", "1", "2"]
            answer = await rig.ask(15, {**group, "commitOffset": "1", "onlyUp": "true"})
            assert (answer.code, (await rig.ask(14, group)).fields["offset"]) == (0, "2")

    asyncio.run(scenario())


def test_first_message_always_fits_and_the_limits_hold_after_it() -> None:
    """A body above the transfer limit is delivered alone."""

    async def scenario() -> None:
        async with running() as rig:
            await rig.send(bytes(300_000))
            await rig.send(b"small")
            answer = await rig.pull()
            assert [len(body) for body in bodies(answer)] == [300_000]
            assert answer.fields["nextBeginOffset"] == "1"

    asyncio.run(scenario())


def test_cold_messages_are_read_beside_the_loop_and_are_the_same() -> None:
    """What lies far behind comes by pread from a thread."""

    async def scenario() -> None:
        async with running() as rig:
            await fill(rig, 40)
            rig.broker.store.reader.hot_bytes = 0
            answer = await rig.pull()
            assert bodies(answer) == [b"m%d" % n for n in range(32)]

    asyncio.run(scenario())


def test_pull_by_a_rocketmq_consumer_uses_the_heartbeats_subscription() -> None:
    """24 before the heartbeat, 25 for a newer subscription, then the group's filter."""

    async def scenario() -> None:
        async with running() as rig:
            await fill(rig, 1)
            await rig.ask(310, send_fields(i="TAGS\x01Mine\x02"), b"mine")
            assert (await rig.pull(sysFlag="0")).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
            heartbeat = (
                b'{"clientID":"c1","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
                b'"consumeType":"CONSUME_PASSIVELY","groupName":"CG","messageModel":"CLUSTERING",'
                b'"subscriptionDataSet":[{"classFilterMode":false,"codeSet":[0,0],'
                b'"expressionType":"TAG","subString":"Mine","subVersion":5,"tagsSet":["Mine"],'
                b'"topic":"Orders"}],"unitMode":false}],"producerDataSet":[]}'
            )
            assert (await rig.ask(34, {}, heartbeat)).code == 0
            late = await rig.pull(sysFlag="0", subVersion="6")
            assert late.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
            answer = await rig.pull(sysFlag="0", subVersion="5")
            assert bodies(answer) == [b"mine"]

    asyncio.run(scenario())


def test_a_held_pull_is_answered_together_with_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that stops leaves no moment for the next pull, which would be lost."""
    ends: list[bytes] = []

    def noted(transport: asyncio.Transport, parts: list[Buffer]) -> int:
        ends.append(b"".join(parts))
        return write_last(transport, parts)

    monkeypatch.setattr(accepted, "write_last", noted)

    async def scenario() -> None:
        async with running() as rig:
            await fill(rig, 1)
            pull = asyncio.ensure_future(rig.pull(queueOffset="1", **HOLD))
            await until(lambda: bool(len(rig.broker.waits)))
            await rig.broker.stop()
            assert (await pull).code == ResponseCode.PULL_NOT_FOUND

    asyncio.run(scenario())
    (end,) = ends
    assert b"OFFSET_OVERFLOW_ONE" in end


@pytest.mark.slow
def test_thousands_of_pulls_held_for_one_queue_are_all_woken() -> None:
    """They are served a few at a time, so that a send is not held up, and none is forgotten."""

    async def story() -> None:
        async with running() as rig:
            await rig.send(b"first")
            pulls = [
                asyncio.ensure_future(
                    rig.pull(
                        queueOffset="1", sysFlag="6", suspendTimeoutMillis="20000",
                        subscription="other" if number % 2 else "*",
                    )
                )
                for number in range(600)
            ]  # fmt: skip
            await until(lambda: len(rig.broker.waits) == 600)
            await rig.send(b"second")
            found = await asyncio.gather(*pulls[::2])
            assert {answer.code for answer in found} == {0}
            assert all(b"second" in bytes(answer.body) for answer in found)
            await until(lambda: len(rig.broker.waits) == 300)
            assert not any(pull.done() for pull in pulls[1::2])
            for pull in pulls[1::2]:
                pull.cancel()

    asyncio.run(story())
