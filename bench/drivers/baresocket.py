"""The floor of a blocking send: the same bytes over a bare blocking socket, one after the other.

`python -m bench.drivers.baresocket BROKER`. It writes a frame like that of our producer, made once,
and reads the answer's frame; it decodes nothing. What a client adds is its own.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time

from bench.drivers.work import BODY, KEY, TAG, TOPIC, numbers

SEND_MESSAGE_V2 = 310


def frame() -> bytes:
    """Return a send as our producer writes it: as many bytes, without its numbers."""
    properties = (
        f"KEYS\x01{KEY}\x02TAGS\x01{TAG}\x02UNIQ_KEY\x01C000020242844E0E2F2A48FB00000001\x02"
        "WAIT\x01true\x02OTHER_PID\x01c0ffee00c0ffee00\x02OTHER_SEQ\x01100000\x02"
    )
    fields = {
        "a": "DEFAULT_PRODUCER", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0",
        "g": "1794715657242", "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
        "n": "broker-a",
    }  # fmt: skip
    header = json.dumps(
        {
            "code": SEND_MESSAGE_V2, "language": "PYTHON", "version": 479, "opaque": 1, "flag": 0,
            "serializeTypeCurrentRPC": "JSON", "extFields": fields,
        },
        separators=(",", ":"),
    ).encode()  # fmt: skip
    return struct.pack(">ii", 4 + len(header) + len(BODY), len(header)) + header + BODY


def one_by_one(connection: socket.socket, seconds: float) -> dict[str, float]:
    """Write, read, again."""
    request = frame()
    took: list[float] = []
    began, cpu = time.perf_counter(), time.process_time()
    until, at = began + seconds, began
    while at < until:
        connection.sendall(request)
        answer = connection.recv(65536)
        (size,) = struct.unpack_from(">i", answer)
        while len(answer) < 4 + size:
            answer += connection.recv(65536)
        now = time.perf_counter()
        took.append(now - at)
        at = now
    if b'"code":0' not in answer:
        raise SystemExit(f"the broker refused: {answer[:300]!r}")
    return numbers(len(took), at - began, time.process_time() - cpu, took)


def main() -> None:
    """Obey until standard input ends."""
    host, _, port = sys.argv[1].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print("@ ready", flush=True)
        for line in sys.stdin:
            measured = one_by_one(connection, float(line.split()[3]))
            print("@ " + json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
