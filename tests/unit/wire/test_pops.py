"""Receipts, the texts of headers, and batches of acknowledgements."""

from __future__ import annotations

import base64
import json
import lzma
from pathlib import Path

import pytest

from inorder.errors import RemoteProtocolError, SystemError_
from inorder.wire.fields import decode_fields, encode_fields
from inorder.wire.frame import FrameDecoder
from inorder.wire.header import Command, decode_command
from inorder.wire.properties import parse
from inorder.wire.record import decode_all
from inorder.wire.requests.assignments import decode_query
from inorder.wire.requests.pops import (
    BATCH_OFFSETS_MAX,
    AckMessage,
    BatchAck,
    ChangeInvisibleTime,
    PopMessage,
    Receipt,
    count_entries,
    decode_batch_ack,
    decode_receipt,
    offsets_entry,
    pop_retry_topic,
    queue_entry,
    real_topic,
    retry_flag,
)

CAPTURE = Path(__file__).parents[2] / "golden" / "frames" / "java53-pop.jsonl.xz"


def captured(code: int, *, answers: bool = False) -> list[Command]:
    """Return captured requests of a code, or the answers to them."""
    found = []
    with lzma.open(CAPTURE, "rt") as lines:
        for line in lines:
            one = json.loads(line)
            if (one.get("req_code") if answers else one["code"]) == code and (
                one["is_response"] == answers
            ):
                raw = base64.b64decode(one["frame_b64"])
                found += [decode_command(each) for each in FrameDecoder().receive_data(raw)]
    return found


@pytest.mark.parametrize(
    ("code", "header"),
    [(200050, PopMessage), (200051, AckMessage), (200053, ChangeInvisibleTime)],
)
def test_captured_headers_are_read_and_written(code: int, header: type) -> None:
    """All fields of Java's client, but for the broker's name."""
    requests = captured(code)
    assert requests
    for one in requests:
        written = encode_fields(decode_fields(header, one.fields))
        assert written == {k: v for k, v in one.fields.items() if k != "bname"}


def test_captured_receipts_are_read_and_written() -> None:
    """Of requests, and of messages of the retry topic."""
    for code in (200051, 200053):
        for one in captured(code):
            text = one.fields["extraInfo"]
            assert decode_receipt(text).encode(int(one.fields["offset"])) == text
    records = [
        record
        for one in captured(200050, answers=True)
        for record in decode_all(one.body)
        if record.redeliveries
    ]
    (retried,) = records
    text = parse(retried.properties)["POP_CK"]
    receipt = Receipt(0, 1794716086820, 10000, 7, "1", "broker-a", 0)
    assert (decode_receipt(text), receipt.encode(0)) == (receipt, text)


def test_captured_offsets_are_those_of_the_messages() -> None:
    """msgOffsetInfo and startOffsetInfo, made again from the records of the answer."""
    for one in captured(200050, answers=True):
        if one.code:
            continue
        places: dict[tuple[str, int], list[int]] = {}
        for record in decode_all(one.body):
            topic = "%RETRY%x" if record.redeliveries else "T"
            places.setdefault((topic, record.queue_id), []).append(record.queue_offset)
        made = ";".join(offsets_entry(*place, offsets) for place, offsets in places.items())
        assert made == one.fields["msgOffsetInfo"]
        made = ";".join(queue_entry(*place, offsets[0]) for place, offsets in places.items())
        assert made == one.fields["startOffsetInfo"]


def test_a_captured_question_for_queues_is_read() -> None:
    """The first asks for the topic, the second for the retry topic."""
    asked = [decode_query(one.body) for one in captured(400)]
    assert {(one.group, one.strategy, one.broadcasting) for one in asked} == {
        ("POPG_java53", "AVG", False)
    }
    assert {one.topic for one in asked} == {"CapPop_java53", "%RETRY%POPG_java53"}


@pytest.mark.parametrize(
    "text", ["", "1 2 3", "1 2 3 4 0 b", "1 2 3 4 0 b x", "x 2 3 4 0 b 1", "1" * 600,
             "1 2 3 4 0 b 1 2 3", "1 " + "9" * 30 + " 3 4 0 b 1", "1 --2 3 4 0 b 1"],
)  # fmt: skip
def test_a_receipt_of_garbage_is_refused(text: str) -> None:
    """With RocketMQ's code 1."""
    with pytest.raises(SystemError_, match="extraInfo"):
        decode_receipt(text)


@pytest.mark.parametrize(
    ("topic", "flag"), [("T", "0"), ("%RETRY%g_T", "1"), ("%RETRY%g+T", "2"), ("a+b", "0")]
)
def test_the_kind_of_topic_has_a_flag(topic: str, flag: str) -> None:
    """And the flag leads back to the topic."""
    assert retry_flag(topic) == flag
    if flag != "0":
        assert real_topic("T", "g", flag) == topic


def test_a_retry_topic_is_its_own_retry_topic() -> None:
    """A message that fails again stays there."""
    assert pop_retry_topic("g", "T") == "%RETRY%g_T"
    assert pop_retry_topic("g", "%RETRY%g_T") == "%RETRY%g_T"
    assert real_topic("%RETRY%g_T", "g", "1") == "%RETRY%g_T"
    with pytest.raises(RemoteProtocolError):
        real_topic("T", "g", "3")


@pytest.mark.parametrize(
    ("counts", "entries"),
    [
        ({}, ["0 3 0"]),
        ({7: 2}, ["0 qo3%7 2", "0 3 0"]),
        ({7: 2, 8: 1}, ["0 qo3%7 2", "0 qo3%8 1", "0 3 1"]),
    ],
)
def test_counts_are_told_by_offset_and_by_queue(counts: dict[int, int], entries: list[str]) -> None:
    """The queue's is the least, for old clients."""
    assert count_entries("T", 3, [7, 8], counts) == entries


@pytest.mark.parametrize(
    ("names", "offsets"),
    [
        (("c", "t", "r", "q", "rq", "so", "pt", "b"), [10, 13, 26]),
        (("consumerGroup", "topic", "retry", "queueId", "reviveQueueId", "startOffset", "popTime",
          "bitSet"), [10, 13, 26]),
    ],
)  # fmt: skip
def test_a_batch_is_read_under_both_names(names: tuple[str, ...], offsets: list[int]) -> None:
    """The bits count from the start offset, as in Java's BitSet."""
    bits = base64.b64encode(bytes([0b1001, 0, 1])).decode()
    values = ("g", "T", "1", 2, 999, 10, 7000, bits)
    body = json.dumps({"brokerName": "b", "acks": [dict(zip(names, values, strict=True))]})
    (found,) = decode_batch_ack(body.encode())
    assert found == BatchAck("g", "%RETRY%g_T", 2, 999, 7000, offsets)
    assert found.in_order


@pytest.mark.parametrize(
    "ack",
    [
        {"c": "g"},
        {"c": "g", "t": "T", "b": "==="},
        {"c": "g", "t": "T", "q": "x"},
        {"c": "g", "t": "T", "so": 2**70},
        {"c": "g", "t": "T", "r": "9"},
        {"c": "g", "t": "T", "b": base64.b64encode(bytes(BATCH_OFFSETS_MAX // 8 + 64)).decode()},
        7,
    ],
    ids=str,
)
def test_a_batch_of_garbage_is_refused(ack: object) -> None:
    """Nothing of it is taken."""
    body = json.dumps({"acks": [{"c": "g", "t": "T"}, ack]}).encode()
    with pytest.raises(SystemError_):
        decode_batch_ack(body)
