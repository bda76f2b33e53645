"""The noted ends of queues: what blocks amount to, when they count, damage, folding."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from inorder.store import ends
from inorder.store.ends import Begun, Clean, Dropped, Emptied, Ends, EndsFile, Kept, Noted, Notes
from inorder.store.layout import Layout
from tests.kit.disk import FakeFiles, Fault

ROOT = Path("/data")
BEGUN = Begun("inorder 1 2", 2000)


def folded(*blocks: ends.Block) -> Notes:
    return ends.fold([("ends.000001", b"".join(map(ends.pack, blocks)))])


def made(files: FakeFiles) -> EndsFile:
    files.makedirs(ROOT / "inorder")
    file = EndsFile(files, Layout(ROOT))
    file.begin(Notes(), BEGUN, [("T", 0, 5)], 500)
    return file


def test_the_last_word_on_a_queue_counts() -> None:
    """A later end replaces an earlier one; a deleted topic has none."""
    notes = folded(
        BEGUN, Ends(100, [("T", 0, 1), ("U", 0, 9)]), Ends(300, [("T", 0, 3)]), Dropped("U", 320)
    )
    assert notes.ends == {("T", 0): Noted(3, 300)}
    assert (notes.dropped, notes.position) == ({"U": 320}, 320)


def test_a_topic_made_again_ends_where_its_new_life_ends() -> None:
    """Deleted at 100 and made again to 10: it ends at 10."""
    notes = folded(Ends(100, [("T", 0, 100)]), Dropped("T", 100), Ends(200, [("T", 0, 10)]))
    assert notes.ends["T", 0].end == 10


@pytest.mark.parametrize(
    ("last", "abort", "checkpoint", "fits"),
    [
        (BEGUN, "inorder 1 2", 7, True),
        (BEGUN, "inorder 1 3", 7, False),
        (BEGUN, "4711", 7, False),
        (BEGUN, None, 7, False),
        (Clean(0, [7, 8]), None, 7, True),
        (Clean(0, [7, 8]), None, 8, True),
        (Clean(0, [7, 8]), None, 9, False),
        (Clean(0, [7, 8]), "4711", 7, False),
    ],
)
def test_notes_count_if_nobody_else_was_here(
    last: ends.Block, abort: str | None, checkpoint: int, fits: bool
) -> None:
    """The token of a run that was killed, or the checkpoint of a clean stop, has to be theirs."""
    notes = folded(BEGUN, last)
    assert notes.fit(abort, checkpoint, 2000) is fits
    assert not notes.fit(abort, checkpoint, 4000)


def test_every_flipped_bit_and_every_cut_is_seen() -> None:
    """A damaged block ends what its file says, and the notes say that they are damaged."""
    whole = b"".join(map(ends.pack, (BEGUN, Ends(100, [("T", 0, 1)]), Ends(300, [("T", 0, 3)]))))
    for at in range(len(whole)):
        flipped = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        assert ends.fold([("x", flipped)]).damaged
        cut = ends.fold([("x", whole[:at])])
        assert cut.ends.get(("T", 0), Noted(0, 0)).end in (0, 1)


def test_what_is_noted_is_read_back() -> None:
    """Also over a kill, with what retention took."""
    files = FakeFiles()
    file = made(files)
    file.note_ends([("T", 0, 6), ("T", 1, 2)], 700)
    file.note([Kept(400), Emptied(800, [("T", 1, 2)])])
    notes = EndsFile(files.kill(), Layout(ROOT)).load()
    assert notes is not None
    assert notes.ends == {("T", 0): Noted(6, 700), ("T", 1): Noted(2, 800, True)}
    assert (notes.kept, notes.damaged, notes.token) == (400, "", "inorder 1 2")


def test_a_file_that_has_grown_is_folded_while_the_next_is_written() -> None:
    """The files stay small, and say the same; also if a kill comes before the older are gone."""
    files = FakeFiles()
    file = made(files)
    for number in range(40_000):
        file.note_ends([("T", number % 3, number)], number)
        if number % 1000 == 0:
            finish = file.plan_flush()
            file.note_ends([("L", 0, number)], number)
            finish()
    file.note([Clean(40_000, [1])])
    file.plan_flush()()
    names = [name for name in files.listdir(ROOT / "inorder") if name.startswith("ends.")]
    assert sum(len(files.read(ROOT / "inorder" / name)) for name in names) < 3 * ends.FOLD_BYTES_MIN
    notes = EndsFile(files, Layout(ROOT)).load()
    assert notes is not None
    assert {key: noted.end for key, noted in notes.ends.items()} == {
        ("T", 0): 39_999, ("T", 1): 39_997, ("T", 2): 39_998, ("L", 0): 39_000,
    }  # fmt: skip
    assert notes.clean


def test_a_file_that_cannot_be_folded_now_is_synced_and_folded_later() -> None:
    """No room or no descriptor for the next file: what was noted is on disk all the same."""
    files = FakeFiles()
    file = made(files)
    for number in range(40_000):
        file.note_ends([("T", number % 3, number)], number)
    for folder in (ROOT.parent, ROOT):
        files.fsync_dir(folder)
    files.fail(Fault("create", 0, errno.EMFILE, place="ends.*"))
    file.plan_flush()()
    notes = EndsFile(files.crash(Random(1)), Layout(ROOT)).load()
    assert notes is not None
    assert notes.ends["T", 39_999 % 3].end == 39_999
    files.heal()
    file.plan_flush()()
    names = [name for name in files.listdir(ROOT / "inorder") if name.startswith("ends.")]
    assert sum(len(files.read(ROOT / "inorder" / name)) for name in names) < ends.FOLD_BYTES_MIN


def test_a_queue_that_a_power_cut_took_with_the_log_has_no_end_any_more() -> None:
    """Others keep theirs: what has files, what retention emptied, what the log still reaches."""
    notes = Notes()
    notes.take(Ends(500, [("T", 0, 1), ("T", 1, 1)]))
    notes.take(Emptied(600, [("T", 2, 7)]))
    notes.take(Ends(300, [("T", 3, 4)]))
    notes.without_lost(400, {("T", 1)})
    assert sorted(notes.ends) == [("T", 1), ("T", 2), ("T", 3)]
