"""What is fuzzed: one function per decoder, with the exceptions that it may raise.

A target takes bytes. Whatever it raises beyond its allowed exceptions is a finding, and so is a
result that does not survive being written and read again, or that two ways of reading see
differently.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from inorder.accelerated import native
from inorder.access import plainacl
from inorder.broker.groups.rules import GroupTable
from inorder.broker.leases import records as lease_records
from inorder.broker.offsets.rules import CommitTable, OffsetTable
from inorder.broker.producers.records import Encoder
from inorder.broker.producers.records import decode as decode_producers
from inorder.broker.producers.rules import ProducerTable
from inorder.broker.pulls import service as pull_service
from inorder.broker.resizing.rules import Resizes
from inorder.broker.sends import service as send_service
from inorder.broker.sends.rules import is_special, split_batch
from inorder.broker.ticks import PendingReplies
from inorder.broker.topics import rules as topic_rules
from inorder.broker.topics.rules import TopicTable
from inorder.client.consume import messages as received
from inorder.client.send.messages import pack_items_pure
from inorder.client.send.queues import DONE, UNSENT, Send, compiled
from inorder.config import BrokerConfig, ClientConfig, StoreConfig
from inorder.errors import (
    BrokerError,
    ConfigError,
    CorruptRecord,
    LocalProtocolError,
    MessageIllegal,
    RemoteProtocolError,
    StoreError,
    SubscriptionParseFailed,
    SystemError_,
)
from inorder.model import SendStatus, TopicConfig, TopicQueue
from inorder.nameserver.rules import KvTable
from inorder.net.http import QUERY_FIELDS_MAX, Refused, parse_head, split_target
from inorder.net.tls import ServerTls
from inorder.ordering.keymap import KeyMap, version_of
from inorder.store.intact import count_right
from inorder.store.journal import pack as pack_journal
from inorder.store.journal import split as split_journal
from inorder.store.keyindex import hash_pure, keys_of
from inorder.store.layout import ENTRY
from inorder.store.store import Store
from inorder.testing.clock import FakeClock
from inorder.wire import fastjson, properties, record
from inorder.wire.compression import decompress_body
from inorder.wire.fields import decode_fields, encode_fields, wire_names
from inorder.wire.frame import FrameDecoder, RawFrame, frame
from inorder.wire.header import HEADER_BYTES_MAX, Command, decode_command, encode_header
from inorder.wire.ids import UniqueIds, offset_message_id, pack_host, parse_message_id
from inorder.wire.properties import PROPERTIES_BYTES_MAX
from inorder.wire.requests import (
    groups,
    nameserver,
    offsets,
    parking,
    pulls,
    routes,
    sends,
    topics,
)
from inorder.wire.requests import leases as lease_requests
from inorder.wire.requests.groups import (
    ClientConfigCheck,
    ClientHeartbeat,
    decode_group_config,
    decode_group_configs,
    encode_group_config,
    encode_group_configs,
)
from inorder.wire.requests.groups import GroupTable as GroupTableBody
from inorder.wire.requests.leases import LockBatchBody, LockedQueues
from inorder.wire.requests.nameserver import (
    decode_consumer_ids,
    decode_group_list,
    decode_kv_table,
    decode_settings,
    decode_topic_list,
    encode_consumer_ids,
    encode_group_list,
    encode_kv_table,
    encode_topic_list,
)
from inorder.wire.requests.producers import NUMBER_MAX, read_numbered
from inorder.wire.requests.pulls import parse_subscription
from inorder.wire.requests.registration import RegisterBrokerBody
from inorder.wire.requests.resizing import decode_resize_view, encode_resize_view
from inorder.wire.requests.routes import BrokerMemberGroup, ClusterInfo, TopicRoute
from inorder.wire.requests.sends import BatchItem, decode_batch, encode_batch
from inorder.wire.requests.topics import TopicTable as TopicTableBody
from inorder.wire.requests.topics import (
    decode_data_version,
    decode_topic_config,
    decode_topic_configs,
    encode_data_version,
    encode_topic_config,
    encode_topic_configs,
)
from tests.kit import twinsends
from tests.kit.disk import FakeFiles
from tests.kit.headers import headers_of
from tests.kit.storing import append, contents, write_and_publish
from tests.kit.twinbrokers import rows_of
from tests.kit.twinsends import Making

FRAME_LIMIT = 1 << 16


@dataclass(frozen=True)
class Target:
    """A function to call with bytes, and what it may raise."""

    name: str
    run: Callable[[bytes], None]
    allowed: tuple[type[Exception], ...]

    def __call__(self, data: bytes) -> None:
        """Try one input; what is allowed is swallowed."""
        try:
            self.run(data)
        except self.allowed:
            pass


TARGETS: dict[str, Target] = {}


def target(
    *allowed: type[Exception],
) -> Callable[[Callable[[bytes], None]], Callable[[bytes], None]]:
    """Put a function into the table."""

    def put(function: Callable[[bytes], None]) -> Callable[[bytes], None]:
        name = function.__name__
        TARGETS[name] = Target(name, function, allowed)
        return function

    return put


def same(left: object, right: object) -> None:
    """Fail unless both are equal."""
    assert left == right, f"{left!r:.300} is not {right!r:.300}"


# HTTP, of the admin port.


@target(Refused)
def http_head(data: bytes) -> None:
    """A head is refused, or says the same when it is written again."""
    head = parse_head(data)
    path, query = split_target(head.target)
    assert path.startswith("/")
    assert ".." not in path.split("/")
    assert len(query) <= QUERY_FIELDS_MAX
    assert 0 <= head.body_bytes < 10**15
    lines = [f"{head.method} {head.target} {head.version}"]
    lines += [f"{name}: {value}" for name, value in head.headers.items()]
    same(parse_head("\r\n".join(lines).encode("latin-1")), head)


# Frames and headers.


def _frames(pieces: list[bytes]) -> tuple[list[RawFrame], bool]:
    decoder = FrameDecoder(FRAME_LIMIT)
    found: list[RawFrame] = []
    try:
        for piece in pieces:
            found += decoder.receive_data(piece)
            assert decoder.pending_bytes <= sum(map(len, pieces))
    except RemoteProtocolError:
        return found, True
    return found, False


@target()
def frame_stream(data: bytes) -> None:
    """However the stream is cut, the same frames come out, and the same end."""
    if len(data) < 2:
        return
    step, stream = data[0] % 64 + 1, data[1:]
    whole, broken = _frames([stream])
    cut, cut_broken = _frames([stream[i : i + step] for i in range(0, len(stream), step)])
    same(broken, cut_broken)
    # In one piece the frames before the broken one are not handed out.
    same(whole, [] if broken else cut)
    for serializer, header, body in cut:
        assert serializer in (0, 1)
        assert len(header) + len(body) <= FRAME_LIMIT


def _header(serializer: int, data: bytes) -> None:
    command = decode_command((serializer, data, b""))
    try:
        again = decode_command((serializer, encode_header(command), b""))
    except LocalProtocolError:
        return  # what JSON brought may not fit the other serializer's numbers
    again.has_fields = command.has_fields
    if command.serializer == 1:
        command.remark = command.remark or None
    same(again, command)


@target(RemoteProtocolError)
def json_header(data: bytes) -> None:
    _header(0, data)


@target(RemoteProtocolError)
def binary_header(data: bytes) -> None:
    _header(1, data)


REQUESTS = headers_of((topics, groups, lease_requests, nameserver, offsets, pulls, routes, sends))


@target(SystemError_)
def typed_fields(data: bytes) -> None:
    """Every request and reply class: one byte chooses it, the values follow, parted by zeros."""
    if not data:
        return
    cls = REQUESTS[data[0] % len(REQUESTS)]
    values = data[1:].decode("utf-8", "replace").split("\x00")
    fields = dict(zip(wire_names(cls), values, strict=False))
    decoded = decode_fields(cls, fields)
    written = encode_fields(decoded)
    # An empty text of a number means that it is absent.
    same(decode_fields(cls, written), decoded)


_hot_send = msgspec.json.Decoder(send_service._SendHeader, strict=False).decode
_hot_pull = msgspec.json.Decoder(pull_service._PullHeader, strict=False).decode


# The short cuts do not look at fields that they do not need, so the general way may refuse more.
@target(msgspec.MsgspecError, UnicodeError, RemoteProtocolError, SystemError_)
def hot_send_header(data: bytes) -> None:
    """What both the short cut of sends and the general way accept means the same to both."""
    read = _hot_send(b'{"code":310,' + data)
    command = decode_command((0, b'{"code":310,' + data, b""))
    if command.code != 310:
        return  # the last of two codes counts; the short cut has seen the first
    request = sends.SendMessage.from_fields_v2(command.fields)
    fields = read.extFields
    same((fields.b, fields.e, fields.f), (request.topic, request.queue_id, request.sys_flag))
    same((fields.g, fields.h), (request.born_at_ms, request.flag))
    same(fields.i, request.properties or "")
    same((read.opaque, read.flag & 3), (command.request_id, command.flag & 3))


@target(msgspec.MsgspecError, UnicodeError, RemoteProtocolError, SystemError_)
def hot_pull_header(data: bytes) -> None:
    """The same for pull_service."""
    read = _hot_pull(b'{"code":11,' + data)
    command = decode_command((0, b'{"code":11,' + data, b""))
    request = decode_fields(pulls.PullMessage, command.fields)
    fields = read.extFields
    same((fields.topic, fields.queue_id, fields.offset, fields.sys_flag),
         (request.topic, request.queue_id, request.queue_offset, request.sys_flag))  # fmt: skip
    same((read.opaque, read.flag & 3), (command.request_id, command.flag & 3))


# Records.


@target(CorruptRecord)
def record_decode(data: bytes) -> None:
    found = record.decode(data, check_crc=False)
    if "\ufffd" in found.topic:
        return  # it stands for bytes that were no text
    again = record.decode(record.encode(dataclasses.replace(found, body_crc=None)))
    again.body_crc = found.body_crc
    same(again, found)


@target()
def record_scan(data: bytes) -> None:
    """A scan never fails: it stops; and what it passes, `check` passes too."""
    at = 0
    for one in record.scan(data, 0, len(data), position_of_at=0, check_crc=False):
        same(one.position, at)
        same(record.check(data, at, len(data), position=at, check_crc=False), one.size)
        at += one.size
    assert at <= len(data)


@target(CorruptRecord)
def record_list(data: bytes) -> None:
    record.decode_all(data, check_crc=False)


@target(MessageIllegal)
def batch(data: bytes) -> None:
    """Both ways of splitting a batch agree on what they both accept."""
    items = decode_batch(data)
    same(decode_batch(encode_batch(items)), items)
    quick = split_batch(data, 1 << 22)
    if quick is not None:
        same([(flag, data[at : at + size]) for flag, at, size, _ in quick],
             [(item.flag, item.body) for item in items])  # fmt: skip


@target()
def batch_short_cut(data: bytes) -> None:
    """What the short cut accepts, the general way accepts."""
    if split_batch(data, 1 << 22) is not None:
        decode_batch(data)


def numbered(index: int) -> bytes:
    """Return a message of a batch with a producer's number."""
    text = (
        f"UNIQ_KEY\x01C{index:08X}\x02INORDER_PID\x01fuzz\x02INORDER_SEQ\x01{500 + index}"
        f"\x02INORDER_PREV\x01{499 + index}\x02"
    ).encode()
    return encode_batch([BatchItem(0, b"x", text)])


_BEFORE = b"".join(map(numbered, range(64)))
_AFTER = b"".join(map(numbered, range(65, 129)))


@target()
def compiled_batch(data: bytes) -> None:
    """A batch that the compiled module takes has the messages that the codec finds in it."""
    for whole in (data, _BEFORE + data, _BEFORE + data + _AFTER):
        found = None if native is None else native.split(whole, 1 << 22)
        if found is None:
            continue
        items = decode_batch(whole)
        same(found.count, len(items))
        texts = [item.properties.decode("ascii") for item in items]
        named = [read_numbered(text) for text in texts]
        if found.producer is None:
            same(named, [None] * len(items))
        else:
            numbers = array("q", found.numbers())
            wanted = [(found.producer.decode(), number) for number in numbers]
            same([one[:2] for one in named if one is not None], wanted)
        room = bytearray(found.size_of(88 + 4))
        entries = found.pack(room, 0, bytes(88), b"\x03Top", 0, 0, zlib.crc32)
        same(len(entries), 20 * len(items))
        same(room.count(b"\x03Top") >= len(items), True)
        hashes, places = found.key_rows(7)
        keys = [key for item in items for key in keys_of(item.properties)]
        same(memoryview(hashes).cast("i").tolist(), hash_pure([7] * len(keys), keys))
        same(len(places), 2 * len(hashes))
        found.ids(b"7F000001")


class _Client:
    """A connection, as far as the hot path looks at it."""

    peer_host = pack_host("127.0.0.1", 5000)
    closed = False


class _Sending:
    """The hot path of sends over a store in memory, whose ticks are taken back."""

    def __init__(self) -> None:
        self.store = Store.open(Path("/store"), StoreConfig(), FakeFiles(), FakeClock())
        placement = SimpleNamespace(
            send_map=lambda _: SimpleNamespace(version="", digest=""), takes=lambda *_: True
        )
        topics = {name: TopicConfig(name) for name in ("Bench", "BenchTopic")}
        broker: Any = SimpleNamespace(
            store=self.store, clock=FakeClock(), config=BrokerConfig(), topics=topics,
            store_host=pack_host("127.0.0.1", 10911), unique_ids=UniqueIds("127.0.0.1", 1, 2),
            producers=ProducerTable(), resizing=SimpleNamespace(placement=placement),
        )  # fmt: skip
        self.producers = broker.producers
        self.store.companions.append(self.producers)
        self.connection: Any = _Client()
        producer = self.producers.hello("fuzz", 1, self.connection, named=False)
        self.sends = send_service.Sends(broker)
        for topic in topics:
            for queue_id in range(8):
                self.sends.target(topic, queue_id)
                self.producers.add_queue(producer, topic, queue_id)
        self.store.log.reserve(100)
        self.store.write_tick()  # from here on there is room in the log

    def left(self) -> list[object]:
        """Return what the open tick holds, and take it back."""
        store, log = self.store, self.store.log
        at, _, _ = log.open_room()
        rows = rows_of(store.keys.waiting)
        tails = [bytes(queue.tail) for queue in store.queues.loaded() if queue.tail]
        numbers = [state.last for one in self.producers for state in one.queues.values()]
        found = [bytes(log.pending[:at]), tails, rows, numbers]
        log.took(0, -1)
        store.queues.roll_back()
        store.keys.roll_back()
        self.producers.roll_back()
        return found


_sending: list[_Sending] = []


@target()
def compiled_send(data: bytes) -> None:
    """A send that the compiled module takes is stored as Python does; another changes nothing."""
    if native is None:
        return
    if not _sending:
        _sending.extend((_Sending(), _Sending()))
    one, other = _sending
    for serializer in (0, 1):
        whole = (serializer, data, b"body")
        answers = PendingReplies(one.connection, 7)
        taken = one.sends.take_plain(one.connection, [whole], 0, answers)
        left = one.left()
        if not taken:
            same((left[:3], answers.frames), ([b"", [], []], []))
            continue
        command = decode_command(whole)
        header = encode_header(
            Command(
                command.code, command.request_id, command.flag, command.fields,
                language=command.language, version=command.version,
            )
        )  # fmt: skip
        twin = PendingReplies(other.connection, 7)
        serve = other.sends.send_long if command.code == 10 else other.sends.send_v2
        same(serve(other.connection, data if whole[0] == 0 else header, b"body", twin), True)
        same(left, other.left())
        same(answers.count, twin.count)
        found, wanted = (
            [
                decode_command(each)
                for piece in one_way
                for each in FrameDecoder().receive_data(piece)
            ]
            for one_way in (answers.frames, twin.frames)
        )
        same([each.fields for each in found], [each.fields for each in wanted])
        same([each.request_id for each in found], [each.request_id for each in wanted])


class _Bytes:
    """Reads an input as choices; behind its end there are zeros."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        self._at += size
        return found

    def number(self, size: int = 1) -> int:
        return int.from_bytes(self.take(size), "big")

    def one_of(self, values: Sequence[Any]) -> Any:
        return values[self.number() % len(values)]


class _SubText(str):
    __slots__ = ()


class _SubBytes(bytes):
    __slots__ = ()


_SMALL = ClientConfig(message_bytes_max=300, compress_above_bytes=200, compression="zlib")
_BODY_SIZES = (1, 7, 0, 199, 198, 200, 300, 301, 2)
_RAW_SIZES = (9, 0, 40, 32_600, 32_700, PROPERTIES_BYTES_MAX, PROPERTIES_BYTES_MAX + 1)
_SENDS_MAX = 24


@functools.cache
def _making() -> Making:
    return Making(_SMALL)


def _references(things: Sequence[object]) -> list[int]:
    return [sys.getrefcount(thing) for thing in things]


@target()
def compiled_producer(data: bytes) -> None:
    """A producer's messages: made, queued, packed, written and stored as in Python.

    What is damaged is refused before a slot is read, and nothing is kept or dropped too often.
    """
    if compiled is None:
        return
    choices = _Bytes(data)
    bytes_max, first = choices.one_of((60, 200, 500, 100_000)), choices.number(8) >> 1
    head, damage = choices.take(choices.number() % 80), choices.number()
    kinds: list[dict[str, Any]] = []
    while choices and len(kinds) < _SENDS_MAX:
        kinds.append(_kind(choices))
    if not kinds:
        return
    # What is in all that is made, and in nothing that is left at the end. Short ones are shared.
    things = [kind[name] for kind in kinds for name in ("body", "raw", "key")]
    things = [thing for thing in (head, *things) if thing is not None and len(thing) > 1]
    things += [twinsends.QUEUE, *twinsends.MAPS[1:]]
    before = _references(things)
    _make_alike(kinds)
    _travel_alike(kinds, bytes_max, head, min(first, NUMBER_MAX - _SENDS_MAX))
    _refuse_damaged(kinds, damage)
    same(_references(things), before)


def _kind(choices: _Bytes) -> dict[str, Any]:
    bits = choices.number(2)
    size = choices.one_of(_BODY_SIZES)
    key: Any = choices.take(choices.one_of((0, 1, 3, 8, 255, 256))).decode(
        "utf-8", "surrogateescape"
    )
    return {
        # What a caller gives.
        "topic": choices.one_of(("orders", "t", "no topic", "", "x" * 127, "x" * 128, b"t", None)),
        "body": bytes([bits & 0xFF]) * size,
        "key": choices.one_of((key, key, key, None, "k" * 255, _SubText(key), key.encode(
            "utf-8", "surrogateescape"), "a\x01b\x02")),
        # What became of it.
        "raw": choices.take(3).ljust(choices.one_of(_RAW_SIZES), b"r"),
        "flag": choices.one_of((0, 1, -1, 2**31 - 1, -(2**31))),
        "size": size,
        "placed": twinsends.MAPS[bits & 3],
        "sys_flag": bits >> 2 & bits >> 3 & 1,
        "joins": bits >> 4 & 3 != 0,
        "state": DONE if bits >> 6 & 7 == 7 else UNSENT,
        "cancelled": bits >> 9 & 7 == 7,
        "ours": bits >> 12 & 1 == 0,
        "locked": bits >> 13 & 1 == 1,
        "patient": bits >> 14 & 1 == 0,
        "over": bits >> 15 & 1 == 1,
        "tries": bits & 2,
    }  # fmt: skip


def _make_alike(kinds: Sequence[dict[str, Any]]) -> None:
    """What the module makes is what Python makes; else nothing has changed."""
    assert compiled is not None
    making = _making()
    room, sends = making.room, []
    for kind in kinds:
        topic, body, key = kind["topic"], kind["body"], kind["key"]
        if kind["over"]:
            body = _SubBytes(body)
        send = making.make(topic, body, key)
        same(len(making.taken), len(sends) + (send is not None))
        if send is None:
            continue
        sends.append(send)
        same(twinsends.as_made(send), twinsends.as_made(making.twin(topic, body, key)))
        (id_,) = send.part.ids
        found = properties.parse(send.part.raw.decode())
        same(
            found,
            {"UNIQ_KEY": id_, "WAIT": "true"} | ({} if key is None else {"__SHARDINGKEY": key}),
        )
    same(compiled.drain(making.taken, len(sends)), sends)
    size = sum(len(send.part.body) for send in sends)
    same((room.messages, room.bytes), (len(sends), size))
    room.leave(len(sends), size)
    if sends:
        compiled.stored(sends, twinsends.QUEUE, range(len(sends)), SendStatus.OK)
    for offset, send in enumerate(sends):
        receipt = send.waiter.result(0)
        same((receipt.message_id, receipt.offset), (send.part.ids[0], offset))


def _travel_alike(kinds: list[dict[str, Any]], bytes_max: int, head: bytes, first: int) -> None:
    """Both put the same sends into the same requests, and give the same receipts."""
    assert compiled is not None
    ways = (twinsends.travel(kinds, bytes_max), twinsends.receipts(kinds, first))
    with twinsends.in_python():
        same(ways, (twinsends.travel(kinds, bytes_max), twinsends.receipts(kinds, first)))
    sends = [twinsends.made(kind, at) for at, kind in enumerate(kinds)]
    parts = [send.part for send in sends]
    body = compiled.pack(sends, head, first)
    try:
        wanted = pack_items_pure(
            [part.body for part in parts], [part.raw or b"" for part in parts],
            [part.flag for part in parts], head, first,
        )  # fmt: skip
    except LocalProtocolError:
        wanted = None
    same(body, wanted)
    same(compiled.wanted(sends), [send for send in sends if not send.waiter.done()])
    same(compiled.written(sends, None, 7), sum(kind["tries"] > 0 for kind in kinds))
    same([send.tries for send in sends], [kind["tries"] + 1 for kind in kinds])
    by_key: dict[Any, Any] = {kinds[0]["key"]: 1} if kinds[0]["key"] else {}
    groups: dict[Any, list[Send]] = {}
    at, due = compiled.place(sends, 0, "t", by_key, twinsends.MAPS[1], groups, 990)
    stop = next((n for n, send in enumerate(sends) if send.key not in by_key), len(sends))
    same((at, due), (stop, min([990, *(1000 - n for n in range(stop))])))
    same(groups, {1: sends[:stop]} if stop else {})


class _Odd:
    """Stands where a send, a content, a future or a value should be."""

    def __index__(self) -> int:
        return 3


_ODD_VALUES: tuple[Any, ...] = (None, "x", 2**70, -(2**70), -1, (), ("a", "b"), ["a"], b"", _Odd())
_ODD_PLACES = (
    "part", "waiter", "size", "tries", "state", "joins", "placed", "deadline_ms", "key", "over",
    "part.body", "part.raw", "part.flag", "part.ids", "part.bytes_together", "part.sys_flag",
)  # fmt: skip


def _refuse_damaged(kinds: list[dict[str, Any]], damage: int) -> None:
    """A value of another type, or an empty slot, somewhere in one of the sends."""
    assert compiled is not None
    place, value = _ODD_PLACES[damage % len(_ODD_PLACES)], _ODD_VALUES[damage % len(_ODD_VALUES)]
    for is_empty in (False, True):
        for number in range(len(_calls([]))):
            sends: list[Any] = [twinsends.made(kind, at) for at, kind in enumerate(kinds[:4])]
            send = sends[damage % len(sends)]
            holder, name = (send.part, place[5:]) if "." in place else (send, place)
            if is_empty:
                delattr(holder, name)
            else:
                setattr(holder, name, value)
            if damage >> 6 == 3:
                sends[-1] = value
            with contextlib.suppress(TypeError, AttributeError, ValueError, OverflowError):
                _calls(sends)[number]()


def _calls(sends: list[Any]) -> tuple[Callable[[], object], ...]:
    module: Any = compiled
    return (
        lambda: module.wanted(sends),
        lambda: module.pack(sends, b"h", 5),
        lambda: module.written(sends, None, 7),
        lambda: module.stored(sends, twinsends.QUEUE, range(len(sends)), SendStatus.OK),
        lambda: module.place(sends, 0, "t", {"k": 1}, b"", {}, 990),
        lambda: module.take_alike(deque(sends[1:]), sends[:1], 9, 10_000, 4),
        lambda: module.together(sends),
        lambda: module.confirm(sends),
        lambda: module.trim(deque(sends)),
    )


@target()
def compiled_frames(data: bytes) -> None:
    """The frames at the front are those that Python finds; it stops before an odd one."""
    if native is None:
        return
    found, at = native.split_frames(data, FRAME_LIMIT, HEADER_BYTES_MAX)
    same(b"".join(frame(*one) for one in found), data[:at])
    wanted, broken = _frames([data])
    if not broken:
        same(found, wanted)


_STORED_SIZE = len(record.encode(record.Record("Top", 0, 0, 0, b"body", b"")))
_STORED = b"".join(
    record.encode(record.Record("Top", 0, n, n * _STORED_SIZE, b"body", b"")) for n in range(3)
)
_ANSWERS = None if native is None else native.PullAnswers((b"%",) * 7, 1 << 16)


@target()
def compiled_pull(data: bytes) -> None:
    """The answer to a pull holds the records that entries lead to, or none is made."""
    if _ANSWERS is None:
        return
    view = bytearray(_STORED)
    for at, mask in zip(data[::2], data[1::2], strict=False):
        view[at * 3 % len(view)] ^= mask
    size = len(_STORED) // 3
    entries = b"".join(ENTRY.pack(size * n, size, n % 2) for n in range(3))
    for wanted, numbers in ((None, (0, 1, 2)), (frozenset((0,)), (0, 2)), (frozenset((1,)), (1,))):
        right = count_right(entries, memoryview(view), 0, len(view), b"Top", 0, 0, wanted)
        made = _ANSWERS.found(
            entries, view, 0, len(view), b"Top", 0, 0, 32, 1 << 16, wanted, 0, 3, 0, 0, 7
        )
        if right < 3:
            same(made, None)
            continue
        records_of = b"".join(view[size * n : size * n + size] for n in numbers)
        same(
            (made[0][-len(records_of) :], *made[1:]), (records_of, 3, len(numbers), len(records_of))
        )


@target(CorruptRecord)
def compiled_answer(data: bytes) -> None:
    """A pull answer that the compiled module takes holds the records that the codec finds."""
    found = None if native is None else native.read_records(data, True, zlib.crc32)
    if found is None:
        return
    table = memoryview(found).cast("q")
    count = len(table) // 17
    records = record.decode_all(data)
    same([one.queue_offset for one in records], table[2 * count : 3 * count].tolist())
    starts, ends = table[12 * count : 13 * count].tolist(), table[13 * count : 14 * count].tolist()
    same([one.body for one in records], [data[a:b] for a, b in zip(starts, ends, strict=True)])


_RECORDS = b"".join(
    record.encode(record.Record("Top", 0, index, 0, b"x", b"UNIQ_KEY\x01u\x02TAGS\x01a\x02"))
    for index in range(3)
)


def _queue_of(topic: bytes, queue_id: int) -> TopicQueue:
    return TopicQueue(topic.decode("utf-8", "replace"), "broker-a", queue_id)


@target()
def compiled_messages(data: bytes) -> None:
    """The messages that the compiled module makes are those of its twin, and both stop alike."""
    if received._read_plain is None:
        return
    for whole in (data, _RECORDS + data, _RECORDS + data + _RECORDS):
        found: list[Any] = []
        twins: list[Any] = []
        at = received._read_plain(whole, 0, found, _queue_of, None)
        same(at, received._plain(whole, 0, twins, _queue_of, None))
        same(found, twins)
        same([(one.key, one.tag) for one in found], [(one.key, one.tag) for one in twins])


@target()
def message_properties(data: bytes) -> None:
    """One property found in the raw bytes is what the whole table says."""
    table = properties.parse(data)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    for name in (*list(table)[:20], "TAGS", "KEYS"):
        found = properties.get(data, name.encode())
        same(None if found is None else found.decode(), table.get(name))
    same(properties.parse(text), table)
    if all("\x01" not in value for value in table.values()):
        same(properties.parse(properties.format_properties(table)), table)
    is_special(text)


@target(RemoteProtocolError)
def message_id(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    ip, port, position = parse_message_id(text)
    same(offset_message_id(pack_host(ip, port), position), text.upper())


@target(CorruptRecord, LocalProtocolError)
def compressed_body(data: bytes) -> None:
    """Nothing ever grows beyond its limit."""
    if len(data) > 1:
        flags = (0x1, 0x101, 0x201, 0x301, 0x701)[data[0] % 5]
        assert len(decompress_body(flags, data[1:], limit=100_000)) <= 100_000


# JSON bodies.


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


@target(RemoteProtocolError)
def fast_json(data: bytes) -> None:
    value = fastjson.loads(data)
    for pretty in (False, True):
        try:
            text = fastjson.dumps(value, pretty=pretty)
        except LocalProtocolError:
            return
        same(fastjson.loads(text), _without_nulls(value))


BODIES: list[tuple[Callable[[bytes], Any], Callable[[Any], bytes] | None]] = [
    (ClientHeartbeat.decode, ClientHeartbeat.encode),
    (ClientConfigCheck.decode, lambda v: b"{}" if v is None else v.encode()),
    (LockBatchBody.decode, LockBatchBody.encode),
    (LockedQueues.decode, LockedQueues.encode),
    (TopicTableBody.decode, TopicTableBody.encode),
    (GroupTableBody.decode, GroupTableBody.encode),
    (decode_group_config, encode_group_config),
    (decode_group_configs, encode_group_configs),
    (decode_topic_config, encode_topic_config),
    (decode_topic_configs, encode_topic_configs),
    (decode_data_version, encode_data_version),
    (decode_consumer_ids, encode_consumer_ids),
    (decode_topic_list, encode_topic_list),
    (decode_group_list, encode_group_list),
    (decode_kv_table, encode_kv_table),
    (decode_settings, None),
    (parking.ParkBody.decode, parking.ParkBody.encode),
    (parking.ParkAnswer.decode, parking.ParkAnswer.encode),
    (parking.QueueParking.decode, parking.QueueParking.encode),
    (parking.ParkedPage.decode, parking.ParkedPage.encode),
    (parking.KeyList.decode, parking.KeyList.encode),
    (parking.RedrivenBody.decode, parking.RedrivenBody.encode),
    (parking.MoveBody.decode, parking.MoveBody.encode),
]


@target(RemoteProtocolError, SystemError_, SubscriptionParseFailed)
def json_bodies(data: bytes) -> None:
    """Every typed body: one byte chooses it."""
    if not data:
        return
    decode, encode = BODIES[data[0] % len(BODIES)]
    value = decode(data[1:])
    if encode is not None:
        same(decode(encode(value)), value)


@target(RemoteProtocolError)
def route_data(data: bytes) -> None:
    if not data:
        return
    kind = (TopicRoute, ClusterInfo, BrokerMemberGroup)[data[0] % 3]
    value = kind.decode(data[1:])
    same(kind.decode(value.encode()), value)


@target(SystemError_)
def register_broker(data: bytes) -> None:
    """The three forms; the compressed one both as it comes and around any content."""
    if len(data) < 2:
        return
    version, form, rest = (479, 400, 10)[data[0] % 3], data[0] // 3 % 3, data[1:]
    raw = zlib.compress(rest, 1) if form == 2 else rest
    body = RegisterBrokerBody.decode(raw, version=version, compressed=form > 0)
    if version >= 400:
        again = RegisterBrokerBody.decode(body.encode(), version=version)
        same(again, body)


@target(SubscriptionParseFailed)
def subscription(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    found = parse_subscription("topic", text)
    assert len(found.tag_hashes) <= len(found.tags) <= 1024
    same(parse_subscription("topic", found.expression), found)


@target(BrokerError)
def topic_attributes(data: bytes) -> None:
    changes = topic_rules.parse_changes(data.decode("utf-8", "replace"))
    for create in (True, False):
        topic_rules.alter({}, changes, create=create)


@target(RemoteProtocolError)
def key_map(data: bytes) -> None:
    """A map that is read is written as one that is equal, and its version is found by itself."""
    text = data.decode("utf-8", "replace")
    found = KeyMap.decode(text)
    same(KeyMap.decode(found.encode()), found)
    same(version_of(text), found.version)


@target(RemoteProtocolError)
def resize_view(data: bytes) -> None:
    """What a broker tells of a resize, and what it keeps of it in its file."""
    Resizes().decode(data)
    found = decode_resize_view(data)
    same(decode_resize_view(encode_resize_view(found)), found)


@target(MessageIllegal)
def message_numbers(data: bytes) -> None:
    """Numbers that are read stand in the properties as such."""
    text = data.decode("utf-8", "replace")
    found = read_numbered(text)
    if found is not None:
        producer_id, number, before = found
        assert producer_id
        assert 0 <= number <= NUMBER_MAX
        assert before is None or before >= -1
        assert f"INORDER_PID\x01{producer_id}" in text.split("\x02")


_LEASE_BODIES = (
    lease_requests.LeaseBody,
    lease_requests.LeaseAnswer,
    lease_requests.CommitBody,
    lease_requests.CommitAnswer,
    lease_requests.LeasePage,
)


@target(RemoteProtocolError, SystemError_)
def leases(data: bytes) -> None:
    """Leases, commits and lists of them: what is read survives being written."""
    cls = _LEASE_BODIES[data[0] % len(_LEASE_BODIES)] if data else lease_requests.LeaseBody
    found = cls.decode(data[1:])
    same(cls.decode(found.encode()), found)


# Files.


@target(RemoteProtocolError)
def owner_records(data: bytes) -> None:
    """The journal of owners: what is whole is read, and says the same again."""
    payloads, end = split_journal(data)
    same(b"".join(map(pack_journal, payloads)), data[:end])
    records = [lease_records.decode(payload) for payload in payloads]
    same([lease_records.decode(lease_records.encode(one)) for one in records], records)
    offsets_table, commits = OffsetTable(now_ms=0), CommitTable()
    lease_records.replay(records, offsets_table, commits, now_ms=0)


@target(RemoteProtocolError)
def producers_file(data: bytes) -> None:
    """inorderProducers.bin: with a right checksum, too, only what makes sense is read."""
    for content in (data, data[:-4] + zlib.crc32(data[:-4]).to_bytes(4, "big")):
        saved = decode_producers(content)
        table: ProducerTable[str] = ProducerTable(producers_max=1000)
        saved.restore(table)
        encoder = Encoder(table, saved.replay_from)
        while encoder.step():
            pass
        again = decode_producers(encoder.finish(saved.depends_on, saved.log_crc))
        same((again.replay_from, again.depends_on), (saved.replay_from, saved.depends_on))


@target(RemoteProtocolError)
def config_files(data: bytes) -> None:
    """topics.json, subscriptionGroup.json, consumerOffset.json, kvConfig.json."""
    if not data:
        return
    content = data[1:]
    kind = data[0] % 4
    if kind == 3:
        same(KvTable.decode(KvTable.decode(content).encode())._spaces,
             KvTable.decode(content)._spaces)  # fmt: skip
        return
    tables = [_new_table(kind), _new_table(kind)]
    tables[0].decode(content)
    text = tables[0].encode()
    tables[1].decode(text)
    same(tables[1].encode(), text)


def _new_table(kind: int) -> Any:
    if kind == 0:
        return TopicTable(cluster="c", broker="b", now_ms=1)
    return GroupTable(now_ms=1) if kind == 1 else OffsetTable(now_ms=1)


ROOT = Path("/store")
CONFIG = StoreConfig(
    segment_bytes=16_384, queue_file_bytes=400, index_slots=16, index_entries=64,
    flush_interval_ms=1, message_bytes_max=4096,
)  # fmt: skip


@functools.cache
def _small_store() -> tuple[FakeFiles, list[str], int]:
    """Return the files of a store that was killed, which of them to damage, and its messages."""
    files = FakeFiles()
    store = Store.open(ROOT, CONFIG, files, FakeClock())
    count = 0
    for index in range(60):
        append(store, f"t{index % 2}", index % 3, b"x" * (index * 5 + 1), tag="a", keys=f"k{index}",
               unique=f"u{index}")  # fmt: skip
        write_and_publish(store)
        count += 1
    store.housekeep(1)
    store.sync()
    killed = files.kill()
    return killed, sorted(name for name, size in killed.tree().items() if size), count


@target(StoreError)
def store_files(data: bytes) -> None:
    """Any file of the store with any bytes changed: it opens without them, or says why not."""
    if len(data) < 4:
        return
    template, paths, count = _small_store()
    files = template.kill()
    path = Path(paths[data[0] % len(paths)])
    size = files.info(path).size
    patch = data[3:67]
    at = int.from_bytes(data[1:3], "big") % size
    files.write(path, patch[: size - at], at)
    store = Store.open(ROOT, CONFIG, files, FakeClock())
    found = contents(store)
    assert sum(map(len, found.values())) <= count
    served = [body for entries in found.values() for _, body in entries]
    assert all(body == b"x" * len(body) for body in served), "a body that nobody sent is served"
    store.close()


# Files of operators.


@target(ConfigError)
def acl_file(data: bytes) -> None:
    """An account that is taken has what it needs, and no error shows a secret."""
    text = plainacl.decode(data, "f.yml")
    try:
        found = plainacl.accounts([("f.yml", text)])
    except ConfigError as error:
        said = str(error)
        found = None
    if found is None:
        assert said.startswith("f.yml")
        assert "battery-staple" not in said
        return
    for name, account in found.accounts.items():
        assert name == account.access_key
        assert min(len(name), len(account.secret_key)) >= plainacl.KEY_CHARACTERS_MIN
        assert text.count(name) or "\\" in text or "''" in text, (
            "a name that the file does not have"
        )
    assert all(1 <= one.place.line <= text.count("\n") + 1 for one in found.remarks)


# TLS.


@functools.cache
def _server_tls() -> ServerTls:
    return ServerTls()


@target(RemoteProtocolError)
def tls_first_bytes(data: bytes) -> None:
    session = _server_tls().session(1_700_000_000_000)
    for at in range(0, len(data), 97):
        session.receive(b"\x16" + data[at : at + 97] if not at else data[at : at + 97])
        assert len(session.outgoing()) < 1 << 20
