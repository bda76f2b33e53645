"""The key index built by arrays and built row by row: the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inorder.store import keyhash
from inorder.store.keybatch import key_rows
from inorder.store.keyindex import KeyIndex
from inorder.store.keywords import keys_of
from inorder.store.layout import Layout
from inorder.testing.disk import FakeFiles

SLOTS = 37
ENTRIES = 400

WORDS = st.sampled_from(["a", "b", "order-1", "order-22", "中文", "k" * 40, "Aa", "BB"])
RECORDS = st.lists(
    st.tuples(st.sampled_from(["T", "Other"]), st.lists(WORDS, max_size=3), st.booleans()),
    min_size=1,
    max_size=120,
)


def properties(number: int, words: list[str], unique: bool) -> bytes:
    text = f"UNIQ_KEY\x01C0000202{number:08X}\x02" if unique else ""
    if words:
        text += f"KEYS\x01{' '.join(words)}\x02"
    return text.encode()


def built(
    batches: list[list[tuple[str, list[str], bool]]], monkeypatch: pytest.MonkeyPatch, arrays: bool
) -> dict[str, bytes]:
    """Index all batches; return the content of every file by its place in the chain."""
    monkeypatch.setattr(keyhash, "NUMPY_BATCH_MIN", 1 if arrays else 1 << 30)
    files = FakeFiles()
    layout = Layout(Path("/store"))
    index = KeyIndex(files, layout, slots=SLOTS, entries=ENTRIES, enabled=True)
    position = number = 0
    for batch in batches:
        for topic, words, unique in batch:
            number += 1
            index.note(topic, properties(number, words, unique), position, 1_000_000 + number * 700)
            position += 100
        index.settle(position)
        index.build(1 << 30, 1_700_000_000_000)
    index.write_all(1_700_000_000_000)
    contents = {str(n): files.read(file.path) for n, file in enumerate(index.files)}
    index.close()
    return contents


@settings(max_examples=60, deadline=None)
@given(batches=st.lists(RECORDS, min_size=1, max_size=4))
def test_arrays_and_rows_write_the_same_files(
    batches: list[list[tuple[str, list[str], bool]]],
) -> None:
    """Header, slots and entries are equal byte for byte, over batches and full files."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert built(batches, monkeypatch, arrays=True) == built(batches, monkeypatch, arrays=False)


PIECES = st.sampled_from(
    [
        "UNIQ_KEY\x01",
        "KEYS\x01",
        "\x02",
        "\x01",
        "a",
        "b c",
        "é",
        "MYKEYS\x01",
        "UNIQ_KEY",
        " ",
        "x" * 300,
    ]
)


@settings(max_examples=300, deadline=None)
@given(records=st.lists(st.lists(PIECES, max_size=12).map("".join), min_size=1, max_size=20))
def test_keys_found_by_arrays_are_those_found_one_by_one(records: list[str]) -> None:
    """Any text that may stand in properties: the same rows in the same order."""
    raw = [text.encode() for text in records]
    topics = [f"T{number % 3}" for number in range(len(raw))]
    rows = key_rows(topics, raw)
    expected = [
        (number, key_hash)
        for number, text in enumerate(raw)
        for key_hash in keyhash.hash_pure(
            [keyhash.prefix_hash(topics[number])] * len(keys_of(text)), keys_of(text)
        )
    ]
    assert list(zip(rows.owners.tolist(), rows.hashes.tolist(), strict=True)) == expected


IN_LINE = st.tuples(
    st.text(st.sampled_from("ab0 \x01\x02é"), min_size=3, max_size=3),
    st.sampled_from(
        ["", "\x02", "\x02KEYS\x01k", "\x02UNIQ_KEY\x01zzz\x02", "\x02WAIT\x01true\x02"]
    ),
).map(lambda parts: f"UNIQ_KEY\x01{parts[0]}{parts[1]}")


@settings(max_examples=200, deadline=None)
@given(records=st.lists(IN_LINE, min_size=1, max_size=4), topic=st.sampled_from(["T", "U"]))
def test_ids_that_stand_in_line_are_those_found_one_by_one(records: list[str], topic: str) -> None:
    """Every record begins with its id, all of one length, or nearly so."""
    raw = [text.encode() for text in records]
    rows = key_rows([topic] * len(raw), raw)
    expected = [
        (number, key_hash)
        for number, text in enumerate(raw)
        for key_hash in keyhash.hash_pure(
            [keyhash.prefix_hash(topic)] * len(keys_of(text)), keys_of(text)
        )
    ]
    assert list(zip(rows.owners.tolist(), rows.hashes.tolist(), strict=True)) == expected
