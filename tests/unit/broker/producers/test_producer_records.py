"""The file of idempotent producers."""

from __future__ import annotations

import zlib

import pytest

from inorder.broker.producers.records import MAGIC, Encoder, decode
from inorder.broker.producers.rules import ProducerTable
from inorder.errors import RemoteProtocolError


def filled() -> ProducerTable[str]:
    """Return a table with anonymous and named producers."""
    table: ProducerTable[str] = ProducerTable()
    for index in range(20):
        for number in range(index + 1):
            table.replayed(f"p{index}", "Orders", index % 4, number, 7 * number, named=False)
    for offset, number in enumerate([5, 10, 11, 12, 40]):
        table.replayed("Stück für Stück", "Käse", 0, number, offset, named=True)
    table.memory = 3
    return table


def whole(table: ProducerTable[str], *, step: int = 1000) -> bytes:
    """Encode a table."""
    encoder = Encoder(table, 100)
    while encoder.step(step):
        pass
    return encoder.finish(200, 42)


def contents(table: ProducerTable[str]) -> list[object]:
    """Return everything that a table holds, in order."""
    return [
        (producer.id, producer.named, key, numbers.last, [numbers.find(n) for n in range(50)])
        for producer in table
        for key, numbers in producer.queues.items()
    ]


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_what_is_saved_is_restored(step: int) -> None:
    """Numbers, answers and the order of idleness, whatever the steps."""
    table = filled()
    saved = decode(whole(table, step=step))
    assert (saved.replay_from, saved.depends_on, saved.log_crc, saved.memory) == (100, 200, 42, 3)
    restored: ProducerTable[str] = ProducerTable()
    saved.restore(restored)
    assert contents(restored) == contents(table)
    assert restored.memory == 3


def test_an_open_tick_is_not_saved() -> None:
    """What is not written may be taken back, so no file may know of it."""
    table: ProducerTable[str] = ProducerTable()
    producer = table.hello("p", 1, "c", named=False)
    table.stored(table.add_queue(producer, "T", 0), 0, 0)
    assert decode(whole(table)).producers == []
    table.settle()
    assert [saved.producer_id for saved in decode(whole(table)).producers] == ["p"]


def test_damage_is_noticed() -> None:
    """A file with any byte changed or missing is not read."""
    content = whole(filled())
    for at in range(0, len(content), 97):
        broken = bytearray(content)
        broken[at] ^= 0xFF
        with pytest.raises(RemoteProtocolError):
            decode(bytes(broken))
    for size in (0, 5, len(content) // 2, len(content) - 1):
        with pytest.raises(RemoteProtocolError):
            decode(content[:size])


def test_a_file_that_lies_about_its_content_is_not_read() -> None:
    """Also with a checksum that fits, sizes are checked."""
    content = whole(filled())[:-4]
    for at in range(len(MAGIC), len(content), 13):
        broken = bytearray(content)
        broken[at] ^= 0x55
        sealed = bytes(broken) + zlib.crc32(broken).to_bytes(4, "big")
        try:
            decode(sealed).restore(ProducerTable())
        except RemoteProtocolError:
            continue
