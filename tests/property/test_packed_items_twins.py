"""The body of a request of several messages: compiled and in Python, the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inorder.accelerated import native, reason
from inorder.client.send.messages import Outgoing, compose, pack_items_pure
from inorder.client.send.sender import pack_items
from inorder.config import ClientConfig
from inorder.errors import LocalProtocolError
from inorder.wire.properties import PROPERTIES_BYTES_MAX
from inorder.wire.requests.producers import MARK_BYTES, read_numbered
from inorder.wire.requests.sendframes import number_head
from inorder.wire.requests.sends import decode_batch

needs_compiled = pytest.mark.skipif(native is None, reason=f"compiled module: {reason}")
HEAD = number_head("0123456789abcdef")

items = st.lists(
    st.tuples(
        st.binary(min_size=1, max_size=300), st.binary(max_size=300),
        st.integers(-(2**31), 2**31 - 1),
    ),
    max_size=20,
)  # fmt: skip


@needs_compiled
@settings(max_examples=300, deadline=None)
@given(items, st.integers(0, 2**62), st.binary(max_size=80))
def test_both_make_the_same_bytes(
    found: list[tuple[bytes, bytes, int]], first: int, head: bytes
) -> None:
    """Whatever bodies, properties, flags and numbers there are."""
    assert native is not None
    bodies, raws, flags = map(list, zip(*found, strict=True)) if found else ([], [], [])
    made = native.pack_items(bodies, raws, flags, head, first)
    assert made == pack_items_pure(bodies, raws, flags, head, first)


@needs_compiled
def test_the_module_leaves_to_python_what_is_not_plain() -> None:
    """Properties above the limit, which Python refuses, and values that are no bytes."""
    assert native is not None
    long = b"p" * PROPERTIES_BYTES_MAX
    assert native.pack_items([b"x"], [long], [0], HEAD, 0) is None
    with pytest.raises(LocalProtocolError):
        pack_items_pure([b"x"], [long], [0], HEAD, 0)
    assert native.pack_items([bytearray(b"x")], [b""], [0], HEAD, 0) is None
    assert native.pack_items([b"x"], ["text"], [0], HEAD, 0) is None
    for lists in (([b"x"], [], [0]), ([b"x"], [b""], [])):
        with pytest.raises(ValueError, match="as many"):
            native.pack_items(*lists, HEAD, 0)
    with pytest.raises(ValueError, match="from 0"):
        native.pack_items([b"x"], [b""], [0], HEAD, -1)


@needs_compiled
def test_lists_that_change_meanwhile_are_left_to_python() -> None:
    """A flag that runs code may empty a list or change what is in it: it is left to Python."""
    assert native is not None
    bodies: list[object] = [b"x" * 9]
    raws: list[object] = [b"y" * 9]
    flags: list[object] = []

    class Flag:
        def __init__(self, change: Callable[[], object]) -> None:
            self.change = change

        def __int__(self) -> int:
            self.change()
            return 1

        __index__ = __int__

    changes: list[Callable[[], object]] = [
        bodies.clear, raws.clear, flags.clear, partial(bodies.__setitem__, 0, 7),
        partial(raws.__setitem__, 0, "text"), partial(bodies.append, b"z"),
    ]  # fmt: skip
    for change in changes:
        bodies[:], raws[:], flags[:] = [b"x" * 9], [b"y" * 9], [Flag(change)]
        assert native.pack_items(bodies, raws, flags, HEAD, 0) is None


def test_a_broker_reads_what_the_producer_packs() -> None:
    """Bodies, properties and numbers, one after the other."""
    parts: list[Outgoing] = [
        compose("t", b"body-%d" % n, f"key-{n}", None, (), None, f"ID{n}", 7, ClientConfig())
        for n in range(300)
    ]
    found = decode_batch(pack_items(parts, HEAD, 41))
    assert [item.body for item in found] == [part.body for part in parts]
    for n, item in enumerate(found):
        assert item.properties.startswith(parts[n].raw or b"none")
        assert item.properties.count(MARK_BYTES) == 1
        assert read_numbered(item.properties.decode()) == ("0123456789abcdef", 41 + n, None)
