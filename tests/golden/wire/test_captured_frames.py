"""Every captured frame of real peers: read, written again, and understood down to its records."""

from __future__ import annotations

import base64
import json
import lzma
import struct
from pathlib import Path
from typing import Any

import pytest

from inorder.errors import BrokerError, SystemError_
from inorder.wire import record
from inorder.wire.codes import LanguageCode, RequestCode
from inorder.wire.fastjson import dumps, loads
from inorder.wire.fields import decode_fields, encode_fields, wire_names
from inorder.wire.frame import FrameDecoder, encode_frame
from inorder.wire.header import Command, decode_command
from inorder.wire.ids import offset_message_id
from inorder.wire.requests import (
    groups,
    nameserver,
    offsets,
    pulls,
    replies,
    routes,
    sends,
    topics,
)
from inorder.wire.requests.groups import (
    ClientConfigCheck,
    ClientHeartbeat,
    GroupTable,
    decode_group_config,
    encode_group_config,
)
from inorder.wire.requests.leases import LockBatchBody, LockedQueues
from inorder.wire.requests.nameserver import (
    decode_consumer_ids,
    decode_kv_table,
    decode_settings,
    decode_topic_list,
)
from inorder.wire.requests.registration import RegisterBrokerBody
from inorder.wire.requests.routes import BrokerMemberGroup, ClusterInfo, TopicRoute
from inorder.wire.requests.sends import decode_batch, encode_batch
from inorder.wire.requests.topics import (
    TopicTable,
    decode_data_version,
    decode_topic_config,
    encode_topic_config,
)

FRAMES = Path(__file__).parent.parent / "frames"
FILES = sorted(path.name.removesuffix(".jsonl.xz") for path in FRAMES.glob("*.jsonl.xz"))
FRAMES_TOTAL = 5279

REQUESTS = {
    cls.CODE: cls
    for module in (topics, groups, nameserver, offsets, pulls, replies, routes)
    for cls in vars(module).values()
    if hasattr(cls, "CODE")
}
REPLIES: dict[int, type] = {
    RequestCode.PULL_MESSAGE: pulls.PullReply,
    RequestCode.QUERY_CONSUMER_OFFSET: offsets.OffsetReply,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offsets.OffsetReply,
    RequestCode.GET_MAX_OFFSET: offsets.OffsetReply,
    RequestCode.GET_MIN_OFFSET: offsets.OffsetReply,
    RequestCode.GET_EARLIEST_MSG_STORETIME: offsets.TimestampReply,
    RequestCode.QUERY_MESSAGE: pulls.QueryMessageReply,
    RequestCode.REGISTER_BROKER: routes.RegisterBrokerReply,
    RequestCode.QUERY_DATA_VERSION: routes.QueryDataVersionReply,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: routes.WipeWritePermReply,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: routes.AddWritePermReply,
    RequestCode.GET_KV_CONFIG: nameserver.GetKvReply,
    RequestCode.GET_BROKER_CONFIG: topics.GetBrokerConfigReply,
}
SENDS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
)


def rows(name: str) -> list[tuple[dict[str, Any], bytes]]:
    """Return the lines of a file, each with its whole frame."""
    found = []
    with lzma.open(FRAMES / f"{name}.jsonl.xz", "rt") as lines:
        for line in lines:
            row = json.loads(line)
            if "frame_b64" in row:
                frame = base64.b64decode(row["frame_b64"])
                if row.get("body_omitted"):
                    frame += bytes(row["body_len"])
            else:
                header, body = row["header_json"].encode(), bytes.fromhex(row["body_hex"])
                word = row["serializer"] << 24 | len(header)
                frame = struct.pack(">iI", 4 + len(header) + len(body), word) + header + body
            found.append((row, frame))
    return found


def command_of(frame: bytes) -> Command:
    """Decode one whole frame."""
    (raw,) = FrameDecoder().receive_data(frame)
    return decode_command(raw)


def text(value: object) -> str:
    """Coerce a field as Java prints it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_no_frame_is_missing() -> None:
    """All captured frames are there."""
    assert sum(len(rows(name)) for name in FILES) == FRAMES_TOTAL


@pytest.mark.parametrize("name", FILES)
def test_frames_decode_and_encode_again(name: str) -> None:
    """A frame read and written has equal fields and body; Java's own frames are equal bytes."""
    for row, frame in rows(name):
        command = command_of(frame)
        written = encode_frame(command)
        assert command_of(written) == command
        header_bytes = struct.unpack_from(">I", frame, 4)[0] & 0xFFFFFF
        header, body = frame[8 : 8 + header_bytes], frame[8 + header_bytes :]
        assert command.body == body
        assert command.code == row["code"]
        if command.serializer == 1:
            assert written == frame
            continue
        read = json.loads(header)
        if "serializeTypeCurrentRPC" in read and read["language"] == "JAVA":
            assert written == frame
        assert command.fields == {
            key: text(value) for key, value in (read.get("extFields") or {}).items()
        }
        again = json.loads(encode_frame(command)[8 : -len(body) or None])
        for key in ("code", "flag", "opaque", "language", "version", "remark"):
            assert again.get(key) == read.get(key), key


@pytest.mark.parametrize("name", FILES)
def test_typed_headers_keep_every_field_that_they_know(name: str) -> None:
    """Reading a typed header and writing it again changes no known field."""
    for row, frame in rows(name):
        command = command_of(frame)
        if command.is_response:
            cls = REPLIES.get(row.get("req_code", -1))
            letters = False
            if row.get("req_code") in SENDS:
                cls = sends.SendReply
            if cls is None or command.code not in (0, 19, 20, 21):
                continue
        elif command.code in SENDS:
            cls, letters = sends.SendMessage, command.code in sends.LETTER_CODES
        else:
            cls, letters = REQUESTS.get(command.code), False
        if cls is None:
            continue
        style = "letter" if letters else "wire"
        try:
            typed = decode_fields(cls, command.fields, names=style)
        except SystemError_:
            assert name.startswith("probe"), command
            continue
        known = {
            key: value
            for key, value in command.fields.items()
            if key in wire_names(cls, names=style)
        }
        written = encode_fields(typed, names=style)
        for key, value in known.items():
            as_bool = {"0": "false", "1": "true"} if written.get(key) in ("true", "false") else {}
            assert written.get(key, "") == as_bool.get(value, value), (key, command)


def check_records(body: bytes) -> int:
    """Decode the records of an answer; each must encode to the same bytes."""
    found = record.decode_all(body)
    assert b"".join(map(record.encode, found)) == body
    at = 0
    for item in found:
        message_id = offset_message_id(item.store_host, item.position)
        assert len(message_id) == 32
        assert record.check(body, at, len(body), position=item.position) == item.size
        scanned = next(record.scan(body, at, len(body), position_of_at=item.position))
        assert (scanned.topic, scanned.properties) == (item.topic, item.properties)
        at += item.size
    return len(found)


def test_records_of_answers_are_read_and_written_exactly() -> None:
    """Every record that a real broker answered decodes and encodes to the same bytes."""
    found = 0
    for name in FILES:
        for row, frame in rows(name):
            if row.get("is_response") and row["code"] == 0 and row["req_code"] in (11, 12, 33, 361):
                found += check_records(bytes(command_of(frame).body))
    assert found == 358


def test_batches_are_read_and_written_exactly() -> None:
    """Every captured batch decodes and encodes to the same bytes, unless it is the broken probe."""
    found = broken = 0
    for name in FILES:
        for _, frame in rows(name):
            command = command_of(frame)
            if command.is_response or command.code not in SENDS:
                continue
            try:
                if not sends.SendMessage.from_fields(command.code, command.fields).batch:
                    continue
                items = decode_batch(command.body)
            except BrokerError:
                broken += 1
                assert name.startswith("probe")
                continue
            for item in items:
                assert item.body
            # C++ and Go leave the crc or magic as they like; lengths and content must agree.
            assert len(encode_batch(items)) == len(command.body)
            found += 1
    assert found >= 8
    assert broken <= 6


BODIES: dict[int, Any] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: TopicRoute.decode,
    RequestCode.GET_BROKER_CLUSTER_INFO: ClusterInfo.decode,
    RequestCode.GET_BROKER_MEMBER_GROUP: BrokerMemberGroup.decode,
    RequestCode.GET_ALL_TOPIC_CONFIG: TopicTable.decode,
    RequestCode.GET_TOPIC_CONFIG: decode_topic_config,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: GroupTable.decode,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: decode_group_config,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: decode_consumer_ids,
    RequestCode.LOCK_BATCH_MQ: LockedQueues.decode,
    RequestCode.GET_BROKER_RUNTIME_INFO: decode_kv_table,
    RequestCode.GET_KVLIST_BY_NAMESPACE: decode_kv_table,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: decode_topic_list,
    RequestCode.GET_TOPICS_BY_CLUSTER: decode_topic_list,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: decode_topic_list,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: decode_topic_list,
    RequestCode.GET_BROKER_CONFIG: decode_settings,
    RequestCode.QUERY_DATA_VERSION: decode_data_version,
}
EXACT = (
    RequestCode.GET_TOPIC_CONFIG,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_BROKER_MEMBER_GROUP,
    RequestCode.LOCK_BATCH_MQ,
)


def test_bodies_of_answers_are_understood() -> None:
    """Every JSON body that a real server answered is read; where it has one order, written too."""
    seen = set()
    for name in FILES:
        for row, frame in rows(name):
            if not row.get("is_response") or row["code"] != 0:
                continue
            command = command_of(frame)
            read = BODIES.get(row["req_code"])
            if read is None or not command.body:
                continue
            value = read(command.body)
            assert value is not None
            seen.add(row["req_code"])
            if row["req_code"] in EXACT:
                encode = {
                    RequestCode.GET_TOPIC_CONFIG: encode_topic_config,
                    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: encode_group_config,
                }.get(row["req_code"])
                assert (encode(value) if encode else value.encode()) == command.body
    assert seen >= set(BODIES) - {RequestCode.QUERY_DATA_VERSION}


def test_routes_are_written_as_the_real_name_server_does() -> None:
    """Route answers are equal bytes, with the key style that the requester's version asks for."""
    styles = set()
    for name in FILES:
        found = rows(name)
        by_seq = {row.get("seq"): frame for row, frame in found}
        for row, frame in found:
            if row.get("is_response") and row["req_code"] == 105 and row["code"] == 0:
                asked = command_of(by_seq[row["pair"]])
                standard = (
                    asked.version >= 401 or asked.fields.get("acceptStandardJsonOnly") == "true"
                )
                body = bytes(command_of(frame).body)
                if b"topicQueueMappingByBroker" in body:
                    continue
                assert TopicRoute.decode(body).encode(standard) == body
                styles.add(standard)
    assert styles == {True, False}


def test_bodies_of_requests_are_understood() -> None:
    """Heartbeats, locks, registrations and checks of every client are read."""
    heartbeats = locks = registrations = checks = 0
    languages = set()
    for name in FILES:
        for _, frame in rows(name):
            command = command_of(frame)
            if command.is_response or name.startswith("probe"):
                continue
            if command.code == RequestCode.HEART_BEAT:
                heartbeat = ClientHeartbeat.decode(command.body)
                assert heartbeat.client_id
                assert ClientHeartbeat.decode(heartbeat.encode()) == heartbeat
                for consumer in heartbeat.consumers:
                    for item in consumer.subscriptions:
                        assert item.matches_all or item.tag_hashes or item.expression_type != "TAG"
                languages.add(LanguageCode(command.language))
                heartbeats += 1
            elif command.code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
                body = LockBatchBody.decode(command.body)
                assert body.queues or command.code == RequestCode.UNLOCK_BATCH_MQ
                assert LockBatchBody.decode(body.encode()) == body
                locks += 1
            elif command.code == RequestCode.REGISTER_BROKER:
                registered = RegisterBrokerBody.decode(command.body, version=command.version)
                assert len(registered.topics) > 1
                registrations += 1
            elif command.code == RequestCode.CHECK_CLIENT_CONFIG:
                assert ClientConfigCheck.decode(command.body) is not None
                checks += 1
    assert languages == {LanguageCode.JAVA, LanguageCode.GO, LanguageCode.CPP}
    assert heartbeats > 100
    assert locks > 40
    assert registrations >= 10
    assert checks > 5


def test_every_json_body_survives_our_reader_and_writer() -> None:
    """Any captured fastjson body, with bare and object keys too, is read and written alike."""
    found = 0
    for name in FILES:
        for row, frame in rows(name):
            body = bytes(command_of(frame).body)
            if body[:1] != b"{" or name.startswith(("probe", "cpp", "rocketmq")):
                continue
            if row.get("body_omitted"):
                continue
            value = loads(body)
            assert loads(dumps(value)) == value
            found += 1
    assert found > 500
