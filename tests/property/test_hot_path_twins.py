"""Reads served by the compiled module and in Python: the same files, tables and answers.

`tests/kit/twinbrokers.py` feeds both brokers the same bytes, cut at the same places.
"""

from __future__ import annotations

import asyncio
import errno
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inorder.accelerated import native, reason
from inorder.broker.sends.packing import Packer
from inorder.store.layout import ENTRY_BYTES
from inorder.wire.frame import FrameDecoder, frame
from inorder.wire.record import decode_all
from tests.kit.disk import Fault
from tests.kit.twinbrokers import SMALL, Side, request, send_fields, twins
from tests.property.test_batch_twins import item

needs_compiled = pytest.mark.skipif(native is None, reason=f"compiled module: {reason}")
SYNC = replace(SMALL, sync_flush=True)
PRODUCERS = (("0123456789abcdef", False), ("spark:sink:orders:b:0", True))
TOPICS = ("Orders", "Other", "T" * 130)


class Clients:
    """Makes the requests of a few clients, good ones and odd ones."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.number = 0
        self.last: dict[tuple[str, str, int], int] = {}

    def hello(self) -> bytes:
        """Return the hellos of the producers."""
        return b"".join(
            self.request(7100, {
                "producerId": name, "incarnation": "1", "named": "true" if named else "false",
                "memory": "-1", "protocol": "2",
            })
            for name, named in PRODUCERS
        )  # fmt: skip

    def request(self, code: int, fields: dict[str, str], body: bytes = b"", **more: Any) -> bytes:
        self.number += 1
        return request(code, fields, body, number=self.number, **more)

    def numbers(self, topic: str, queue_id: int) -> str:
        """Return the sequence number of a message: mostly the next one."""
        dice = self.dice
        name, named = dice.choice(PRODUCERS)
        last = self.last.get((name, topic, queue_id), -1)
        number = last + (dice.choice((1, 1, 7)) if named else 1)
        before = last
        odd = dice.random()
        if odd < 0.06:  # once more, too early, or unknown
            number = max(0, number + dice.choice((-1, -2, 1)))
        else:
            self.last[name, topic, queue_id] = number
        text = f"INORDER_PID\x01{name}\x02INORDER_SEQ\x01{number}\x02"
        return text + (f"INORDER_PREV\x01{before}\x02" if named else "")

    def properties(self, topic: str, queue_id: int) -> str:
        dice = self.dice
        parts = [f"UNIQ_KEY\x01C0000202{self.number:08X}\x02"] if dice.random() < 0.95 else []
        if dice.random() < 0.6:
            parts.append(f"KEYS\x01k{dice.randrange(99)} word\x02")
        if dice.random() < 0.6:
            parts.append(f"TAGS\x01Tag{dice.randrange(3)}\x02")
        if dice.random() < 0.3:
            parts.append("WAIT\x01true\x02")
        if dice.random() < 0.2:
            parts.append(f"__SHARDINGKEY\x01key{dice.randrange(9)}\x02")
        if dice.random() < 0.2:
            parts.append(f"region\x01{dice.choice(('north', 'DE_AT', 'x DELAY', '..Y..'))}\x02")
        if dice.random() < 0.3:
            parts.insert(dice.randrange(len(parts) + 1), self.numbers(topic, queue_id))
        if dice.random() < 0.1:
            parts.insert(dice.randrange(len(parts) + 1), dice.choice(ODD_PROPERTIES))
        text = "".join(parts)
        return text[:-1] if text and dice.random() < 0.2 else text

    def send(self) -> bytes:
        dice = self.dice
        topic, queue_id = dice.choice((*TOPICS, "Orders", "Orders")), dice.randrange(4)
        changes = {"b": topic, "e": str(queue_id), "i": self.properties(topic, queue_id)}
        if dice.random() < 0.1:
            changes.update(dict([dice.choice(ODD_FIELDS)]))
        code = dice.choice((310, 310, 310, 310, 320, 10))
        body = dice.randbytes(dice.choice((1, 20, 200, 200, 1500)))
        if dice.random() < 0.02:
            body = b""
        return self.request(
            code, send_fields(**changes), body, serializer=int(dice.random() < 0.2),
            oneway=dice.random() < 0.1,
        )  # fmt: skip

    def batch(self) -> bytes:
        items = [
            item(b"b" * 30, f"UNIQ_KEY\x01B{self.number:08X}{n}\x02".encode())
            for n in range(self.dice.randrange(1, 5))
        ]
        return self.request(320, send_fields(m="true", i="WAIT\x01true\x02"), b"".join(items))

    def pull(self) -> bytes:
        dice = self.dice
        topic = dice.choice(TOPICS)
        fields = {
            "consumerGroup": "CG", "topic": topic, "queueId": str(dice.randrange(4)),
            "queueOffset": str(dice.randrange(60)), "maxMsgNums": str(dice.choice((1, 5, 32, 64))),
            "sysFlag": str(dice.choice((4, 4, 6, 5))), "commitOffset": "3",
            "suspendTimeoutMillis": "20000", "subVersion": "0", "expressionType": "TAG",
            "subscription": dice.choice(("*", "*", "Tag1", "Tag0 || Tag2", "None")),
        }  # fmt: skip
        if dice.random() < 0.1:
            fields.update(dict([dice.choice(ODD_PULL_FIELDS)]))
        return self.request(
            11, fields, serializer=int(dice.random() < 0.1), oneway=dice.random() < 0.02
        )

    def other(self) -> bytes:
        """Return a request between sends: one that answers at once, and one that is not served."""
        return self.request(self.dice.choice((30, 34, 9999)), {"topic": "Orders", "queueId": "1"})

    def read(self, count: int) -> bytes:
        """Return the frames of one read."""
        makers = (self.send,) * 24 + (self.pull,) * 5 + (self.batch, self.other)
        frames = [self.dice.choice(makers)() for _ in range(count)]
        if self.dice.random() < 0.15:
            place = self.dice.randrange(len(frames))
            frames[place] = self.damaged(frames[place])
        return b"".join(frames)

    def damaged(self, whole: bytes) -> bytes:
        """Change, drop or insert bytes of a header; the lengths fit."""
        dice = self.dice
        size = int.from_bytes(whole[5:8], "big")
        header, body = bytearray(whole[8 : 8 + size]), whole[8 + size :]
        for _ in range(dice.randrange(1, 3)):
            at = dice.randrange(len(header))
            match dice.randrange(4):
                case 0:
                    header[at] = dice.choice(b'\x00\x01\x02 "\\{}:,-019azAZ\x7f\x80\xff')
                case 1:
                    del header[at : at + dice.randrange(1, 4)]
                case 2:
                    header[at:at] = dice.choice(WORDS)
                case _:
                    header[at] ^= 1 << dice.randrange(8)
        word = whole[4] << 24 | len(header)
        return (4 + len(header) + len(body)).to_bytes(4) + word.to_bytes(4) + bytes(header) + body


ODD_PROPERTIES = (
    "DELAY\x012\x02", "TIMER_DELAY_MS\x015\x02", "TRAN_MSG\x01true\x02", "POP_CK\x011 2\x02",
    "INNER_NUM\x013\x02", "TAGS\x01Again\x02", "UNIQ_KEY\x01Again\x02", "KEYS\x01k\x02",
    "xTAGS\x01no\x02", "xUNIQ_KEY\x01no\x02", "xINORDER_PID\x01no\x02", "\x01", "a\x02", "\x02",
    "INORDER_SEQ\x017\x02", "INORDER_PID\x01p\x02", "CORRELATION_ID\x01c\x02", "USER\x01u\x02",
    "name\x01caf\u00e9\x02", "name\x01\"quoted\\\x02", "KEYS\x01\u4e2d \u6587\x02",
    "k\x01a\x01b\x02", "UNIQ_KEY\x01\"q\"\x02", "TAGS\x01\x02", "MSG_TYPE\x01reply\x02",
)  # fmt: skip
ODD_FIELDS = (
    ("f", "1"), ("f", "4"), ("f", "8"), ("f", "64"), ("f", "16"), ("f", "51"), ("f", "1793"),
    ("f", "-1"), ("f", "2048"), ("e", "-1"), ("e", "9"), ("e", "01"), ("m", "0"), ("m", "true"),
    ("m", ""), ("mv", "1"), ("mv", ""), ("mv", "0"), ("md", "x"), ("md", ""), ("mq", "1"),
    ("mq", ""),
    ("j", "3"), ("j", "-2"), ("l", "16"), ("l", "x"), ("h", "-7"), ("h", "+7"), ("g", "-5"),
    ("g", "9223372036854775807"), ("g", "99999999999999999999"), ("d", "x"), ("d", ""),
    ("k", "true"),
    ("k", "x"), ("b", "Unknown"), ("b", "%RETRY%CG"), ("b", "SCHEDULE_TOPIC_XXXX"), ("b", ""),
    ("zz", "1"), ("n", "broker-\u00e9"), ("a", "P\"G"), ("i", ""), ("h", "2147483648"),
)  # fmt: skip
ODD_PULL_FIELDS = (
    ("epoch", "3"), ("bulk", "100000"), ("queueOffset", "-1"), ("queueId", "9"), ("topic", "No"),
    ("maxMsgNums", "0"), ("maxMsgNums", "-1"), ("expressionType", "SQL92"), ("sysFlag", "0"),
    ("consumerGroup", "a b"), ("subscription", " || ".join("abcdefghijklmnopqrs")),
)  # fmt: skip
WORDS = (
    b"\\u0001", b"\\u0002", b"\\u00e9", b"\\u0000", b"\\n", b'","b":"Other', b'","zz":"1', b'"',
    b"\\",
    b'{"code":10,', b'"flag":1,', b'"opaque":"5",', b"}", b"{", b"INORDER_PID", b"\x00\x01b",
    b" ",
)  # fmt: skip


def frames(data: bytes) -> list[tuple[int, bytes, bytes]]:
    return FrameDecoder().receive_data(data)


async def same(one: Side, other: Side, *, answers: bool = True) -> None:
    """Let both go on, and compare what they have."""
    await one.settle()
    await other.settle()
    if answers:
        got, wanted = one.answers(), other.answers()
        for port in wanted:
            assert frames(got[port]) == frames(wanted[port]), port
    left, right = one.left(), other.left()
    for name in left._fields:
        assert getattr(left, name) == getattr(right, name), name


def play(seed: int, *, reads: int, sync: bool = False, fault: Fault | None = None) -> int:
    """Feed both brokers the same reads of several connections, in pieces.

    Returns how many messages were refused because a write failed.
    """
    clients = Clients(seed)
    dice = random.Random(seed + 1)

    async def scenario() -> int:
        async with twins(SYNC if sync else SMALL) as sides:
            await begin(sides, clients)
            for number in range(reads):
                port = dice.choice((5000, 5000, 5000, 5001, 5002))
                data = clients.read(dice.choice((1, 4, 30)))
                cuts = sorted(dice.randrange(len(data)) for _ in range(dice.choice((0, 0, 1, 3))))
                full = dice.random() < 0.1
                for side in sides:
                    if fault is not None and number == reads // 2:
                        side.files.fail(replace(fault))
                    if full:  # the client does not read: what follows waits
                        side.connect(port)
                        side.connections[port][0].pause_writing()
                    for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
                        side.feed(port, data[start:end])
                if dice.random() < 0.7:  # else the next read belongs to the same tick
                    await same(*sides)
                for side in sides:
                    if full:
                        side.connections[port][0].resume_writing()
                    if number == reads // 2 + 2:
                        side.files.heal()
            await same(*sides)
            return sides[0].left().counters["failed"]

    return asyncio.run(scenario())


async def begin(sides: tuple[Side, Side], clients: Clients) -> None:
    """Make the topics, and let the producers say hello."""
    data = clients.hello()
    for side in sides:
        for topic in TOPICS:
            side.broker.topics.create_internal(topic, 4, side.broker.clock.now_ms())
        side.feed(5000, data)
    await same(*sides)


@needs_compiled
@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30), sync=st.booleans())
@example(seed=1, sync=False)
@example(seed=2, sync=True)
def test_both_ways_leave_and_answer_the_same(seed: int, sync: bool):
    """Sends of all forms, numbered or not, pulls and others, whole or damaged, in any pieces."""
    play(seed, reads=40, sync=sync)


@needs_compiled
@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 1 << 30), sync=st.booleans(), nth=st.integers(1, 3),
    kept=st.sampled_from((0, 100)),
)  # fmt: skip
def test_a_tick_that_is_not_written_is_undone_and_refused_the_same_way(
    seed: int, sync: bool, nth: int, kept: int
):
    """Numbers, queue entries and keys of the tick are gone, and each request hears of it."""
    fault = Fault("write", nth, error=errno.ENOSPC, kept_bytes=kept, place="/data/commitlog/*")
    play(seed, reads=24, sync=sync, fault=fault)


def plain_sends(clients: Clients, count: int, **changes: str) -> bytes:
    """Return sends that the compiled module takes, round-robin over the queues."""
    return b"".join(
        clients.request(
            310,
            send_fields(e=str(n % 4), i=f"UNIQ_KEY\x01U{n}\x02TAGS\x01Tag{n % 3}\x02", **changes),
            b"m%d" % n,
        )
        for n in range(count)
    )  # fmt: skip


def served(reads: list[bytes], *, between: Any = None, sync: bool = False) -> tuple[Side, Side]:
    """Feed reads of one client as one tick; `between` is done with each broker after each read."""

    async def scenario() -> tuple[Side, Side]:
        async with twins(SYNC if sync else SMALL) as sides:
            await begin(sides, Clients(0))
            for side in sides:
                side.feed(5000, plain_sends(Clients(0), 4))  # makes the queues known
            await same(*sides)
            for data in reads:
                for side in sides:
                    side.feed(5000, data)
                    if between is not None:
                        between(side.broker)
            await same(*sides)
            return sides

    return asyncio.run(scenario())


GO = (
    b'{"code":10,"language":"GO","version":317,"opaque":11,"flag":0,"remark":"","extFields":{'
    b'"queueId":"1","flag":"0","reconsumeTimes":"0","unitMode":"false","maxReconsumeTimes":"0",'
    b'"defaultTopicQueueNums":"4","batch":"false","producerGroup":"PG_go","sysFlag":"0",'
    b'"bornTimestamp":"1794715908660","defaultTopic":"TBW102","topic":"Orders","properties":'
    b'"TAGS\\u0001TagA\\u0002KEYS\\u0001b0\\u0002UNIQ_KEY\\u0001C0000202FA00001\\u0002"}}'
)
CPP = (
    b'{"code":10,"extFields":{"AccessKey":"","OnsChannel":"ALIYUN","Signature":"TfbzDwQg4bUl5PA=",'
    b'"batch":"0","bornTimestamp":"1794715988212","defaultTopic":"TBW102","defaultTopicQueueNums":4,'
    b'"flag":0,"producerGroup":"PG_cpp","properties":"KEYS\\u0001b0\\u0002UNIQ_KEY\\u0001010000\\u0002",'
    b'"queueId":0,"reconsumeTimes":"0","sysFlag":0,"topic":"Orders","unitMode":"0"},"flag":0,'
    b'"language":"CPP","opaque":15,"remark":"","version":63}\n'
)
"""The headers of other clients of RocketMQ, as captured."""


@needs_compiled
def test_plain_sends_are_taken_by_the_compiled_module(monkeypatch: pytest.MonkeyPatch):
    """In JSON with both sets of names, in RocketMQ's serialization, numbered or with map fields."""
    clients = Clients(0)
    name, _ = PRODUCERS[0]
    pid = f"UNIQ_KEY\x01U\x02INORDER_PID\x01{name}\x02INORDER_SEQ\x01"
    kinds = [
        clients.request(310, send_fields(), b"x"),
        clients.request(320, send_fields(), b"x", oneway=True),
        clients.request(10, send_fields(), b"x"),
        clients.request(310, send_fields(), b"x", serializer=1),
        clients.request(10, send_fields(), b"x", serializer=1, oneway=True),
        clients.request(310, send_fields(mv="0", md="", mq="1"), b"x"),
        clients.request(310, send_fields(i="UNIQ_KEY\x01U\x02colour\x01red\x02"), b"x"),
    ]
    kinds += [frame(0, header, b"x") for header in (GO, CPP)]
    numbered = [clients.request(310, send_fields(i=f"{pid}{n}\x02"), b"x") for n in range(3)]
    taken: list[int] = []

    def watch(broker: Any) -> None:
        if broker.sends.compiled:
            taken.append(broker.sends.packer.runs)

    monkeypatch.setattr("inorder.broker.sends.packing.Packer.runs", 0, raising=False)
    real = Packer.took_run

    def took_run(self: Packer, used: int, last_at: int, count: int, *rest: Any) -> None:
        self.runs += count  # type: ignore[attr-defined]
        real(self, used, last_at, count, *rest)

    monkeypatch.setattr(Packer, "took_run", took_run)
    served([b"".join(kinds)], between=watch)
    assert taken == [len(kinds)]
    served([b"".join(numbered)], between=watch)
    assert taken[1:] == [2], "the first number of a producer on a queue is judged in Python"


@needs_compiled
@pytest.mark.parametrize("name", [*ODD_PROPERTIES, *(str(one) for one in ODD_FIELDS)])
def test_what_is_not_known_to_be_plain_is_left_alone(name: str):
    """Each odd property and field between two plain messages of the same read."""
    clients = Clients(0)
    changes = {str(one): dict([one]) for one in ODD_FIELDS}.get(name, {"i": name})
    if "i" in changes:
        changes = {"i": f"UNIQ_KEY\x01U\x02{changes['i']}"}
    odd = [
        clients.request(code, send_fields(**changes), b"odd", serializer=serializer)
        for code in (310, 10)
        for serializer in (0, 1)
    ]
    reads = plain_sends(clients, 2).join([b"", *odd, b""])
    served([reads])


@needs_compiled
def test_a_read_of_more_frames_than_a_share_keeps_their_order():
    """Six hundred sends with pulls between them: the rest waits in line, and nothing overtakes."""
    clients = Clients(0)
    parts = []
    for _ in range(12):
        parts += [plain_sends(clients, 50), clients.pull()]
    served([b"".join(parts)])


@needs_compiled
def test_a_large_read_fills_several_files_of_the_log():
    """The frame that does not fit goes into the next file by Python, and the run goes on there."""
    clients = Clients(0)
    reads = [
        b"".join(clients.request(310, send_fields(e=str(n % 4)), b"x" * 3000) for n in range(120))
    ]
    one, _ = served(reads)
    assert len(one.broker.store.log.segments.items) > 4


@needs_compiled
def test_queues_that_are_forgotten_between_two_reads_of_a_tick_are_found_again():
    """A topic was changed: what the module knows of its queues is looked up anew."""
    clients = Clients(0)
    reads = [plain_sends(clients, 9), plain_sends(clients, 9)]
    one, _ = served(reads, between=lambda broker: broker.sends.forget_targets())
    assert one.left().counters["messages"] == 22


@needs_compiled
def test_a_topic_made_between_two_frames_of_a_read_takes_the_next_one():
    """A send makes the topic, and later sends of the same read are for it."""
    clients = Clients(0)
    frames_of = [plain_sends(clients, 3, b=topic) for topic in ("Orders", "Made", "Orders", "Made")]
    one, _ = served([b"".join(frames_of)])
    assert one.left().counters["messages"] == 16


@needs_compiled
def test_a_producer_that_moved_to_another_connection_is_refused_on_the_first():
    """Also when its number is plainly the next one, and in the same read."""
    name, _ = PRODUCERS[0]
    pid = f"UNIQ_KEY\x01U\x02INORDER_PID\x01{name}\x02INORDER_SEQ\x01"

    async def scenario() -> None:
        async with twins() as sides:
            clients = Clients(0)
            await begin(sides, clients)
            sends = [clients.request(310, send_fields(i=f"{pid}{n}\x02"), b"x") for n in range(6)]
            hello = clients.hello()
            for port, data in (
                (5000, b"".join(sends[:3])), (5001, hello), (5000, sends[3]),
                (5001, b"".join(sends[3:5])), (5001, sends[4] + sends[5]),
            ):  # fmt: skip
                for side in sides:
                    side.feed(port, data)
                await same(*sides)
            table = sides[0].broker.producers
            state = table.queue_state(name, "Orders", 1)
            assert state is not None
            assert state.last == 5

    asyncio.run(scenario())


@needs_compiled
def test_polls_that_wait_get_what_a_run_of_the_same_tick_stored():
    """Each is answered once, after the write, with the first messages of its queue."""
    clients = Clients(0)
    polls = b"".join(
        clients.request(11, {
            "consumerGroup": "CG", "topic": "Orders", "queueId": str(queue_id), "queueOffset": "1",
            "maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0", "subVersion": "0",
            "suspendTimeoutMillis": "20000", "expressionType": "TAG", "subscription": wanted,
        })
        for queue_id in range(4)
        for wanted in ("*", "Tag1", "Never")
    )  # fmt: skip
    one, _ = served([polls, plain_sends(clients, 40), plain_sends(clients, 40)])
    assert one.left().counters["found"] == 8


def pull(clients: Clients, **changes: str) -> bytes:
    """Return a plain pull of a queue that has messages."""
    return clients.request(11, {
        "consumerGroup": "CG", "topic": "Orders", "queueId": "1", "queueOffset": "1",
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "subVersion": "0",
        "suspendTimeoutMillis": "20000", "expressionType": "TAG", "subscription": "*", **changes,
    })  # fmt: skip


def _reset(broker: Any) -> None:
    broker.offsets.reset("CG", "Orders", 1, 0, broker.clock.now_ms())


def _hold(broker: Any) -> None:
    """A resize holds the group at offset 3, and the owner of a lease is told the map version."""
    broker.resizing.is_resized = lambda topic: True
    broker.resizing.held_at = lambda *where, **more: 3
    broker.resizing.versions = lambda topic: SimpleNamespace(version=2)
    broker.lease_service.check_pull = lambda *words: None


def _park(broker: Any) -> None:
    broker.pulls._parked = lambda fields: 7
    broker.lease_service.check_pull = lambda *words: None


def _damage(broker: Any) -> None:
    broker.store.queue("Orders", 1).damaged = True


@needs_compiled
@pytest.mark.parametrize("change", [_reset, _hold, _park, _damage], ids=lambda one: one.__name__)
@pytest.mark.parametrize("epoch", ["0", "3"])
def test_rules_of_pulls_are_asked_before_the_compiled_module(change: Any, epoch: str):
    """Resets, resizes, parked keys and damage change the answer on both ways."""
    clients = Clients(0)
    if change is _reset and epoch != "0":
        pytest.skip("a lease begins with a grant")

    async def scenario() -> None:
        async with twins() as sides:
            await begin(sides, clients)
            sends = plain_sends(clients, 40)
            pulls = [pull(clients, epoch=epoch), pull(clients, epoch=epoch, queueOffset="4")]
            for side in sides:
                side.feed(5000, sends)
            await same(*sides)
            for side in sides:
                change(side.broker)
                side.feed(5000, pulls[0] + pulls[1])
                await side.settle()
            answers = frames(bytes(sides[0].connections[5000][1].written))
            assert b'"remark":"FOUND"' not in answers[0][1] or change in (_hold, _park)
            await same(*sides)

    asyncio.run(scenario())


@needs_compiled
@pytest.mark.parametrize("place", [1, 2, 5, 9])
@pytest.mark.parametrize("wanted", ["*", "Tag0 || Tag1 || Tag2"])
def test_an_answer_ends_before_an_entry_that_leads_elsewhere(place: int, wanted: str):
    """Each entry is compared with its record, not only the first."""
    clients = Clients(0)

    async def scenario() -> None:
        async with twins() as sides:
            await begin(sides, clients)
            sends = plain_sends(clients, 44)
            request = pull(clients, queueOffset="1", subscription=wanted)
            for side in sides:
                side.feed(5000, sends)
            await same(*sides)
            for side in sides:
                tail = side.broker.store.queue("Orders", 1).tail
                at = place * ENTRY_BYTES
                tail[at : at + 8] = tail[at + ENTRY_BYTES : at + ENTRY_BYTES + 8]
                side.feed(5000, request)
                await side.settle()
            ((_, header, body),) = frames(bytes(sides[0].connections[5000][1].written))
            assert len(decode_all(body)) == place - 1
            assert (b'"remark":"FOUND"' in header) is (place > 1)
            await same(*sides)

    asyncio.run(scenario())


@needs_compiled
def test_a_log_remembers_the_time_of_the_last_record_of_a_run():
    """Checkpoints are made of it."""
    clients = Clients(0)

    def later(broker: Any) -> None:
        broker.clock.advance(7)

    one, other = served([plain_sends(clients, 9), plain_sends(clients, 9)], between=later)
    assert one.broker.store.log.stored_at_ms == one.broker.clock.now_ms() - 7
    assert one.broker.store.log.stored_at_ms == other.broker.store.log.stored_at_ms


@needs_compiled
def test_what_a_run_has_stored_before_an_error_is_written_and_answered(
    monkeypatch: pytest.MonkeyPatch,
):
    """The memory ends, for instance: no record stays behind in a tick that nobody ends."""

    def no_memory(data: bytes) -> int:
        raise MemoryError

    async def scenario() -> None:
        monkeypatch.setattr("inorder.broker.sends.service.crc32", no_memory)
        async with twins(SMALL) as sides:
            clients, side = Clients(0), sides[0]
            await begin(sides, clients)
            side.feed(5000, plain_sends(clients, 4))
            await side.settle()
            side.answers()
            whole = plain_sends(clients, 3)
            side.feed(5000, whole + clients.request(310, send_fields(e="1", i=UNIQUE), b"b" * 2000))
            assert side.connections[5000][0].closed
            await side.settle()
            queues = [side.broker.store.queue("Orders", n) for n in range(3)]
            assert [queue.visible_offset for queue in queues] == [2, 2, 2]
            side.feed(5001, plain_sends(clients, 3))
            await side.settle()
            assert [queue.visible_offset for queue in queues] == [3, 3, 3]

    asyncio.run(scenario())


UNIQUE = "UNIQ_KEY\x01U9\x02"
