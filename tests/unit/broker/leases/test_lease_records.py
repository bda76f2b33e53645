"""What the journal of owners says: records, and what they amount to."""

from __future__ import annotations

import msgspec
import pytest

from inorder.broker.leases import records as lease_records
from inorder.broker.leases.rules import Owner, PastLease, Terms
from inorder.broker.offsets.rules import CommitTable, Committed, OffsetTable, cut_map
from inorder.errors import RemoteProtocolError
from inorder.model import GroupQueue

ANNE = Owner("anne", "i1")
TERMS = Terms(5000, 1000)
KEY = GroupQueue("billing", "orders", 1)
NAME = "broker-a"
GRANTED = lease_records.granted(KEY, NAME, ANNE, 7, TERMS)
COMMIT = lease_records.Commit(*KEY, 100, 4096, 7, 3, "100:2c")


def replayed(
    *records: lease_records.Record,
) -> tuple[dict[GroupQueue, PastLease], OffsetTable, CommitTable]:
    offsets, commits = OffsetTable(now_ms=0), CommitTable()
    return lease_records.replay(records, offsets, commits, now_ms=0), offsets, commits


@pytest.mark.parametrize(
    "record",
    [
        GRANTED,
        lease_records.granted(KEY, NAME, ANNE, 7, TERMS, revoked=True, deadline_ms=1 << 40),
        lease_records.freed(KEY, NAME),
        COMMIT,
        lease_records.Progress(*KEY, 5, 10),
        lease_records.Forgotten("", "orders"),
        lease_records.Saved(0xDEADBEEF),
        lease_records.Ordered("billing", "orders"),
    ],
)
def test_records_come_back_as_they_went(record: lease_records.Record) -> None:
    """What is written is read again."""
    assert lease_records.decode(lease_records.encode(record)) == record


@pytest.mark.parametrize("payload", [b"", b"\x00", b"rubbish", b"\x91\xa1z", b"\x92\xa1g\xa1a"])
def test_what_is_no_record_is_said_so(payload: bytes) -> None:
    """It is left out at a start, and nothing else fails."""
    with pytest.raises(RemoteProtocolError):
        lease_records.decode(payload)


def test_how_much_of_the_log_is_spoken_of() -> None:
    """A1: only progress depends on it."""
    assert lease_records.depends_on([]) == 0
    progress = lease_records.Progress(*KEY, 5, 9000)
    assert (
        lease_records.depends_on([GRANTED, COMMIT, progress, lease_records.freed(KEY, NAME)])
        == 9000
    )


def test_the_last_word_on_a_queue_counts() -> None:
    """A lease that was given back is known as such, one that was granted again stands."""
    leases, _, _ = replayed(GRANTED, lease_records.freed(KEY, NAME))
    assert leases == {KEY: PastLease(ANNE, 7, TERMS, released=True)}
    leases, _, _ = replayed(
        GRANTED,
        lease_records.freed(KEY, NAME),
        lease_records.granted(KEY, NAME, Owner("bob", "i2"), 8, TERMS),
    )
    assert leases == {KEY: PastLease(Owner("bob", "i2"), 8, TERMS, released=False)}


def test_progress_and_maps_come_back() -> None:
    """The map belongs to the offset with which it came; later progress makes it void."""
    _, offsets, commits = replayed(COMMIT)
    assert offsets.query(*KEY) == 100
    assert commits.finished(KEY, 100) == "100:2c"
    _, offsets, commits = replayed(COMMIT, lease_records.Progress(*KEY, 50, 4096))
    assert offsets.query(*KEY) == 50
    assert commits.finished(KEY, 50) == ""
    assert offsets.take_changed() == [], "the journal has it"


@pytest.mark.parametrize(
    ("gone", "left"),
    [
        (lease_records.Forgotten("billing", ""), False),
        (lease_records.Forgotten("", "orders"), False),
        (lease_records.Forgotten("other", ""), True),
        (lease_records.Forgotten("", "other"), True),
    ],
)
def test_what_was_deleted_does_not_come_back(gone: lease_records.Forgotten, left: bool) -> None:
    """A group or topic of the same name begins with nothing."""
    leases, offsets, commits = replayed(GRANTED, COMMIT, gone)
    assert bool(leases) == left
    assert (offsets.query(*KEY) == 100) == left
    assert (len(commits) == 1) == left


def test_commits_are_ordered_by_epoch_and_number() -> None:
    """A11: of two connections of one owner the older commit may arrive last."""
    commits = CommitTable()
    assert commits.is_newer(KEY, 7, 0)
    commits.put(KEY, Committed(7, 3, 100))
    assert not commits.is_newer(KEY, 7, 3)
    assert not commits.is_newer(KEY, 6, 9)
    assert commits.is_newer(KEY, 7, 4)
    assert commits.is_newer(KEY, 8, 0)


def test_the_text_of_maps_is_bounded() -> None:
    """A map that has no room is refused; one that replaces another needs only the difference."""
    commits = CommitTable(map_chars_max=10)
    commits.put(KEY, Committed(7, 3, 100, "100:ffffff"))
    assert commits.has_room(KEY, "100:eeeeee")
    assert not commits.has_room(GroupQueue("g", "t", 0), "0:2")
    assert commits.remove(group="billing") == 1
    assert commits.has_room(GroupQueue("g", "t", 0), "0:2")


@pytest.mark.parametrize(
    ("text", "offset", "end", "kept"),
    [
        ("100:2c", 100, 106, "100:2c"),
        ("100:2c", 100, 105, "100:c"),
        ("100:2c", 100, 103, "100:4"),
        ("100:2c", 100, 102, ""),
        ("100:2c", 90, 90, ""),
        ("", 100, 100, ""),
    ],
)
def test_a_map_is_cut_at_the_end_of_the_log(text: str, offset: int, end: int, kept: str) -> None:
    """A1: what will be stored there is new, and not finished."""
    assert cut_map(text, offset, end) == kept


def test_recovery_cuts_offsets_and_maps() -> None:
    """A1: only those that lie beyond the recovered end, and they are named."""
    commits = CommitTable()
    commits.put(KEY, Committed(7, 3, 100, "100:2c"))
    commits.put(GroupQueue("g", "t", 0), Committed(7, 3, 5, "5:2"))
    ends = {("orders", 1): 103, ("t", 0): 9}
    assert list(commits.clamp(lambda topic, queue_id: ends[topic, queue_id])) == [KEY]
    assert commits.finished(KEY, 100) == "100:4"
    assert list(commits.clamp(lambda _topic, _queue: 50)) == [KEY]
    assert commits.get(KEY) == Committed(7, 3, 50, "")


@pytest.mark.parametrize(
    ("checksum", "ours"), [(None, True), (1, True), (2, True), (3, False), (100, False)]
)
def test_a_file_of_offsets_that_we_never_saved_is_another_brokers(
    checksum: int | None, ours: bool
) -> None:
    """No file at all is ours: it was not saved yet."""
    records = [lease_records.Saved(1), COMMIT, lease_records.Saved(2)]
    assert lease_records.wrote(records, checksum) is ours


def test_a16_who_ever_held_a_queue_is_known() -> None:
    """By a record of its own; in older journals by a grant, or a commit under an epoch."""
    pair = ("billing", "orders")
    reset = lease_records.Commit(*KEY, 100, 4096, 7, 0, "")
    progress = lease_records.Progress(*KEY, 5, 9000)
    assert lease_records.ordered([reset, progress, lease_records.freed(KEY, NAME)]) == {}
    assert lease_records.ordered([GRANTED, lease_records.freed(KEY, NAME)]) == {pair: False}
    assert lease_records.ordered([COMMIT]) == {pair: False}
    said = lease_records.Ordered(*pair)
    assert lease_records.ordered([GRANTED, said, GRANTED]) == {pair: True}
    for gone in (lease_records.Forgotten("billing", ""), lease_records.Forgotten("", "orders")):
        assert lease_records.ordered([GRANTED, said, gone]) == {}
    assert lease_records.ordered([said, lease_records.Forgotten("other", "")]) == {pair: True}


def test_a15_grants_of_older_brokers_state_no_deadline() -> None:
    """Their lists are shorter; a grant or a renewal says that there is none any more."""
    payload = msgspec.msgpack.encode(["g", "billing", "orders", "broker-a", 1, *ANNE, 7, *TERMS])
    assert lease_records.decode(payload) == GRANTED
    dated = lease_records.granted(KEY, NAME, ANNE, 7, TERMS, deadline_ms=900)
    assert replayed(dated)[0][KEY].deadline_ms == 900
    assert replayed(dated, GRANTED)[0][KEY].deadline_ms == 0
