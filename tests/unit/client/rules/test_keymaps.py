"""Which key map counts, given what name servers and brokers say."""

from __future__ import annotations

import pytest

from inorder.client.rules.keymaps import Settled, newest, settle
from inorder.ordering.keymap import KeyMap
from inorder.wire.requests.resizing import ResizeView

A1, B1, AB1 = "1/a:0-1", "1/b:0-1", "1/a:0-1/b:0-1"
AB2 = "2/a:0-3/b:0-3"


def views(**maps: str) -> dict[str, ResizeView]:
    """Return what brokers say that hold these maps; an empty text is none."""
    return {
        name: ResizeView(name, "t", KeyMap.decode(text).version if text else 0, text, 0)
        for name, text in maps.items()
    }


@pytest.mark.parametrize(
    ("told", "held", "counts", "void", "conflict"),
    [
        ([AB1], views(a=AB1, b=AB1), AB1, (), ()),
        ([AB1], views(), AB1, (), ()),  # nobody answers: nobody knows
        ([AB1], views(a=""), AB1, (), ()),  # b may hold it
        ([AB1], views(a="", b=""), None, (AB1,), ()),
        ([AB2], views(a=AB1, b=AB1), AB1, (AB2,), ()),
        ([AB1], views(a=AB2, b=AB1), AB2, (), ()),  # a resize goes on
        ([AB2], views(a=AB1), AB2, (), ()),  # b may hold it
        ([A1], views(a=A1, b=B1), None, (), (A1, B1)),
        ([A1, AB2], views(a=AB2, b=B1), AB2, (A1,), ()),
        ([A1, B1], views(b=B1), B1, (), ()),  # a is away: what a broker holds comes first
        (["rubbish", ""], views(), None, (), ()),
    ],
)
def test_the_brokers_of_a_map_decide(
    told: list[str], held: dict[str, ResizeView], counts: str | None, void: tuple[str, ...],
    conflict: tuple[str, ...],
) -> None:  # fmt: skip
    """The highest version that a broker holds, or may; void if all of its brokers deny it."""
    expected = None if counts is None else KeyMap.decode(counts)
    assert settle(told, held) == Settled(expected, frozenset(void), conflict)


def test_of_several_texts_the_newest_counts() -> None:
    """Equal maps count once, however they are written."""
    assert newest([A1, AB2, "2/a:0-1/a:2-3/b:0-3"]) == [KeyMap.decode(AB2)]
    assert newest([A1, B1]) == [KeyMap.decode(A1), KeyMap.decode(B1)]
    assert newest(["x"]) == []
