"""Where the fuzzers start: the captured frames of real peers, taken apart for each target."""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

from inorder.broker.leases import records as lease_records
from inorder.broker.sends.service import SEND_CODES
from inorder.errors import InorderError
from inorder.store.journal import pack
from inorder.wire.codes import RequestCode
from inorder.wire.compression import compress_body
from inorder.wire.fields import wire_names
from inorder.wire.frame import FrameDecoder, RawFrame
from inorder.wire.header import Command, decode_command, encode_header
from tests.fuzz import targets

FRAMES = Path(__file__).resolve().parents[1] / "golden" / "frames"
SEED_BYTES_MAX = 4096
PER_TARGET_MAX = 400

BODY_OF_REQUEST = {
    RequestCode.HEART_BEAT: 0,
    RequestCode.CHECK_CLIENT_CONFIG: 1,
    RequestCode.LOCK_BATCH_MQ: 2,
    RequestCode.UNLOCK_BATCH_MQ: 2,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: 6,
    RequestCode.QUERY_DATA_VERSION: 10,
}
BODY_OF_ANSWER = {
    RequestCode.LOCK_BATCH_MQ: 3,
    RequestCode.GET_ALL_TOPIC_CONFIG: 4,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: 5,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: 6,
    RequestCode.GET_TOPIC_CONFIG: 8,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: 11,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: 12,
    RequestCode.GET_KVLIST_BY_NAMESPACE: 14,
    RequestCode.GET_BROKER_CONFIG: 15,
}
ROUTES = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: 0,
    RequestCode.GET_BROKER_CLUSTER_INFO: 1,
    RequestCode.GET_BROKER_MEMBER_GROUP: 2,
}
ACL_FILES = (
    "globalWhiteRemoteAddresses:\n- 10.1.1.*\naccounts:\n  - accessKey: appuser1  # c\n"
    "    secretKey: 'battery-staple'\n    whiteRemoteAddress: 10.1.1.{1,2}\n    admin: false\n"
    "    defaultTopicPerm: DENY\n    topicPerms:\n      - a=PUB|SUB\n      - b=DENY\n",
    'accounts:\n- {accessKey: appuser1, secretKey: "battery-staple",\n  topicPerms: [a=PUB]}\n'
    "dataVersion:\n- {counter: 1, timestamp: 1684290520350}\n",
)


def captured() -> Iterator[tuple[int | None, bytes, RawFrame, Command]]:
    """Yield the request code that a frame belongs to, the frame, its parts, its command."""
    for path in sorted(FRAMES.glob("*.jsonl.xz")):
        with lzma.open(path, "rt") as lines:
            for line in lines:
                row = json.loads(line)
                if "frame_b64" not in row or row.get("body_omitted"):
                    continue
                frame = base64.b64decode(row["frame_b64"])
                if len(frame) > SEED_BYTES_MAX:
                    continue
                try:
                    (raw,) = FrameDecoder().receive_data(frame)
                    command = decode_command(raw)
                except (InorderError, ValueError):
                    continue
                yield row.get("req_code", row["code"]), frame, raw, command


def all_seeds() -> dict[str, list[bytes]]:
    """Return the seeds of every target."""
    seeds: dict[str, list[bytes]] = {name: [] for name in targets.TARGETS}
    for code, frame, raw, command in captured():
        serializer, header, body = raw
        seeds["frame_stream"].append(b"\x10" + frame)
        seeds["binary_header" if serializer else "json_header"].append(header)
        seeds["compiled_frames"].append(frame)
        if command.code in SEND_CODES and not command.is_response:
            name = "topic" if command.code == RequestCode.SEND_MESSAGE else "b"
            command.fields[name] = "Bench"  # a topic that the target knows
            seeds["compiled_send"].append(encode_header(command))
        if header.startswith(b'{"code":310,'):
            seeds["hot_send_header"].append(header[12:])
        elif header.startswith(b'{"code":11,'):
            seeds["hot_pull_header"].append(header[11:])
        if not command.is_response:
            _request(seeds, code, command, body)
        elif code == RequestCode.PULL_MESSAGE and command.code == 0:
            for name in (
                "record_decode",
                "record_scan",
                "record_list",
                "compiled_answer",
                "compiled_messages",
            ):
                seeds[name].append(body)
        elif code in BODY_OF_ANSWER and command.code == 0 and body:
            seeds["json_bodies"].append(bytes((BODY_OF_ANSWER[RequestCode(code)],)) + body)
        elif code in ROUTES and command.code == 0 and body:
            seeds["route_data"].append(bytes((ROUTES[RequestCode(code)],)) + body)
        if body[:1] in (b"{", b"["):
            seeds["fast_json"].append(body)
        if text := command.fields.get("i") or command.fields.get("properties"):
            seeds["message_properties"].append(text.encode())
        if text := command.fields.get("msgId"):
            seeds["message_id"].append(text.split(",")[0].encode())
        if text := command.fields.get("subscription"):
            seeds["subscription"].append(text.encode())
    _by_hand(seeds)
    seeds["compiled_send"] += [send_header(number, number % 8) for number in range(4)]
    seeds["compiled_pull"] += [b"", b"\x01\x01", bytes(range(40))]
    seeds["compiled_producer"] += [sends_of(number) for number in range(12)]
    seeds["compiled_batch"] += [targets.numbered(number) for number in (0, 63, 64, 65)]
    return {name: _distinct(found) for name, found in seeds.items()}


def _request(
    seeds: dict[str, list[bytes]], code: int | None, command: Command, body: bytes
) -> None:
    for index, cls in enumerate(targets.REQUESTS):
        if getattr(cls, "CODE", None) == code:
            values = [command.fields.get(name, "") for name in wire_names(cls)]
            seeds["typed_fields"].append(bytes((index,)) + "\x00".join(values).encode())
    if code == RequestCode.SEND_BATCH_MESSAGE and body:
        seeds["batch"].append(body)
        seeds["batch_short_cut"].append(body)
        seeds["compiled_batch"].append(body)
    if code in BODY_OF_REQUEST and body:
        seeds["json_bodies"].append(bytes((BODY_OF_REQUEST[RequestCode(code)],)) + body)
    if code == RequestCode.REGISTER_BROKER and body:
        seeds["register_broker"].append((b"\x03" if body[:1] == b"\x78" else b"\x00") + body)
        if body[:1] == b"\x78":
            seeds["register_broker"].append(b"\x06" + zlib.decompress(body))


def send_header(number: int, queue_id: int) -> bytes:
    """Return the header of a numbered send."""
    text = f"UNIQ_KEY\x01U\x02INORDER_PID\x01fuzz\x02INORDER_SEQ\x01{number}\x02KEYS\x01a b\x02"
    fields = {
        "a": "PG", "b": "Bench", "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "17",
        "h": "0", "i": text, "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    return encode_header(Command(310, 7, 0, fields, serializer=number % 2))


def sends_of(number: int) -> bytes:
    """Return what `compiled_producer` reads as a few sends, plain ones and others."""
    dice = random.Random(number)
    found = bytes((number, *bytes(8), 4)) + b"head" + bytes((dice.randrange(256),))
    for at in range(1 + number * 2):
        key = (b"", b"k", b"key", b"order-42")[at % 4]
        bits = dice.choice((0x0011, 0x0011, dice.randrange(1 << 16))).to_bytes(2, "big")
        found += (
            bits
            + bytes((at % 9, at % 4))
            + key
            + bytes((at % 2, (0, 3, 0, 4)[at % 4]))
            + b"raw"
            + bytes((at % 7, 0))
        )
    return found


def _by_hand(seeds: dict[str, list[bytes]]) -> None:
    for number, algorithm in enumerate(("zlib", "lz4", "zstd")):
        packed = compress_body(algorithm, b"hello" * 100, 5)
        seeds["compressed_body"].append(bytes((number,)) + packed)
    seeds["http_head"] += [
        b"GET /metrics?families=a,b HTTP/1.1\r\nHost: x\r\nAccept: */*\r\nAccept: a",
        b"POST /a%20b HTTP/1.0\r\nContent-Length: 12\r\nConnection: keep-alive",
    ]
    seeds["topic_attributes"] += [b"+message.type=FIFO,-reserve.time", b"+queue.type=BatchCQ"]
    seeds["acl_file"] += [one.encode() for one in ACL_FILES]
    seeds["tls_first_bytes"] += [b"\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)]
    seeds["resize_view"] += [
        b'{"broker":"a","topic":"t","version":2,"map":"2/a:0-3","last":2,"ends":{"0":7},'
        b'"plan":{"id":"p","version":3,"map":"3/a:0-1"},"past":[{"version":1,"map":"1/a:0-1",'
        b'"ends":{"0":5}}],"groups":[{"group":"g","version":1,"done":2,"behind":0,"online":true}]}'
    ]
    seeds["key_map"] += [b"1/broker-a:0-7", b"3/a:0-0/b%2F:4-9/a:1-1", b"9/x:0-999"]
    seeds["message_numbers"] += [
        b"INORDER_PID\x01p\x02INORDER_SEQ\x0112\x02",
        b"TAGS\x01a\x02INORDER_PID\x01p\x02INORDER_SEQ\x011\x02INORDER_PREV\x01-1\x02",
        b"INORDER_SEQ\x011\x02INORDER_PID\x01p\x02",
    ]
    seeds["leases"] += [
        b'\x00{"queues":[["t",0,0],["t",1,99]]}',
        b'\x01{"granted":[{"topic":"t","queue":0,"epoch":9,"chapters":[[0,1,2]]}],"refused":[]}',
        b'\x02{"commits":[["t",0,9,1,100,"100:2c"]]}',
        b'\x03{"taken":[["t",0]],"lost":[]}',
        b'\x04{"leases":[],"next":"x"}',
    ]
    seeds["owner_records"] += [_owner_records(count) for count in (0, 1, 5)]
    seeds["producers_file"] += [_producers(count) for count in (0, 1, 5)]
    seeds["config_files"] += [
        bytes((kind,)) + targets._new_table(kind).encode() for kind in range(3)
    ]
    seeds["config_files"].append(
        b'\x02{"offsetTable":{"t@g":{0:5,1:7}},"dataVersion":{"counter":1}}'
    )
    seeds["config_files"].append(b'\x03{"configTable":{"ns":{"key":"value"}}}')
    seeds["store_files"] += [
        bytes((kind, 0, at)) + b"\xff" * 8 for kind in range(20) for at in (0, 90)
    ]
    seeds["json_bodies"] += [
        b'\x0e{"table":{"a":"b"}}', b'\x0c{"topicList":["a"]}', b'\x0d{"groupList":["a"]}',
        b'\x09{"topicConfigList":[{"topicName":"a"}]}',
        b'\x07{"groupConfigList":[{"groupName":"g"}]}',
    ]  # fmt: skip


def _distinct(found: list[bytes]) -> list[bytes]:
    return sorted(set(found), key=lambda seed: (len(seed), seed))[:PER_TARGET_MAX]


def write_corpus(name: str, seeds: list[bytes], folder: Path) -> None:
    """Write the seeds of a target as files."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        (folder / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)


def _producers(count: int) -> bytes:
    """Return a file of producers."""
    table: targets.ProducerTable[str] = targets.ProducerTable()
    for index in range(count):
        for number in range(3):
            table.replayed(f"p{index}", "T", index, number, 2 * number, named=index % 2 > 0)
    encoder = targets.Encoder(table, 10)
    while encoder.step():
        pass
    return encoder.finish(20, 30)


def _owner_records(count: int) -> bytes:
    """Return a journal of owners."""
    records: list[lease_records.Record] = [
        lease_records.Granted("g", "t", "b", 0, "c", "i", 9, 5000, 1000),
        lease_records.Commit("g", "t", 0, 100, 4096, 9, 1, "100:2c"),
        lease_records.Progress("g", "t", 1, 5, 4096),
        lease_records.Freed("g", "t", "b", 0),
        lease_records.Forgotten("", "t"),
    ]
    payloads = map(lease_records.encode, records[:count])
    return b"".join(map(pack, payloads))
