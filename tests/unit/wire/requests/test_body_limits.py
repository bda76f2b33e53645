"""What a hostile body may cost: each limit refuses before the objects are made."""

from __future__ import annotations

import json
import struct
import zlib

import pytest

from inorder.errors import RemoteProtocolError, SystemError_
from inorder.wire import fastjson
from inorder.wire.requests import groups
from inorder.wire.requests import registration as register
from inorder.wire.requests.groups import ClientHeartbeat
from inorder.wire.requests.registration import RegisterBrokerBody

VERSION = b'{"counter":1}'


def prefixed(part: bytes) -> bytes:
    """Return bytes behind their length."""
    return struct.pack(">i", len(part)) + part


def registration(plain: bytes) -> RegisterBrokerBody:
    """Read a compressed registration."""
    return RegisterBrokerBody.decode(zlib.compress(plain), version=479, compressed=True)


def test_a_compressed_registration_grows_to_a_frame_at_most() -> None:
    """16 MiB of plain text are too much, whatever is in them."""
    with pytest.raises(SystemError_, match="too large"):
        registration(bytes(register.PLAIN_BYTES_MAX + 1))


def test_a_compressed_registration_has_a_limit_of_topics() -> None:
    """The count is looked at before the first topic is read."""
    many = struct.pack(">i", 200_001) + prefixed(b"t 1 1 6 S") * 200_001
    with pytest.raises(SystemError_, match="200000 topics"):
        registration(prefixed(VERSION) + many)


def test_a_compressed_registration_has_a_limit_of_attributes() -> None:
    """All topics together count."""
    line = b't 1 1 6 S {"a":"b"' + b',"a":"b"' * 600_000 + b"}"
    with pytest.raises(SystemError_, match="attributes"):
        registration(prefixed(VERSION) + struct.pack(">i", 1) + prefixed(line))


def test_a_plain_registration_has_a_limit_of_topics() -> None:
    """The table is counted before a config is made of each entry."""
    table = ",".join(f'"t{n}":{{}}' for n in range(200_001))
    text = f'{{"topicConfigSerializeWrapper":{{"topicConfigTable":{{{table}}}}}}}'
    with pytest.raises(SystemError_, match="200001 topics"):
        RegisterBrokerBody.decode(text.encode(), version=479)


def test_a_registration_has_a_limit_of_filter_servers() -> None:
    """64 pass, one more does not."""
    for count in (64, 65):
        text = json.dumps({"filterServerList": ["x"] * count}).encode()
        if count == 64:
            found = RegisterBrokerBody.decode(text, version=479)
            assert len(found.filter_servers) == 64
        else:
            with pytest.raises(SystemError_, match="filter servers"):
                RegisterBrokerBody.decode(text, version=479)


def test_text_that_is_not_standard_json_may_be_short_only() -> None:
    """The tolerant reader is slow, so a request may give it little to read."""
    few, many = (
        ("{" + ",".join(f"{n}:1" for n in range(count)) + "}").encode() for count in (100, 30_000)
    )
    assert len(fastjson.loads(few, slow_items_max=fastjson.SLOW_ITEMS_MAX)) == 100
    assert len(fastjson.loads(many)) == 30_000
    with pytest.raises(RemoteProtocolError, match="not standard JSON"):
        fastjson.loads(many, slow_items_max=fastjson.SLOW_ITEMS_MAX)


@pytest.mark.parametrize(
    ("beat", "why"),
    [
        ({"clientID": "c" * 256}, "clientID"),
        ({"clientID": "c", "producerDataSet": [{"groupName": "p" * 256}]}, "groupName"),
        ({"clientID": "c" * groups.HEARTBEAT_BYTES_MAX}, "bytes"),
        (
            {"clientID": "c", "consumerDataSet": [
                {"groupName": "g", "subscriptionDataSet": [{"topic": "t"}] * 4097}
            ]},
            "subscriptions",
        ),
        (
            {"clientID": "c", "consumerDataSet": [
                {"groupName": "g", "subscriptionDataSet": [
                    {"topic": "t", "subString": "||".join(map(str, range(1000)))}
                ] * 17}
            ]},
            "tags",
        ),
    ],
)  # fmt: skip
def test_a_heartbeat_has_limits(beat: dict[str, object], why: str) -> None:
    """Of what a client says of itself only so much is kept."""
    with pytest.raises(SystemError_, match=why):
        ClientHeartbeat.decode(json.dumps(beat).encode())
