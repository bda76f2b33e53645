"""Queues and index are removed, as our own error messages advise, and made again from the log.

That may be killed half way like any recovery. The next start must then not take the half for the
whole: a queue that lacks its end looks like one that has no more.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from inorder.config import StoreConfig
from inorder.store.store import Store
from inorder.testing.clock import FakeClock
from tests.kit.disk import FakeFiles, Fault, Killed
from tests.kit.storing import Contents, append, contents, write_and_publish

ROOT = Path("/data")
CONFIG = StoreConfig(segment_bytes=2048, queue_file_bytes=200, index_slots=7, index_entries=60)


def filled(*, clean: bool) -> tuple[FakeFiles, Contents]:
    """Return a disk with queues that end early, middling and late in the log.

    The one that ends last begins first, so that it is the first to be made again.
    """
    files, clock = FakeFiles(), FakeClock()
    store = Store.open(ROOT, CONFIG, files, clock)
    for number in range(60):
        queue_id = 0 if 0 < number < 6 else 1 + number % 2 if 0 < number < 30 else 3
        append(store, "T", queue_id, b"message %03d" % number, now_ms=clock.now_ms(), keys="k")
        write_and_publish(store)
        store.housekeep(clock.now_ms())
        clock.advance(1000)  # the checkpoint is believed three seconds back
        if number % 20 == 19:
            store.flush_indexes()
    found = contents(store)
    if clean:
        store.close()
        return files, found
    return files.kill(), found


def strip(files: FakeFiles, *names: str) -> None:
    for name in names:
        files.remove_tree(ROOT / name)


@pytest.mark.slow
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize(
    "names",
    [("consumequeue",), ("consumequeue", "index"), ("consumequeue", "index", "inorder")],
    ids=["queues", "and index", "and notes"],
)
def test_what_was_removed_is_made_again_also_over_kills(
    names: tuple[str, ...], clean: bool
) -> None:
    """At whatever change the rebuilding dies, the next start has all messages of all queues."""
    files, expected = filled(clean=clean)
    strip(files, *names)
    whole = files.kill()
    store = Store.open(ROOT, CONFIG, whole, FakeClock())
    assert contents(store) == expected
    store.abandon()
    total = whole.counts["change"]
    for at in range(1, total + 1):
        broken = files.kill()
        broken.fail(Fault("change", at, error=None, kept_bytes=13))
        with pytest.raises(Killed):
            Store.open(ROOT, CONFIG, broken, FakeClock())
        store = Store.open(ROOT, CONFIG, broken.kill(), FakeClock())
        assert contents(store) == expected, f"killed at change {at} of {total}"
        store.abandon()
