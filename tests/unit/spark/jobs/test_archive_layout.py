"""How an archive is laid out: names say what files hold, and what follows from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inorder.errors import StoreError
from inorder.model import TopicQueue
from inorder.spark.jobs.rules import (
    ArchiveFile,
    ends,
    holes,
    merged_name,
    parse_name,
    sift,
    starts,
    to_merge,
    within,
)

Q = [TopicQueue("orders", "broker-a", index) for index in range(3)]
DAY = "2026-11-15"
NAMES = st.text("abc%/= .é", min_size=1, max_size=8)


def file(start: int, end: int, queue: int = 0, day: str = DAY, size: int = 10) -> ArchiveFile:
    return ArchiveFile(Q[queue], start, end, day, size)


@given(NAMES, NAMES, st.integers(0, 99), st.integers(0, 10**15))
def test_a_name_says_what_a_file_holds(topic: str, broker: str, index: int, start: int) -> None:
    """Whatever topics and brokers are called, a name is read back as it was meant."""
    made = ArchiveFile(TopicQueue(topic, broker, index), start, start + 5, DAY)
    assert parse_name(made.name) == made
    assert made.name.count("/") == 3


@pytest.mark.parametrize(
    "name",
    ["", "x.parquet", "topic=a/day=2026-11-15/queue=0/.part-host-1-0-0",
     "topic=a/day=2026-11-15/queue=0/b.1.00000000000000000000-00000000000000000001.parquet"],
)  # fmt: skip
def test_other_files_are_not_of_the_archive(name: str) -> None:
    """Drafts, strangers, and a file in the folder of another queue."""
    assert parse_name(name) is None


def test_merged_files_do_not_count() -> None:
    """A file whose range lies within another's was merged into it."""
    kept, merged = sift([file(0, 5), file(0, 10), file(5, 10), file(10, 12), file(0, 4, 1)])
    assert kept == [file(0, 10), file(10, 12), file(0, 4, 1)]
    assert merged == [file(0, 5), file(5, 10)]


def test_files_that_overlap_are_refused() -> None:
    """Two jobs wrote one archive: some messages would count twice."""
    with pytest.raises(StoreError, match="hold some messages both"):
        sift([file(0, 10), file(5, 15)])


def test_how_far_an_archive_is() -> None:
    """Begin and end of each queue, and what is missing between."""
    files = [file(3, 5), file(5, 9), file(12, 15), file(7, 8, 1)]
    assert starts(files) == {Q[0]: 3, Q[1]: 7}
    assert ends(files) == {Q[0]: 15, Q[1]: 8}
    assert holes(files) == [(Q[0], 9, 12)]
    assert within(files[:3], 8, 13) == [file(5, 9), file(12, 15)]


def test_neighbours_are_merged_up_to_a_size() -> None:
    """Of one queue and one day, in order; large ones and lonely ones stay."""
    files = [file(0, 1), file(1, 2), file(2, 3, size=25), file(3, 4), file(4, 5),
             file(5, 6, day="2026-11-16"), file(0, 9, 1)]  # fmt: skip
    groups = list(to_merge(files, bytes_max=30))
    assert groups == [[file(0, 1), file(1, 2)], [file(3, 4), file(4, 5)]]
    assert [merged_name(group).name for group in groups] == [
        f"topic=orders/day={DAY}/queue=0/broker-a.0.{0:020d}-{2:020d}.parquet",
        f"topic=orders/day={DAY}/queue=0/broker-a.0.{3:020d}-{5:020d}.parquet",
    ]
