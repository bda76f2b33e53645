"""Names of producers over the versions of a key map, and which of them have to be asked."""

from __future__ import annotations

from inorder.spark.sink.rules import Begun, name_at


def test_each_version_has_a_name_of_its_own() -> None:
    """The first one has the plain name, as a topic without a map has."""
    assert [name_at("p", version) for version in (0, 1, 2, 13)] == ["p", "p", "p@2", "p@13"]


def test_an_earlier_batch_says_where_a_batch_began() -> None:
    """Numbers of the batch itself say nothing: it may have been run under any version before."""
    begun = Begun(100)
    assert begun.asks_below(2)
    assert not begun.asks_below(1)
    for last in (-1, 100, 150):
        begun.heard(3, last)
    assert begun.asks(1)
    begun.heard(2, 99)
    assert not begun.asks(1)
    assert begun.asks(2)
    assert begun.asks_below(3)
    begun.heard(3, 0)
    assert not begun.asks_below(3)
