"""The worked examples of the protocol's description, byte for byte."""

from __future__ import annotations

import pytest

from inorder.wire import ids, record
from inorder.wire.codes import LanguageCode, RequestCode
from inorder.wire.frame import FrameDecoder, encode_frame
from inorder.wire.header import Command, decode_command
from inorder.wire.ids import java_hash, offset_message_id
from inorder.wire.requests.sends import BatchItem, decode_batch, encode_batch

HELLO = bytes.fromhex(
    "000000b5daa320a769c865ed000000020000000000000000000000050000000000000400000000000000018bcfe56800"
    "0a0000090000c3500000018bcfe5687b0a00000100002a9f0000000000000000000000000000000e48656c6c6f20526f"
    "636b65744d5106546f706963410046544147530154616741024b455953016b3102554e49515f4b455901374630303030"
    "30313030303130303030303030303030303030303041303030300257414954017472756502"
)
HELLO_RECORD = record.Record(
    topic="TopicA",
    queue_id=2,
    queue_offset=5,
    position=1024,
    body=b"Hello RocketMQ",
    properties=b"TAGS\x01TagA\x02KEYS\x01k1\x02UNIQ_KEY\x017F0000010001000000000000000A0000\x02"
    b"WAIT\x01true\x02",
    born_at_ms=1700000000000,
    born_host=ids.pack_host("10.0.0.9", 50000),
    stored_at_ms=1700000000123,
    store_host=ids.pack_host("10.0.0.1", 10911),
)
SHORT = bytes.fromhex(
    "00000073daa320a777d18982000000030000000000000000000000070000000000000400000000000000"
    "01932b6724007f00000100001388000001932b67247b7f00000100002a9f00000000000000000000000000000005"
    "48656c6c6f01540012544147530154616741024b455953016b3102"
)
SHORT_RECORD = record.Record(
    topic="T",
    queue_id=3,
    queue_offset=7,
    position=1024,
    body=b"Hello",
    properties=b"TAGS\x01TagA\x02KEYS\x01k1\x02",
    born_at_ms=1731600000000,
    born_host=ids.pack_host("127.0.0.1", 5000),
    stored_at_ms=1731600000123,
    store_host=ids.pack_host("127.0.0.1", 10911),
)
BATCH = bytes.fromhex(
    "0000002e000000000000000000000000000000026d310016554e49515f4b45590141310257414954017472756502"
    "00000024000000000000000000000000000000026d32000c554e49515f4b455901413202"
)
ROUTE_REQUEST = bytes.fromhex(
    "0000002a0100002600690301df000000070000000000000000000000110005746f70696300000006546f70696341"
)


@pytest.mark.parametrize(
    ("data", "value", "message_id"),
    [
        (HELLO, HELLO_RECORD, "0A00000100002A9F0000000000000400"),
        (SHORT, SHORT_RECORD, "7F00000100002A9F0000000000000400"),
    ],
    ids=["181 bytes", "115 bytes"],
)
def test_record(data: bytes, value: record.Record, message_id: str) -> None:
    """The record has exactly these bytes, and these bytes are exactly the record."""
    assert record.encode(value) == data
    read = record.decode(data)
    assert read.size == len(data)
    value.body_crc = read.body_crc
    assert read == value
    assert offset_message_id(read.store_host, read.position) == message_id
    (scanned,) = record.scan(data, 0, len(data), position_of_at=1024)
    assert scanned.tag_hash == 2598919


def test_record_sizes_are_those_of_the_description() -> None:
    """The two records have 181 and 115 bytes, and the size is known before they are made."""
    assert (len(HELLO), len(SHORT)) == (181, 115)
    assert record.record_size(6, 14, 70) == 181
    assert record.record_size(1, 5, 18) == 115


def test_blank() -> None:
    """A blank with 500 bytes left has exactly these bytes."""
    assert record.blank(500) == bytes.fromhex("000001f4cbd43194")


def test_binary_header() -> None:
    """The 46 bytes of a binary route request are written and read exactly."""
    command = Command.request(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicA"}, request_id=7, serializer=1
    )
    assert encode_frame(command) == ROUTE_REQUEST
    assert decode_command(FrameDecoder().receive_data(ROUTE_REQUEST)[0]) == command


def test_json_header() -> None:
    """A JSON header is written with Java's keys in Java's order."""
    command = Command.request(105, {"topic": "TopicA"}, language=LanguageCode.JAVA)
    header = (
        b'{"code":105,"extFields":{"topic":"TopicA"},"flag":0,"language":"JAVA","opaque":0,'
        b'"serializeTypeCurrentRPC":"JSON","version":479}'
    )
    assert encode_frame(command)[8:] == header
    answer = Command(17, 1, 1, remark="...", language=LanguageCode.JAVA)
    assert encode_frame(answer)[8:] == (
        b'{"code":17,"flag":1,"language":"JAVA","opaque":1,"remark":"...",'
        b'"serializeTypeCurrentRPC":"JSON","version":479}'
    )


def test_batch() -> None:
    """The 82 bytes of a batch of two are written and read exactly."""
    items = [
        BatchItem(0, b"m1", b"UNIQ_KEY\x01A1\x02WAIT\x01true\x02"),
        BatchItem(0, b"m2", b"UNIQ_KEY\x01A2\x02"),
    ]
    assert encode_batch(items) == BATCH
    assert decode_batch(BATCH) == items
    assert len(BATCH) == 82


@pytest.mark.parametrize(
    ("tag", "expected"),
    [("TagA", 2598919), ("TagB", 2598920), ("中文", 646394), ("", 0), ("T#k1", 2539445)],
)
def test_tag_hashes(tag: str, expected: int) -> None:
    """Java's hash of these strings is known."""
    assert java_hash(tag) == expected
