"""The count of starts: what a broker knows after a kill, a power cut or a clean stop."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from inorder.broker.leases.storage import StartFile
from tests.kit.disk import FakeFiles, Fault

PATH = Path("/data/inorder/start.json")


def disk() -> FakeFiles:
    files = FakeFiles()
    files.makedirs(PATH.parent.parent)
    files.fsync_dir(Path("/"))
    return files


def started(files: FakeFiles, longest_ms: int = 0) -> StartFile:
    start = StartFile(files, PATH)
    start.load()
    start.begin(longest_ms)
    return start


def test_every_start_has_a_higher_number_that_no_crash_takes_back() -> None:
    """A9: it is on disk before the port opens."""
    files = disk()
    for number in range(1, 20):
        start = started(files)
        assert start.now.start == number
        files = files.crash(Random(number)) if number % 2 else files.kill()


def test_a_kill_loses_nothing_and_a_power_cut_may() -> None:
    """Only after the latter the generation grows, and leases are waited for."""
    files = disk()
    first = started(files)
    assert (first.same_boot, first.may_have_lost, first.now.generation) == (False, False, 0)
    first.raise_longest(5000)
    killed = started(files.kill())
    assert (killed.same_boot, killed.may_have_lost, killed.now.waits) == (True, False, False)
    cut = started(files.crash(Random(1)))
    assert (cut.same_boot, cut.may_have_lost, cut.now.generation) == (False, True, 1)
    assert (cut.now.waits, cut.now.longest_ms) == (True, 5000)


def test_a_clean_stop_before_a_reboot_loses_nothing() -> None:
    """All is known; but nobody resumes on another boot."""
    files = disk()
    started(files).end()
    again = started(files.crash(Random(1)))
    assert (again.same_boot, again.may_have_lost, again.now.generation) == (False, False, 0)


def test_the_wait_is_not_forgotten_by_a_kill_within_it() -> None:
    """The broker that waits is killed: the next one waits again, until one has waited."""
    files = disk()
    started(files).raise_longest(31_000)
    files = files.crash(Random(1))
    started(files)
    files = files.kill()
    killed = started(files)
    assert (killed.now.waits, killed.now.longest_ms) == (True, 31_000)
    killed.waited()
    assert not started(files.kill()).now.waits


def test_a_longer_lease_is_known_on_disk_before_it_is_granted() -> None:
    """What cannot be known after a power cut must be bounded by something that can."""
    files = disk()
    start = started(files)
    files.fail(Fault("sync", 1, errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        start.raise_longest(5000)
    assert start.now.longest_ms == 0
    start.raise_longest(5000)
    start.raise_longest(4000)
    assert started(files.crash(Random(2))).now.longest_ms == 5000


def test_a_log_that_is_shorter_than_what_depends_on_it_was_lost() -> None:
    """Also after a clean stop on the same boot: somebody has put an older copy in its place."""
    files = disk()
    started(files).end()
    start = StartFile(files, PATH)
    start.load()
    assert not start.may_have_lost
    for _ in range(2):
        start.lost_tail()
    start.begin(0)
    assert (start.may_have_lost, start.now.generation) == (True, 1)
    assert started(files.kill()).now.generation == 1


def test_a_first_start_that_is_killed_can_be_repeated() -> None:
    """The store's notes make the directory ours; the count of starts is there before them."""
    files = disk()
    StartFile(files, PATH).first_start()
    files = files.kill()  # the store has written its notes, nobody has begun
    start = StartFile(files, PATH)
    start.first_start()
    start.load(ours=True)
    start.begin(0)
    assert (start.now.start, start.now.generation, start.may_have_lost) == (1, 0, False)


def test_a_first_start_keeps_the_count_that_is_there() -> None:
    """Notes of the store may be removed, so that all is made again from the log."""
    files = disk()
    assert started(files).now.start == 1
    StartFile(files.kill(), PATH).first_start()
    assert started(files.kill()).now.start == 2
