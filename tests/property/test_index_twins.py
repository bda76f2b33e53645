"""The key index built by the compiled module and built row by row: the same bytes."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inorder.accelerated import native, reason
from inorder.store import indexfile, keyindex
from inorder.store.keyindex import KeyIndex, NotedRows, hashes_of, prefix_hash
from inorder.store.layout import Layout
from tests.kit.disk import FakeFiles

needs_compiled = pytest.mark.skipif(native is None, reason=f"compiled module: {reason}")
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
    batches: list[list[tuple[str, list[str], bool]]],
    monkeypatch: pytest.MonkeyPatch,
    compiled: bool,
) -> dict[str, bytes]:
    """Index all batches; return the content of every file by its place in the chain."""
    monkeypatch.setattr(keyindex, "COMPILED_ROWS_MIN", 1 if compiled else 1 << 30)
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


@needs_compiled
@settings(max_examples=60, deadline=None)
@given(batches=st.lists(RECORDS, min_size=1, max_size=4))
def test_compiled_and_row_by_row_write_the_same_files(
    batches: list[list[tuple[str, list[str], bool]]],
) -> None:
    """Header, slots and entries are equal byte for byte, over batches and full files."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        compiled = built(batches, monkeypatch, compiled=True)
        assert compiled == built(batches, monkeypatch, compiled=False)


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


def rows_of(records: list[tuple[str, bytes, int, int]]) -> list[tuple[int, int, int]]:
    """Return (hash, position, store time) of the keys that the compiled module finds."""
    assert native is not None
    hashes, positions, times = native.key_rows(records, prefix_hash, hashes_of)
    columns = (memoryview(hashes).cast("i"), *(memoryview(c).cast("q") for c in (positions, times)))
    return list(zip(*columns, strict=True))


@needs_compiled
@settings(max_examples=300, deadline=None)
@given(records=st.lists(st.lists(PIECES, max_size=12).map("".join), max_size=20))
def test_keys_found_compiled_are_those_found_one_by_one(records: list[str]) -> None:
    """Any text that may stand in properties: the same rows in the same order."""
    noted = [
        (f"T{number % 3}", text.encode(), number * 100, number * 7)
        for number, text in enumerate(records)
    ]
    assert rows_of(noted) == [
        (key_hash, position, time_ms)
        for topic, properties, position, time_ms in noted
        for key_hash in hashes_of(topic, properties)
    ]


IDS = st.tuples(
    st.text(st.sampled_from("ab0 \x01\x02é"), max_size=3),
    st.sampled_from(
        ["", "\x02", "\x02KEYS\x01k", "\x02UNIQ_KEY\x01zzz\x02", "\x02WAIT\x01true\x02"]
    ),
).map(lambda parts: f"UNIQ_KEY\x01{parts[0]}{parts[1]}")


@needs_compiled
@settings(max_examples=200, deadline=None)
@given(records=st.lists(IDS, min_size=1, max_size=4), topic=st.sampled_from(["T", "Ünicode"]))
def test_ids_found_compiled_are_those_found_one_by_one(records: list[str], topic: str) -> None:
    """Every record begins with its id, or nearly so."""
    noted = [(topic, text.encode(), 100, 7) for text in records]
    expected = [one for _, properties, _, _ in noted for one in hashes_of(topic, properties)]
    assert [row[0] for row in rows_of(noted)] == expected


def noted_rows(
    topic: str, records: list[tuple[list[str], bool]], position: int, time_ms: int
) -> NotedRows:
    """Return a batch of records, 100 bytes each, as the compiled module notes it."""
    hashes, places = array("i"), array("q")
    for number, (words, unique) in enumerate(records):
        found = hashes_of(topic, properties(position + number, words, unique))
        hashes.extend(found)
        places.extend([position + 100 * number] * len(found))
    return NotedRows(hashes.tobytes(), position, time_ms, places.tobytes(), len(records))


def built_of_batches(
    batches: list[tuple[list[tuple[list[str], bool]], int, bool]],
    *,
    hashed: bool,
    compiled_from: int,
) -> tuple[dict[str, bytes], int]:
    """Index batches, hashed before or not; return every file, and up to where keys are in."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(keyindex, "COMPILED_ROWS_MIN", compiled_from)
        files = FakeFiles()
        index = KeyIndex(files, Layout(Path("/store")), slots=SLOTS, entries=ENTRIES, enabled=True)
        position, time_ms = 0, 1_000_000
        for records, later_ms, settles in batches:
            time_ms += later_ms
            if hashed:
                index.note_rows(noted_rows("T", records, position, time_ms))
            else:
                for number, (words, unique) in enumerate(records):
                    at = position + 100 * number
                    index.note("T", properties(position + number, words, unique), at, time_ms)
            position += 100 * len(records)
            index.note("Other", b"UNIQ_KEY\x01single\x02", position, time_ms)
            position += 100
            if settles:
                index.settle(position)
                index.build(1 << 30, 1_700_000_000_000)
                assert index.settled_count == 0
            else:
                index.roll_back()
        index.write_all(1_700_000_000_000)
        contents = {str(n): files.read(file.path) for n, file in enumerate(index.files)}
        index.close()
        return contents, index.added_position


BATCHES = st.lists(
    st.tuples(
        st.lists(st.tuples(st.lists(WORDS, max_size=3), st.booleans()), min_size=1, max_size=150),
        st.integers(0, 5000),
        st.integers(0, 3).map(bool),
    ),
    min_size=1,
    max_size=4,
)


@needs_compiled
@settings(max_examples=60, deadline=None)
@given(batches=BATCHES)
def test_keys_hashed_before_make_the_same_files(
    batches: list[tuple[list[tuple[list[str], bool]], int, bool]],
) -> None:
    """Compiled and row by row: over full files, beside single records, taken back."""
    expected = built_of_batches(batches, hashed=False, compiled_from=1 << 30)
    assert built_of_batches(batches, hashed=True, compiled_from=1) == expected
    assert built_of_batches(batches, hashed=True, compiled_from=1 << 30) == expected


def test_batches_that_wait_are_counted_by_their_records() -> None:
    """How much waits decides how much is worked off at a time."""
    index = KeyIndex(
        FakeFiles(), Layout(Path("/store")), slots=SLOTS, entries=ENTRIES, enabled=True
    )
    index.note_rows(noted_rows("T", [(["a"], True)] * 50, 0, 1000))
    index.note("T", b"UNIQ_KEY\x01x\x02", 5000, 1000)
    assert index.settled_count == 0
    index.settle(5100)
    assert index.settled_count == 51
    index.note_rows(noted_rows("T", [(["a"], True)] * 7, 5100, 1000))
    index.roll_back()
    index.build(50, 1_700_000_000_000)
    assert (index.settled_count, index.added_position) == (1, 5000)
    index.build(1, 1_700_000_000_000)
    assert (index.settled_count, index.added_position) == (0, 5100)
    index.close()


@needs_compiled
@settings(max_examples=40, deadline=None)
@given(batches=st.lists(RECORDS, min_size=1, max_size=4), singles=st.booleans())
def test_an_index_built_a_portion_at_a_time_is_the_same(
    batches: list[list[tuple[str, list[str], bool]]], singles: bool
) -> None:
    """It is late after each portion; the array of slots is made part by part."""
    contents = []
    for late in (None, lambda: True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(keyindex, "COMPILED_ROWS_MIN", 5)
            patch.setattr(keyindex, "BATCH_RECORDS", 7)
            patch.setattr(indexfile, "PART_SLOTS", 6)
            patch.setattr(indexfile, "FROZEN_STEP", 3)
            files = FakeFiles()
            index = KeyIndex(
                files, Layout(Path("/store")), slots=SLOTS, entries=ENTRIES, enabled=True
            )
            position = number = 0
            for batch in batches:
                if singles:
                    for topic, words, unique in batch:
                        number += 1
                        index.note(topic, properties(number, words, unique), position, 9_000)
                        position += 100
                else:
                    rows = [(words, unique) for _, words, unique in batch]
                    index.note_rows(noted_rows("T", rows, position, 9_000))
                    position += 100 * len(batch)
                index.settle(position)
                steps = 0
                while index.settled_count:
                    index.build(1 << 30, 1_700_000_000_000, late)
                    index.write(1_700_000_000_000, regions_max=9, late=late)
                    steps += 1
                    assert steps < 2000
            index.write_all(1_700_000_000_000)
            contents.append([files.read(file.path) for file in index.files])
            index.close()
    assert contents[0] == contents[1]


def test_what_waits_tells_up_to_where_keys_are_added() -> None:
    """Recovery begins there, whether rows or single records wait first."""
    index = KeyIndex(
        FakeFiles(), Layout(Path("/store")), slots=SLOTS, entries=ENTRIES, enabled=True
    )
    index.note_rows(noted_rows("T", [(["a"], True)] * 3, 0, 1_700_000_000_000))
    index.note("T", properties(1, ["b"], True), 300, 1_700_000_000_000)
    index.note_rows(noted_rows("T", [(["c"], True)], 400, 1_700_000_000_000))
    index.settle(500)
    found = []
    for records in (3, 1, 1):
        index.build(records, 1_700_000_000_000)
        found.append(index.added_position)
    assert found == [300, 400, 500]
    index.close()
