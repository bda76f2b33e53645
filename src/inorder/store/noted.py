"""What waits for the key index: records one by one, or batches whose keys are hashed already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Noted = tuple[str, bytes, int, int]
"""A record whose keys are to be added: topic, properties, position, store time."""


class NotedRows(NamedTuple):
    """Records of one batch whose keys the compiled module has hashed."""

    topic: str
    hashes: bytes
    """An i32 for each key, in the order of the records."""
    position: int
    stored_at_ms: int
    positions: bytes
    """An i64 for each key: where its record lies."""
    records: int
    """How many."""


def alike(
    waiting: Sequence[Noted | NotedRows], records_max: int
) -> tuple[list[Noted], list[NotedRows]]:
    """Return what comes first, up to so many records: single ones, or batches; never both.

    One batch at least, however large it is.
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
    """Return up to where rows go into the room, not parting a record that could go whole."""
    until = min(len(owners), done + room)
    if until == len(owners):
        return until
    aligned = until
    while aligned > done and owners[aligned] == owners[aligned - 1]:
        aligned -= 1
    return aligned if aligned > done else until
