"""How queued parts become writes."""

from __future__ import annotations

import pytest

from inorder.net.output import JOIN_BYTES_MAX, Buffer, write_out
from tests.unit.net.fakes import FakeTransport

BIG = JOIN_BYTES_MAX + 1


@pytest.mark.parametrize(
    ("sizes", "writes"),
    [
        ([5], [5]),
        ([BIG], [BIG]),
        ([1, 2, 3], [6]),
        ([10, BIG, 20], [10, BIG, 20]),
        ([BIG, BIG], [BIG, BIG]),
        ([1, BIG, 2, 3], [1, BIG, 5]),
        ([JOIN_BYTES_MAX - 1, 1, 1], [JOIN_BYTES_MAX, 1]),
    ],
)
def test_small_parts_are_joined_and_large_ones_are_not(sizes: list[int], writes: list[int]) -> None:
    """Runs of small parts cost one write; a large part is written without a copy."""
    transport = FakeTransport()
    parts: list[Buffer] = [memoryview(bytes([i + 1]) * size) for i, size in enumerate(sizes)]
    write_out(transport, parts)
    assert [len(piece) for piece in transport.writes] == writes
    assert transport.written == b"".join(parts)
