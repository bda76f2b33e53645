"""SQL92 filters of a broker: pulls that carry one, heartbeats that register one, and its file."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from inorder.store import reader as reading
from inorder.testing.clock import MovableClock
from inorder.wire.codes import ResponseCode
from inorder.wire.header import BINARY, Command
from inorder.wire.record import decode_all
from inorder.wire.requests.groups import ClientConfigCheck, ClientHeartbeat, ConsumerData
from inorder.wire.requests.pulls import parse_subscription
from tests.integration.brokerkit import Rig, running, until
from tests.kit.disk import FakeFiles

SQL = {"expressionType": "SQL92", "subscription": "a > 2 AND b = 'x'"}
HOLD = {"sysFlag": "6"}
FILE = Path("/data/config/consumerFilter.json")


def bodies(answer: Command) -> list[bytes]:
    return [record.body for record in decode_all(answer.body)]


async def put(rig: Rig, *values: int, b: str = "x") -> None:
    """Send a message for each value of `a`."""
    for value in values:
        answer = await rig.send(b"%d" % value, i=f"a\x01{value}\x02b\x01{b}\x02")
        assert answer.code == 0


async def beat(rig: Rig, expression: str, version: int, group: str = "CG") -> None:
    """Send the heartbeat of a stock consumer that filters by an expression."""
    subscription = parse_subscription("Orders", expression, version, "SQL92")
    data = ConsumerData(group, subscriptions=(subscription,))
    assert (await rig.ask(34, body=ClientHeartbeat("c", (data,)).encode())).code == 0


@pytest.mark.parametrize("serializer", [0, BINARY])
def test_a_pull_gets_the_messages_that_match(serializer: int) -> None:
    """And the offset after the last one that was examined, also when none matches."""

    async def scenario() -> None:
        async with running() as rig:
            await put(rig, 1, 2, 3, 4)
            await put(rig, 5, b="y")
            answer = await rig.ask(11, pull(**SQL), serializer=serializer)
            assert (answer.code, answer.remark, bodies(answer)) == (0, "FOUND", [b"3", b"4"])
            assert answer.fields["nextBeginOffset"] == "5"
            answer = await rig.ask(11, pull(**SQL, queueOffset="4"), serializer=serializer)
            assert (answer.code, answer.remark) == (20, "NO_MATCHED_MESSAGE")
            assert answer.fields["nextBeginOffset"] == "5"
            answer = await rig.ask(11, pull(**SQL, maxMsgNums="1"), serializer=serializer)
            assert (bodies(answer), answer.fields["nextBeginOffset"]) == ([b"3"], "3")

    asyncio.run(scenario())


def pull(**changes: str) -> dict[str, str]:
    """Return the header of a pull that carries its subscription."""
    return {
        "consumerGroup": "CG", "topic": "Orders", "queueId": "1", "queueOffset": "0",
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "20000",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG", **changes,
    }  # fmt: skip


def test_a_held_pull_is_answered_by_a_match_only() -> None:
    """What does not match leaves it held, and is not examined twice."""

    async def scenario() -> None:
        async with running() as rig:
            await put(rig, 9)
            held = asyncio.ensure_future(rig.pull(queueOffset="1", **SQL, **HOLD))
            await until(lambda: bool(len(rig.broker.waits)))
            await put(rig, 1, 2)
            assert not held.done()
            await put(rig, 3)
            answer = await held
            assert (bodies(answer), answer.fields["nextBeginOffset"]) == ([b"3"], "4")

    asyncio.run(scenario())


def test_a_held_pull_ends_with_the_offset_behind_what_does_not_match() -> None:
    """With 20, so that the client's progress passes what it does not want."""

    async def scenario() -> None:
        clock = MovableClock()
        async with running(clock=clock) as rig:
            await put(rig, 9)
            held = asyncio.ensure_future(rig.pull(queueOffset="1", **SQL, **HOLD))
            await until(lambda: bool(len(rig.broker.waits)))
            await put(rig, 1, 2)
            clock.advance(20_000)
            rig.broker.housekeeping._expire_waits()
            answer = await held
            assert (answer.code, answer.fields["nextBeginOffset"]) == (20, "3")

    asyncio.run(scenario())


def test_a_long_stretch_without_a_match_is_answered_in_portions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each portion ends by the time that it took, and says where to go on."""

    async def scenario() -> None:
        async with running() as rig:
            await put(rig, *range(-60, 0))
            monkeypatch.setattr(reading, "FILTER_NS_MAX", 20_000)
            at, steps = 0, 0
            while at < 60:
                answer = await rig.pull(**SQL, queueOffset=str(at), sysFlag="6")
                assert answer.code == 20
                at, steps = int(answer.fields["nextBeginOffset"]), steps + 1
            assert (at, steps > 5) == (60, True)

    asyncio.run(scenario())


def test_pulls_of_many_filters_are_woken_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """One message looks at all of them; each is answered, none before the others get a turn."""
    monkeypatch.setattr("inorder.broker.pulls.service._WOKEN_FILTER_NS", 10_000)

    async def scenario() -> None:
        async with running() as rig:
            await put(rig, 0)
            held = [
                asyncio.ensure_future(
                    rig.pull(
                        queueOffset="1", expressionType="SQL92", subscription=f"a >= {number}",
                        consumerGroup=f"CG{number}", **HOLD,
                    )
                )
                for number in range(40)
            ]  # fmt: skip
            await until(lambda: len(rig.broker.waits) == 40)
            await put(rig, 29)
            await put(rig, 39)
            answers = await asyncio.gather(*held)
            assert [answer.code for answer in answers] == [0] * 40
            assert {bodies(answer)[-1] for answer in answers[30:]} == {b"39"}

    asyncio.run(scenario())


def test_cold_messages_are_filtered_beside_the_loop() -> None:
    """The same answer, also where nothing matches, and where an entry is damaged."""

    async def scenario() -> None:
        async with running() as rig:
            await put(rig, 1, 2, 3, 4, 5)
            rig.broker.store.reader.hot_bytes = 0
            answer = await rig.pull(**SQL)
            assert (bodies(answer), answer.fields["nextBeginOffset"]) == ([b"3", b"4", b"5"], "5")
            none = {**SQL, "subscription": "a = 77"}
            answer = await rig.pull(**none)
            assert (answer.code, answer.fields["nextBeginOffset"]) == (20, "5")
            assert rig.broker.pulls.found == 1
            assert rig.broker.pulls.messages == 3

    asyncio.run(scenario())


def test_stock_consumers_pull_by_the_filter_of_their_heartbeat() -> None:
    """24 before it, 25 for a newer version, 27 for a bad expression; an older member may pull."""
    stock = {**SQL, "sysFlag": "0"}

    async def scenario() -> None:
        async with running() as rig:
            await put(rig, 1, 2, 3, 4)
            assert (await rig.pull(**stock)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
            await beat(rig, "a > 3", 5)
            answer = await rig.pull(**stock, subVersion="6")
            assert answer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
            for version in ("4", "5"):
                assert bodies(await rig.pull(**stock, subVersion=version)) == [b"4"]
            await beat(rig, "a > (", 6)
            answer = await rig.pull(**stock, subVersion="6")
            assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
            assert answer.remark == (
                "The broker's consumer filter data is not exist!Your expression may be wrong!"
            )
            await beat(rig, "a > 2", 7)
            assert bodies(await rig.pull(**stock, subVersion="7")) == [b"3", b"4"]
            rig.broker.filters.table.get("Orders", "CG").record = replace(  # type: ignore[union-attr]
                rig.broker.filters.table.get("Orders", "CG").record,
                version=6,  # type: ignore[union-attr]
            )
            answer = await rig.pull(**stock, subVersion="7")
            assert answer.code == ResponseCode.FILTER_DATA_NOT_LATEST

    asyncio.run(scenario())


def test_filters_can_be_switched_off() -> None:
    """`enablePropertyFilter=false` refuses them as RocketMQ does: with 1, whatever they say."""
    off = "The broker does not support consumer to filter message by SQL92"
    check = ClientConfigCheck("c", "CG", parse_subscription("Orders", "a > (", 1, "SQL92"))

    async def scenario() -> None:
        async with running(property_filter=False, remote_config=True) as rig:
            await put(rig, 3)
            await beat(rig, "a > 2", 5)
            for answer in (
                await rig.pull(**SQL),
                await rig.pull(**SQL, sysFlag="0"),
                await rig.ask(46, body=check.encode()),
            ):
                assert (answer.code, answer.remark) == (1, off)
            assert (await rig.ask(25, body=b"enablePropertyFilter=true")).code == 0
            assert bodies(await rig.pull(**SQL)) == [b"3"]
            assert bodies(await rig.pull(**SQL, sysFlag="0")) == [b"3"]
            assert (await rig.ask(46, body=check.encode())).code == 23

    asyncio.run(scenario())


def test_an_error_in_a_pull_is_marked() -> None:
    """RocketMQ answers such a pull as if every message matched; here it is refused with 23."""

    async def scenario() -> None:
        async with running() as rig:
            await put(rig, 3)
            answer = await rig.pull(expressionType="SQL92", subscription="a >> 5")
            assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
            assert (answer.remark or "").endswith("\n  a >> 5\n     ^")
            assert (await rig.pull(**SQL)).code == 0, "the connection is as before"

    asyncio.run(scenario())


def test_the_file_outlives_a_restart_and_its_entries_die() -> None:
    """Saved at the stop; loaded they count as dead, until the group speaks with that version."""
    stock = {**SQL, "sysFlag": "0", "subVersion": "5"}

    async def scenario() -> None:
        files, clock = FakeFiles(), MovableClock()
        async with running(files, clock=clock) as rig:
            await put(rig, 1, 3)
            await beat(rig, "a > 2", 5)
            await beat(rig, "a > 1", 5, "Other")
        with_file = json.loads(files.open(FILE).pread(100_000, 0))
        groups = with_file["filterDataByTopic"]["Orders"]["groupFilterData"]
        assert {group: entry["expression"] for group, entry in groups.items()} == {
            "CG": "a > 2", "Other": "a > 1",
        }  # fmt: skip
        async with running(files, clock=clock) as rig:
            assert rig.broker.filters.table.get("Orders", "CG").record.dead  # type: ignore[union-attr]
            await beat(rig, "a > 2", 5)
            assert bodies(await rig.pull(**stock)) == [b"3"]
            clock.advance(24 * 3_600_000)
            rig.broker.filters.save_soon()
            assert rig.broker.filters.get("Orders", "Other") is None
            assert rig.broker.filters.get("Orders", "CG") is not None
            await rig.broker.saving.saved(always=True)
            assert b"Other" not in files.open(FILE).pread(100_000, 0)

    asyncio.run(scenario())


def test_the_filters_of_a_group_die_with_its_last_member() -> None:
    """Whether it leaves, or its connection closes."""

    async def scenario() -> None:
        async with running() as rig:
            await beat(rig, "a > 2", 5)
            record = rig.broker.filters.get("Orders", "CG")
            assert record is not None
            assert not record.record.dead
            await rig.ask(35, {"clientID": "c", "consumerGroup": "CG"})
            assert record.record.dead
            await beat(rig, "a > 2", 5)
            assert not record.record.dead
            rig.connection.close()
            await until(lambda: record.record.dead)

    asyncio.run(scenario())
