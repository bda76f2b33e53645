"""The key index: RocketMQ's bytes, the compiled twin, what a kill leaves behind."""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from inorder.accelerated import native, reason
from inorder.store import keyindex
from inorder.store.indexfile import IndexFile
from inorder.store.keyindex import WRITE_ALL, KeyIndex, hash_pure, keys_of, prefix_hash
from inorder.store.layout import INDEX_ENTRY, INDEX_HEADER, Layout
from inorder.wire.ids import java_hash
from tests.kit.disk import FakeFile, FakeFiles, Fault

ROOT = Path("/store")
NOW_MS = 1_700_000_000_000
needs_compiled = pytest.mark.skipif(native is None, reason=f"compiled module: {reason}")


def make_index(files: FakeFiles, *, slots: int = 7, entries: int = 50) -> KeyIndex:
    files.makedirs(ROOT)
    index = KeyIndex(files, Layout(ROOT), slots=slots, entries=entries, enabled=True)
    index.load(short_allowed=False)
    return index


def properties(unique: str, keys: str = "") -> bytes:
    raw = f"UNIQ_KEY\x01{unique}\x02"
    return (raw + (f"KEYS\x01{keys}\x02" if keys else "")).encode()


def add(index: KeyIndex, first: int, count: int, *, topic: str = "T") -> None:
    for number in range(first, first + count):
        index.note(topic, properties(f"u{number}", f"a{number} b{number}"), number * 100, NOW_MS)
    index.settle((first + count) * 100)
    index.build(WRITE_ALL, NOW_MS)


def find(index: KeyIndex, key: str, *, begin: int = 0, end: int = 1 << 62) -> list[int]:
    return index.find("T", key, count_max=64, begin_ms=begin, end_ms=end)


def test_the_bytes_are_those_of_the_format() -> None:
    """Header, slot and entries of three keys, computed by hand from RocketMQ's layout."""
    files = FakeFiles()
    index = make_index(files, slots=5_000_000, entries=100)
    index.note("T", b"KEYS\x01k1\x02", 1024, 5000)
    index.note("T", b"UNIQ_KEY\x01k1\x02", 2048, 7999)
    index.settle(3000)
    index.write_all(NOW_MS)
    (name,) = files.listdir(ROOT / "index")
    assert len(name) == 17
    assert int(name) > 0
    file = files.open(ROOT / "index" / name)
    assert file.size() == 40 + 5_000_000 * 4 + 100 * 20
    assert file.pread(40, 0) == INDEX_HEADER.pack(5000, 7999, 1024, 2048, 1, 3)
    assert file.pread(4, 40 + 2_539_445 * 4) == (2).to_bytes(4, "big")
    entries = file.pread(60, 40 + 5_000_000 * 4)
    assert entries[:20] == bytes(20), "entry 0 is never used"
    assert entries[20:40] == INDEX_ENTRY.pack(2_539_445, 1024, 0, 0)
    assert entries[40:] == INDEX_ENTRY.pack(2_539_445, 2048, 2, 1)


def test_keys_are_the_id_and_each_word() -> None:
    """UNIQ_KEY and the words of KEYS, empty ones left out."""
    assert keys_of(b"KEYS\x01 x  yy \x02UNIQ_KEY\x01id\x02TAGS\x01t\x02") == [b"id", b"x", b"yy"]
    assert keys_of(b"TAGS\x01t\x02") == []


def test_hashes_are_javas_absolute_ones() -> None:
    """Combined from prefix and key they equal the hash of the whole string."""
    keys = ["", "a", "k1", "x" * 40, "ключ", "é", "a" * 200, "\U0001f600x"]
    for topic in ("T", "%RETRY%группа"):
        got = hash_pure([prefix_hash(topic)] * len(keys), [key.encode() for key in keys])
        assert got == [abs(java_hash(f"{topic}#{key}")) for key in keys]


def test_the_hash_without_an_absolute_value_is_zero() -> None:
    """Integer.MIN_VALUE has no absolute value; RocketMQ uses 0."""
    text = "polygenelubricants"
    assert java_hash(text) == -(1 << 31)
    prefix = java_hash(text[:4]) & keyindex.MASK
    assert hash_pure([prefix], [text[4:].encode()]) == [0]


@needs_compiled
def test_the_compiled_hashes_equal_the_pure_ones() -> None:
    """Differential: random keys of all lengths and alphabets, and the hash without an absolute."""
    assert native is not None
    random = Random(1)
    keys = [
        "".join(random.choice("aZ09-_#é中😀" if random.random() < 0.1 else "abcXYZ019")
                for _ in range(random.choice((1, 2, 8, 32, 32, 32, 33, 90))))
        .encode()
        for _ in range(2000)
    ] + [b"ygenelubricants"] * 10  # fmt: skip
    prefixes = [random.getrandbits(32) for _ in keys]
    prefixes[-10:] = [java_hash("pol") & keyindex.MASK] * 10
    noted = [
        (str(prefix), b"UNIQ_KEY\x01" + key + b"\x02", 0, 0)
        for prefix, key in zip(prefixes, keys, strict=True)
    ]

    def hash_slowly(topic: str, properties: bytes) -> list[int]:
        return hash_pure([int(topic)], keys_of(properties))

    hashes = memoryview(native.key_rows(noted, int, hash_slowly)[0]).cast("i").tolist()
    assert hashes == hash_pure(prefixes, keys)
    assert hashes[-1] == 0


@needs_compiled
@pytest.mark.parametrize("seed", range(5))
def test_the_compiled_index_file_equals_the_pure_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Differential: the same batches through both twins give the same bytes."""
    images = []
    for module in (native, None):
        random = Random(seed)
        files = FakeFiles()
        index = make_index(files, slots=97, entries=4000)
        monkeypatch.setattr(keyindex, "native", module)
        position = 0
        for _ in range(6):
            for _ in range(random.choice((1, 20, 300, 700))):
                words = " ".join(f"k{random.randrange(50)}" for _ in range(random.randrange(3)))
                stored_at_ms = NOW_MS + position // 7
                index.note("T", properties(f"{position:032d}", words), position, stored_at_ms)
                position += 100
            index.settle(position)
            index.build(WRITE_ALL, NOW_MS)
            index.write(NOW_MS, regions_max=1)
        index.write_all(NOW_MS)
        assert find(index, f"{100:032d}") == [100]
        images.append([files.read(ROOT / "index" / n) for n in files.listdir(ROOT / "index")])
    assert images[0] == images[1]


def test_keys_are_found_newest_first_in_their_time() -> None:
    """Time bounds hold to the second; chains go from new to old."""
    index = make_index(FakeFiles())
    for number in range(5):
        index.note("T", b"KEYS\x01same\x02", number * 100, NOW_MS + number * 10_000)
    index.settle(500)
    index.build(WRITE_ALL, NOW_MS)
    assert find(index, "same") == [400, 300, 200, 100, 0]
    assert find(index, "same", begin=NOW_MS + 10_000, end=NOW_MS + 30_000) == [300, 200, 100]
    assert index.find("T", "same", count_max=2, begin_ms=0, end_ms=1 << 62) == [400, 300]
    assert find(index, "other") == []


def test_a_full_file_is_followed_by_a_new_one() -> None:
    """Files fill to what they hold; a record's keys are not parted; all stay findable."""
    files = FakeFiles()
    index = make_index(files, entries=20)
    add(index, 0, 30)
    names = files.listdir(ROOT / "index")
    assert len(names) == 5
    for number in range(30):
        for key in (f"u{number}", f"a{number}", f"b{number}"):
            assert find(index, key) == [number * 100]
    second = IndexFile.open(files, ROOT / "index" / names[1], slots=7, entries=20)
    assert second.header.begin_position == 600
    index.close()


def test_a_record_with_more_keys_than_a_file_holds_is_spread() -> None:
    """Too many words for one file go into several."""
    index = make_index(FakeFiles(), entries=8)
    words = " ".join(f"w{number}" for number in range(30))
    index.note("T", properties("u", words), 100, NOW_MS)
    index.settle(200)
    index.build(WRITE_ALL, NOW_MS)
    assert [find(index, f"w{number}") for number in range(30)] == [[100]] * 30
    assert index.added_position == 200


def test_after_a_kill_the_index_goes_on_from_its_header() -> None:
    """Slots that point behind the header's count are followed; the same records fit in again."""
    files = FakeFiles()
    index = make_index(files)
    add(index, 0, 4)
    index.write_all(NOW_MS)
    expected_files = files.kill()
    add(index, 4, 5)
    file = index.files[-1]
    file.write_slots(WRITE_ALL)
    path = file.path
    index.close()
    # The header as before the second batch: the kill came between slots and header.
    files.write(path, expected_files.read(path)[:40])
    again = make_index(files)
    assert again.end_position == 300
    for number in range(9):
        assert find(again, f"a{number}") == ([number * 100] if number < 4 else [])
    add(again, 4, 5)
    for number in range(9):
        assert find(again, f"a{number}") == [number * 100]
        assert find(again, f"u{number}") == [number * 100]


def test_restore_makes_the_slots_again_from_synced_entries() -> None:
    """After a power cut entries below the synced count survive garbage in slots and behind."""
    files = FakeFiles()
    index = make_index(files)
    add(index, 0, 4)
    index.write_all(NOW_MS)
    state = index.state
    before = files.read(index.files[-1].path)
    add(index, 4, 3)
    path = index.files[-1].path
    index.close()
    files.write(path, bytes(range(28)), 40)
    again = make_index(files)
    assert again.restore(state)
    assert files.read(path) == before
    assert find(again, "b3") == [300]
    assert not again.restore(type(state)(12345, 0, 1)), "a file that is not there"


@pytest.mark.parametrize("module", [native, None], ids=["as installed", "pure"])
def test_a_failed_write_keeps_the_keys_waiting(
    module: ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After ENOSPC nothing is added twice and nothing is lost."""
    monkeypatch.setattr(keyindex, "native", module)
    files = FakeFiles()
    index = make_index(files, slots=50, entries=5000)
    add(index, 0, 300)
    for number in range(300, 700):
        index.note("T", properties(f"u{number}"), number * 100, NOW_MS)
    index.settle(70_000)
    files.fail(Fault("write", 1, error=28, kept_bytes=33))
    with pytest.raises(OSError, match="No space"):
        index.build(WRITE_ALL, NOW_MS)
    assert find(index, "u299") == [29_900]
    index.build(WRITE_ALL, NOW_MS)
    index.write_all(NOW_MS)
    assert [find(index, f"u{number}") for number in range(700)] == [[n * 100] for n in range(700)]


def test_slots_wait_and_go_out_together() -> None:
    """`write` does bounded work and moves the position only when slots and header are out."""
    files = FakeFiles()
    index = make_index(files, slots=40_000, entries=500)
    index.write(NOW_MS, regions_max=1)
    add(index, 0, 50)
    index.write(NOW_MS, regions_max=1)
    assert index.written_position == 0
    for _ in range(5):
        index.write(NOW_MS, regions_max=1)
    assert index.written_position == 5000
    add(index, 50, 1)
    index.write(NOW_MS + 10, regions_max=9)
    assert index.written_position == 5000, "too early for one key"
    index.write(NOW_MS + 4000, regions_max=9)
    assert index.written_position == 5100


def test_a_disabled_index_writes_nothing() -> None:
    """Without the index keys are dropped and nothing claims to be indexed."""
    files = FakeFiles()
    index = KeyIndex(files, Layout(ROOT), slots=7, entries=50, enabled=False)
    add(index, 0, 3)
    index.write_all(NOW_MS)
    assert files.tree() == {}
    assert index.waiting == []


def test_files_behind_the_log_go() -> None:
    """Files whose last record is older than the log are dropped, never the last file."""
    files = FakeFiles()
    index = make_index(files, entries=20)
    add(index, 0, 30)
    assert index.drop_before(1300) == 2
    assert len(files.listdir(ROOT / "index")) == 3
    assert find(index, "a29") == [2900]
    assert index.drop_before(1 << 40) == 2


def test_the_index_is_never_read_through_a_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """A map of a hole wants a page on some file systems: on a full disk that is a SIGBUS."""

    def refuse(file: FakeFile) -> memoryview:
        raise AssertionError(f"mapped {file.path}")

    monkeypatch.setattr(FakeFile, "view", refuse)
    monkeypatch.setattr(keyindex, "native", None)
    index = make_index(FakeFiles(), slots=97, entries=4000)
    for number in range(20):
        index.note("T", b"UNIQ_KEY\x01id%d\x02" % number, number * 100, 1_000_000)
    index.settle(2000)
    index.build(WRITE_ALL, 1_000_000)
    assert index.find("T", "id7", count_max=8, begin_ms=0, end_ms=2_000_000) == [700]
