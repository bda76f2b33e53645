"""The captured conversations between real clients and a real broker, as rows of commands.

The files lie in `tests/golden/frames`, one JSON object a line (see the README there). Whole files
hold every frame of their conversation; in the others only the first three of each kind are kept.
"""

from __future__ import annotations

import base64
import functools
import json
import lzma
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from inorder.errors import CorruptRecord
from inorder.wire import record as records
from inorder.wire.header import Command, decode_command

FRAMES = Path(__file__).parents[1] / "frames"
BROKER = "broker"
NAMESRV = "namesrv"

_SCENARIOS_KEPT_WHOLE = ("-prod", "-txn", "-txn-race", "-pull")
_RECORD_BODIES = frozenset((11, 12, 33, 361))


@dataclass(frozen=True, slots=True)
class Row:
    """One captured frame. `pair` is the number of its other half; `at_ms` counts from the start."""

    seq: int
    at_ms: int
    connection: int
    peer: str
    to_server: bool
    pair: int | None
    frame: bytes
    command: Command

    @property
    def is_request(self) -> bool:
        """Tell a request of the client from everything else."""
        return self.to_server and not self.command.is_response


@dataclass(frozen=True, slots=True)
class Conversation:
    """One file."""

    name: str
    rows: tuple[Row, ...]
    by_seq: dict[int, Row]

    @property
    def whole(self) -> bool:
        """Tell whether nothing was left out, so that values can be compared too."""
        return self.name.startswith("probe-") or self.name.endswith(_SCENARIOS_KEPT_WHOLE)

    @property
    def namesrv_only(self) -> bool:
        """Tell whether the client is a broker, which registers itself."""
        return self.name.startswith("broker-namesrv")

    def answered(self) -> Iterator[tuple[Row, Row]]:
        """Yield requests of the client with their answers, in the order of the requests."""
        for row in self.rows:
            if row.is_request and row.pair is not None:
                yield row, self.by_seq[row.pair]

    def records(self) -> Iterator[records.Record]:
        """Yield the messages in the answers, in the order seen."""
        for request, answer in self.answered():
            yield from records_of(request.command.code, answer.command)


def names() -> list[str]:
    """Return the names of all conversations."""
    paths = sorted(FRAMES.rglob("*.jsonl.xz"))
    return [path.name.removesuffix(".jsonl.xz") for path in paths if _is_conversation(path)]


@functools.cache
def load(name: str) -> Conversation:
    """Read one conversation."""
    (path,) = FRAMES.rglob(f"{name}.jsonl.xz")
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        rows = tuple(_row(json.loads(line)) for line in lines)
    return Conversation(name, rows, {row.seq: row for row in rows})


def records_of(request_code: int, answer: Command) -> list[records.Record]:
    """Return the messages in the body of an answer; none if it has no such body."""
    if request_code not in _RECORD_BODIES or answer.code != 0 or not answer.body:
        return []
    found, at, body = [], 0, bytes(answer.body)
    while at < len(body):
        item = records.decode(body, at)
        if item.size <= 0:
            raise CorruptRecord(f"record without a size at {at}")
        found.append(item)
        at += item.size
    return found


def split_frame(frame: bytes) -> tuple[int, bytes, bytes]:
    """Cut one frame into serializer, header and body."""
    length, word = struct.unpack_from(">iI", frame)
    if length != len(frame) - 4:
        raise ValueError(f"frame of {len(frame)} bytes says {length}")
    end = 8 + (word & 0xFFFFFF)
    return word >> 24, frame[8:end], frame[end:]


def join_frame(serializer: int, header: bytes, body: bytes) -> bytes:
    """Put a frame together."""
    return (
        struct.pack(">iI", 4 + len(header) + len(body), serializer << 24 | len(header))
        + header
        + body
    )


def _row(fields: dict[str, object]) -> Row:
    frame = base64.b64decode(str(fields["frame_b64"]))
    if "body_omitted" in fields:  # only its length is known, and only its length matters
        (length,) = struct.unpack_from(">i", frame)
        frame += b"x" * (4 + length - len(frame))
    pair = fields["pair"]
    assert pair is None or isinstance(pair, int)
    return Row(
        seq=_int(fields["seq"]),
        at_ms=_int(fields["t"]),
        connection=_int(fields["conn"]),
        peer=str(fields["peer"]),
        to_server=fields["dir"] == "c2s",
        pair=pair,
        frame=frame,
        command=decode_command(split_frame(frame)),
    )


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


def _is_conversation(path: Path) -> bool:
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return '"pair"' in lines.readline()
