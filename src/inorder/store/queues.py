"""All topic queues: found at start by their directories, loaded when first used.

`limit` is the position below which every entry is known to be in the files. Loading a queue takes
the entries below it. With `cutting`, it clears the entries behind, which recovery makes again from
the log. With `thorough`, it expects holes, after a crash of the machine or of another broker. In a
directory that an inorder broker closed nothing follows the limit, and no file is opened before its
queue is used. What happens to a damaged queue: decision 45.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Final

from inorder.disk import Files
from inorder.errors import StoreError
from inorder.logs import get_logger
from inorder.store.commitlog import CommitLog
from inorder.store.consumequeue import QueueFiles, QueueIndex
from inorder.store.intact import is_gone, leads_to_record, looks_intact
from inorder.store.layout import ENTRY, ENTRY_BYTES, Layout, check_topic, file_name, parse_name
from inorder.store.scan import record_matches

if TYPE_CHECKING:
    from inorder.store.ends import Noted
    from inorder.store.mending import Mended

log = get_logger(__name__)

NOTHING_CUT: Final = 1 << 62
NEW_FILE_COST: Final = 16


class Cut(Enum):
    """Where `QueueTable.write_out` stopped because it was late."""

    NOT = "not"
    AT_QUEUE = "at a queue"
    AT_NEW_FILE = "at a queue that needs a new file"


class QueueTable:
    """Queues by topic and id."""

    __slots__ = (
        "_budget_left", "_files", "_layout", "_log", "_topics", "cut_short", "cutting", "dirty",
        "firsts", "limit", "noted", "on_damage", "on_first", "queue_files", "short_allowed",
        "thorough", "to_note", "trusting", "unwritten", "verifying",
    )  # fmt: skip

    def __init__(
        self, files: Files, layout: Layout, queue_files: QueueFiles, commit_log: CommitLog
    ) -> None:
        self._files = files
        self._layout = layout
        self._log = commit_log
        self.queue_files = queue_files
        self._topics: dict[str, dict[int, QueueIndex | None]] = {}
        self.dirty: list[QueueIndex] = []  # given offsets in this tick
        self.unwritten: dict[QueueIndex, None] = {}  # with settled entries in memory, oldest first
        self._budget_left = 0
        self.cut_short = Cut.NOT  # where the last write_out stopped because it was late
        self.limit = NOTHING_CUT
        self.cutting = False
        self.thorough = False
        self.verifying = False
        self.short_allowed = False
        self.noted: dict[tuple[str, int], Noted] = {}  # where queues ended at the last stop
        self.trusting = False  # a queue ends where it is noted, whatever its files look like
        self.to_note: dict[QueueIndex, None] = {}  # written since their ends were noted
        self.firsts: dict[tuple[str, int], int] = {}  # where queues began, if not at 0
        self.on_first: Callable[[QueueIndex, int], None] = lambda _queue, _first: None
        self.on_damage: Callable[[QueueIndex], None] = lambda _queue: None

    def discover(self) -> None:
        """Find the queues on disk by name; open nothing."""
        self._topics.clear()
        self.dirty.clear()
        self.unwritten.clear()
        self.to_note.clear()
        root = self._layout.consumequeue
        for topic in self._files.listdir(root):
            if not self._files.is_dir(root / topic):
                raise StoreError(f"{root / topic} does not belong here; move it away")
            ids: dict[int, QueueIndex | None] = {}
            for name in self._files.listdir(root / topic):
                if not (name.isascii() and name.isdigit()):
                    raise StoreError(f"{root / topic / name} does not belong here; move it away")
                ids[int(name)] = None
            self._topics[topic] = ids
        self.queue_files.queue_count = self.count
        if self.trusting:
            for topic, queue_id in self.noted:
                self._topics.setdefault(topic, {}).setdefault(queue_id, None)

    def get(self, topic: str, queue_id: int) -> QueueIndex:
        """Return a queue, new if it does not exist."""
        found = self.find(topic, queue_id)
        if found is None:
            if queue_id < 0:
                raise StoreError(f"queue id {queue_id} of topic {topic} is negative")
            check_topic(topic)
            found = QueueIndex(topic, queue_id, self.queue_files, self.dirty)
            self._topics.setdefault(topic, {})[queue_id] = found
        return found

    def find(self, topic: str, queue_id: int) -> QueueIndex | None:
        """Return a queue that exists."""
        ids = self._topics.get(topic)
        if ids is None or queue_id not in ids:
            return None
        queue = ids[queue_id]
        if queue is None:
            queue = ids[queue_id] = self._load(topic, queue_id)
        return queue

    def of_topic(self, topic: str) -> list[QueueIndex]:
        """Return the queues of a topic, by id."""
        found = (self.find(topic, queue_id) for queue_id in sorted(self._topics.get(topic, ())))
        return [queue for queue in found if queue is not None]

    def topics(self) -> list[str]:
        """Return the topics that have queues."""
        return list(self._topics)

    @property
    def count(self) -> int:
        """Return how many queues there are."""
        return sum(map(len, self._topics.values()))

    def count_on_disk(self) -> int:
        """Return how many queues have a directory: one without messages has none."""
        root = self._layout.consumequeue
        return sum(len(self._files.listdir(root / topic)) for topic in self._files.listdir(root))

    def load_all(self) -> list[QueueIndex]:
        """Load and return every queue."""
        return [queue for topic in list(self._topics) for queue in self.of_topic(topic)]

    def loaded(self) -> Iterator[QueueIndex]:
        """Return the queues in memory."""
        for ids in self._topics.values():
            for queue in ids.values():
                if queue is not None:
                    yield queue

    # hot: 0.5 µs a queue
    def settle(self) -> list[tuple[QueueIndex, int]]:
        """Keep the offsets of this tick; return the queues touched with their next offsets."""
        touched = []
        for queue in self.dirty:
            if queue.settled_offset == queue.tail_offset:
                self.unwritten[queue] = None
            queue.settled_offset = offset = queue.next_offset
            touched.append((queue, offset))
        self.dirty.clear()
        return touched

    def roll_back(self) -> None:
        """Forget the offsets of this tick: the log has none of it."""
        for queue in self.dirty:
            queue.roll_back()
        self.dirty.clear()

    def write_out(self, budget: int, late: Callable[[], bool] | None = None) -> None:
        """Write the entries of up to `budget` queues, those waiting longest first.

        One that needs a new file counts as `NEW_FILE_COST`. Ends early when it is `late`, after one
        queue at least: `cut_short` then says whether the next one needs a new file, which may take
        long while the disk is busy. The next call goes on with the rest of the budget.
        """
        unwritten = self.unwritten
        if late is not None and self.cut_short is not Cut.NOT:
            budget = self._budget_left  # or a round that is cut would have no end
        self.cut_short = Cut.NOT
        is_first = True
        for queue in list(itertools.islice(unwritten, budget)):
            if budget <= 0:
                break
            if late is not None and not is_first and late():
                self.cut_short = Cut.AT_NEW_FILE if queue.needs_file else Cut.AT_QUEUE
                self._budget_left = budget
                break
            is_first = False
            budget -= NEW_FILE_COST if queue.needs_file else 1
            queue.write_out()
            del unwritten[queue]
            self.to_note[queue] = None

    @property
    def written_position(self) -> int:
        """Return the position below which all entries are in the files."""
        for queue in self.unwritten:
            position: int = ENTRY.unpack_from(queue.tail)[0]
            return position
        return self._log.end_position

    def drop_topic(self, topic: str) -> None:
        """Forget a topic's queues and unlink their files."""
        ids = self._topics.pop(topic, {})
        for queue in ids.values():
            if queue is not None:
                self.unwritten.pop(queue, None)
                self.to_note.pop(queue, None)
                if queue in self.dirty:
                    self.dirty.remove(queue)
        for key in [key for key in self.noted if key[0] == topic]:
            del self.noted[key]
        self.queue_files.remove_topic(topic)

    def restart(self, queue: QueueIndex) -> None:
        """Empty a queue whose offsets start again."""
        size = self.queue_files.size
        self.unwritten.pop(queue, None)
        for base in range(queue.first_file, queue.next_offset * ENTRY_BYTES + 1, size):
            self.queue_files.remove((queue.topic, queue.queue_id, base))
        queue.start_at(first_file=0, next_offset=0)
        queue.min_offset = 0
        queue.first_position = -1

    def _load(self, topic: str, queue_id: int) -> QueueIndex:
        """Read a queue's files: its offsets continue after the last entry below the limit."""
        queue = QueueIndex(topic, queue_id, self.queue_files, self.dirty)
        noted = self.noted.get((topic, queue_id)) if self.trusting else None
        if noted is not None:
            self._load_noted(queue, noted.end)
            return queue
        bases = self._file_bases(topic, queue_id)
        if not bases:
            return queue
        self._load_by_entries(queue, bases)
        return queue

    def _load_noted(self, queue: QueueIndex, end: int) -> None:
        """End a queue where the notes say, whatever its files look like."""
        size = self.queue_files.size
        last = (end - 1) * ENTRY_BYTES // size * size if end else 0
        bases, whole = self._present_bases(queue, last)
        queue.start_at(first_file=bases[0] if bases else last, next_offset=end)
        if bases and self._goes_on(queue):
            log.warning(
                "queue=%s/%d goes on behind its noted end=%d", queue.topic, queue.queue_id, end
            )
            self._load_by_entries(queue, bases)
            return
        if not whole:
            self._damage(queue)
            return
        if self.cutting:
            while end > bases[0] // ENTRY_BYTES:
                entry = queue.read(end - 1, 1)
                if ENTRY.unpack(entry)[0] < self.limit or not leads_to_record(
                    self._log, queue, end - 1, entry
                ):
                    break
                end -= 1  # the end was noted, and a kill came before its position was written
            queue.start_at(first_file=bases[0], next_offset=end)
            self._clear_behind(queue, bases)
        self.set_min_offset(queue)
        if not queue.damaged and not looks_intact(self._log, queue):
            self._damage(queue)

    def _behind_end(self, queue: QueueIndex) -> bytes:
        """Return the bytes in the file after the last entry; empty if there is no file."""
        at = queue.next_offset * ENTRY_BYTES
        inside = at % self.queue_files.size
        try:
            file = self.queue_files.get((queue.topic, queue.queue_id, at - inside))
        except FileNotFoundError:
            return b""
        return file.pread(ENTRY_BYTES, inside)

    def _goes_on(self, queue: QueueIndex) -> bool:
        """Return whether a right entry lies after the end: then the note is an older copy."""
        data = self._behind_end(queue)
        if len(data) < ENTRY_BYTES or ENTRY.unpack(data)[0] >= self.limit:
            return False
        return leads_to_record(self._log, queue, queue.next_offset, data)

    def _is_end(self, queue: QueueIndex) -> bool:
        """Return whether nothing follows the last entry, or one that is to be made again."""
        data = self._behind_end(queue)
        if len(data) < ENTRY_BYTES or data == bytes(ENTRY_BYTES):
            return True
        return leads_to_record(self._log, queue, queue.next_offset, data)

    def _present_bases(self, queue: QueueIndex, last: int) -> tuple[list[int], bool]:
        """Return the files of a queue up to its last, and whether they are all there and whole."""
        size = self.queue_files.size
        directory = self._layout.queue(queue.topic, queue.queue_id)
        bases: list[int] = []
        whole = True
        for name in self._files.listdir(directory):
            base = parse_name(name)
            if base is None or base % size:
                raise StoreError(f"{directory / name} does not belong here; move it away")
            bases.append(base)
            if self._files.info(directory / name).size != size:
                log.warning("completing file=%s", directory / name)
                self._files.open(directory / name, create=True, size=size).close()
                whole = whole and base > last
        below = [base for base in bases if base <= last]
        first = self.firsts.get((queue.topic, queue.queue_id), 0)
        expected = list(range(min([first, *below]), last + size, size))
        return bases, whole and below == expected

    def _damage(self, queue: QueueIndex) -> None:
        queue.damaged = True
        self.on_damage(queue)

    def _load_by_entries(self, queue: QueueIndex, bases: list[int]) -> None:
        """End a queue after the last entry below the limit."""
        size = self.queue_files.size
        first = bases[0]
        last = len(bases) - 1
        while last > 0 and not self._is_below(queue, bases[last] // ENTRY_BYTES):
            last -= 1
        low, high = bases[last] // ENTRY_BYTES, (bases[last] + size) // ENTRY_BYTES
        while low < high:
            middle = (low + high) // 2
            if self._is_below(queue, middle):
                low = middle + 1
            else:
                high = middle
        queue.start_at(first_file=first, next_offset=low)
        if self.verifying:
            self._drop_stale_entries(queue)
        elif not self.thorough:
            queue.damaged = not self._is_end(queue)
        if self.cutting:
            self._clear_behind(queue, bases)
        self.set_min_offset(queue)

    def _file_bases(self, topic: str, queue_id: int) -> list[int]:
        directory = self._layout.queue(topic, queue_id)
        size = self.queue_files.size
        bases: list[int] = []
        names = self._files.listdir(directory)
        for name in names:
            path = directory / name
            base = parse_name(name)
            if base is None or base % size or (bases and base != bases[-1] + size):
                raise StoreError(
                    f"{path} does not continue its queue: check mappedFileSizeConsumeQueue={size}, "
                    "or remove the directory consumequeue to have it rebuilt"
                )
            found = self._files.info(path).size
            if found == 0 and name == names[-1]:
                self._files.remove(path)
                continue
            if found != size:
                if not (self.short_allowed and found < size):
                    raise StoreError(
                        f"{path} has {found} bytes but mappedFileSizeConsumeQueue={size}: "
                        "start with the size that the directory was written with"
                    )
                log.warning("completing short file=%s size=%d", path, found)
                self._files.open(path, create=True, size=size).close()
            bases.append(base)
        return bases

    def _is_below(self, queue: QueueIndex, offset: int) -> bool:
        """Return whether the entry in the file is real and its record lies below the limit."""
        at = offset * ENTRY_BYTES
        inside = at % self.queue_files.size
        file = self.queue_files.get((queue.topic, queue.queue_id, at - inside))
        position, size, _ = ENTRY.unpack(file.pread(ENTRY_BYTES, inside))
        return bool(size > 0 and 0 <= position < self.limit)

    def _drop_stale_entries(self, queue: QueueIndex) -> None:
        """Step back over entries without a record, which another broker's cut left."""
        offset = queue.next_offset
        oldest = self._log.min_position
        first = queue.first_file // ENTRY_BYTES
        while offset > first:
            entry = queue.entry(offset - 1)
            if entry is None or entry[0] < oldest:  # a filler, or its record has expired
                break
            if record_matches(
                self._log, entry[0], entry[1], topic=queue.topic, queue_id=queue.queue_id,
                queue_offset=offset - 1,
            ):  # fmt: skip
                break
            offset -= 1
        if offset != queue.next_offset:
            log.warning(
                "dropping stale entries queue=%s/%d from=%d to=%d",
                queue.topic, queue.queue_id, offset, queue.next_offset,
            )  # fmt: skip
            queue.start_at(first_file=queue.first_file, next_offset=offset)

    def _clear_behind(self, queue: QueueIndex, bases: list[int]) -> None:
        """Zero the bytes after the last entry; delete files that begin after it."""
        end = queue.next_offset * ENTRY_BYTES
        size = self.queue_files.size
        if not self.thorough and end < bases[-1] + size and end >= bases[-1]:
            file = self.queue_files.get((queue.topic, queue.queue_id, bases[-1]))
            if file.pread(ENTRY_BYTES, end - bases[-1]) == bytes(ENTRY_BYTES):
                return
        for base in reversed(bases):
            key = (queue.topic, queue.queue_id, base)
            if base >= end and base > bases[0]:
                self.queue_files.remove(key)
                continue
            self.queue_files.unsynced[key] = None
            if base + size > end:
                file = self.queue_files.get(key)
                file.truncate(max(end - base, 0))
                file.truncate(size)

    def has_last_file(self, topic: str, queue_id: int, size: int) -> bool:
        """Return whether the file with a queue's last noted entry is there, in its full size."""
        end = self.noted[topic, queue_id].end
        base = (end - 1) * ENTRY_BYTES // size * size
        try:
            found = self._files.info(self.queue_files.path((topic, queue_id, base)))
        except FileNotFoundError:
            return not end
        return found.size == size

    def take_over(self, mended: Mended) -> QueueIndex:
        """Continue a queue whose files were repaired; entries in memory stay."""
        queue = self.get(mended.topic, mended.queue_id)
        self.queue_files.forget_queue(queue.topic, queue.queue_id)
        bases = sorted(
            base
            for name in self._files.listdir(self._layout.queue(queue.topic, queue.queue_id))
            if (base := parse_name(name)) is not None
        )
        queue.first_file = bases[0] if bases else 0
        if mended.end > queue.next_offset:
            assert not queue.tail, "nothing follows what is not known"
            queue.start_at(first_file=queue.first_file, next_offset=mended.end)
        queue.min_offset, queue.first_position = 0, -1
        self.set_min_offset(queue, corrected=True)
        queue.damaged = False
        self.queue_files.queue_count = self.count_on_disk()
        return queue

    def set_min_offset(self, queue: QueueIndex, *, corrected: bool = False) -> None:
        """Begin a queue at the first entry whose record the log still has; drop older files.

        An entry that does not lead to its record can mislead the search. Then nothing goes, the
        queue begins where it began before, and it is damaged; unless it was just corrected.
        """
        oldest = self._log.min_position
        if queue.first_position >= oldest:
            return
        low = max(queue.min_offset, queue.first_file // ENTRY_BYTES)
        found = queue.find_first(oldest, low)
        if found > low and not corrected and not is_gone(self._log, queue, found - 1):
            queue.min_offset = low
            self._damage(queue)
            return
        queue.min_offset = found
        first = queue.entry(queue.min_offset)
        queue.first_position = -1 if first is None else first[0]
        first_file = queue.first_file_of(queue.min_offset)
        if first_file > queue.first_file:
            self.on_first(queue, first_file)  # before, or they would look like removed
        queue.drop_files_before(queue.min_offset)

    def file_names(self, queue: QueueIndex) -> list[str]:
        """Return the names of a queue's files, oldest first."""
        size = self.queue_files.size
        end = max(queue.tail_offset * ENTRY_BYTES, queue.first_file + 1)
        return [file_name(base) for base in range(queue.first_file, end, size)]
