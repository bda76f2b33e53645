"""The load generator finds what is wrong with an answer; one that believes all proves nothing."""

from __future__ import annotations

import json
import socketserver
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bench import loadgen
from bench.loadgen import Load

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(loadgen.compiler() is None, reason="no C compiler for the load generator"),
]

Fields = dict[str, str]
Reply = tuple[int, dict[str, Any], bytes]
"""Code, ext fields, body; a field `opaque` replaces the request's."""
Script = Callable[[int, Fields], Reply]


class _Handler(socketserver.StreamRequestHandler):
    """Answers each request as the script of the test says."""

    def handle(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        while head := self.rfile.read(8):
            length, header_size = struct.unpack(">ii", head)
            header = json.loads(self.rfile.read(header_size))
            self.rfile.read(length - 4 - header_size)
            with server.lock:
                code, fields, body = server.script(server.requests, header["extFields"])
                server.requests += 1
            opaque = fields.pop("opaque", header["opaque"])
            answer = {"code": code, "extFields": fields, "flag": 1, "opaque": opaque}
            encoded = json.dumps(answer).encode()
            words = struct.pack(">ii", 4 + len(encoded) + len(body), len(encoded))
            self.wfile.write(words + encoded + body)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script, self.requests, self.lock = script, 0, threading.Lock()


@contextmanager
def serving(script: Script) -> Iterator[tuple[str, int]]:
    """Run a server that follows a script."""
    with _Server(script) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield "127.0.0.1", server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


ENOUGH_S = 30
"""For loads that end with their count, however slow the machine is."""


def drive(script: Script, load: Load, *, count: int, seconds: float = ENOUGH_S) -> loadgen.Result:
    """Run a short load against the script."""
    with serving(script) as address:
        return loadgen.run(address, load, seconds=seconds, warmup_s=0, count=count)


def stored(number: int, fields: Fields, **changes: Any) -> Reply:
    """Answer a send as a broker does, with changes."""
    answer = {"msgId": "7F" * 16, "queueId": fields["e"], "queueOffset": str(number)}
    return 0, answer | changes, b""


SENDS: dict[str, tuple[Script, str]] = {
    "error code": (lambda number, fields: (1, {}, b""), "send answered 1"),
    "other queue": (lambda number, fields: stored(number, fields, queueId="7"), "queue 7"),
    "no offset": (lambda number, fields: stored(number, fields, queueOffset="x"), "offset"),
    "short id": (lambda number, fields: stored(number, fields, msgId="7F"), "id of 2"),
    "same offset twice": (lambda number, fields: stored(number // 2, fields), "offsets between"),
    "offset left out": (lambda number, fields: stored(number * 2, fields), "offsets between"),
    "unknown request": (lambda number, fields: stored(number, fields, opaque=5), "nobody waits"),
}


@pytest.mark.parametrize("fault", SENDS)
def test_a_wrong_send_answer_is_bad(fault: str) -> None:
    """Each way in which a send answer can be wrong is counted and described."""
    script, complaint = SENDS[fault]
    counted = complaint == "offsets between"  # seen in the end, from all answers together
    seconds = ENOUGH_S if counted else 0.3
    result = drive(script, Load("send", 1, 1, queues=1), count=20, seconds=seconds)
    assert result.bad > 0
    assert any(complaint in sample for sample in result.bad_samples), result.bad_samples


def test_right_send_answers_are_not_bad() -> None:
    """A server that answers as a broker does is not complained about."""
    result = drive(stored, Load("send", 2, 4, queues=1), count=200)
    assert (result.bad, result.total_messages) == (0, 200)


def test_a_busy_answer_is_counted_apart() -> None:
    """Flow control is neither an error nor a message."""
    busy: Reply = (2, {}, b"")
    result = drive(lambda *_: busy, Load("send", 1, 1, queues=1), count=5, seconds=0.3)
    assert result.bad == 0
    assert result.busy > 0
    assert result.messages == 0


def record(offset: int, *, queue_id: int = 0, topic: bytes = b"BenchTopic", crc: int = 0) -> bytes:
    """Return a record as it is stored; `crc` is added to the right checksum."""
    body = b"x" * 40
    checksum = (zlib.crc32(body) + crc) & 0x7FFFFFFF
    rest = struct.pack(
        ">IiiiqqiQ", 0xDAA320A7, checksum, queue_id, 0, offset, 1000 + offset * 200, 0, 1
    )
    rest += bytes(8) + struct.pack(">q", 1) + bytes(8) + struct.pack(">iqi", 0, 0, len(body)) + body
    rest += bytes([len(topic)]) + topic + struct.pack(">h", 0)
    return struct.pack(">i", len(rest) + 4) + rest


def pulled(fields: Fields, *records: bytes, step: int | None = None) -> Reply:
    """Answer a pull with records."""
    following = int(fields["queueOffset"]) + (len(records) if step is None else step)
    answer = {"nextBeginOffset": str(following), "minOffset": "0", "maxOffset": "1000000"}
    return 0, answer, b"".join(records)


def at(fields: Fields) -> int:
    """Return the offset that a pull asks for."""
    return int(fields["queueOffset"])


PULLS: dict[str, tuple[Script, str]] = {
    "offset skipped": (lambda _, f: pulled(f, record(at(f) + 1)), "expected 0"),
    "other queue": (lambda _, f: pulled(f, record(at(f), queue_id=3)), "queue 3"),
    "other topic": (lambda _, f: pulled(f, record(at(f), topic=b"OtherTopic")), "another topic"),
    "bad checksum": (lambda _, f: pulled(f, record(at(f), crc=1)), "checksum"),
    "cut record": (lambda _, f: pulled(f, record(at(f))[:-5], step=1), "record"),
    "nothing found": (lambda _, f: pulled(f), "0 records"),
    "wrong next": (lambda _, f: pulled(f, record(at(f)), step=2), "next"),
    "error code": (lambda _, f: (17, {}, b""), "answered 17"),
}


@pytest.mark.parametrize("fault", PULLS)
def test_a_wrong_pull_answer_is_bad(fault: str) -> None:
    """Each way in which a pull answer can be wrong is counted and described."""
    script, complaint = PULLS[fault]
    result = drive(script, Load("pull", 1, 1, queues=1), count=20, seconds=0.3)
    assert result.bad > 0
    assert any(complaint in sample for sample in result.bad_samples), result.bad_samples


def test_right_pull_answers_are_not_bad() -> None:
    """Records in order, of the queue and topic asked for, are not complained about."""

    def script(_: int, fields: Fields) -> Reply:
        offset = at(fields)
        return pulled(fields, *(record(offset + step) for step in range(32)))

    result = drive(script, Load("pull", 1, 2, queues=1), count=320)
    assert result.bad == 0
    assert result.total_messages >= 320
