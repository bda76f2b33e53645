"""Pull answers as messages: the lazy ones are what the plain ones are, and damage is found."""

from __future__ import annotations

import copy
import pickle
from dataclasses import asdict, replace

import pytest

from inorder.client.consume.messages import receive, receive_all, receive_from
from inorder.errors import CorruptRecord
from inorder.model import ReceivedMessage, TopicQueue
from inorder.wire.compression import COMPRESSION_FLAGS, compress_body
from inorder.wire.ids import pack_host
from inorder.wire.properties import format_properties
from inorder.wire.record import BORN_HOST_V6, STORE_HOST_V6, Record, decode_all, encode

LIMIT = 1 << 20


def record(number: int, **changes: object) -> Record:
    """Return one of many records."""
    properties = {"UNIQ_KEY": f"id-{number}", "TAGS": "a", "__SHARDINGKEY": f"k{number}"}
    made = Record(
        "orders", number % 3, number, number * 400, b"body %d" % number,
        format_properties(properties).encode(), born_at_ms=number, stored_at_ms=number + 1,
        redeliveries=number % 2, store_host=pack_host("127.0.0.1", 10911),
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


V6 = pack_host("::1", 10911)
KINDS = {
    "plain": {},
    "no properties": {"properties": b""},
    "other topic": {"topic": "payments"},
    "topic that begins alike": {"topic": "orders2"},
    "no body": {"body": b""},
    "large body": {"body": b"x" * 5000},
    "packed body": {
        "body": compress_body("zlib", b"y" * 5000), "sys_flag": COMPRESSION_FLAGS["zlib"]
    },
    "long topic": {"topic": "t" * 200, "version": 2},
    "hosts of IPv6": {
        "born_host": V6, "store_host": V6, "sys_flag": BORN_HOST_V6 | STORE_HOST_V6
    },
}  # fmt: skip


def answer() -> bytes:
    """Return records of all kinds, plain ones between them."""
    records = []
    for number, changes in enumerate(KINDS.values()):
        records += [encode(record(2 * number, **changes)), encode(record(2 * number + 1))]
    return b"".join(records)


def test_messages_are_what_the_records_say() -> None:
    """Of every kind, in their order, whether the buffer is bytes or a view."""
    body = answer()
    expected = tuple(receive("broker-a", one, LIMIT) for one in decode_all(body))
    for buffer in (body, memoryview(body), bytearray(body)):
        found = receive_all("broker-a", buffer, LIMIT)
        assert found == expected
        assert expected == found
        assert list(map(repr, found)) == list(map(repr, expected))
    assert receive_all("broker-a", b"", LIMIT) == ()


def test_a_message_behaves_as_an_ordinary_one() -> None:
    """It is copied, pickled, replaced, compared, and nobody may change it."""
    (message,) = receive_all("broker-a", encode(record(7)), LIMIT)
    (ordinary,) = (receive("broker-a", one, LIMIT) for one in decode_all(encode(record(7))))
    assert isinstance(message, ReceivedMessage)
    assert (message.tag, message.key, message.message_id) == ("a", "k7", "id-7")
    assert asdict(message) == asdict(ordinary)
    for twin in (copy.copy(message), copy.deepcopy(message), pickle.loads(pickle.dumps(message))):
        assert twin == ordinary
    again = replace(message, redeliveries=9)
    assert (again.redeliveries, again.body, again.offset) == (9, message.body, 7)
    assert again != message
    assert message != "message"
    assert message.properties is message.properties
    with pytest.raises(AttributeError):
        message.offset = 8  # type: ignore[misc]
    with pytest.raises(TypeError):
        hash(message)


def test_every_torn_answer_is_found() -> None:
    """Cut anywhere but between records, it raises; between them it is a shorter answer."""
    body = answer()
    ends = {0}
    for one in decode_all(body):
        ends.add(max(ends) + one.size)
    for cut in range(0, len(body), 7):
        if cut in ends:
            continue
        with pytest.raises(CorruptRecord):
            receive_all("broker-a", body[:cut], LIMIT)


@pytest.mark.parametrize(
    ("at", "what"), [(3, "size"), (5, "magic"), (11, "checksum"), (87, "body"), (88, "body")]
)
def test_a_changed_byte_is_found(at: int, what: str) -> None:
    """Sizes, magic, checksum and body of a plain record."""
    body = bytearray(encode(record(1)) * 2)
    body[at] ^= 0x10
    with pytest.raises(CorruptRecord):
        receive_all("broker-a", body, LIMIT)


def test_lengths_that_do_not_add_up_are_found() -> None:
    """The length of the topic, and that of the properties."""
    body = encode(record(1))
    topic_at = body.index(b"\x06orders")
    for place in (topic_at, topic_at + 8):
        damaged = bytearray(body)
        damaged[place] ^= 1
        with pytest.raises(CorruptRecord):
            receive_all("broker-a", damaged, LIMIT)


@pytest.mark.parametrize("bad", range(4))
@pytest.mark.parametrize("kind", ["checksum", "packed", "cut"])
def test_a_damaged_message_hides_none_before_it(bad: int, kind: str) -> None:
    """Those before it are returned and the next pull begins with it; the first one raises."""
    queue = TopicQueue("orders", "broker-a", 3)
    parts = [bytearray(encode(record(10 + n))) for n in range(4)]
    if kind == "checksum":
        parts[bad][88] ^= 1
    elif kind == "packed":
        parts[bad] = bytearray(
            encode(replace(record(10 + bad), body=b"no zlib", sys_flag=COMPRESSION_FLAGS["zlib"]))
        )
    else:
        del parts[bad][-3:]
        del parts[bad + 1 :]
    offset = 10
    if bad == 0:
        with pytest.raises(CorruptRecord, match=r"at offset 10, .* is damaged: .*seek behind it"):
            receive_from(queue, offset, b"".join(parts), 14, body_bytes_max=LIMIT)
        return
    found = receive_from(queue, offset, b"".join(parts), 14, body_bytes_max=LIMIT)
    assert [one.offset for one in found.messages] == list(range(10, 10 + bad))
    assert found.next_offset == 10 + bad
