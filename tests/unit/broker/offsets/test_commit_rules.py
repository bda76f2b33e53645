"""Whose word on a group's progress counts."""

from __future__ import annotations

from typing import Any

import pytest

from inorder.broker.locks.rules import QueueLocks
from inorder.broker.offsets.rules import (
    CommitKind,
    Committer,
    OffsetTable,
    Ruling,
    commit,
    judge,
    kind_of,
)
from inorder.model import GroupQueue
from inorder.wire.codes import LanguageCode

QUEUE = GroupQueue("g", "orders", 1)


class Table:
    """Offsets and locks; `a` holds the queue over connection 1."""

    def __init__(self, *, locked: bool = True) -> None:
        self.offsets = OffsetTable(now_ms=0)
        self.locks = QueueLocks()
        if locked:
            assert self.locks.try_lock(QUEUE, "a", 0, connection=1)

    def commit(
        self,
        offset: int,
        client: str | None,
        connection: int,
        at_ms: int = 10,
        *,
        only_up: bool = False,
    ) -> int:
        self.locks.leases.expire(at_ms)
        commit(
            self.offsets, self.locks, QUEUE, offset, committer=Committer(client, connection),
            kind=CommitKind.ONLY_UP if only_up else CommitKind.ORDINARY, end=1000, now_ms=at_ms,
        )  # fmt: skip
        return self.offsets.query("g", "orders", 1)


def test_without_a_lock_anybody_commits_anything() -> None:
    """RocketMQ's rule, also backwards."""
    table = Table(locked=False)
    assert [table.commit(offset, "b", 2) for offset in (10, 4)] == [10, 4]


@pytest.mark.parametrize("locked", [False, True])
def test_who_asks_for_it_never_lowers_an_offset(locked: bool) -> None:
    """A commit of our client with `onlyUp`, whether the queue is locked or not."""
    table = Table(locked=locked)
    found = [table.commit(offset, "a", 1, only_up=True) for offset in (10, 4, 10, -1, 12)]
    assert found == [10, 10, 10, 10, 12]


def test_while_locked_only_the_owner_commits() -> None:
    """O11: a client that had the queue before does not move the offset of the new owner."""
    table = Table()
    assert table.commit(10, "a", 1) == 10
    assert table.commit(99, "b", 2) == 10
    assert table.commit(11, "a", 5) == 11, "the owner on another connection"


def test_while_locked_nobody_goes_back() -> None:
    """O25: an owner that goes on with an old state does not undo what another did."""
    table = Table()
    assert [table.commit(offset, "a", 1) for offset in (10, 3, 10, 12)] == [10, 10, 10, 12]


def test_a_connection_that_nobody_knows_may_be_the_owners() -> None:
    """It has reconnected and not said who it is; but then, too, nothing goes back."""
    table = Table()
    assert [table.commit(offset, None, 9) for offset in (10, 3)] == [10, 10]


def test_the_connection_that_renewed_the_lock_is_the_owners() -> None:
    """Whatever it calls itself in the group."""
    assert Table().commit(10, "other", 1) == 10


@pytest.mark.parametrize("at_ms", [60_000, 90_000])
def test_an_expired_lock_protects_nothing(at_ms: int) -> None:
    """Somebody else may have it next."""
    assert Table().commit(10, "b", 2, at_ms) == 10


@pytest.mark.parametrize(
    ("offset", "facts", "ruling"),
    [
        (-1, {}, Ruling.NO_OFFSET),
        (-1, {"may_commit": False}, Ruling.NO_OFFSET),
        (21, {}, Ruling.BEYOND),
        (21, {"kind": CommitKind.TOOL}, Ruling.BEYOND),
        (20, {}, Ruling.TAKEN),
        (12, {}, Ruling.TAKEN),
        (12, {"locked": True}, Ruling.TAKEN),
        (12, {"locked": True, "may_commit": False}, Ruling.HELD),
        (9, {}, Ruling.TAKEN),
        (9, {"ordered": True}, Ruling.LOWER),
        (9, {"ordered": True, "kind": CommitKind.TOOL}, Ruling.TAKEN),
        (9, {"ordered": True, "kind": CommitKind.TOOL, "locked": True}, Ruling.LOWER),
        (9, {"kind": CommitKind.ONLY_UP}, Ruling.LOWER),
        (9, {"kind": CommitKind.TOOL}, Ruling.TAKEN),
        (9, {"locked": True}, Ruling.LOWER),
        (9, {"locked": True, "may_commit": False}, Ruling.HELD),
        (10, {"ordered": True}, Ruling.TAKEN),
        (0, {"ordered": True, "known": -1}, Ruling.TAKEN),
        (20, {"ordered": True, "known": 30}, Ruling.TAKEN),
        (19, {"ordered": True, "known": 30}, Ruling.LOWER),
    ],
)
def test_a16_what_becomes_of_an_offset(offset: int, facts: dict[str, Any], ruling: Ruling) -> None:
    """The group is at 10 of 20 messages; what is not said is a consumer's, in a group unordered."""
    usual = {"known": 10, "end": 20, "locked": False, "may_commit": True, "ordered": False,
             "kind": CommitKind.ORDINARY}  # fmt: skip
    assert judge(offset, **{**usual, **facts}) is ruling


@pytest.mark.parametrize(
    ("oneway", "member", "language", "kind"),
    [
        (True, True, LanguageCode.JAVA, CommitKind.ORDINARY),
        (True, False, LanguageCode.JAVA, CommitKind.ORDINARY),
        (False, True, LanguageCode.JAVA, CommitKind.ORDINARY),
        (False, False, LanguageCode.JAVA, CommitKind.TOOL),
        (False, False, LanguageCode.PYTHON, CommitKind.TOOL),
        (False, False, LanguageCode.GO, CommitKind.ORDINARY),
        (False, False, LanguageCode.CPP, CommitKind.ORDINARY),
        (True, False, LanguageCode.GO, CommitKind.ORDINARY),
    ],
)
def test_a16_what_a_tool_is(oneway: bool, member: bool, language: int, kind: CommitKind) -> None:
    """A request that waits for an answer, of no member, in a language that knows one-way ones."""
    assert kind_of(oneway=oneway, member=member, language=language) is kind
    only_up = kind_of(oneway=oneway, member=member, language=language, only_up=True)
    assert only_up is CommitKind.ONLY_UP
