"""The noted offsets of a consumer: which way they move, and what is saved."""

from __future__ import annotations

import pytest

from inorder.client.consume.rules.commits import NO_OFFSET, OffsetTable
from inorder.model import TopicQueue

Q0, Q1 = (TopicQueue("orders", "broker-a", index) for index in range(2))


def test_a_queue_that_is_not_noted_has_no_offset() -> None:
    """As RocketMQ's stores say it: -1."""
    table = OffsetTable()
    assert table.get(Q0) == NO_OFFSET
    assert not table.is_unsaved(Q0)
    table.saved(Q0, 5)
    table.forget(Q0)
    assert len(table) == 0


@pytest.mark.parametrize(
    ("only_up", "offset", "kept", "news"),
    [(True, 9, 10, False), (False, 9, 9, True), (True, 10, 10, False), (True, 11, 11, True)],
)
def test_which_way_an_offset_moves(only_up: bool, offset: int, kept: int, news: bool) -> None:
    """Concurrent results and pulls only lead on; an ordered commit says where it is."""
    table = OffsetTable()
    table.begin(Q0, 10, stored=True)
    assert table.note(Q0, offset, only_up=only_up) is news
    assert (table.get(Q0), table.is_unsaved(Q0)) == (kept, news)


def test_only_what_changed_is_saved() -> None:
    """O11: an unchanged offset that is sent again could come late over a newer one."""
    table = OffsetTable()
    table.begin(Q0, 10, stored=True)
    table.begin(Q1, 20, stored=False)
    assert table.unsaved() == {Q1: 20}
    table.note(Q0, 11)
    assert table.unsaved() == {Q0: 11, Q1: 20}
    assert table.unsaved([Q0]) == {Q0: 11}
    table.saved(Q0, 11)
    table.saved(Q1, 20)
    assert table.unsaved() == {}


def test_what_moved_on_while_it_was_saved_is_saved_again() -> None:
    """The answer is for the offset that was sent."""
    table = OffsetTable()
    table.note(Q0, 1)
    table.note(Q0, 2)
    table.saved(Q0, 1)
    assert table.unsaved() == {Q0: 2}


def test_a_frozen_offset_does_not_move_until_it_is_forgotten() -> None:
    """A corrected offset is not undone by a handler that still runs."""
    table = OffsetTable()
    table.begin(Q0, 10, stored=True)
    table.freeze(Q0, 500)
    assert not table.note(Q0, 11, only_up=False)
    assert not table.note(Q0, 501)
    assert table.unsaved() == {Q0: 500}
    table.forget(Q0)
    assert table.note(Q0, 7)
    table.freeze(Q1, 3)
    assert table.items() == [(Q0, 7), (Q1, 3)]


def test_it_says_what_is_unsaved() -> None:
    """The repr names what an operator asks for."""
    assert repr(OffsetTable()) == "OffsetTable(0 queues, 0 unsaved)"
