"""What may be sent, and how a batch is split."""

from __future__ import annotations

import struct

import pytest

from inorder.broker.sends.rules import (
    delay_level,
    describe,
    is_special,
    require_batch,
    split_batch,
    unique_key,
)
from inorder.errors import MessageIllegal, SystemError_
from inorder.model import TopicConfig
from inorder.wire.requests.sends import SendMessage

LIMIT = 4 * 1024 * 1024


def item(body: bytes, properties: bytes = b"", flag: int = 0) -> bytes:
    size = 22 + len(body) + len(properties)
    head = struct.pack(">iiiii", size, 0, 0, flag, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties


def request(properties: str = "", *, batch: bool = True) -> SendMessage:
    return SendMessage(
        producer_group="PG", topic="T", default_topic="TBW102", default_topic_queues=4, queue_id=0,
        sys_flag=0, born_at_ms=0, flag=0, properties=properties, batch=batch,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("properties", "special"),
    [
        ("", False),
        ("KEYS\x01k1\x02TAGS\x01TagA\x02WAIT\x01true\x02", False),
        ("DELAY\x013\x02", True),
        ("TIMER_DELAY_MS\x01100\x02", True),
        ("TIMER_DELIVER_MS\x01100\x02", True),
        ("TRAN_MSG\x01true\x02", True),
        ("POP_CK\x01x\x02", True),
        ("INNER_NUM\x013\x02", True),
    ],
)
def test_only_words_of_special_messages_leave_the_hot_path(properties: str, special: bool) -> None:
    """Names that may ask for more than a plain message are looked at closely."""
    assert is_special(properties) is special


@pytest.mark.parametrize(
    ("properties", "key"),
    [
        ("UNIQ_KEY\x01A1\x02", "A1"),
        ("UNIQ_KEY\x01A1", "A1"),
        ("XUNIQ_KEY\x01A1\x02", None),
        ("UNIQ_KEY\x01\x02", None),
        ("UNIQ_KEY\x01A1\x02UNIQ_KEY\x01A2\x02", "A2"),
    ],
)
def test_unique_key_follows_the_rules_of_properties(properties: str, key: str | None) -> None:
    """A repeated name: the last wins; an empty value is none."""
    assert unique_key(properties) == key


def test_batch_is_split_into_its_items() -> None:
    """Each item is named by where its body starts and how long its parts are."""
    data = item(b"m1", b"TAGS\x01A\x02", flag=7) + item(b"longer", b"")
    found = split_batch(data, LIMIT)
    assert found == [(7, 20, 2, 7), (0, 31 + 20, 6, 0)]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"abc",
        item(b"m1")[:-1],
        item(b"m1") + b"\0",
        item(b""),
        struct.pack(">iiiii", 30, 0, 0, 0, -1) + b"x" * 10,
        struct.pack(">iiiii", 22 + 2**30, 0, 0, 0, 2**30) + b"x" * 10,
        item(b"m1", b"DELAY\x013\x02"),
    ],
)
def test_batch_that_is_not_plain_is_left_to_the_general_way(data: bytes) -> None:
    """The fast path takes only what needs no further checks."""
    assert split_batch(data, LIMIT) is None


@pytest.mark.parametrize("data", [b"abc", item(b"m1")[:-1], item(b""), b""])
def test_malformed_batch_is_refused_with_code_1(data: bytes) -> None:
    """RocketMQ answers 1 for a batch that does not parse."""
    with pytest.raises(SystemError_):
        require_batch(request(), data, LIMIT)


def test_delay_inside_of_a_batch_is_refused() -> None:
    """A delayed message is never stored as a plain one, also not inside of a batch."""
    with pytest.raises(MessageIllegal, match="delayed"):
        require_batch(request(), item(b"m1", b"DELAY\x013\x02"), LIMIT)


def test_batch_item_whose_properties_end_in_a_zero_byte_is_refused() -> None:
    """Recovery would take the record for a torn write and cut the log there."""
    data = item(b"m1", b"k\x01v\0")
    assert split_batch(data, LIMIT) is None
    with pytest.raises(MessageIllegal, match="zero byte"):
        require_batch(request(), data, LIMIT)


def test_body_that_only_looks_like_a_delay_is_stored() -> None:
    """Bytes of a body are not properties."""
    data = item(b"DELAY\x013\x02 is just text", b"TAGS\x01A\x02")
    found = require_batch(request(), data, LIMIT)
    assert found == [(0, 20, 21, 7)]


@pytest.mark.parametrize(
    ("properties", "word"),
    [
        ("DELAY\x013\x02", "delayed"),
        ("TIMER_DELIVER_MS\x0199\x02", "timer"),
        ("TRAN_MSG\x01TRUE\x02", "transactional"),
        ("INNER_NUM\x013\x02", "inner"),
    ],
)
def test_messages_not_served_yet_are_refused_by_name(properties: str, word: str) -> None:
    """The refusal names what was asked for and that nothing was stored."""
    with pytest.raises(MessageIllegal, match=word) as caught:
        require_batch(request(properties), item(b"m1"), LIMIT)
    assert "nothing was stored" in caught.value.remark


@pytest.mark.parametrize(
    ("properties", "level"),
    [
        ("TAGS\x01A\x02", 0),
        ("DELAY\x013\x02", 3),
        ("DELAY\x013\x02DELAY\x014\x02", 4),
        ("DELAY\x010\x02", 0),
        ("DELAY\x01-1\x02", 0),
        ("MY_DELAY\x013\x02", 0),
    ],
)
def test_the_delay_level_is_that_of_the_property(properties: str, level: int) -> None:
    """Nothing, zero and less mean at once."""
    assert delay_level(properties) == level


@pytest.mark.parametrize("text", ["soon", "1.5", "", "9" * 30, "\u0663"])
def test_a_delay_that_is_no_number_is_refused(text: str) -> None:
    """It is not stored as a message without delay."""
    if not text:
        assert delay_level("DELAY\x01\x02") == 0  # an empty property is none
        return
    with pytest.raises(MessageIllegal, match="delay level"):
        delay_level(f"DELAY\x01{text}\x02")


def test_topic_is_described_as_rocketmq_does() -> None:
    """Tools show this text."""
    text = describe(TopicConfig("CapProd"))
    assert text == (
        "TopicConfig [topicName=CapProd, readQueueNums=8, writeQueueNums=8, perm=RW-, "
        "topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false, attributes={}]"
    )
