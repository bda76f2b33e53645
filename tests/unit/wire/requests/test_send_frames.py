"""Frames of sends from templates, and answers by the typed decoder: the same as the general way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inorder.errors import LocalProtocolError
from inorder.wire.codes import RequestCode
from inorder.wire.fields import encode_fields
from inorder.wire.frame import FrameDecoder, encode_frame
from inorder.wire.header import Command, decode_command
from inorder.wire.properties import parse
from inorder.wire.requests.sendframes import SendTemplate, by_map, decode_answer, json_text
from inorder.wire.requests.sends import SendMessage, SendReply

TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
PLAIN = TEXT.filter(lambda text: "\x01" not in text and "\x02" not in text)


def decoded(frame: bytes) -> Command:
    (raw,) = FrameDecoder().receive_data(frame)
    return decode_command(raw)


def template(
    group: str = "g", topic: str = "t", broker: str = "b", queue_id: int = 3
) -> SendTemplate:
    return SendTemplate(
        group=group, topic=topic, template_topic="TBW102", template_queues=4, queue_id=queue_id,
        broker=broker,
    )  # fmt: skip


@given(TEXT, TEXT, TEXT, TEXT, st.binary(max_size=50), st.booleans())
def test_a_template_writes_what_the_typed_header_says(  # noqa: PLR0917 - drawn
    group: str, topic: str, broker: str, properties: str, body: bytes, batch: bool
):
    """Whatever the texts hold: quotes, percent signs, control characters."""
    frame = template(group, topic, broker).frame(
        77, json_text(properties), body, sys_flag=1, flag=2, born_at_ms=99, batch=batch
    )
    command = decoded(frame)
    assert command.code == (
        RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
    )
    assert (command.request_id, bytes(command.body), command.is_oneway) == (77, body, False)
    expected = SendMessage(
        group, topic, "TBW102", 4, 3, 1, 99, 2, properties, batch=batch, broker_name=broker
    )
    assert SendMessage.from_fields_v2(command.fields) == expected


@given(PLAIN, st.integers(0, 2**63 - 1), st.integers(-1, 2**62), st.booleans())
def test_numbers_are_properties(name: str, number: int, previous: int, named: bool):
    """Of a single message in the header; of a batch's item as bytes."""
    made = template()
    made.set_producer(name, named=named)
    numbers = (number, previous) if named else (number,)
    frame = made.frame(
        1, json_text("UNIQ_KEY\x01u\x02"), b"x", numbers=numbers, placed=by_map(7, "ab")
    )
    fields = decoded(frame).fields
    expected = {"UNIQ_KEY": "u", "INORDER_PID": name, "INORDER_SEQ": str(number)}
    if named:
        expected["INORDER_PREV"] = str(previous)
    assert parse(fields["i"]) == expected
    assert (fields["mv"], fields["md"]) == ("7", "ab")
    assert parse(made.item_mark % numbers) == {k: v for k, v in expected.items() if k != "UNIQ_KEY"}


def test_one_way_and_too_large():
    """A flag, and an error before anything is written."""
    assert decoded(template().frame(1, b"", b"x", oneway=True)).is_oneway
    with pytest.raises(LocalProtocolError, match="above the limit"):
        template().frame(1, b"", bytes(17 * 1024 * 1024))
    with pytest.raises(LocalProtocolError, match="UTF-8"):
        json_text("\ud800")


def test_answers_are_read_typed():
    """Success, a refusal with fields, and what is no answer to a send."""
    request = Command.request(310, request_id=9)
    stored = request.reply(fields=encode_fields(SendReply("A" * 32, 2, 41)))
    refused = request.reply(7110, "another map", fields={"version": "3", "map": "3/b:0-1"})

    def read(command: Command) -> bytes:
        (raw,) = FrameDecoder().receive_data(encode_frame(command))
        return raw[1]

    answer = decode_answer(read(stored))
    assert answer is not None
    assert answer.extFields is not None
    assert (answer.code, answer.opaque, answer.flag & 1) == (0, 9, 1)
    assert (answer.extFields.queueId, answer.extFields.queueOffset) == (2, 41)
    answer = decode_answer(read(refused))
    assert answer is not None
    assert answer.extFields is not None
    assert (answer.code, answer.remark) == (7110, "another map")
    assert (answer.extFields.version, answer.extFields.map) == (3, "3/b:0-1")
    for other in (
        b"",
        b"[]",
        b"{}",
        b'{"code":0,"opaque":"x"}',
        b'{"code":0,"opaque":1,"extFields":3}',
    ):
        assert decode_answer(other) is None
