"""Reading a data directory without the store: struct, zlib and nothing of inorder.

Walks the commit log byte by byte and holds everything else against it: each consume-queue entry,
each entry, slot and chain of the key index, the length of every file, the zeros behind the end,
the committed offsets. Meant for a directory that was recovered, and since then stopped or killed
without a write: then all must agree exactly. `python -m tests.crash.verify DIR` prints a summary.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import sys
import zlib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
HEAD = struct.Struct(">IIIiiqqiq")  # up to and with the time of birth
ENTRY = struct.Struct(">qiq")
INDEX_HEADER = struct.Struct(">qqqqii")
INDEX_ENTRY = struct.Struct(">iqii")
NAME = re.compile(r"\d{20}")
PROBLEMS_MAX = 50

Queue = tuple[str, int]


@dataclass(slots=True)
class Found:
    """One record of the log."""

    position: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    stored_at_ms: int
    body: bytes
    properties: dict[str, str]


@dataclass(slots=True)
class Contents:
    """What a directory holds, and what is wrong with it."""

    records: list[Found] = field(default_factory=list)
    end: int = 0
    log_digest: str = ""
    queues: dict[Queue, list[Found]] = field(default_factory=dict)
    index_entries: int = 0
    index_files: int = 0
    index_repeats: int = 0
    segments: int = 0
    committed: dict[tuple[str, str, int], int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def wrong(self, problem: str) -> None:
        """Note a problem."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)

    @property
    def logical(self) -> tuple[int, str, tuple[tuple[Queue, int], ...]]:
        """Return what two recoveries of one image must agree on."""
        sizes = tuple(sorted((queue, len(found)) for queue, found in self.queues.items()))
        return self.end, self.log_digest, sizes

    def __str__(self) -> str:
        return (
            f"records={len(self.records)} end={self.end} segments={self.segments} "
            f"queues={len(self.queues)} index_entries={self.index_entries} "
            f"index_files={self.index_files} problems={len(self.problems)}"
        )


def verify(
    root: Path,
    *,
    segment_bytes: int,
    queue_file_bytes: int,
    index_slots: int,
    index_entries: int,
) -> Contents:
    """Read everything; `problems` is empty if all of it agrees."""
    contents = Contents()
    _read_log(contents, root / "commitlog", segment_bytes)
    _check_queues(contents, root / "consumequeue", queue_file_bytes)
    _check_index(contents, root / "index", index_slots, index_entries)
    _check_offsets(contents, root / "config")
    return contents


def read_log(root: Path, *, segment_bytes: int) -> Contents:
    """Read the commit log alone, of whichever broker."""
    contents = Contents()
    _read_log(contents, root / "commitlog", segment_bytes)
    return contents


# ---- the log


def _read_log(contents: Contents, folder: Path, segment_bytes: int) -> None:
    names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    contents.segments = len(names)
    digest = hashlib.sha256()
    ended = False
    for number, name in enumerate(names):
        if not NAME.fullmatch(name) or int(name) != number * segment_bytes:
            contents.wrong(f"commitlog/{name} does not continue the log")
            return
        data = (folder / name).read_bytes()
        if len(data) != segment_bytes:
            contents.wrong(f"commitlog/{name} has {len(data)} bytes, not {segment_bytes}")
            return
        if ended and data.count(0) != len(data):
            contents.wrong(f"commitlog/{name} lies behind the end of the log and is not empty")
        if ended:
            continue
        at, full = _read_segment(contents, data, number * segment_bytes)
        digest.update(data[:at])
        contents.end = number * segment_bytes + (segment_bytes if full else at)
        ended = not full
        rest = data[at + 8 :] if full and at < segment_bytes else data[at:]
        if rest.count(0) != len(rest):
            contents.wrong(f"commitlog/{name} is not zero behind byte {at}")
    contents.log_digest = digest.hexdigest()
    for record in contents.records:
        queue = contents.queues.setdefault((record.topic, record.queue_id), [])
        if record.queue_offset != len(queue):
            contents.wrong(
                f"{record.topic}/{record.queue_id}: offset {record.queue_offset} at position "
                f"{record.position}, expected {len(queue)}"
            )
        queue.append(record)


def _read_segment(contents: Contents, data: bytes, base: int) -> tuple[int, bool]:
    """Read the records of a file; return where they end and whether the next file goes on."""
    at = 0
    while at + 8 <= len(data):
        size, magic = struct.unpack_from(">iI", data, at)
        if magic == MAGIC_BLANK:
            if size != len(data) - at:
                contents.wrong(f"the blank at {base + at} says {size}, not {len(data) - at}")
            return at, True
        if magic not in (MAGIC_V1, MAGIC_V2):
            return at, False
        record = _read_record(contents, data, at, base)
        if record is None:
            return at, False
        contents.records.append(record)
        at += record.size
    return at, at == len(data)


def _read_record(contents: Contents, data: bytes, at: int, base: int) -> Found | None:
    size, magic, crc, queue_id, _flag, queue_offset, position, sys_flag, _born = HEAD.unpack_from(
        data, at
    )
    if not 91 <= size <= len(data) - at or position != base + at:
        contents.wrong(f"the record at {base + at} has size {size} and position {position}")
        return None
    cursor = at + HEAD.size + (20 if sys_flag & 0x10 else 8)
    (stored_at_ms,) = struct.unpack_from(">q", data, cursor)
    cursor += 8 + (20 if sys_flag & 0x20 else 8) + 12
    (body_size,) = struct.unpack_from(">i", data, cursor)
    body = data[cursor + 4 : cursor + 4 + body_size]
    cursor += 4 + body_size
    topic_form = ">B" if magic == MAGIC_V1 else ">H"
    (topic_size,) = struct.unpack_from(topic_form, data, cursor)
    cursor += struct.calcsize(topic_form)
    topic = data[cursor : cursor + topic_size].decode()
    cursor += topic_size
    (properties_size,) = struct.unpack_from(">h", data, cursor)
    cursor += 2
    raw = data[cursor : cursor + properties_size].decode()
    if cursor + properties_size != at + size:
        contents.wrong(f"the lengths of the record at {base + at} do not add up")
        return None
    if zlib.crc32(body) & 0x7FFFFFFF != crc:
        contents.wrong(f"the body of the record at {base + at} does not fit its checksum")
        return None
    if "\0" in raw:
        contents.wrong(f"the properties of the record at {base + at} are torn")
        return None
    pairs = (pair.partition("\x01") for pair in raw.split("\x02") if pair)
    properties = {name: value for name, _, value in pairs}
    return Found(position, size, topic, queue_id, queue_offset, stored_at_ms, body, properties)


# ---- queues


@lru_cache(maxsize=1 << 16)
def _java_hash(text: str) -> int:
    value = 0
    for unit in struct.unpack(f"<{len(text.encode('utf-16-le')) // 2}H", text.encode("utf-16-le")):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _check_queues(contents: Contents, folder: Path, file_bytes: int) -> None:
    on_disk: set[Queue] = set()
    for topic in sorted(folder.iterdir()) if folder.exists() else []:
        on_disk |= {(topic.name, int(path.name)) for path in topic.iterdir()}
    for queue in sorted(on_disk | contents.queues.keys()):
        _check_queue(contents, folder, queue, file_bytes)


def _check_queue(contents: Contents, folder: Path, queue: Queue, file_bytes: int) -> None:
    name = f"{queue[0]}/{queue[1]}"
    expected = b"".join(
        ENTRY.pack(record.position, record.size, _java_hash(record.properties.get("TAGS", "")))
        for record in contents.queues.get(queue, [])
    )
    directory = folder / queue[0] / str(queue[1])
    found = b""
    for number, path in enumerate(sorted(directory.iterdir()) if directory.exists() else []):
        if not NAME.fullmatch(path.name) or int(path.name) != number * file_bytes:
            contents.wrong(f"consumequeue/{name}/{path.name} does not continue the queue")
            return
        data = path.read_bytes()
        if len(data) != file_bytes:
            contents.wrong(f"consumequeue/{name}/{path.name} has {len(data)} bytes")
            return
        found += data
    if found[: len(expected)] != expected:
        first = next(
            at // ENTRY.size
            for at in range(0, len(expected), ENTRY.size)
            if found[at : at + ENTRY.size] != expected[at : at + ENTRY.size]
        )
        contents.wrong(f"consumequeue/{name}: entry {first} is not what the log says")
    rest = found[len(expected) :]
    if rest.count(0) != len(rest):
        contents.wrong(f"consumequeue/{name} is not zero behind its {len(expected) // 20} entries")
    if len(rest) > file_bytes:
        contents.wrong(f"consumequeue/{name} has a file too many")


# ---- the key index


def _index_hash(topic: str, key: str) -> int:
    value = abs(_java_hash(f"{topic}#{key}"))
    return 0 if value == 1 << 31 else value


def _expected_keys(contents: Contents) -> list[tuple[int, Found]]:
    expected = []
    for record in contents.records:
        words = [record.properties[name] for name in ("UNIQ_KEY",) if name in record.properties]
        words += record.properties.get("KEYS", "").split()
        expected += [(_index_hash(record.topic, word), record) for word in words]
    return expected


def _check_index(contents: Contents, folder: Path, slots: int, entries: int) -> None:
    expected = _expected_keys(contents)
    paths = sorted(folder.iterdir(), key=lambda path: int(path.name)) if folder.exists() else []
    size = INDEX_HEADER.size + 4 * slots + INDEX_ENTRY.size * entries
    done = 0
    for path in paths:
        data = path.read_bytes()
        if len(data) != size:
            contents.wrong(f"index/{path.name} has {len(data)} bytes, not {size}")
            return
        # A recovery that keeps full files does not know whether the keys of their last record are
        # all there, and adds them again at the start of the next: a query finds the record once.
        first = INDEX_ENTRY.unpack_from(data, INDEX_HEADER.size + 4 * slots + INDEX_ENTRY.size)[1]
        repeated = done
        while repeated and expected[repeated - 1][1].position == first:
            repeated -= 1
        contents.index_repeats += done - repeated
        done = repeated
        count = _check_index_file(contents, path.name, data, expected[done:], slots)
        done += count
    contents.index_entries = done
    contents.index_files = len(paths)
    if done != len(expected):
        contents.wrong(f"the index has {done} entries, the log {len(expected)} keys")


def _check_index_file(
    contents: Contents, name: str, data: bytes, expected: list[tuple[int, Found]], slots: int
) -> int:
    begin_ms, end_ms, begin, end, slots_used, next_entry = INDEX_HEADER.unpack_from(data, 0)
    count = max(next_entry - 1, 0)
    mine = expected[:count]
    if mine and (
        (begin_ms, begin) != (mine[0][1].stored_at_ms, mine[0][1].position)
        or (end_ms, end) != (mine[-1][1].stored_at_ms, mine[-1][1].position)
    ):
        contents.wrong(f"index/{name}: the header is not that of its first and last record")
    base = INDEX_HEADER.size + 4 * slots
    newest: dict[int, int] = {}
    for number, (key_hash, record) in enumerate(mine, 1):
        seconds = max(0, record.stored_at_ms - begin_ms) // 1000
        slot = key_hash % slots
        wanted = (key_hash, record.position, seconds, newest.get(slot, 0))
        if INDEX_ENTRY.unpack_from(data, base + number * INDEX_ENTRY.size) != wanted:
            contents.wrong(f"index/{name}: entry {number} is not what the log says")
            break
        newest[slot] = number
    table = struct.unpack_from(f">{slots}i", data, INDEX_HEADER.size)
    for slot, number in enumerate(table):
        if number != newest.get(slot, 0):
            contents.wrong(f"index/{name}: slot {slot} has {number}, not {newest.get(slot, 0)}")
            break
    if slots_used != len(newest):
        contents.wrong(f"index/{name}: {slots_used} slots used, not {len(newest)}")
    rest = data[base + (count + 1) * INDEX_ENTRY.size :]
    if rest.count(0) != len(rest):
        contents.wrong(f"index/{name} is not zero behind its {count} entries")
    return len(mine)


# ---- committed offsets


def _check_offsets(contents: Contents, folder: Path) -> None:
    path = folder / "consumerOffset.json"
    if not path.exists():
        return
    text = re.sub(r"([{,]\s*)(\d+)(\s*:)", r'\1"\2"\3', path.read_text())
    for key, queues in json.loads(text)["offsetTable"].items():
        topic, _, group = key.partition("@")
        for queue_id, offset in queues.items():
            contents.committed[topic, group, int(queue_id)] = offset
            stored = len(contents.queues.get((topic, int(queue_id)), []))
            if offset > stored:
                contents.wrong(f"{group} committed {offset} of {topic}/{queue_id}, of {stored}")


def main() -> None:
    """Verify a directory with RocketMQ's usual sizes, or with those given."""
    sizes = [int(word) for word in sys.argv[2:]] or [1 << 30, 6_000_000, 5_000_000, 20_000_000]
    contents = verify(
        Path(sys.argv[1]), segment_bytes=sizes[0], queue_file_bytes=sizes[1],
        index_slots=sizes[2], index_entries=sizes[3],
    )  # fmt: skip
    print(contents)
    for problem in contents.problems:
        print(problem)
    sys.exit(bool(contents.problems))


if __name__ == "__main__":
    main()
