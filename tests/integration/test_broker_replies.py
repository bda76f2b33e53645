"""Replies at the broker: pushed to the client that asked, stored, and answered as by RocketMQ."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from inorder.config import NetConfig
from inorder.net.connection import Connection
from inorder.wire import fastjson
from inorder.wire.header import Command
from inorder.wire.properties import parse
from inorder.wire.record import decode_all
from tests.integration.brokerkit import PATIENT_MS, Rig, pull_fields, running, send_fields, until

REPLIES = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = (
    "MSG_TYPE\x01reply\x02REPLY_TO_CLIENT\x01{client}\x02UNIQ_KEY\x01AB12\x02TTL\x016000\x02"
    "CORRELATION_ID\x0196a37d46\x02"
)
LONG = f"note\x01{'n' * 33_000}\x02"


def reply_fields(client: str = "10.0.0.9@p1", **changes: str) -> dict[str, str]:
    return send_fields(b=REPLIES, e="0", i=PROPERTIES.format(client=client)) | changes


def beat(client: str) -> bytes:
    return fastjson.dumps({
        "clientID": client, "consumerDataSet": [], "producerDataSet": [{"groupName": "QPG"}],
    })  # fmt: skip


@asynccontextmanager
async def requester(rig: Rig, *, client: str = "10.0.0.9@p1", code: int = 0, answers: bool = True):
    """A client that has asked, and the replies that it gets."""
    got: list[Command] = []

    def take(connection: Connection, command: Command) -> None:
        got.append(command)
        if answers:
            connection.send(command.reply(code, None if not code else "not now"))

    connection = await Connection.open(
        rig.broker.address, NetConfig(), connect_timeout_ms=PATIENT_MS, on_request=take
    )
    beaten = await connection.request(Command.request(34, {}, beat(client)), PATIENT_MS)
    assert beaten.code == 0
    try:
        yield connection, got
    finally:
        connection.close()


async def stored(rig: Rig) -> list[bytes]:
    answer = await rig.ask(11, pull_fields(topic=REPLIES, queueId="0", suspendTimeoutMillis="1"))
    return [record.body for record in decode_all(answer.body)] if answer.code == 0 else []


@pytest.mark.parametrize("code", [325, 324], ids=["letters", "long names"])
def test_a_reply_is_pushed_and_stored(code: int) -> None:
    """The client gets body and properties; the answer says where the reply is stored."""
    long = {
        "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
        "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
        "j": "reconsumeTimes", "k": "unitMode", "m": "batch",
    }  # fmt: skip
    fields = reply_fields()
    if code == 324:
        fields = {long[name]: value for name, value in fields.items()}

    async def scenario() -> None:
        async with running() as rig, requester(rig) as (_, got):
            answer = await rig.ask(code, fields, b"reply")
            assert (answer.code, answer.remark) == (0, None)
            assert answer.fields.keys() == {
                "queueId", "msgId", "queueOffset", "MSG_REGION", "TRACE_ON",
            }  # fmt: skip
            assert answer.fields["queueOffset"] == "0"
            (push,) = got
            assert (push.code, bytes(push.body), push.is_oneway) == (326, b"reply", False)
            properties = parse(push.fields["properties"])
            assert properties.pop("PUSH_REPLY_TIME").isdigit()
            assert properties == {
                **parse(PROPERTIES.format(client="10.0.0.9@p1")),
                "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
            }  # fmt: skip
            assert push.fields["topic"] == REPLIES
            assert push.fields["storeHost"] == rig.broker.address
            assert await stored(rig) == [b"reply"]
            assert (rig.broker.replies.pushed, rig.broker.replies.failed) == (1, 0)

    asyncio.run(scenario())


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "not kept"])
def test_a_reply_to_nobody_is_an_error_and_kept(keep: bool) -> None:
    """Unknown client, closed connection, a client that refuses: 1, and stored if it is so set."""

    async def scenario() -> None:
        async with running(store_replies=keep) as rig:
            for client, remark in (
                ("10.0.0.9@p1", "push reply message fail, channel of <10.0.0.9@p1> not found."),
                ("", "reply message properties[REPLY_TO_CLIENT] is null"),
            ):
                answer = await rig.ask(325, reply_fields(client), b"lost")
                assert (answer.code, answer.remark) == (1, remark)
                assert (answer.fields["msgId"] == "0") is not keep
            async with requester(rig, code=1):
                answer = await rig.ask(325, reply_fields(), b"refused")
                assert answer.remark == "push reply message to 10.0.0.9@p1fail."
            assert await stored(rig) == ([b"lost", b"lost", b"refused"] if keep else [])

    asyncio.run(scenario())


def test_a_requester_that_goes_away_ends_the_push() -> None:
    """The responder hears at once, not when the push is given up."""

    async def scenario() -> None:
        async with running() as rig, requester(rig, answers=False) as (connection, got):
            waiting = asyncio.create_task(rig.ask(325, reply_fields(), b"reply"))
            await until(lambda: bool(got))
            connection.close()
            answer = await waiting
            assert (answer.code, answer.fields["queueOffset"]) == (1, "0")

    asyncio.run(scenario())


def test_the_newest_connection_of_a_client_gets_the_reply() -> None:
    """One that died silently is not asked."""

    async def scenario() -> None:
        async with running() as rig, requester(rig) as (_, old), requester(rig) as (_, new):
            assert (await rig.ask(325, reply_fields(), b"reply")).code == 0
            assert (len(old), len(new)) == (0, 1)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fields", "body", "code"),
    [
        (reply_fields(), b"", 1),
        (reply_fields(b="Orders"), b"x", 16),
        (reply_fields(b="no such%%topic name"), b"x", 16),
        (reply_fields(e="9"), b"x", 29),
        (reply_fields(m="true"), b"x", 13),
        (reply_fields(i=PROPERTIES.format(client="10.0.0.9@p1") + LONG), b"x", 13),
    ],
    ids=["empty", "topic", "bad topic", "queue", "batch", "properties"],
)
def test_what_is_no_reply_is_refused_and_pushed_to_nobody(
    fields: dict[str, str], body: bytes, code: int
) -> None:
    """A reply is no way around the checks of other sends."""

    async def scenario() -> None:
        async with running() as rig, requester(rig) as (_, got):
            answer = await rig.ask(325, fields, body)
            assert answer.code == code
            assert ("MSG_REGION" in answer.fields) is (code != 1)
            assert got == []
            assert await stored(rig) == []

    asyncio.run(scenario())


def test_all_that_a_waiting_reply_holds_is_bounded() -> None:
    """A frozen requester leaves the broker headers as well as bodies."""

    async def scenario() -> None:
        async with running() as rig, requester(rig, answers=False) as (connection, got):
            rig.broker.replies._waiting.bytes_max = 50_000
            fields = reply_fields(more="m" * 30_000)
            waiting = asyncio.create_task(rig.ask(325, fields, b"r"))
            await until(lambda: bool(got))
            answer = await rig.ask(325, fields, b"r")
            assert (answer.code, len(got)) == (2, 1), answer.remark
            connection.close()
            assert (await waiting).code == 1
            assert rig.broker.replies._waiting.bytes == 0

    asyncio.run(scenario())


def test_a_reply_that_cannot_be_stored_was_pushed_nevertheless() -> None:
    """As RocketMQ: the requester has it, so the responder need not send it again."""

    async def scenario() -> None:
        async with running() as rig, requester(rig) as (_, got):
            rig.broker.safety.broke("leases", "the disk is gone")
            answer = await rig.ask(325, reply_fields(), b"reply")
            assert (answer.code, answer.fields["msgId"]) == (0, "0")
            assert len(got) == 1

    asyncio.run(scenario())
