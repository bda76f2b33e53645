"""A batch taken message by message, and by the compiled module: the same bytes and replies."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inorder.accelerated import native, reason
from inorder.broker.producers.rules import ProducerTable
from inorder.broker.sends.service import Sends
from inorder.broker.ticks import PendingReplies
from inorder.config import BrokerConfig, StoreConfig
from inorder.model import TopicConfig
from inorder.store.keyindex import Noted, NotedRows, hash_pure, keys_of, prefix_hash
from inorder.store.store import Store
from inorder.testing.clock import FakeClock
from inorder.wire.ids import UniqueIds, pack_host
from tests.kit.disk import FakeFiles

NOW_MS = 1_794_715_657_300
NAMED, ANONYMOUS = "spark:sink:orders:b:0", "0123456789abcdef"
KINDS = ("plain", "named", "aligned", "anonymous")
needs_compiled = pytest.mark.skipif(native is None, reason=f"compiled module: {reason}")
ALIGNED = 1 << 40
"""Numbers from here on have all as many digits, as a sink's have."""


class Connection:
    """A client's connection, as far as the hot path looks at it."""

    peer_host = pack_host("127.0.0.1", 5000)
    closed = False


class Seen(NamedTuple):
    """What a batch left behind."""

    taken: bool
    log: bytes
    entries: bytes
    keys: list[tuple[int, int, int]]
    last: dict[str, int]
    places: dict[int, int | None]
    frames: list[bytes]
    count: int


def item(body: bytes, properties: bytes, flag: int = 0) -> bytes:
    head = struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, flag, len(body))
    return head + body + struct.pack(">H", len(properties)) + properties


def batch(kind: str, count: int, dice: random.Random) -> tuple[bytes, list[int]]:
    """Return the body of a batch and its numbers."""
    items, numbers = [], []
    last = ALIGNED if kind == "aligned" else -1
    for index in range(count):
        own = [f"UNIQ_KEY\x01C0000202{index:08X}"]
        if dice.random() < 0.5:
            own.append(f"TAGS\x01Tag{dice.randrange(3)}")
        if dice.random() < 0.5:
            own.append(f"KEYS\x01k{dice.randrange(99)} word")
        number = last + 1
        if kind in ("named", "aligned"):
            number += dice.choice((0, 0, 1, 1 << 20))
            group = f"INORDER_PID\x01{NAMED}\x02INORDER_SEQ\x01{number}\x02INORDER_PREV\x01{last}"
            own.insert(dice.randrange(len(own)) + 1, group)
        elif kind == "anonymous":
            own.append(f"INORDER_PID\x01{ANONYMOUS}\x02INORDER_SEQ\x01{number}")
        last = number
        numbers.append(number)
        text = "\x02".join(own) + ("\x02" if dice.random() < 0.8 else "")
        body = dice.randbytes(dice.choice((1, 100, 200)))
        items.append(item(body, text.encode(), dice.choice((0, 0, 7, -1))))
    return b"".join(items), numbers


def header(queue_id: int) -> bytes:
    fields = {
        "a": "PG", "b": "Bulk", "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0",
        "g": "1794715657242", "h": "0", "i": "WAIT\x01true\x02", "j": "0", "k": "false",
        "m": "true",
    }  # fmt: skip
    return json.dumps(
        {"code": 320, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 5,
         "serializeTypeCurrentRPC": "JSON", "version": 479}, separators=(",", ":"),
    ).encode()  # fmt: skip


def key_rows(waiting: list[Noted | NotedRows]) -> list[tuple[int, int, int]]:
    """Return hash, position and time of the keys that wait to be indexed."""
    found: list[tuple[int, int, int]] = []
    for noted in waiting:
        if isinstance(noted, NotedRows):
            hashes = memoryview(noted.hashes).cast("i")
            places = memoryview(noted.positions).cast("q")
            found += [(one, at, noted.stored_at_ms) for one, at in zip(hashes, places, strict=True)]
            continue
        topic, properties, position, stored_at_ms = noted
        keys = keys_of(properties)
        hashed = hash_pure([prefix_hash(topic)] * len(keys), keys)
        found += [(one, position, stored_at_ms) for one in hashed]
    return found


def sent(body: bytes, numbers: list[int], *, compiled: bool = False, kind: str = "named") -> Seen:
    """Send a batch to a broker of its own; return what it left behind.

    `taken` is whether the compiled module took the batch, or the way message by message did.
    """
    clock = FakeClock()
    store = Store.open(Path("/store"), StoreConfig(), FakeFiles(), clock)
    placement = SimpleNamespace(
        send_map=lambda _: SimpleNamespace(version="", digest=""), takes=lambda *_: True
    )
    broker: Any = SimpleNamespace(
        store=store, clock=clock, config=BrokerConfig(), store_host=pack_host("127.0.0.1", 10911),
        unique_ids=UniqueIds("127.0.0.1", 1, 2), producers=ProducerTable(),
        topics={"Bulk": TopicConfig("Bulk")}, resizing=SimpleNamespace(placement=placement),
    )  # fmt: skip
    connection: Any = Connection()
    table = broker.producers
    for name, named in ((NAMED, True), (ANONYMOUS, False)):
        made = table.add_queue(table.hello(name, 1, connection, named=named), "Bulk", 3)
        if kind == "aligned" and named:
            table.stored(made, ALIGNED, 0)
    path = Sends(broker)
    target = path.target("Bulk", 3)
    answers = PendingReplies(connection, NOW_MS)
    watched: Any = Watched(path._compiled) if compiled else None
    if watched is None:
        path._split = None
    else:
        path._compiled = watched.take  # type: ignore[method-assign]
    taken = path.send_v2(connection, header(3), body, answers)
    log = bytes(store.log.pending[: store.log._used])
    known = {name: table.queue_state(name, "Bulk", 3) for name in (NAMED, ANONYMOUS)}
    chosen = known[ANONYMOUS if kind == "anonymous" else NAMED]
    assert chosen is not None
    seen = Seen(
        taken if watched is None else watched.has_taken,
        log,
        bytes(target.queue.tail),
        key_rows(store.keys.waiting),
        {name: numbers.last for name, numbers in known.items() if numbers is not None},
        {number: chosen.find(number) for number in numbers},
        answers.frames,
        answers.count,
    )
    store.close()
    return seen


class Watched:
    """The compiled way, and whether it took a batch."""

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled
        self.has_taken = False

    def take(self, *words: Any) -> bool:
        self.has_taken = self.compiled(*words)
        return self.has_taken


@needs_compiled
@settings(max_examples=25, deadline=None)
@given(kind=st.sampled_from(KINDS), count=st.integers(128, 300), seed=st.integers(0, 999))
@example(kind="named", count=1024, seed=1)
def test_both_ways_leave_the_same(kind: str, count: int, seed: int):
    """Records, queue entries, keys, numbers and the reply, whatever the batch holds."""
    body, numbers = batch(kind, count, random.Random(seed))
    compiled = sent(body, numbers, compiled=True, kind=kind)
    assert compiled.taken
    assert compiled == sent(body, numbers, kind=kind)


@needs_compiled
@settings(max_examples=40, deadline=None)
@given(kind=st.sampled_from(KINDS), count=st.integers(1, 40), seed=st.integers(0, 999))
def test_small_batches_compiled_leave_the_same(kind: str, count: int, seed: int):
    """As many messages as a RocketMQ client sends at a time, or one."""
    body, numbers = batch(kind, count, random.Random(seed))
    compiled = sent(body, numbers, compiled=True, kind=kind)
    assert compiled.taken
    assert compiled == sent(body, numbers, kind=kind)


@needs_compiled
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_batches_compiled_leave_the_same(data: st.DataObject):
    """Bytes changed, cut off or put in: what is stored is what is stored message by message."""
    body = bytearray(batch(data.draw(st.sampled_from(KINDS)), 6, random.Random(1))[0])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(body) - 1))
        match data.draw(st.integers(0, 3)):
            case 0:
                del body[place:]
                body += b"\0"
            case 1:
                body[place:place] = data.draw(st.sampled_from(WORDS))
            case _:
                body[place] = data.draw(st.sampled_from(b"\x01\x02\x00\x7f\xff09UKT") | BYTES)
    whole = bytes(body)
    compiled, messages = sent(whole, [1], compiled=True), sent(whole, [1])
    assert compiled[1:] == messages[1:]


WORDS = (
    b"DELAY\x012\x02", b"TIMER_DELAY_MS\x015\x02", b"\x02\x02", b"\x01", b"\x02UNIQ_KEY\x01Z\x02",
    b"\x02TAGS\x01T\x02", b"\x02KEYS\x01a  b \x02", b"\x02INORDER_SEQ\x017\x02",
    b"\x00\x00\x00\x17", b"\xc3\xa9",
)  # fmt: skip
BYTES = st.integers(0, 255)


def members(count: int = 128, **changed: bytes) -> bytes:
    """Return a batch of a named producer, some properties of it changed."""
    found = []
    for index in range(count):
        group = (
            f"UNIQ_KEY\x01C{index:08X}\x02INORDER_PID\x01{NAMED}\x02INORDER_SEQ\x01{index}"
            f"\x02INORDER_PREV\x01{index - 1}\x02"
        ).encode()
        found.append(item(b"x" * 200, changed.get(f"at{index}", group)))
    return b"".join(found)


GROUP = f"INORDER_PID\x01{NAMED}\x02INORDER_SEQ\x01".encode()


@pytest.mark.parametrize(
    ("name", "properties"),
    [
        ("a number missing", b"UNIQ_KEY\x01C\x02"),
        ("a number that does not follow", b"UNIQ_KEY\x01C\x02" + GROUP + b"9\x02INORDER_PREV\x018"),
        ("a number that falls", b"UNIQ_KEY\x01C\x02" + GROUP + b"2\x02INORDER_PREV\x0149\x02"),
        ("two numbers", b"UNIQ_KEY\x01C\x02" + (GROUP + b"50\x02INORDER_PREV\x0149\x02") * 2),
        ("another producer", b"UNIQ_KEY\x01C\x02INORDER_PID\x01z\x02INORDER_SEQ\x0150\x02"),
        ("no predecessor", b"UNIQ_KEY\x01C\x02" + GROUP + b"50\x02"),
        ("numbers first", GROUP + b"50\x02INORDER_PREV\x0149\x02UNIQ_KEY\x01C\x02"),
        ("no id", GROUP + b"50\x02INORDER_PREV\x0149\x02"),
        ("inside of another", b"UNIQ_KEY\x01C\x02x" + GROUP + b"50\x02INORDER_PREV\x0149\x02"),
        ("wrong letters", b"UNIQ_KEY\x01C\xff\x02" + GROUP + b"50\x02INORDER_PREV\x0149\x02"),
        ("too large", b"UNIQ_KEY\x01C\x02" + GROUP + b"9" * 19 + b"\x02INORDER_PREV\x0149\x02"),
        ("a zero at the end", b"UNIQ_KEY\x01C\x02" + GROUP + b"50\x02INORDER_PREV\x0149\x02\0"),
        ("a delay", b"UNIQ_KEY\x01C\x02DELAY\x013\x02" + GROUP + b"50\x02INORDER_PREV\x0149\x02"),
        ("nothing", b""),
    ],
)
@needs_compiled
def test_batch_that_is_not_plain_is_left_to_the_other_way(name: str, properties: bytes):
    """It changes nothing before it gives up."""
    seen = sent(members(at50=properties), [1], compiled=True)
    assert not seen.taken or name == "numbers first", name
    other = sent(members(at50=properties), [1])
    assert (seen.log, seen.last, seen.keys) == (other.log, other.last, other.keys)
    assert (seen.entries, seen.frames) == (other.entries, other.frames)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=needs_compiled)])
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("no number", b"\x02INORDER_PREV\x01-1\x02", b"\x02INORDER_PREV\x01-2\x02"),
        ("a gap", b"PREV\x01-1\x02", b"PREV\x010\x02"),
        ("a stranger", NAMED.encode(), b"spark:sink:orders:b:9"),
        ("another kind", NAMED.encode(), ANONYMOUS.encode()),
    ],
)  # fmt: skip
def test_batch_that_is_not_next_is_not_taken(compiled: bool, name: str, old: bytes, new: bytes):
    """Numbers that go up by themselves say nothing: they begin behind the last one stored."""
    items = []
    for index in range(128):
        group = (
            f"UNIQ_KEY\x01C{index:08X}\x02INORDER_PID\x01{NAMED}\x02INORDER_SEQ\x01{index}"
            f"\x02INORDER_PREV\x01{index - 1}\x02"
        ).encode()
        items.append(item(b"x" * 200, group.replace(old, new)))
    seen = sent(b"".join(items), [1], compiled=compiled)
    assert not seen.taken, name
    assert (seen.log, seen.keys, seen.frames) == (b"", [], []), name


@needs_compiled
def test_a_predecessor_is_not_taken_from_the_next_message():
    """The numbers of one message end with it."""
    body = members(at50=b"UNIQ_KEY\x01C\x02" + GROUP + b"50", at51=b"INORDER_PREV\x0149\x02")
    assert not sent(body, [1], compiled=True).taken


@needs_compiled
def test_numbers_inside_of_a_body_are_no_numbers():
    """Only properties are looked at."""
    items = []
    for index in range(128):
        group = (
            f"UNIQ_KEY\x01C{index:08X}\x02INORDER_PID\x01{NAMED}\x02INORDER_SEQ\x01{index}"
            f"\x02INORDER_PREV\x01{index - 1}\x02"
        ).encode()
        items.append(item(b"\x02" + GROUP + b"7\x02" + b"x" * 100, group))
    seen = sent(b"".join(items), list(range(128)), compiled=True)
    assert seen.taken
    assert seen.last[NAMED] == 127
    assert seen == sent(b"".join(items), list(range(128)))
