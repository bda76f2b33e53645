"""A backup of a directory in memory: at every moment, over kills, full disks and damage."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest

from inorder.backups.restoring import Restored, Restoring, Wanted
from inorder.backups.taking import Taken, Taking, complete
from inorder.broker.damage.storage import refuse_unfinished
from inorder.broker.leases.storage import Start, StartFile
from inorder.config import StoreConfig
from inorder.errors import StoreError
from inorder.store.snapshot import Snapshot
from inorder.store.store import Store
from inorder.testing.clock import FakeClock
from tests.kit.disk import FakeFile, FakeFiles, Fault, Killed
from tests.kit.storing import Contents, append, contents, write_and_publish

ROOT, TARGET, FRESH = Path("/data"), Path("/safe/backups"), Path("/fresh")
CONFIG = StoreConfig(segment_bytes=2048, queue_file_bytes=200, index_slots=7, index_entries=60)


def opened(files: FakeFiles) -> Store:
    """Open a directory as a broker does."""
    start = StartFile(files, ROOT / "inorder" / "start.json")
    store = Store.open(ROOT, CONFIG, files, FakeClock(), first=start.first_start)
    start.load(ours=store.was_ours)
    start.begin(0)
    return store


def fill(store: Store, count: int, *, first: int = 0) -> None:
    """Store messages in three queues."""
    for number in range(first, first + count):
        append(store, "T", number % 3, b"message %03d" % number, now_ms=number + 1, keys="k")
        write_and_publish(store)
    store.housekeep(1)


def filled(count: int = 40) -> tuple[FakeFiles, Store]:
    """Return a disk with an open directory."""
    files = FakeFiles()
    store = opened(files)
    fill(store, count)
    return files, store


def back_up(files: FakeFiles, **options: object) -> Taken:
    return Taking(files, FakeClock(), ROOT, TARGET, made_by="test", **options).run()  # type: ignore[arg-type]


def restore(files: FakeFiles, wanted: Wanted | None = None) -> Restored:
    clock = FakeClock()
    return Restoring(files, clock, TARGET, FRESH, CONFIG, wanted=wanted or Wanted()).run()


def restored_contents(files: FakeFiles) -> Contents:
    """Return what the queues of a restored directory hold."""
    restore(files)
    store = Store.open(FRESH, CONFIG, files, FakeClock())
    found = contents(store)
    store.abandon()
    return found


def is_beginning(one: Contents, of: Contents) -> bool:
    """Return whether each queue holds the first messages of the other's."""
    return all(messages == of[queue][: len(messages)] for queue, messages in one.items())


@pytest.mark.parametrize("state", ["running", "killed", "stopped"])
def test_what_is_restored_is_what_was_there(state: str) -> None:
    """Of a running, a killed and a stopped broker; it is opened as after a clean stop."""
    files, store = filled()
    expected = contents(store)
    if state == "stopped":
        store.close()
    elif state == "killed":
        files = files.kill()
    taken = back_up(files)
    assert taken.manifest.begin == 0
    assert restored_contents(files) == expected
    if state == "running":
        fill(store, 30, first=40)  # the broker goes on
        assert is_beginning(expected, contents(store))


def test_an_empty_directory_is_backed_up() -> None:
    """There is no message yet."""
    files, _store = filled(0)
    assert back_up(files).manifest.end == 0
    assert not any(restored_contents(files).values())


class Watched(FakeFiles):
    """Does something in the source before each operation of the backup."""

    def __init__(self, under: FakeFiles, act: Callable[[], None]) -> None:
        self.__dict__ = under.__dict__
        self.act = act

    def open(self, path: Path, *, create: bool = False, size: int | None = None) -> FakeFile:
        self.act()
        return super().open(path, create=create, size=size)

    def listdir(self, path: Path) -> list[str]:
        self.act()
        return super().listdir(path)


def acting(work: Callable[[int], None]) -> Callable[[], None]:
    """Return a function that calls another one with a number, and not while it runs."""
    number, busy = 0, False

    def act() -> None:
        nonlocal number, busy
        if not busy:
            busy = True
            number += 1
            work(number)
            busy = False

    return act


def test_messages_that_arrive_meanwhile_leave_the_beginnings_of_all_queues() -> None:
    """What was acknowledged before the backup began is in it, whatever is written beside it."""
    files, store = filled()
    before = contents(store)

    def work(number: int) -> None:
        if number < 200:
            fill(store, 1, first=100 + number)

    back_up(Watched(files, acting(work)))
    found = restored_contents(files)
    assert is_beginning(before, found)
    assert is_beginning(found, contents(store))
    assert sum(map(len, contents(store).values())) > 60


@pytest.mark.parametrize("at", range(1, 40))
def test_a_state_is_never_ahead_of_the_log_that_is_restored(at: int) -> None:
    """A table that is saved at any moment names a log end; the backup's log reaches it."""
    files, store = filled()
    table = Snapshot(files, ROOT / "config" / "consumerOffset.json")
    table.save(b"%d" % store.log.end_position)

    def work(number: int) -> None:
        if number == at:
            fill(store, 5, first=100)
            table.save(b"%d" % store.log.end_position)

    taken = back_up(Watched(files, acting(work)))
    restore(files)
    named = int(files.read(FRESH / "config" / "consumerOffset.json"))
    assert named <= taken.manifest.end


@pytest.mark.parametrize("at", range(1, 60))
def test_a_topic_that_is_deleted_meanwhile_is_there_whole_or_not_at_all(at: int) -> None:
    """Its queues begin again: old and new messages never share offsets."""
    files, store = filled()

    def work(number: int) -> None:
        if number == at:
            store.drop_topic("T")
            fill(store, 4, first=200)

    before = contents(store)
    back_up(Watched(files, acting(work)))
    found = restored_contents(files)
    assert found in (before, contents(store))


def test_what_retention_deletes_meanwhile_is_in_the_backup() -> None:
    """The files of the log are held open."""
    files, store = filled(60)
    before = contents(store)
    names = files.listdir(store.layout.commitlog)

    def work(number: int) -> None:
        if any(name.startswith("0") for name in files.listdir(TARGET / "segments")):
            for name in names[1:3]:
                files.remove(store.layout.commitlog / name)

    back_up(Watched(files, acting(work)))
    assert files.listdir(store.layout.commitlog)[1] not in names[1:3]
    assert restored_contents(files) == before


def test_a_state_that_never_stands_still_is_given_up() -> None:
    """The text says what changed."""
    files, _store = filled()

    def work(number: int) -> None:
        files.write(ROOT / "inorder" / "start.json", b"%04d" % number)

    with pytest.raises(StoreError, match=r"start\.json has changed"):
        back_up(Watched(files, acting(work)))


def test_a_second_backup_copies_only_what_is_new() -> None:
    """Whole files of the log are shared, also by backups of other moments."""
    files, store = filled(60)
    first = back_up(files)
    fill(store, 20, first=60)
    second = back_up(files)
    shared = {one.name for one in first.manifest.segments} & {
        one.name for one in second.manifest.segments
    }
    assert len(shared) > 2
    assert second.copied_bytes < first.copied_bytes / 2
    assert restored_contents(files) == contents(store)


def test_a_backup_after_a_killed_one_copies_no_whole_file_again() -> None:
    """A large first backup may be interrupted many times, and gets done."""
    files, store = filled(60)
    whole = files.kill()
    first = back_up(whole)
    dead = files.kill()
    dead.fail(Fault("change", whole.counts["change"] - 8, error=None))
    with pytest.raises(Killed):
        back_up(dead)
    left = dead.kill()
    assert back_up(left).copied_bytes < first.copied_bytes / 2
    assert restored_contents(left) == contents(store)


def test_files_that_no_backup_names_go_after_the_next() -> None:
    """Whoever forgets a backup removes its folder."""
    files, store = filled(60)
    names = {one.name for one in back_up(files).manifest.segments}
    for name in files.listdir(store.layout.commitlog)[:3]:
        files.remove(store.layout.commitlog / name)
    files.remove_tree(TARGET / "000001")
    back_up(files)
    left = set(files.listdir(TARGET / "segments"))
    assert left < names
    assert len(left) == len(names) - 4  # three, and the last, which lies in the backup itself


def test_a_file_of_the_log_that_is_another_one_is_not_taken_for_the_same() -> None:
    """The same position of another life of the directory: compared, not believed."""
    files, store = filled(60)
    back_up(files)
    store.close()
    files.remove_tree(ROOT)
    store = opened(files)
    fill(store, 60, first=500)
    back_up(files)
    assert restored_contents(files) == contents(store)


def test_a_backup_killed_at_any_change_harms_nothing() -> None:
    """The source is as it was; the half is no backup; the next backup removes it and is whole."""
    files, store = filled()
    expected, tree = (
        contents(store),
        {path: size for path, size in files.tree().items() if path.startswith(str(ROOT))},
    )
    whole = files.kill()
    back_up(whole)
    total = whole.counts["change"]
    assert total > 20
    for at in range(1, total + 1):
        broken = files.kill()
        broken.fail(Fault("change", at, error=None, kept_bytes=13))
        with pytest.raises(Killed):
            back_up(broken)
        left = broken.kill()
        after = {path: size for path, size in left.tree().items() if path.startswith(str(ROOT))}
        assert after == tree
        if complete(left, TARGET):
            assert at > total - 4, "a backup that was not finished counts"
        else:
            with pytest.raises(StoreError, match="no complete backup"):
                restore(left)
        back_up(left)
        numbers = [name for name in left.listdir(TARGET) if name.isdigit()]
        assert numbers == complete(left, TARGET)
        assert restored_contents(left) == expected, f"killed at change {at} of {total}"


def test_a_backup_survives_a_power_cut_when_it_was_said_to_be_taken() -> None:
    """Everything of it, and its name, is on disk."""
    files, store = filled()
    back_up(files)
    expected = contents(store)
    for seed in range(20):
        assert restored_contents(files.crash(Random(seed))) == expected


def test_a_restore_killed_at_any_change_is_refused_and_can_be_repeated() -> None:
    """No broker starts on a half; the second restore is like an undisturbed one."""
    files, store = filled()
    expected = contents(store)
    back_up(files)
    whole = files.kill()
    restore(whole)
    total = whole.counts["change"]
    refused = 0
    for at in range(1, total + 1, 3):
        broken = files.kill()
        broken.fail(Fault("change", at, error=None, kept_bytes=13))
        with pytest.raises(Killed):
            restore(broken)
        left = broken.kill()
        try:
            refuse_unfinished(left, FRESH)
        except StoreError:
            refused += 1
        else:
            assert not left.listdir(FRESH) or at > total - 3
            if left.listdir(FRESH):
                continue
        assert restored_contents(left) == expected, f"killed at change {at} of {total}"
    assert refused > total / 3 - 8


def test_a_restore_survives_a_power_cut_when_it_was_said_to_be_done() -> None:
    """Everything of the directory, its name, and that it is complete."""
    files, store = filled()
    expected = contents(store)
    back_up(files)
    done = restore(files)
    for seed in range(20):
        left = files.crash(Random(seed))
        refuse_unfinished(left, FRESH)
        found = msgspec.json.decode(left.read(FRESH / "inorder" / "start.json"), type=Start)
        assert (found.start, found.clean) == (done.start, False)
        again = Store.open(FRESH, CONFIG, left, FakeClock())
        assert contents(again) == expected
        again.abandon()


def test_a_full_target_is_a_clear_error_and_leaves_room() -> None:
    """The unfinished backup is removed; the broker's directory is as it was."""
    files, store = filled(60)
    expected = contents(store)
    used = files.used_bytes
    files.capacity = used + 3 * 4096
    with pytest.raises(StoreError, match="is full"):
        back_up(files)
    assert files.used_bytes <= used + 2 * 4096
    assert not files.listdir(TARGET / "segments")
    assert contents(store) == expected
    files.capacity = None
    back_up(files)
    assert restored_contents(files) == expected


def test_an_error_of_the_disk_is_not_hidden() -> None:
    """An OSError names the file."""
    files, _store = filled()
    files.fail(Fault("write", 4, errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        back_up(files)
    assert not complete(files, TARGET)


def test_damage_in_a_backup_is_found_before_a_broker_starts() -> None:
    """Each file has a checksum: of the log, of tables, of the manifest."""
    files, _store = filled()
    taken = back_up(files)
    places = [
        TARGET / "segments" / taken.manifest.segments[0].name,
        taken.path / "last",
        *(taken.path / "state" / one.path for one in taken.manifest.files),
        taken.path / "manifest.json",
    ]
    for place in places:
        broken = files.kill()
        data = broken.read(place)
        broken.write(place, bytes([data[len(data) // 2] ^ 1]), len(data) // 2)
        with pytest.raises(StoreError, match="checksum is wrong"):
            restore(broken)
        gone = files.kill()
        gone.remove(place)
        with pytest.raises(StoreError, match=r"missing|no complete backup"):
            restore(gone)


def test_a_lost_end_of_the_log_is_not_backed_up_in_silence() -> None:
    """The broker has noted how far its log went."""
    files, store = filled()
    dead = files.kill()
    place = store.layout.commitlog / dead.listdir(store.layout.commitlog)[-1]
    dead.write(place, bytes(2048))
    with pytest.raises(StoreError, match="no valid record"):
        back_up(dead)
    dead.remove(place)
    with pytest.raises(StoreError, match="ends before"):
        back_up(dead)


def test_directories_that_only_a_start_can_judge_are_refused() -> None:
    """After a power cut, of RocketMQ, or no directory of a broker at all."""
    files, _store = filled()
    with pytest.raises(StoreError, match="start the broker on it once"):
        back_up(files.crash(Random(1)))
    with pytest.raises(StoreError, match="not the data directory of an inorder broker"):
        back_up(FakeFiles())
    dead = files.kill()
    dead.write(ROOT / "abort", b"another broker  ")
    with pytest.raises(StoreError, match="not inorder that used it last"):
        back_up(dead)


def test_a_target_within_the_directory_is_refused() -> None:
    """It would grow with each backup, and a lost disk would take both."""
    files, _store = filled()
    with pytest.raises(StoreError, match="lies in the data directory"):
        Taking(files, FakeClock(), ROOT, ROOT / "backups", made_by="test").run()


def test_a_directory_that_is_not_empty_is_not_restored_into() -> None:
    """Nothing of it is touched."""
    files, store = filled()
    back_up(files)
    files.makedirs(FRESH)
    store.close()
    files.rename(ROOT / "checkpoint", FRESH / "mine")
    with pytest.raises(StoreError, match="not empty"):
        restore(files)
    assert files.listdir(FRESH) == ["mine"]


def test_the_first_start_takes_the_end_of_the_log_for_lost() -> None:
    """So it begins a generation, resumes no lease, and counts starts above the old ones."""
    files, _store = filled()
    back_up(files)
    done = restore(files)
    found = msgspec.json.decode(files.read(FRESH / "inorder" / "start.json"), type=Start)
    assert (found.clean, found.boot_id, found.start) == (False, "", done.start)
    start = StartFile(files, FRESH / "inorder" / "start.json")
    start.load(ours=True)
    assert start.may_have_lost
    assert (start.now.generation, start.now.start) == (done.generation, done.start + 1)


def test_two_backups_at_a_time_are_refused() -> None:
    """The lock of the target."""
    files, _store = filled()
    files.makedirs(TARGET)
    with files.lock(TARGET / "lock", b"backup"), pytest.raises(StoreError, match="being taken"):
        back_up(files)
