"""What somebody with a login of his own tries against a broker that controls access, by effect."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from inorder.access import service
from inorder.access.records import decode_book
from inorder.access.rules import Book
from inorder.broker.broker import Broker
from inorder.config import NetConfig
from inorder.net.connection import Connection
from inorder.wire.codes import RequestCode
from inorder.wire.extensions import ExtensionCode
from inorder.wire.header import Command
from inorder.wire.ids import java_hash
from inorder.wire.signature import AK, SIGNATURE, content, sign
from tests.integration.accesskit import (
    SECRETS,
    Caller,
    allow,
    connect,
    entry,
    guarded,
    guarded_names,
    pull_of,
    send_of,
    stored,
    until,
)
from tests.integration.brokerkit import PATIENT_MS

NO_PERMISSION = 16
TOPIC = {
    "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip


@asynccontextmanager
async def site(**settings: Any) -> AsyncIterator[tuple[Broker, Caller, Caller]]:
    """Run a broker with alice's topic Orders and group CG, and bob's topic mine and group mine."""
    async with guarded(**settings) as (broker, caller):
        allow(broker, "alice", entry("Topic:Orders", "Pub,Sub"), entry("Group:CG", "Sub"))
        allow(broker, "bob", entry("Topic:mine", "Pub,Sub"), entry("Group:mine", "Sub"))
        for topic in ("Orders", "mine"):
            answer = await caller.ask("root", 17, {"topic": topic, **TOPIC})
            assert answer.code == 0, answer.remark
        bob = await caller.open()
        try:
            yield broker, caller, bob
        finally:
            bob.connection.close()


def beat(client_id: str, *, producers: tuple[str, ...] = ()) -> bytes:
    """Return the body of a heartbeat of producers."""
    groups = [{"groupName": group} for group in producers]
    return json.dumps(
        {"clientID": client_id, "consumerDataSet": [], "producerDataSet": groups}
    ).encode()


HALF = "TRAN_MSG\x01true\x02PGROUP\x01{}\x02UNIQ_KEY\x01{}\x02"


@pytest.mark.slow
@pytest.mark.parametrize("user", ["alice", "bob"])
def test_a_half_is_shown_only_to_those_who_may_send_to_its_topic(user: str) -> None:
    """Anybody can call himself a producer of a group; the question about a half shows its body."""

    async def play() -> list[Command]:
        quick = {"transaction_timeout_ms": 50, "transaction_check_interval_ms": 50}
        async with site(**quick) as (broker, caller, _):
            heard: list[Command] = []
            listening = await Connection.open(
                broker.address, NetConfig(), connect_timeout_ms=PATIENT_MS,
                on_request=lambda _, command: heard.append(command),
            )  # fmt: skip
            answer = await Caller(listening).ask(
                user, 34, {}, beat("x@1", producers=("alice_producers",))
            )
            assert answer.code == 0
            sent = send_of("Orders", f="4", i=HALF.format("alice_producers", "U1"))
            sent |= {"a": "alice_producers", "g": str(int(time.time() * 1000))}
            assert (await caller.ask("alice", 310, sent, b"for producers of Orders")).code == 0
            half = next(iter(broker.transactions))
            await until(lambda: half.checks >= 2)
            listening.close()
            return [one for one in heard if one.code == RequestCode.CHECK_TRANSACTION_STATE]

    questions = asyncio.run(play())
    assert bool(questions) is (user == "alice")


def test_a_named_producer_stays_with_its_user() -> None:
    """Also while its process is away: a higher incarnation of somebody else would silence it."""

    def hello(incarnation: int) -> dict[str, str]:
        return {
            "producerId": "payments", "incarnation": str(incarnation), "named": "true",
            "protocol": "2",
        }  # fmt: skip

    async def play() -> None:
        async with site() as (broker, _, bob):
            alice = await connect(broker.address)
            code = ExtensionCode.PRODUCER_HELLO
            assert (await alice.ask("alice", code, hello(1))).code == 0
            alice.connection.close()
            await until(lambda: len(list(broker.server.connections)) == 2)
            for named in ("true", "false"):
                fields = {**hello(99), "named": named}
                assert (await bob.ask("bob", code, fields)).code == NO_PERMISSION
            again = await connect(broker.address)
            assert (await again.ask("alice", code, hello(2))).fields["highest"] == "2"
            again.connection.close()
            assert broker.accounts is not None
            broker.accounts.delete_user("alice", by="root", peer="")
            await until(lambda: len(list(broker.server.connections)) == 2)
            assert (await bob.ask("bob", code, hello(99))).code == 0

    asyncio.run(play())


def test_nobody_takes_the_room_for_names_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """One user has a limit of his own over all his connections; the others go on."""
    monkeypatch.setattr(service, "OWNED_OF_USER_MAX", 5)
    monkeypatch.setattr(service, "OWNED_MAX", 8)

    async def play() -> None:
        async with site() as (_, caller, bob):
            codes = []
            for number in range(8):
                greedy = await bob.open()
                codes.append((await greedy.ask("bob", 34, {}, beat(f"bob@{number}"))).code)
            assert codes == [0] * 5 + [NO_PERMISSION] * 3
            assert (await caller.ask("alice", 34, {}, beat("alice@1"))).code == 0

    asyncio.run(play())


def test_long_names_are_not_remembered() -> None:
    """A frame has room for names of a megabyte: those of a client, a producer, a topic, a group."""
    long = "x" * 100_000

    async def play() -> None:
        async with site() as (broker, _, bob):
            guard = broker.guard
            assert guard is not None
            kept = dict(guard._owners)
            assert (await bob.ask("bob", 34, {}, beat(long))).code == NO_PERMISSION
            beats = beat("bob@1", producers=(long,))
            assert (await bob.ask("bob", 34, {}, beats)).code == NO_PERMISSION
            hello = {"producerId": long, "incarnation": "1", "named": "true", "protocol": "2"}
            code = ExtensionCode.PRODUCER_HELLO
            assert (await bob.ask("bob", code, hello)).code == NO_PERMISSION
            assert (await bob.ask("bob", 310, send_of(long), b"x")).code == NO_PERMISSION
            assert (await bob.ask("bob", 11, pull_of("mine", long))).code == NO_PERMISSION
            assert guard._owners == kept
            assert not [key for key in guard._verdicts if long in repr(key)]

    asyncio.run(play())


def collision(prefix: str, target: str) -> str:
    """Return an end for a text that gives it Java's hash of another one."""
    length, low, high = 7, 33, 122
    wanted = java_hash(target) - java_hash(prefix) * 31**length
    for turn in range(200):
        rest, digits = wanted % 2**32 + turn * 2**32, []
        for place in reversed(range(length)):
            below = low * sum(31**lower for lower in range(place))
            digits.append(min(high, (rest - below) // 31**place))
            rest -= digits[-1] * 31**place
        if rest == 0 and min(digits) >= low:
            return "".join(map(chr, digits))
    raise AssertionError("no collision")


def test_a_key_with_the_same_hash_shows_no_message_of_another_topic() -> None:
    """The key index is a table of hashes; what it finds is looked at."""
    key = collision("mine#", "Orders#k7")
    assert java_hash(f"mine#{key}") == java_hash("Orders#k7")

    async def play() -> None:
        async with site() as (_, caller, bob):
            await caller.ask("alice", 310, send_of("Orders", i="KEYS\x01k7\x02"), b"private")
            query = {"maxNum": "32", "beginTimestamp": "0", "endTimestamp": "9999999999999"}
            own = await caller.ask("alice", 12, {"topic": "Orders", "key": "k7", **query})
            assert b"private" in bytes(own.body)
            answer = await bob.ask("bob", 12, {"topic": "mine", "key": key, **query})
            assert (answer.code, bytes(answer.body)) == (22, b"")

    asyncio.run(play())


@pytest.mark.slow
@pytest.mark.parametrize(
    "waiting", ["DELAY\x011\x02", "TIMER_DELAY_MS\x01100\x02", HALF.format("pg", "U1")]
)
def test_a_message_that_waits_goes_to_the_topic_that_it_was_sent_to(waiting: str) -> None:
    """REAL_TOPIC in its own properties, before or after, leads it nowhere else."""
    forged = "REAL_TOPIC\x01Orders\x02REAL_QID\x010\x02"

    async def play() -> None:
        async with site() as (broker, _, bob):
            for number, properties in enumerate((forged + waiting, waiting + forged)):
                fields = send_of("mine", i=properties + f"KEYS\x01k{number}\x02")
                if "TRAN_MSG" in waiting:
                    fields["f"] = "4"
                assert (await bob.ask("bob", 310, fields, b"x")).code == 0
            for half in list(broker.transactions):
                end = {
                    "producerGroup": "pg", "tranStateTableOffset": str(half.offset),
                    "commitLogOffset": str(half.position), "commitOrRollback": "8",
                    "fromTransactionCheck": "false", "msgId": "U1", "transactionId": "U1",
                }  # fmt: skip
                assert (await bob.ask("bob", 37, end)).code == 0
            await until(lambda: stored(broker).get(("mine", 1), 0) == 2)
            assert not [topic for topic, _ in stored(broker) if topic == "Orders"]

    asyncio.run(play())


def test_a_handle_recalls_nothing_of_another_topic() -> None:
    """The handle says which message, the request which topic: they must agree."""
    at = str(int(time.time() * 1000) + 60_000)

    async def play() -> None:
        async with site() as (broker, caller, bob):
            timer = send_of("Orders", i=f"TIMER_DELIVER_MS\x01{at}\x02UNIQ_KEY\x01T1\x02")
            handle = (await caller.ask("alice", 310, timer, b"later")).fields["recallHandle"]
            before = stored(broker)
            for topic, code in (("Orders", NO_PERMISSION), ("mine", 604)):
                fields = {"producerGroup": "p", "topic": topic, "recallHandle": handle}
                assert (await bob.ask("bob", 370, fields)).code == code
            assert stored(broker) == before

    asyncio.run(play())


# -- headers that two readers could read differently -----------------------------------------------


def json_frame(code: int, pairs: list[tuple[str, Any]], body: bytes = b"", **more: str) -> bytes:
    """Return a frame whose fields are written as they are given, also twice."""
    fields = ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in pairs)
    rest = "".join(f',"{name}":{value}' for name, value in more.items())
    header = (
        f'{{"code":{code},"extFields":{{{fields}}},"flag":0,"language":"JAVA","opaque":7{rest}}}'
    )
    return framed(header.encode(), body)


def framed(header: bytes, body: bytes, serializer: int = 0) -> bytes:
    """Return a frame."""
    word = serializer << 24 | len(header)
    return struct.pack(">ii", 4 + len(header) + len(body), word) + header + body


def binary_frame(code: int, pairs: list[tuple[str, str]], body: bytes = b"") -> bytes:
    """Return a frame with a binary header."""
    fields = b"".join(
        struct.pack(">h", len(name))
        + name.encode()
        + struct.pack(">i", len(value))
        + value.encode()
        for name, value in pairs
    )
    header = struct.pack(">hbhiii", code, 0, 479, 7, 0, 0) + struct.pack(">i", len(fields)) + fields
    return framed(header, body, 1)


def signature_of(pairs: list[tuple[str, str]], body: bytes) -> list[tuple[str, str]]:
    """Return bob's signature of fields, of which of one name the last one counts."""
    own = dict([*pairs, (AK, "bob")])
    return [(AK, "bob"), (SIGNATURE, sign(SECRETS["bob"].encode(), content(own, body)))]


async def throw(address: str, frame: bytes) -> int | None:
    """Write a frame on a connection of its own; return the code of the answer, None: closed."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        async with asyncio.timeout(10):
            writer.write(frame)
            await writer.drain()
            size, word = struct.unpack(">ii", await reader.readexactly(8))
            rest = await reader.readexactly(size - 4)
            if word >> 24:
                return int(struct.unpack_from(">h", rest)[0])
            return int(json.loads(rest[: word & 0xFFFFFF])["code"])
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    finally:
        writer.close()


SEND = [(name, value) for name, value in send_of("mine").items() if name != "b"]


@pytest.mark.parametrize("frame", [json_frame, binary_frame])
@pytest.mark.parametrize("order", [("mine", "Orders"), ("Orders", "mine")])
def test_a_field_that_stands_twice_is_judged_as_it_is_served(
    frame: Any, order: tuple[str, str]
) -> None:
    """Whichever of two topics counts: nothing of bob's gets into Orders."""

    async def play() -> None:
        async with site() as (broker, _, _bob):
            for counts in order:
                signing = signature_of([*SEND, ("b", counts)], b"x")
                pairs = [*SEND, *(("b", topic) for topic in order), *signing]
                await throw(broker.address, frame(310, pairs, b"x"))
                await throw(broker.address, frame(310, [*reversed(pairs)], b"x"))
            assert not [topic for topic, _ in stored(broker) if topic == "Orders"]
            assert stored(broker)  # one reading was bob's own topic

    asyncio.run(play())


@pytest.mark.parametrize(
    "value", [None, 0, 1, True, 1.5, ["Orders"], {"b": "Orders"}, "", " ", "Orders\x00", "orders",
              " Orders", "Orders ", "Orders%00", "..", "\uff2frders"],
)  # fmt: skip
def test_odd_values_of_a_topic_reach_no_other_one(value: Any) -> None:
    """Numbers, null, lists, blanks, case and look-alikes: refused or broken, and nothing stored."""

    async def play() -> None:
        async with site() as (broker, _, _bob):
            text = value if isinstance(value, str) else json.dumps(value)
            for written in {text, "null", "true" if value is True else text, ""}:
                signing = signature_of([*SEND, ("b", written)], b"x")
                frame = json_frame(310, [*SEND, ("b", value), *signing], b"x")
                assert await throw(broker.address, frame) in {NO_PERMISSION, None}
            assert stored(broker) == {}

    asyncio.run(play())


@pytest.mark.parametrize(
    "code", ['"10"', "10.0", "1e1", "310.5", "-10", "4294967606", "null", "[]"]
)
def test_an_odd_code_is_none(code: str) -> None:
    """Nothing is served under a number that another reader would take for a code."""

    async def play() -> None:
        async with site() as (broker, _, _bob):
            header = f'{{"code":{code},"flag":0,"language":"JAVA","opaque":7,"extFields":{{}}}}'
            assert await throw(broker.address, framed(header.encode(), b"x")) in {
                NO_PERMISSION, None,
            }  # fmt: skip
            assert stored(broker) == {}

    asyncio.run(play())


def test_a_frame_that_says_it_is_an_answer_is_no_request() -> None:
    """The flag of answers serves nothing."""

    async def play() -> None:
        async with site() as (broker, caller, bob):
            command = Command.request(310, send_of("Orders"), b"x")
            command.flag = 1
            bob.connection.send(command)
            assert (await caller.ask("root", 26)).code == 0
            assert stored(broker) == {}

    asyncio.run(play())


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (310, {"topic": "mine"}), (10, {"b": "mine"}), (320, {"topic": "mine"}),
        (11, {"consumerGroup": "mine"}), (11, {"topic": "mine"}), (361, {"topic": "mine"}),
        (15, {"topic": "mine"}), (14, {"consumerGroup": "mine"}), (36, {"offset": "0"}),
        (37, {"topic": "mine"}), (33, {}), (12, {"key": "k"}), (30, {"queueId": "0"}),
        (200050, {"topic": "mine"}), (200051, {"consumerGroup": "mine"}),
        (7122, {"clientId": "x"}), (7121, {"group": "mine"}), (7130, {"group": "mine"}),
    ],
)  # fmt: skip
def test_a_request_that_does_not_say_what_it_is_about_is_refused(
    code: int, fields: dict[str, str]
) -> None:
    """Also if another field, which the handler does not read, names something allowed."""

    async def play() -> None:
        async with site() as (broker, _, bob):
            assert (await bob.ask("bob", code, fields)).code == NO_PERMISSION
            assert stored(broker) == {}

    asyncio.run(play())


def test_fields_that_the_handler_does_not_read_change_nothing() -> None:
    """Orders in `topic` of a 310, in `b` of a 10, in namespaces of 5.x clients."""

    async def play() -> None:
        async with site() as (broker, _, bob):
            short = {**send_of("mine"), "topic": "Orders", "nsd": "true", "ns": "Orders"}
            assert (await bob.ask("bob", 310, short, b"x")).code == 0
            assert {topic for topic, _ in stored(broker)} == {"mine"}
            pull = {**pull_of("mine", "mine"), "ns": "Orders", "nsd": "true", "b": "Orders"}
            pull["suspendTimeoutMillis"] = "0"
            assert (await bob.ask("bob", 11, pull)).code in {0, 19, 21}

    asyncio.run(play())


def test_an_empty_book_lets_nobody_in() -> None:
    """Without users every request is refused, also with an empty name and an empty secret."""

    async def play() -> None:
        async with site() as (broker, _, bob):
            assert broker.accounts is not None
            broker.accounts._put(Book())
            for name in ("", "bob", "root", "None", "*"):
                fields = {**send_of("mine"), AK: name}
                fields[SIGNATURE] = sign(b"", content(fields, b"x"))
                assert (await bob.raw(Command.request(310, fields, b"x"))).code == NO_PERMISSION
            assert stored(broker) == {}

    asyncio.run(play())


def test_who_listens_between_broker_and_name_server_learns_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker gives its users to name servers, also without TLS."""
    bodies: list[bytes] = []

    def note(data: bytes, unseal: Any) -> Book:
        bodies.append(bytes(data))
        return decode_book(data, unseal)

    monkeypatch.setattr("inorder.nameserver.handlers.decode_book", note)

    async def play() -> None:
        async with (
            guarded_names() as (names, _, address),
            guarded(namesrv=address) as (broker, _),
        ):
            allow(broker, "alice", entry("Topic:Orders", "Pub"))
            guard = names.guard
            assert guard is not None
            await until(lambda: "alice" in guard.accounts.book.users)
            assert guard.accounts.book.users["alice"].secret == SECRETS["alice"].encode()

    asyncio.run(play())
    assert b'"alice"' in bodies[-1]
    assert not [one for one in SECRETS.values() for body in bodies if one.encode() in body]
