"""Sends: what is stored, what is answered, what is refused."""

from __future__ import annotations

import asyncio
import struct

import pytest

from inorder.wire.codes import ResponseCode
from inorder.wire.header import BINARY, Command
from inorder.wire.ids import parse_message_id
from inorder.wire.record import decode_all
from tests.integration.brokerkit import Rig, pull_fields, running, send_fields

LONG_NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
    "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
    "j": "reconsumeTimes", "k": "unitMode", "l": "maxReconsumeTimes", "m": "batch",
}  # fmt: skip


def item(body: bytes, properties: bytes = b"") -> bytes:
    size = 22 + len(body) + len(properties)
    head = struct.pack(">iiiii", size, 0, 0, 0, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties


async def stored(rig: Rig, **changes: str) -> list[bytes]:
    answer = await rig.pull(**changes)
    return [record.body for record in decode_all(answer.body)]


def test_send_is_answered_with_where_it_went_and_can_be_pulled() -> None:
    """The answer names queue, offset and id; the record has the broker's properties."""

    async def scenario() -> None:
        async with running() as rig:
            first = await rig.send(b"created")
            second = await rig.send(b"paid")
            assert (first.code, second.code) == (0, 0)
            assert first.fields["queueId"] == "1"
            assert (first.fields["queueOffset"], second.fields["queueOffset"]) == ("0", "1")
            assert first.fields["transactionId"] == "AB12"
            _, port, position = parse_message_id(second.fields["msgId"])
            assert port == int(rig.broker.address.rpartition(":")[2])
            answer = await rig.pull()
            records = decode_all(answer.body)
            assert [record.body for record in records] == [b"created", b"paid"]
            assert records[1].position == position
            assert records[0].properties.endswith(
                b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"
            )

    asyncio.run(scenario())


@pytest.mark.parametrize("form", ["letters", "long names", "binary"])
def test_every_form_of_a_send_stores_the_same_record(form: str) -> None:
    """Code 310 by letters, code 10 by long names and a binary header end in equal records."""

    async def scenario() -> None:
        async with running() as rig:
            for _ in range(2):  # the first makes the topic, the second takes the hot path
                if form == "long names":
                    fields = {LONG_NAMES[k]: v for k, v in send_fields().items()}
                    answer = await rig.ask(10, fields, b"body")
                else:
                    serializer = BINARY if form == "binary" else 0
                    answer = await rig.ask(310, send_fields(), b"body", serializer=serializer)
                assert answer.code == 0
                assert answer.fields["transactionId"] == "AB12"
            records = decode_all((await rig.pull()).body)
            assert [(r.queue_offset, r.body, r.flag) for r in records] == [
                (0, b"body", 0), (1, b"body", 0),
            ]  # fmt: skip
            assert records[0].properties == records[1].properties

    asyncio.run(scenario())


@pytest.mark.parametrize("warm", [False, True])
def test_batch_gets_consecutive_offsets_and_one_answer(warm: bool) -> None:
    """Ids are joined by commas, inner properties are stored as sent."""

    async def scenario() -> None:
        async with running() as rig:
            if warm:
                await rig.send(b"warm")
            body = item(b"m1", b"UNIQ_KEY\x01A1\x02TAGS\x01X\x02") + item(b"m2", b"UNIQ_KEY\x01A2")
            answer = await rig.ask(320, send_fields(m="true", i=""), body)
            assert answer.code == 0
            assert answer.fields["queueOffset"] == str(int(warm))
            assert len(answer.fields["msgId"].split(",")) == 2
            assert "transactionId" not in answer.fields
            records = decode_all((await rig.pull()).body)[int(warm) :]
            assert [r.body for r in records] == [b"m1", b"m2"]
            assert records[0].properties == b"UNIQ_KEY\x01A1\x02TAGS\x01X\x02"
            assert records[1].properties == b"UNIQ_KEY\x01A2"

    asyncio.run(scenario())


def test_pipelined_sends_are_stored_in_the_order_of_the_bytes() -> None:
    """O3: many sends in flight on one connection keep their order."""

    async def scenario() -> None:
        async with running() as rig:
            answers = await asyncio.gather(*(rig.send(b"%d" % n) for n in range(200)))
            assert [a.fields["queueOffset"] for a in answers] == [str(n) for n in range(200)]
            seen: list[bytes] = []
            while len(seen) < 200:
                seen += await stored(rig, queueOffset=str(len(seen)))
            assert seen == [b"%d" % n for n in range(200)]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("changes", "body", "code", "text"),
    [
        ({"e": "9"}, b"x", ResponseCode.INVALID_PARAMETER, "queueId[9] is illegal"),
        ({"b": "bad topic!"}, b"x", ResponseCode.INVALID_PARAMETER, "illegal characters"),
        ({"b": ""}, b"x", ResponseCode.INVALID_PARAMETER, "blank"),
        ({"b": "T" * 128}, b"x", ResponseCode.INVALID_PARAMETER, "longer than"),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, b"x", ResponseCode.NO_PERMISSION, "forbidden"),
        ({"b": "New", "c": "NoTemplate"}, b"x", ResponseCode.TOPIC_NOT_EXIST, "not exist"),
        ({}, b"", ResponseCode.SYSTEM_ERROR, "empty"),
        ({"i": "x\x01" + "y" * 32_764}, b"x", ResponseCode.MESSAGE_ILLEGAL, "illegal"),
        ({"i": "DELAY\x01soon\x02"}, b"x", ResponseCode.MESSAGE_ILLEGAL, "delay level"),
        ({"i": "DELAY\x013\x02", "m": "true"}, item(b"x"), ResponseCode.MESSAGE_ILLEGAL, "batch"),
        ({"i": "TIMER_DELAY_SEC\x01soon\x02"}, b"x", ResponseCode.MESSAGE_ILLEGAL, "timer"),
        ({"f": "4"}, b"x", ResponseCode.MESSAGE_ILLEGAL, "TRAN_MSG"),
        (
            {"f": "4", "i": "TRAN_MSG\x01true\x02TIMER_DELAY_MS\x0110\x02"},
            b"x",
            ResponseCode.MESSAGE_ILLEGAL,
            "cannot have a time (TIMER_DELAY_MS)",
        ),
        (
            {"m": "true"},
            item(b"x", b"TRAN_MSG\x01true\x02"),
            ResponseCode.MESSAGE_ILLEGAL,
            "a batch cannot hold transactional",
        ),
        ({"f": "128"}, b"x", ResponseCode.MESSAGE_ILLEGAL, "inner batch"),
        ({"e": "one"}, b"x", ResponseCode.SYSTEM_ERROR, "field e is not"),
        ({"m": "true"}, b"abc", ResponseCode.SYSTEM_ERROR, "batch"),
        ({"b": "%RETRY%g", "m": "true"}, item(b"x"), ResponseCode.MESSAGE_ILLEGAL, "retry group"),
    ],
)
def test_refused_sends_say_why_and_store_nothing(
    changes: dict[str, str], body: bytes, code: int, text: str
) -> None:
    """Cold or warm, a refusal names the thing, and the queue does not grow."""

    async def scenario() -> None:
        async with running() as rig:
            await rig.send(b"warm")
            for _ in range(2):
                answer = await rig.send(body, **changes)
                assert answer.code == code
                assert text in (answer.remark or "")
            assert await stored(rig) == [b"warm"]
            assert rig.broker.store.log.end_position == rig.broker.store.log.pending_base

    asyncio.run(scenario())


def test_body_above_the_limit_is_refused() -> None:
    """The limit is the broker's, and the connection stays good."""

    async def scenario() -> None:
        async with running() as rig:
            answer = await rig.send(bytes(4 * 1024 * 1024 + 1))
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert (await rig.send(b"next")).code == 0

    asyncio.run(scenario())


def test_oneway_send_is_stored_and_never_answered() -> None:
    """No frame comes back for it, not even an error."""

    async def scenario() -> None:
        async with running() as rig:
            api = rig.connection
            api.notify(Command.request(310, send_fields(), b"quiet", oneway=True))
            api.notify(Command.request(310, send_fields(e="99"), b"refused", oneway=True))
            assert (await rig.send(b"loud")).code == 0
            assert await stored(rig) == [b"quiet", b"loud"]
            assert api.statistics().strays_received == 0

    asyncio.run(scenario())


def test_clients_claim_of_host_forms_does_not_break_the_record() -> None:
    """The flag bits that say IPv6 are the broker's to set: the record must parse."""

    async def scenario() -> None:
        async with running() as rig:
            await rig.send(b"warm")
            assert (await rig.send(b"claims", f="48")).code == 0
            assert await stored(rig) == [b"warm", b"claims"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("properties", "tag"),
    [
        ("TAGS\x01A\x02", "A"),
        ("TAGS\x01A", "A"),
        ("TAGS\x01A\x02TAGS\x01B\x02", "B"),
        ("MYTAGS\x01A\x02", None),
        ("x\x01TAGS\x01A\x02", None),
        ("TAGS\x01\x02k\x01v\x02", None),
        ("TAGS\x01中文\x02", "中文"),
    ],
)
def test_filter_sees_the_tag_that_the_properties_rules_give(
    properties: str, tag: str | None
) -> None:
    """The hash in the queue entry is that of the tag a client reads."""

    async def scenario() -> None:
        async with running() as rig:
            await rig.send(b"warm", i="")
            await rig.send(b"tagged", i=properties)
            wanted = await stored(rig, subscription=tag or "A || B || 中文")
            assert wanted == ([b"tagged"] if tag else [])

    asyncio.run(scenario())


def test_unique_key_of_strange_text_is_escaped_in_the_answer() -> None:
    """Client text cannot break the JSON of the answer."""

    async def scenario() -> None:
        async with running() as rig:
            for _ in range(2):
                answer = await rig.send(b"x", i='UNIQ_KEY\x01a"b\\c%d\x02')
                assert answer.fields["transactionId"] == 'a"b\\c%d'

    asyncio.run(scenario())


def test_send_without_unique_key_is_given_one() -> None:
    """As RocketMQ does; the stored record carries it too."""

    async def scenario() -> None:
        async with running() as rig:
            for _ in range(2):
                answer = await rig.send(b"x", i="k\x01v")
                made = answer.fields["transactionId"]
                assert len(made) == 32
            record = decode_all((await rig.ask(11, pull_fields(queueOffset="1"))).body)[0]
            assert f"UNIQ_KEY\x01{made}\x02".encode() in record.properties

    asyncio.run(scenario())
