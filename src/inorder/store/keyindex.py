"""Finding messages by key: RocketMQ's chain of index files, fed in batches.

    note, note_rows    a send remembers its record, or the rows of a batch: a list append
    settle, roll_back  the log has taken what was noted, or nothing of it
    build              some milliseconds later: hash and chain a portion of what the log has taken
    write              every few seconds: bring slots and header of the file up to its entries
    find, query        positions by hash; `query` checks each hit by its record

Keys are the message id (UNIQ_KEY) and each word of KEYS. The index stores a hash of each,
`abs(hashCode(topic + "#" + key))`. The hash of the topic's part is computed once per topic and
combined with the hash of the key: `h(a + b) = h(a) * 31**len(b) + h(b)`.

Every step exists in Python. Where the compiled module is, it hashes and chains large portions
(`_add_compiled`, `_add_rows`) and gives the same entries. Why in portions, and what is compiled:
decision 37.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from operator import mul
from pathlib import Path
from typing import Final, NamedTuple

from inorder.accelerated import native
from inorder.disk import Files
from inorder.errors import StoreError
from inorder.logs import get_logger
from inorder.store.checkpoints import IndexState
from inorder.store.commitlog import CommitLog
from inorder.store.indexfile import IndexFile, Late
from inorder.store.layout import Layout
from inorder.store.scan import record_at
from inorder.wire.ids import java_hash
from inorder.wire.properties import get

log = get_logger(__name__)


# hot: 0.8 µs
def keys_of(properties: bytes) -> list[bytes]:
    """Return the keys of a record: its id and the words of KEYS."""
    keys = []
    unique = get(properties, b"UNIQ_KEY")
    if unique is not None:
        keys.append(unique)
    words = get(properties, b"KEYS")
    if words is not None:
        keys += [word for word in words.split(b" ") if word] if b" " in words else [words]
    return keys


Noted = tuple[str, bytes, int, int]
"""A record whose keys are to be added: topic, properties, position, store time."""


class NotedRows(NamedTuple):
    """Records of one batch or one read whose keys the compiled module has hashed."""

    hashes: bytes
    """An i32 for each key, in the order of the records."""
    position: int
    stored_at_ms: int
    positions: bytes
    """An i64 for each key: where its record lies."""
    records: int
    """How many records there are."""


def alike(
    waiting: Sequence[Noted | NotedRows], records_max: int
) -> tuple[list[Noted], list[NotedRows]]:
    """Return the first records that wait, up to `records_max`: single ones or batches, never both.

    At least one batch is returned, however large it is.
    """
    singles: list[Noted] = []
    batches: list[NotedRows] = []
    for noted in waiting:
        if isinstance(noted, NotedRows):
            if singles or (batches and noted.records > records_max):
                break
            batches.append(noted)
            records_max -= noted.records
        elif batches:
            break
        else:
            singles.append(noted)
    return singles, batches


def parted(rows: NotedRows, until: int) -> tuple[NotedRows, NotedRows]:
    """Return a batch as two: the keys before `until`, which fill a file, and the others."""
    owners = memoryview(rows.positions).cast("q")
    records = min(len(set(owners[:until])), rows.records)
    first = rows._replace(
        hashes=rows.hashes[: 4 * until], positions=rows.positions[: 8 * until], records=records
    )
    second = rows._replace(
        hashes=rows.hashes[4 * until :], positions=rows.positions[8 * until :],
        position=owners[until], records=rows.records - records,
    )  # fmt: skip
    return first, second


def last_owner_end(owners: Sequence[int], done: int, room: int) -> int:
    """Return how many rows fit without splitting a record that could go whole into a file."""
    until = min(len(owners), done + room)
    if until == len(owners):
        return until
    aligned = until
    while aligned > done and owners[aligned] == owners[aligned - 1]:
        aligned -= 1
    return aligned if aligned > done else until


MASK: Final = 0xFFFFFFFF
SIGN: Final = 0x80000000
COMPILED_ROWS_MIN: Final = 256
"""Fewer keys are not worth the array of slots that the compiled module needs."""
TAIL_CHARS: Final = 12
HEADS_MAX: Final = 4096
BLOCK_CHARS: Final = 64


@lru_cache(maxsize=65_536)  # large: with one topic too many in turn, none would be found
def prefix_hash(topic: str) -> int:
    """Return the hash of `topic#`, unsigned."""
    return java_hash(topic + "#") & MASK


@lru_cache(maxsize=512)
def powers(length: int) -> list[int]:
    """Return the factor of each character in the hash of a key of this length."""
    return [pow(31, length - 1 - i, 1 << 32) for i in range(length)]


_heads: dict[bytes, int] = {}


def _key_hash(key: bytes) -> tuple[int, int]:
    """Return (hash, characters) of one key, unsigned."""
    length = len(key)
    if not key.isascii():
        text = key.decode("utf-8", "replace")
        return java_hash(text) & MASK, len(text.encode("utf-16-le", "surrogatepass")) // 2
    if length <= 2 * TAIL_CHARS:
        return sum(map(mul, key, powers(length))) & MASK, length
    # Message ids of one producer share all but their end.
    head = key[:-TAIL_CHARS]
    known = _heads.get(head)
    if known is None:
        if len(_heads) >= HEADS_MAX:
            _heads.clear()
        known = 0
        for start in range(0, len(head), BLOCK_CHARS):
            block = head[start : start + BLOCK_CHARS]
            value = sum(map(mul, block, powers(len(block))))
            known = (known * pow(31, len(block), 1 << 32) + value) & MASK
        _heads[head] = known
    tail = sum(map(mul, key[-TAIL_CHARS:], powers(TAIL_CHARS)))
    return (known * _TAIL_POWER + tail) & MASK, length


_TAIL_POWER: Final = pow(31, TAIL_CHARS, 1 << 32)


def _absolute(value: int) -> int:
    """Return Java's abs of an unsigned 32-bit pattern; RocketMQ takes 0 for the one without."""
    if value < SIGN:
        return value
    return 0 if value == SIGN else (1 << 32) - value


# hot: 1.0 µs a key
def hash_pure(prefixes: list[int], keys: list[bytes]) -> list[int]:
    """Hash keys one by one."""
    hashes = []
    for prefix, key in zip(prefixes, keys, strict=True):
        value, length = _key_hash(key)
        hashes.append(_absolute((prefix * pow(31, length, 1 << 32) + value) & MASK))
    return hashes


def hashes_of(topic: str, properties: bytes) -> list[int]:
    """Return the hashes of a record's keys."""
    keys = keys_of(properties)
    return hash_pure([prefix_hash(topic)] * len(keys), keys)


BATCH_RECORDS: Final = 1024 if native is not None else 128
ROWS_RECORDS: Final = 4096
"""How many records are indexed at a time: singles, or rows. Each takes a millisecond at most."""
SLOTS_WAITING_MAX: Final = 32_768
SLOT_INTERVAL_MS: Final = 3000
QUERY_COUNT_MAX: Final = 64
WRITE_ALL: Final = 1 << 30
_TIME: Final = struct.Struct("=q").pack


class KeyIndex:
    """The index files, and the records that wait to be indexed."""

    __slots__ = (
        "_added", "_entries", "_files", "_freezing_at", "_layout", "_more", "_more_settled",
        "_settled", "_settled_at", "_slots", "_slots_written_ms", "enabled", "files", "full_ms",
        "unsynced", "waiting", "written_position",
    )  # fmt: skip

    def __init__(
        self, files: Files, layout: Layout, *, slots: int, entries: int, enabled: bool
    ) -> None:
        self._files = files
        self._layout = layout
        self._slots = slots
        self._entries = entries
        self.enabled = enabled
        self.files: list[IndexFile] = []
        self.waiting: list[Noted | NotedRows] = []
        self._settled = 0  # how many of those waiting are in the log
        self._more = self._more_settled = 0  # records of batches, without each first
        self._settled_at = 0  # the end of the log at that time
        self._added = 0  # keys of records below this position are in entries
        self._freezing_at = 0
        self._slots_written_ms = 0
        self.written_position = 0  # keys below this position are in slots and header too
        self.full_ms = 0  # the end of the newest full file that is on disk
        self.unsynced: dict[Path, None] = {}

    def load(self, *, short_allowed: bool) -> None:
        """Open the files."""
        size = IndexFile.size_of(self._slots, self._entries)
        names = self._files.listdir(self._layout.index)
        for name in names:
            path = self._layout.index / name
            if not (name.isascii() and name.isdigit()):
                raise StoreError(f"{path} does not belong here; move it away")
        for name in sorted(names, key=int):
            path = self._layout.index / name
            found = self._files.info(path).size
            if found == 0:  # the disk was full before the file had its length
                self._files.remove(path)
                continue
            if found != size:
                if not (short_allowed and found < size):
                    raise StoreError(
                        f"{path} has {found} bytes, not the {size} of maxHashSlotNum={self._slots} "
                        f"and maxIndexNum={self._entries}: start with the settings that it was "
                        "written with, or remove the directory index to have it rebuilt"
                    )
                self._files.open(path, create=True, size=size).close()
            self.files.append(
                IndexFile.open(self._files, path, slots=self._slots, entries=self._entries)
            )

    def start_at(self, position: int) -> None:
        """Continue at `position`: the files hold everything below it."""
        self.waiting.clear()
        self._settled = self._more = self._more_settled = 0
        self._settled_at = self._added = self.written_position = self._freezing_at = position

    @property
    def end_position(self) -> int:
        """Return the position of the last record with a key, -1 if there is none."""
        for file in reversed(self.files):
            if file.header.next_entry > 1:
                return file.header.end_position
        return -1

    @property
    def added_position(self) -> int:
        """Return the position below which all keys are in entries."""
        return self._added

    @property
    def state(self) -> IndexState:
        """Return the name, time and count of the last file."""
        if not self.files:
            return IndexState()
        last = self.files[-1]
        return IndexState(int(last.path.name), last.header.end_ms, last.header.next_entry)

    # hot: 0.07 µs
    def note(self, topic: str, properties: bytes, position: int, stored_at_ms: int) -> None:
        """Remember a record whose keys are to be added."""
        self.waiting.append((topic, properties, position, stored_at_ms))

    def note_rows(self, rows: NotedRows) -> None:
        """Remember the records of a batch."""
        self.waiting.append(rows)
        self._more += rows.records - 1

    def settle(self, end_position: int) -> None:
        """Keep the noted records: the log has them and ends at `end_position`."""
        self._settled = len(self.waiting)
        self._more_settled = self._more
        self._settled_at = end_position
        if not self._settled and self.enabled:
            self._added = end_position

    def roll_back(self) -> None:
        """Drop the records noted in this tick: the log has none of them."""
        del self.waiting[self._settled :]
        self._more = self._more_settled

    @property
    def settled_count(self) -> int:
        """Return how many records in the log wait for their keys to be added."""
        return self._settled + self._more_settled

    def build(self, records_max: int, now_ms: int, late: Late | None = None) -> None:
        """Add the keys of up to `records_max` records, or until it is `late`.

        After an OSError the others still wait.
        """
        if not self.enabled:
            del self.waiting[: self._settled]
            self._more -= self._more_settled
            self._settled = self._more_settled = 0
            return
        while records_max > 0 and self._settled:
            first = self.waiting[: min(BATCH_RECORDS, records_max, self._settled)]
            batch, run = alike(first, min(records_max, ROWS_RECORDS))
            if run:
                records_max -= sum([rows.records for rows in run])
                if not self._add_rows(run, now_ms, late):
                    return
            else:
                records_max -= len(batch)
                if not self._add_batch(batch, now_ms, late):
                    return
            if late is not None and late():
                return

    # hot: 0.05 µs a record with one key, writing included
    def _add_rows(self, run: list[NotedRows], now_ms: int, late: Late | None = None) -> bool:
        """Add the first rows that wait; their keys are hashed already. False: it is late."""
        hashes = b"".join([rows.hashes for rows in run])
        positions = b"".join([rows.positions for rows in run])
        owners = memoryview(positions).cast("q")
        if len(owners):
            file = self._file_for(owners, 0, now_ms)
            until = last_owner_end(owners, 0, file.room)
            if until < len(owners):
                parts = run if len(run) > 1 else list(parted(run[0], until))
                if len(run) == 1:
                    self.waiting[:1] = parts
                    self._settled += 1
                    self._more -= 1
                    self._more_settled -= 1
                return all(self._add_rows([rows], now_ms, late) for rows in parts)
            times = b"".join([_TIME(rows.stored_at_ms) * (len(rows.hashes) // 4) for rows in run])
            if native is not None and len(owners) >= COMPILED_ROWS_MIN:
                if not file.prepare(native, late):
                    return False
                file.add_packed(native, hashes, positions, times)
            else:
                stored = memoryview(times).cast("q")
                file.add(zip(memoryview(hashes).cast("i"), owners, stored, strict=True))
            self.unsynced[file.path] = None
        more = sum([rows.records for rows in run]) - len(run)
        self._more -= more
        self._more_settled -= more
        self._forget(len(run))
        return True

    def _add_batch(self, batch: list[Noted], now_ms: int, late: Late | None = None) -> bool:
        """Add the first single records that wait. False: it is late."""
        if native is not None and len(batch) >= COMPILED_ROWS_MIN:
            if self.files and not self.files[-1].prepare(native, late):
                return False
            if self._add_compiled(batch, now_ms):
                return True
        prefixes: list[int] = []
        keys: list[bytes] = []
        owners: list[int] = []
        places: list[tuple[int, int]] = []
        for index, (topic, properties, position, stored_at_ms) in enumerate(batch):
            prefix = prefix_hash(topic)
            place = (position, stored_at_ms)
            for key in keys_of(properties):
                keys.append(key)
                prefixes.append(prefix)
                owners.append(index)
                places.append(place)
        rows = [
            (key_hash, position, stored_at_ms)
            for key_hash, (position, stored_at_ms) in zip(
                hash_pure(prefixes, keys), places, strict=True
            )
        ]
        done = removed = 0
        while done < len(rows):
            file = self._file_for(owners, done, now_ms)
            until = last_owner_end(owners, done, file.room)
            file.add(rows[done:until])
            self.unsynced[file.path] = None
            done = until
            if done < len(rows) and owners[done] != owners[done - 1]:
                self._forget(owners[done] - removed)
                removed = owners[done]
        self._forget(len(batch) - removed)
        return True

    # hot: 0.3 µs a record with two keys, writing included (bench/hotpath.py)
    def _add_compiled(self, batch: list[Noted], now_ms: int) -> bool:
        """Add a batch by the compiled module; False if it does not fit: then it goes row by row."""
        if native is None:
            return False
        hashes, positions, times = native.key_rows(batch, prefix_hash, hashes_of)
        count = len(hashes) // 4
        if count:
            if (self.files[-1].room if self.files else self._entries - 1) < count:
                return False
            file = self.files[-1] if self.files else self._new_file(now_ms)
            file.add_packed(native, hashes, positions, times)
            self.unsynced[file.path] = None
        self._forget(len(batch))
        return True

    def _forget(self, count: int) -> None:
        """Stop waiting for the first `count` records: their keys are in entries."""
        del self.waiting[:count]
        self._settled -= count
        if not self._settled:
            self._added = self._settled_at
            return
        first = self.waiting[0]
        self._added = first.position if isinstance(first, NotedRows) else first[2]

    def _file_for(self, owners: Sequence[int], done: int, now_ms: int) -> IndexFile:
        """Return the file for the next record's keys; a new one if they do not all fit."""
        if self.files:
            last = self.files[-1]
            need = 1
            while done + need < len(owners) and owners[done + need] == owners[done]:
                need += 1
            if last.room >= min(need, last.entries_max - 1):
                return last
            while not last.write_slots(WRITE_ALL):
                pass
        return self._new_file(now_ms)

    def _new_file(self, now_ms: int) -> IndexFile:
        self._files.makedirs(self._layout.index)
        stamp = datetime.fromtimestamp(now_ms / 1000).astimezone()
        number = int(f"{stamp:%Y%m%d%H%M%S}{now_ms % 1000:03d}")
        before = None
        if self.files:
            number = max(number, int(self.files[-1].path.name) + 1)
            before = self.files[-1].header
        file = IndexFile.create(
            self._files, self._layout.index / str(number), slots=self._slots,
            entries=self._entries, before=before,
        )  # fmt: skip
        self.files.append(file)
        return file

    def write(self, now_ms: int, *, regions_max: int, late: Late | None = None) -> None:
        """Bring slots and header up to the entries when it is time, a bounded number of regions.

        It ends early when it is `late`.
        """
        last = self.files[-1] if self.files else None
        if last is None or last.settled:
            self.written_position = self._added
            return
        if not last.freezing:
            waited = now_ms - self._slots_written_ms
            if last.dirty_slots < SLOTS_WAITING_MAX and 0 <= waited < SLOT_INTERVAL_MS:
                return
            self._slots_written_ms = now_ms
            self._freezing_at = self._added
        self.unsynced[last.path] = None
        last.write_slots(regions_max, late)
        if not last.freezing:
            # The array of slots may have begun to write them earlier, when less was added.
            self.written_position = max(self.written_position, self._freezing_at)

    def release_memory(self) -> None:
        """Give back memory that only a busy index needs."""
        if self.files and not self._settled:
            self.files[-1].drop_array()

    def write_all(self, now_ms: int) -> None:
        """Add everything settled and write slots and header."""
        self.build(WRITE_ALL, now_ms)
        if self.files:
            while not self.files[-1].write_slots(WRITE_ALL):
                pass
            self.unsynced[self.files[-1].path] = None
        self.written_position = self._added

    def find(
        self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int
    ) -> list[int]:
        """Return positions of records whose key has the same hash, newest first."""
        (key_hash,) = hash_pure([prefix_hash(topic)], [key.encode()])
        count_max = min(count_max, QUERY_COUNT_MAX)
        found: dict[int, None] = {}
        for file in reversed(self.files):
            if len(found) >= count_max:
                break
            if file.overlaps(begin_ms, end_ms):
                hits = file.find(
                    key_hash, begin_ms=begin_ms, end_ms=end_ms, count_max=count_max - len(found)
                )
                found.update(dict.fromkeys(hits))
            if file.header.next_entry > 1 and file.header.begin_ms < begin_ms:
                break
        return list(found)

    @property
    def last_update(self) -> tuple[int, int]:
        """Return (store time, position) of the newest entry."""
        if not self.files:
            return 0, 0
        header = self.files[-1].header
        return header.end_ms, header.end_position

    def drop_before(self, position: int) -> int:
        """Unlink files that only hold older records, never the last; return how many."""
        dropped = 0
        while len(self.files) > 1 and self.files[0].header.end_position < position:
            self._remove(self.files.pop(0))
            dropped += 1
        return dropped

    def remove_after(self, count: int) -> None:
        """Unlink all files but the first `count`."""
        while len(self.files) > count:
            self._remove(self.files.pop())

    def restore(self, state: IndexState) -> bool:
        """Go back to a synced state after a power cut; tell whether that was possible."""
        numbers = [int(file.path.name) for file in self.files]
        if state.file_number == 0:
            self.remove_after(0)
            return True
        if state.file_number not in numbers:
            return False
        self.remove_after(numbers.index(state.file_number) + 1)
        self.files[-1].rebuild(state.count, state.end_ms)
        return True

    def _remove(self, file: IndexFile) -> None:
        file.close()
        self.unsynced.pop(file.path, None)
        self._files.remove(file.path)

    def close(self) -> None:
        """Close the files."""
        for file in self.files:
            file.close()
        self.files.clear()


@dataclass(frozen=True, slots=True)
class KeyHits:
    """Positions of the messages found, newest first, and how far the index goes."""

    positions: list[int] = field(default_factory=list)
    last_update_ms: int = 0
    last_update_position: int = 0


def query(
    log: CommitLog,
    keys: KeyIndex,
    topic: str,
    key: str,
    *,
    count_max: int,
    begin_ms: int,
    end_ms: int,
) -> KeyHits:
    """Return the messages of a topic that have a key and were stored in [begin, end]."""
    wanted = key.encode()
    positions = []
    for position in keys.find(topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms):
        record = record_at(log, position)
        if record is not None and record.topic == topic and wanted in keys_of(record.properties):
            positions.append(position)
    last_ms, last_position = keys.last_update
    return KeyHits(positions, last_ms, last_position)
