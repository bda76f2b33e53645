"""What it costs a consumer to turn the bytes of a pull answer into messages.

Beside it, on the same bytes, the least that anyone must do: walk over the records, unpack the fixed
fields, check the checksum of the body.
"""

from __future__ import annotations

import struct
import time
import zlib

from inorder.client.consume.messages import receive_all
from inorder.config import ClientConfig
from inorder.model import TopicQueue
from inorder.wire.record import Record, encode

RECORDS = 32
QUEUE = TopicQueue("Bench", "broker-a", 3)
_HEAD = struct.Struct(">iIIiiqqiq8sq8siqi")
_COUNT = 200


def answer_body() -> bytes:
    """Return 32 records as a Java producer's messages are stored."""
    records = []
    for number in range(RECORDS):
        properties = (
            f"KEYS\x01k{number}\x02UNIQ_KEY\x01C000020242844E0E2F2A48FB{number:08X}\x02"
            "CLUSTER\x01DefaultCluster\x02WAIT\x01true\x02TAGS\x01TagA\x02"
        )
        record = Record(
            QUEUE.topic, QUEUE.index, number, number * 400, b"x" * 200, properties.encode(),
            born_at_ms=1794715657242, stored_at_ms=1794715657243,
        )  # fmt: skip
        records.append(encode(record))
    return b"".join(records)


def floor(body: bytes, count: int) -> float:
    """Return the CPU µs per message of the bare loop."""
    unpack, size_of_head, crc32 = _HEAD.unpack_from, _HEAD.size, zlib.crc32
    began = time.process_time()
    for _ in range(count):
        at, end = 0, len(body)
        while at < end:
            head = unpack(body, at)
            start = at + size_of_head
            if crc32(body[start : start + head[14]]) & 0x7FFFFFFF != head[2]:
                raise SystemExit("the records of the benchmark are damaged")
            at += head[0]
    return (time.process_time() - began) / (count * RECORDS) * 1e6


def ours(body: bytes, count: int) -> float:
    """Return the CPU µs per message of the client's decoder."""
    limit = ClientConfig().message_bytes_max
    began = time.process_time()
    for _ in range(count):
        if len(receive_all(QUEUE.broker, body, limit)) != RECORDS:
            raise SystemExit("the decoder lost messages")
    return (time.process_time() - began) / (count * RECORDS) * 1e6


def measure(units: int) -> tuple[list[float], list[float]]:
    """Return ours and the floor, in turn."""
    body = answer_body()
    pairs = [(ours(body, _COUNT), floor(body, _COUNT)) for _ in range(units)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


if __name__ == "__main__":
    print(measure(5))
