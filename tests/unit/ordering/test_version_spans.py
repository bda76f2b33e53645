"""Chapters: what fences compare by before they compare offsets."""

from __future__ import annotations

import pytest

from inorder.errors import RemoteProtocolError
from inorder.ordering.fence import Generations, merge
from inorder.wire.requests.leases import VersionSpan


def test_a_queue_without_a_record_has_one_version_span() -> None:
    """Version of its topic, generation 0."""
    assert merge([(0, 3)], Generations().of("t", 0)) == [VersionSpan(0, 3, 0)]


def test_a_lost_tail_begins_a_generation_at_the_recovered_end() -> None:
    """A5: offsets that are given again come in a higher generation; saying it twice is the same."""
    generations = Generations()
    for _ in range(2):
        generations.lost_tail([("t", 0, 900)], 1)
    assert generations.of("t", 0) == [(0, 0), (900, 1)]
    generations.lost_tail([("t", 0, 800)], 2)
    assert generations.of("t", 0) == [(0, 0), (800, 2)], "what came after 900 is lost"


def test_a_queue_that_was_lost_as_a_whole_begins_in_the_new_generation() -> None:
    """A5: nothing is left of it, and its offsets begin at 0 again; so does any queue made later."""
    generations, again = Generations(), Generations()
    assert generations.of("gone", 0) == [(0, 0)]
    generations.lost_tail([("t", 0, 900)], 1)
    again.decode(generations.encode())
    for table in (generations, again):
        assert table.of("gone", 0) == [(0, 1)]
        assert table.of("t", 0) == [(0, 0), (900, 1)]
        table.lost_tail([("t", 0, 950), ("gone", 0, 5)], 2)
        assert table.of("gone", 0) == [(0, 1), (5, 2)]
        table.retire("t", 3)
        assert table.of("t", 0) == [(0, 3)]


def test_a_topic_that_is_made_again_has_a_higher_generation() -> None:
    """A5: its offsets begin at 0 again."""
    generations = Generations()
    generations.lost_tail([("t", 0, 900)], 1)
    generations.retire("t", 2)
    assert generations.of("t", 0) == [(0, 2)]
    generations.lost_tail([("t", 0, 5)], 3)
    assert generations.of("t", 0) == [(0, 2), (5, 3)]


def test_versions_and_generations_are_merged() -> None:
    """A span begins where either does; each has the values of its first message."""
    versions, generations = [(0, 1), (50, 2), (90, 3)], [(0, 0), (70, 1), (90, 2)]
    found = merge(versions, generations)
    assert found == [(0, 1, 0), (50, 2, 0), (70, 2, 1), (90, 3, 2)]
    assert merge(versions, generations, first=49) == found
    assert merge(versions, generations, first=50) == found[1:]
    assert merge(versions, generations, first=1000) == found[3:]


def test_the_file_comes_back_as_it_went() -> None:
    """What is not such a file, or not in order, is refused."""
    generations, again = Generations(), Generations()
    generations.lost_tail([("t", 0, 900)], 1)
    generations.retire("u", 2)
    again.decode(generations.encode())
    assert (again.of("t", 0), again.of("u", 5)) == ([(0, 0), (900, 1)], [(0, 2)])
    for text in (b"", b"{}", b'{"generations":{"t":{"0":[[5,1],[4,2]]}},"retired":{}}'):
        with pytest.raises(RemoteProtocolError):
            Generations().decode(text)
