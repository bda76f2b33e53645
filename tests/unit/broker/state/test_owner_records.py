"""What the journal of owners says: records, and what they amount to."""

from __future__ import annotations

import msgspec
import pytest

from inorder.broker.leases import records as ownerrecords
from inorder.broker.leases.rules import LeaseKey, Owner, Past, Terms
from inorder.broker.offsets.rules import CommitTable, Committed, OffsetTable, QueueKey, cut_map
from inorder.errors import RemoteProtocolError
from inorder.model import TopicQueue

QUEUE = TopicQueue("orders", "broker-a", 1)
KEY = LeaseKey("billing", QUEUE)
ANNE = Owner("anne", "i1")
TERMS = Terms(5000, 1000)
PLACE = QueueKey("billing", "orders", 1)
GRANTED = ownerrecords.granted(KEY, ANNE, 7, TERMS)
COMMIT = ownerrecords.Commit(*PLACE, 100, 4096, 7, 3, "100:2c")


def replayed(
    *records: ownerrecords.Record,
) -> tuple[dict[LeaseKey, Past], OffsetTable, CommitTable]:
    offsets, commits = OffsetTable(now_ms=0), CommitTable()
    return ownerrecords.replay(records, offsets, commits, now_ms=0), offsets, commits


@pytest.mark.parametrize(
    "record",
    [
        GRANTED,
        ownerrecords.granted(KEY, ANNE, 7, TERMS, recalled=True, deadline_ms=1 << 40),
        ownerrecords.freed(KEY),
        COMMIT,
        ownerrecords.Progress(*PLACE, 5, 10),
        ownerrecords.Forgotten("", "orders"),
        ownerrecords.Saved(0xDEADBEEF),
        ownerrecords.Ordered("billing", "orders"),
    ],
)
def test_records_come_back_as_they_went(record: ownerrecords.Record) -> None:
    """What is written is read again."""
    assert ownerrecords.decode(ownerrecords.encode(record)) == record


@pytest.mark.parametrize("payload", [b"", b"\x00", b"rubbish", b"\x91\xa1z", b"\x92\xa1g\xa1a"])
def test_what_is_no_record_is_said_so(payload: bytes) -> None:
    """It is left out at a start, and nothing else fails."""
    with pytest.raises(RemoteProtocolError):
        ownerrecords.decode(payload)


def test_how_much_of_the_log_is_spoken_of() -> None:
    """A1: only progress depends on it."""
    assert ownerrecords.depends_on([]) == 0
    progress = ownerrecords.Progress(*PLACE, 5, 9000)
    assert ownerrecords.depends_on([GRANTED, COMMIT, progress, ownerrecords.freed(KEY)]) == 9000


def test_the_last_word_on_a_queue_counts() -> None:
    """A lease that was given back is known as such, one that was granted again stands."""
    leases, _, _ = replayed(GRANTED, ownerrecords.freed(KEY))
    assert leases == {KEY: Past(ANNE, 7, TERMS, released=True)}
    leases, _, _ = replayed(
        GRANTED, ownerrecords.freed(KEY), ownerrecords.granted(KEY, Owner("bob", "i2"), 8, TERMS)
    )
    assert leases == {KEY: Past(Owner("bob", "i2"), 8, TERMS, released=False)}


def test_progress_and_maps_come_back() -> None:
    """The map belongs to the offset with which it came; later progress makes it void."""
    _, offsets, commits = replayed(COMMIT)
    assert offsets.query(*PLACE) == 100
    assert commits.finished(PLACE, 100) == "100:2c"
    _, offsets, commits = replayed(COMMIT, ownerrecords.Progress(*PLACE, 50, 4096))
    assert offsets.query(*PLACE) == 50
    assert commits.finished(PLACE, 50) == ""
    assert offsets.take_changed() == [], "the journal has it"


@pytest.mark.parametrize(
    ("gone", "left"),
    [
        (ownerrecords.Forgotten("billing", ""), False),
        (ownerrecords.Forgotten("", "orders"), False),
        (ownerrecords.Forgotten("other", ""), True),
        (ownerrecords.Forgotten("", "other"), True),
    ],
)
def test_what_was_deleted_does_not_come_back(gone: ownerrecords.Forgotten, left: bool) -> None:
    """A group or topic of the same name begins with nothing."""
    leases, offsets, commits = replayed(GRANTED, COMMIT, gone)
    assert bool(leases) == left
    assert (offsets.query(*PLACE) == 100) == left
    assert (len(commits) == 1) == left


def test_commits_are_ordered_by_epoch_and_number() -> None:
    """A11: of two connections of one owner the older commit may arrive last."""
    commits = CommitTable()
    assert commits.is_newer(PLACE, 7, 0)
    commits.put(PLACE, Committed(7, 3, 100))
    assert not commits.is_newer(PLACE, 7, 3)
    assert not commits.is_newer(PLACE, 6, 9)
    assert commits.is_newer(PLACE, 7, 4)
    assert commits.is_newer(PLACE, 8, 0)


def test_the_text_of_maps_is_bounded() -> None:
    """A map that has no room is refused; one that replaces another needs only the difference."""
    commits = CommitTable(map_chars_max=10)
    commits.put(PLACE, Committed(7, 3, 100, "100:ffffff"))
    assert commits.has_room(PLACE, "100:eeeeee")
    assert not commits.has_room(QueueKey("g", "t", 0), "0:2")
    assert commits.remove(group="billing") == 1
    assert commits.has_room(QueueKey("g", "t", 0), "0:2")


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
    commits.put(PLACE, Committed(7, 3, 100, "100:2c"))
    commits.put(QueueKey("g", "t", 0), Committed(7, 3, 5, "5:2"))
    ends = {("orders", 1): 103, ("t", 0): 9}
    assert list(commits.clamp(lambda topic, queue_id: ends[topic, queue_id])) == [PLACE]
    assert commits.finished(PLACE, 100) == "100:4"
    assert list(commits.clamp(lambda _topic, _queue: 50)) == [PLACE]
    assert commits.get(PLACE) == Committed(7, 3, 50, "")


@pytest.mark.parametrize(
    ("checksum", "ours"), [(None, True), (1, True), (2, True), (3, False), (100, False)]
)
def test_a_file_of_offsets_that_we_never_saved_is_another_brokers(
    checksum: int | None, ours: bool
) -> None:
    """No file at all is ours: it was not saved yet."""
    records = [ownerrecords.Saved(1), COMMIT, ownerrecords.Saved(2)]
    assert ownerrecords.wrote(records, checksum) is ours


def test_a16_who_ever_held_a_queue_is_known() -> None:
    """By a record of its own; in older journals by a grant, or a commit under an epoch."""
    pair = ("billing", "orders")
    reset = ownerrecords.Commit(*PLACE, 100, 4096, 7, 0, "")
    progress = ownerrecords.Progress(*PLACE, 5, 9000)
    assert ownerrecords.ordered([reset, progress, ownerrecords.freed(KEY)]) == {}
    assert ownerrecords.ordered([GRANTED, ownerrecords.freed(KEY)]) == {pair: False}
    assert ownerrecords.ordered([COMMIT]) == {pair: False}
    said = ownerrecords.Ordered(*pair)
    assert ownerrecords.ordered([GRANTED, said, GRANTED]) == {pair: True}
    for gone in (ownerrecords.Forgotten("billing", ""), ownerrecords.Forgotten("", "orders")):
        assert ownerrecords.ordered([GRANTED, said, gone]) == {}
    assert ownerrecords.ordered([said, ownerrecords.Forgotten("other", "")]) == {pair: True}


def test_a15_grants_of_older_brokers_state_no_deadline() -> None:
    """Their lists are shorter; a grant or a renewal says that there is none any more."""
    payload = msgspec.msgpack.encode(["g", "billing", "orders", "broker-a", 1, *ANNE, 7, *TERMS])
    assert ownerrecords.decode(payload) == GRANTED
    dated = ownerrecords.granted(KEY, ANNE, 7, TERMS, deadline_ms=900)
    assert replayed(dated)[0][KEY].deadline_ms == 900
    assert replayed(dated, GRANTED)[0][KEY].deadline_ms == 0
