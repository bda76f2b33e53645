"""What one send, one batched message and one pull cost inside of the broker, without sockets.

`filtered` is a pull with an SQL92 filter of two terms, for each message that it examines: finding
the record and its properties, asking the filter. `filter` is the filter alone. `sign` is what
credentials cost a client for each send of 256 bytes, `bind` the same on a connection that has a
session.

Run: python -m bench.hotpath. Prints µs per message, the best of several rounds: this is the number
to hold against when `broker/sends/service.py` or the store's append changes.
"""

from __future__ import annotations

import json
import struct
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from inorder.accelerated import native
from inorder.broker.producers.rules import ProducerTable
from inorder.broker.sends.service import Sends
from inorder.broker.ticks import PendingReplies
from inorder.clock import SystemClock
from inorder.config import BrokerConfig, StoreConfig
from inorder.credentials import Credentials
from inorder.disk import OsFiles
from inorder.filters.compiled import compile_filter
from inorder.model import TopicConfig
from inorder.net.signing import Signer
from inorder.store.store import Store
from inorder.wire.extensions import SESSION
from inorder.wire.header import Command
from inorder.wire.ids import UniqueIds, pack_host
from inorder.wire.requests.sendframes import SendTemplate, by_map, json_text

ROUNDS = 15
MESSAGES = 4096
PER_TICK = 112
BODY = b"x" * 200


PRODUCER_ID = "0123456789abcdef"
SQL = "amount >= 50 AND country = 'de'"
CREDENTIALS = Credentials("bench", "a secret of 32 characters or so")
SINK = "spark:bench:bench:broker-a:3"
BULK = 1024


class Connection:
    """A client's connection, as far as the hot path looks at it."""

    peer_host = pack_host("127.0.0.1", 5000)
    closed = False


def send_header(number: int, queue_id: int, sequence: int | None = None, more: str = "") -> bytes:
    """Return the JSON header that a Java client sends; with a sequence, that of our own client."""
    properties = (
        f"KEYS\x01k{number}\x02UNIQ_KEY\x01C000020242844E0E2F2A48FB{number:08X}\x02"
        "WAIT\x01true\x02TAGS\x01TagA\x02"
    )
    if sequence is not None:
        properties += f"INORDER_PID\x01{PRODUCER_ID}\x02INORDER_SEQ\x01{sequence}\x02"
    properties += more
    fields = {
        "a": "PG", "b": "Bench", "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0",
        "g": "1794715657242", "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
        "n": "broker-a",
    }  # fmt: skip
    header = {
        "code": 310, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": number,
        "serializeTypeCurrentRPC": "JSON", "version": 479,
    }  # fmt: skip
    return json.dumps(header, separators=(",", ":")).encode()


def batch_body(first: int, count: int = 32) -> bytes:
    """Return a batch of messages."""
    items = []
    for number in range(first, first + count):
        properties = f"KEYS\x01k{number}\x02UNIQ_KEY\x01C000020242844E0E2F2A48FB{number:08X}\x02"
        raw = (properties + "WAIT\x01true\x02TAGS\x01TagA\x02").encode()
        head = struct.pack(">iiiii", 22 + len(BODY) + len(raw), 0, 0, 0, len(BODY))
        items.append(head + BODY + struct.pack(">h", len(raw)) + raw)
    return b"".join(items)


def bulk_body(first: int, count: int = BULK) -> bytes:
    """Return a request of the Spark sink: rows of one source queue, numbered by their offset."""
    items = []
    for offset in range(first, first + count):
        number, before = offset << 20, offset - 1 << 20 if offset else -1
        raw = (
            f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02__SHARDINGKEY\x01k{offset % 1000}\x02"
            f"INORDER_PID\x01{SINK}\x02INORDER_SEQ\x01{number}\x02INORDER_PREV\x01{before}\x02"
        ).encode()
        head = struct.pack(">iiiii", 22 + len(BODY) + len(raw), 0, 0, 0, len(BODY))
        items.append(head + BODY + struct.pack(">h", len(raw)) + raw)
    return b"".join(items)


def rig(folder: Path) -> tuple[Any, Sends, ProducerTable[Any]]:
    """Return a store, a hot path over it and its producers, without a network."""
    clock = SystemClock()
    config = BrokerConfig(data=str(folder), store=StoreConfig())
    store = Store.open(folder, config.store, OsFiles(), clock)
    broker: Any = SimpleNamespace(
        store=store, clock=clock, config=config, store_host=pack_host("127.0.0.1", 10911),
        unique_ids=UniqueIds("127.0.0.1", 1, 2), producers=ProducerTable(),
        topics={"Bench": TopicConfig("Bench")},
        resizing=SimpleNamespace(
            placement=SimpleNamespace(
                send_map=lambda _: SimpleNamespace(version="", digest=""), takes=lambda *_: True
            )
        ),
    )  # fmt: skip
    store.companions.append(broker.producers)
    sends = Sends(broker)
    for queue_id in range(8):
        sends.target("Bench", queue_id)
    return store, sends, broker.producers


def measure(folder: Path) -> dict[str, float]:
    """Return the best µs per message of each path."""
    store, sends, producers = rig(folder)
    connection: Any = Connection()
    names = ("send", "numbered", "batch", "bulk", "housekeep", "pull", "filtered", "filter", "sign",
             "bind")  # fmt: skip
    best = dict.fromkeys(names, 9e9)
    producer = producers.hello(PRODUCER_ID, 1, connection, named=False)
    for queue_id in range(8):
        producers.add_queue(producer, "Bench", queue_id)
    sink = producers.hello(SINK, 1, connection, named=True)
    producers.add_queue(sink, "Bench", 3)
    number = 0
    for round_number in range(ROUNDS):
        headers = [send_header(number + i, i % 8) for i in range(MESSAGES)]
        best["send"] = min(best["send"], _send(store, sends, connection, headers))
        number += MESSAGES
        best["housekeep"] = min(best["housekeep"], _housekeep(store, MESSAGES))
        headers = [
            send_header(number + i, i % 8, (round_number * MESSAGES + i) // 8)
            for i in range(MESSAGES)
        ]
        best["numbered"] = min(best["numbered"], _send(store, sends, connection, headers))
        number += MESSAGES
        _housekeep(store, MESSAGES)
        header = send_header(number, 3).replace(b'"code":310', b'"code":320')
        header = header.replace(b'"m":"false"', b'"m":"true"')
        bodies = [batch_body(number + i * 32) for i in range(MESSAGES // 32)]
        best["batch"] = min(best["batch"], _batches(store, sends, connection, header, bodies))
        number += MESSAGES
        _housekeep(store, MESSAGES)
        first = round_number * MESSAGES
        bodies = [bulk_body(first + i * BULK) for i in range(MESSAGES // BULK)]
        best["bulk"] = min(best["bulk"], _batches(store, sends, connection, header, bodies))
        number += MESSAGES
        _housekeep(store, MESSAGES)
        queue = store.queue("Bench", 3)
        started = time.perf_counter()
        for offset in range(queue.visible_offset - MESSAGES, queue.visible_offset, 32):
            store.reader.get(
                queue, offset, max_messages=32, max_bytes=262144, scan_max=800, wanted=None
            )
        best["pull"] = min(best["pull"], (time.perf_counter() - started) / MESSAGES)
        headers = [
            send_header(number + i, 5, more=f"amount\x01{i % 100}\x02country\x01de\x02")
            for i in range(MESSAGES)
        ]
        _send(store, sends, connection, headers)
        number += MESSAGES
        _housekeep(store, MESSAGES)
        best["filtered"] = min(best["filtered"], _filtered(store))
        best["filter"] = min(best["filter"], _filter(headers))
        best["sign"] = min(best["sign"], _signing(Signer(CREDENTIALS)))
        bound = Signer(CREDENTIALS)
        bound.learn(Command(0, fields={SESSION: "0" * 32}))
        best["bind"] = min(best["bind"], _signing(bound))
    store.close()
    return {name: seconds * 1e6 for name, seconds in best.items()}


def _send(store: Any, sends: Sends, connection: Any, headers: list[bytes]) -> float:
    reads = [
        [(0, header, BODY) for header in headers[at : at + PER_TICK]]
        for at in range(0, MESSAGES, PER_TICK)
    ]
    started = time.perf_counter()
    by_hand = 0
    for frames in reads:
        replies = PendingReplies(connection, 1794715657300)
        index = 0
        while index < len(frames):
            if native is not None:
                index = sends.take_plain(connection, frames, index, replies)
            if index < len(frames):  # all of them, or the first one of a file
                if not sends.send_v2(connection, frames[index][1], BODY, replies):
                    raise SystemExit("the hot path refused a plain send")
                index += 1
                by_hand += 1
        tick = store.write_tick()
        assert tick is not None
        store.publish(tick)
    if native is not None and by_hand > 2:
        raise SystemExit("the compiled module left plain sends")
    return (time.perf_counter() - started) / MESSAGES


def _batches(
    store: Any, sends: Sends, connection: Any, header: bytes, bodies: list[bytes]
) -> float:
    started = time.perf_counter()
    for at in range(0, len(bodies), 4):
        replies = PendingReplies(connection, 1794715657300)
        for body in bodies[at : at + 4]:
            if not sends.send_v2(connection, header, body, replies):
                raise SystemExit("the hot path refused a plain batch")
        tick = store.write_tick()
        assert tick is not None
        store.publish(tick)
    return (time.perf_counter() - started) / MESSAGES


def _filtered(store: Any) -> float:
    """Read the last messages of queue 5 with a filter of two terms that matches every second."""
    queue, wanted = store.queue("Bench", 5), compile_filter(SQL)
    started = time.perf_counter()
    at = queue.visible_offset - MESSAGES
    while at < queue.visible_offset:
        at = store.reader.get_filtered(
            queue, at, max_messages=32, max_bytes=262144, scan_max=800, wanted=wanted
        ).next_offset
    return (time.perf_counter() - started) / MESSAGES


def _signing(signer: Signer) -> float:
    """Sign the frames of sends of 256 bytes, as a client does."""
    template = SendTemplate(
        group="bench", topic="Bench", template_topic="TBW102", template_queues=4, queue_id=3,
        broker="broker-a",
    )  # fmt: skip
    template.set_producer(PRODUCER_ID, named=False)
    properties = json_text("KEYS\x01k1\x02UNIQ_KEY\x01C000020242844E0E2F2A48FB00000001\x02")
    frames = [
        template.frame(
            number, properties, b"x" * 256, numbers=(number,), placed=by_map(1, "0" * 16)
        )
        for number in range(MESSAGES)
    ]
    started = time.perf_counter()
    for frame in frames:
        signer.signed_frame(frame)
    return (time.perf_counter() - started) / len(frames)


def _filter(headers: list[bytes]) -> float:
    """Ask the same filter alone, with the properties as bytes."""
    matches = compile_filter(SQL).matches
    found = [json.loads(header)["extFields"]["i"].encode() for header in headers]
    started = time.perf_counter()
    for raw in found:
        matches(raw)
    return (time.perf_counter() - started) / len(found)


def _housekeep(store: Any, messages: int) -> float:
    started = time.perf_counter()
    while store.housekeep(0):
        pass
    return (time.perf_counter() - started) / messages


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        for name, cost in measure(Path(folder)).items():
            print(f"{name:10} {cost:6.2f} µs/message")


if __name__ == "__main__":
    main()
