"""From a message to a request: checks, compression, the cutting of batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from inorder.client.send import messages as outgoing
from inorder.client.send.messages import (
    Outgoing,
    compose_batch,
    compose_items,
    compose_plain,
    words,
)
from inorder.client.send.rules import WINDOW_MAX
from inorder.config import ClientConfig
from inorder.errors import LocalProtocolError, MessageIllegal, UsageError
from inorder.model import Message, key_text
from inorder.wire.compression import decompress_body
from inorder.wire.properties import parse
from inorder.wire.requests.sends import encode_batch

CONFIG = ClientConfig()


def compose(message: Message, id_: str, config: ClientConfig) -> Outgoing:
    return outgoing.compose(
        message.topic, message.body, message.key, message.tag, message.keys, message.properties,
        id_, 0, config,
    )  # fmt: skip


@pytest.mark.parametrize(("algorithm", "flag"), [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)])
def test_large_bodies_are_packed(algorithm: str, flag: int):
    """From 4 KiB on, with the flags that say how; the reader gets the same bytes."""
    config = replace(CONFIG, compression=algorithm)
    body = b"abcdefgh" * 512
    part = compose(Message("t", body), "ID", config)
    assert part.sys_flag == flag
    assert len(part.body) < len(body)
    assert decompress_body(part.sys_flag, part.body, limit=len(body)) == body
    assert compose(Message("t", body[:-1]), "ID", config).sys_flag == 0


def test_what_does_not_shrink_is_sent_as_it_is():
    """Also when compression is switched off."""
    noise = bytes((n * n * 7919 >> 5) & 255 for n in range(4096))
    noise = b"".join(noise[n::17] for n in range(17))
    assert compose(Message("t", b"a" * 5000), "ID", replace(CONFIG, compression="none")).body == (
        b"a" * 5000
    )
    packed = compose(Message("t", noise), "ID", CONFIG)
    assert len(packed.body) <= len(noise)


def test_properties_carry_key_tag_and_words():
    """Under RocketMQ's names."""
    message = Message("t", b"x", "order-1", "paid", ("a", "b"), {"colour": "red"})
    assert parse(json.loads(b'"%b"' % compose(message, "ID", CONFIG).properties)) == {
        "UNIQ_KEY": "ID", "WAIT": "true", "colour": "red", "TAGS": "paid", "KEYS": "a b",
        "__SHARDINGKEY": "order-1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("message", "error", "text"),
    [
        (Message("t", b""), MessageIllegal, "empty"),
        (Message("t", "text"), UsageError, "encode"),
        (Message("t", b"x" * (4 * 1024 * 1024 + 1)), MessageIllegal, "message_bytes_max"),
        (Message("no topic", b"x"), UsageError, "no topic"),
        (Message("", b"x"), UsageError, "no topic"),
        (Message("t", b"x", keys="word"), UsageError, "list of words"),
        (Message("t", b"x", properties={"TAGS": "a"}), UsageError, "TAGS"),
        (Message("t", b"x", properties={"DELAY": "3"}), UsageError, "given by delay="),
        (Message("t", b"x", properties={"TRAN_MSG": "true"}), UsageError, "begun by"),
        (Message("t", b"x", properties={"a": "x" * 32768}), MessageIllegal, "properties"),
        (Message("t", b"x", properties={"a": "\x01"}), LocalProtocolError, "hold"),
        (Message("t", b"x", tag="a\x01"), LocalProtocolError, "hold"),
        (Message("t", b"x", properties={"INORDER_SEQ": "1"}), UsageError, "producer's own"),
    ],
)
def test_what_cannot_be_sent_is_refused(message: Message, error: type[Exception], text: str):
    """Before anything leaves, with what to do."""
    with pytest.raises(error, match=text):
        compose(message, "ID", CONFIG)


@pytest.mark.parametrize("flag", [2**31, -(2**31) - 1, "1", 1.5])
def test_a_flag_that_no_request_can_carry_is_refused_at_the_call(flag: object):
    """Later it would end the request that the message shares with others."""
    message = Message("t", b"x", flag=flag)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="flag"):
        compose_items([message], ["ID"], CONFIG)
    with pytest.raises(UsageError, match="flag"):
        outgoing.compose("t", b"x", None, None, (), None, "ID", 0, CONFIG, flag=flag)  # type: ignore[arg-type]
    for fitting in (2**31 - 1, -(2**31), 0):
        assert compose_items([replace(message, flag=fitting)], ["ID"], CONFIG)[0].flag == fitting


def test_batches_are_cut_by_size_and_keep_their_order():
    """No part is above the limit, unless one message alone is; nor has it too many messages."""
    messages = [Message("t", b"%03d" % n * (500 if n == 4 else 10)) for n in range(9)]
    ids = [f"ID{n}" for n in range(9)]
    made = compose_items(messages, ids, CONFIG)
    parts = compose_batch(made, ids, 0, replace(CONFIG, batch_bytes_max=400))
    assert [id_ for part in parts for id_ in part.ids] == ids
    items = [item for part in parts for item in part.items or ()]
    assert [item.body for item in items] == [message.body for message in messages]
    assert [parse(item.properties)["UNIQ_KEY"] for item in items] == ids
    assert all(part.sys_flag == 0 for part in parts)
    assert any(part.count > 1 for part in parts)
    assert all(len(encode_batch(part.items or ())) <= 400 or part.count == 1 for part in parts)
    assert len(compose_batch(made, ids, 0, CONFIG)) == 1
    many = [made[0]] * (2 * WINDOW_MAX + 1)
    parts = compose_batch(many, [str(n) for n in range(len(many))], 0, CONFIG)
    assert [part.count for part in parts] == [WINDOW_MAX, WINDOW_MAX, 1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"topic": b"orders", "body": "text"}, r"swapped.*send\('orders', b'paid'\)"),
        ({"topic": b"orders", "body": b"x"}, "the topic is b'orders', a bytes"),
        ({"topic": None, "body": b"x"}, "a NoneType"),
        ({"topic": ["orders"], "body": b"x"}, "a list"),
        ({"body": bytearray(b"x")}, r"bytearray; give bytes \(bytes\(body\)\)"),
        ({"body": {"state": "paid"}}, "a dict; give bytes .*json.dumps"),
        ({"body": None}, "a NoneType; give bytes"),
        ({"key": ""}, "key= is empty; .* leave key= out"),
        ({"tag": ""}, "tag= is empty"),
        ({"tag": 7}, "tag= is 7, a int; give text"),
        ({"keys": [""]}, "keys= is empty"),
        ({"properties": {"n": 5}}, r"property 'n' has the value 5, a int; .* write str\(5\)"),
        ({"properties": {5: "n"}}, "property 5 has the name 5"),
        ({"properties": {"n": b"x"}}, "a bytes"),
        ({"properties": [("a", "b")]}, "properties= is a list; give a dict"),
    ],
)
def test_what_was_meant_is_said(arguments: dict[str, object], text: str):
    """The mistakes of a first day: which argument, what it is, what to write."""
    given = {"topic": "orders", "body": b"x", "key": "k", "tag": None, "keys": ()} | arguments
    with pytest.raises(UsageError, match=text):
        outgoing.compose(
            given["topic"], given["body"], given["key"], given["tag"], given["keys"],
            given.get("properties"), "ID", 0, CONFIG,
        )  # type: ignore[arg-type]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "text"), [("a", "a"), (42, "42"), (-7, "-7"), (10**30, "1" + "0" * 30), (0, "0")]
)
def test_whole_numbers_are_keys(key: object, text: str):
    """As their decimal digits, so that 42 and "42" are one key; words too."""
    assert key_text(key) == text
    assert Message("t", b"x", key).key == text  # type: ignore[arg-type]
    assert words(["a", key]) == ("a", text)  # type: ignore[list-item]


@pytest.mark.parametrize("key", [1.5, True, b"k", ("a",), 3j])
def test_other_keys_are_refused(key: object):
    """They have several texts, or are a mistake."""
    with pytest.raises(UsageError, match="whole number"):
        key_text(key)
    with pytest.raises(UsageError, match="whole number"):
        Message("t", b"x", key)  # type: ignore[arg-type]


def outcome(make: Callable[[], Outgoing]) -> object:
    """Return all that a request consists of, or the error with its text."""
    try:
        part = make()
    except Exception as error:
        return type(error), str(error)
    return [getattr(part, name) for name in Outgoing.__slots__]


@pytest.mark.parametrize("topic", ["orders", "%RETRY%g", "a b", "", b"orders", "t" * 128])
@pytest.mark.parametrize(
    "body", [b"x", b"x" * 4095, b"ab" * 2048, b"x" * (4 << 20), b"x" * (1 << 23), b"", "text"]
)
@pytest.mark.parametrize(
    "key",
    [None, "k", "key-001", "ключ", "a b", "", "\x01", "a\x02", "\ud800", "k" * 255, "k" * 40_000],
)
def test_a_plain_message_is_composed_as_any_other(topic: Any, body: Any, key: str | None):
    """The short way and the general one give the same request, or the same error."""
    arguments = (topic, body, key), ("ID", 1234, CONFIG)
    general = outcome(lambda: outgoing.compose(*arguments[0], None, (), None, *arguments[1]))
    assert outcome(lambda: compose_plain(*arguments[0], *arguments[1])) == general
