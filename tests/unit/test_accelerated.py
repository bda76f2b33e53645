"""The compiled module: used where it is, left out where it is not wanted, never needed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from array import array
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inorder import accelerated
from inorder.accelerated import native, reason
from inorder.errors import ConfigError
from inorder.store.intact import count_right
from inorder.store.layout import ENTRY
from inorder.store.reader import ranges_of
from inorder.wire.extensions import PREDECESSOR, PRODUCER_ID, SEQUENCE
from inorder.wire.record import Record, encode

ROOT = Path(__file__).parents[2]
needs_compiled = pytest.mark.skipif(native is None, reason=f"compiled module: {reason}")
PURE = os.environ.get("INORDER_PURE", "") not in ("", "0")
BUILDABLE = (
    shutil.which("cc") is not None
    and (Path(sysconfig.get_path("include")) / "Python.h").exists()
    and importlib.util.find_spec("Cython") is not None
)


@pytest.mark.skipif(PURE or not BUILDABLE, reason="no C compiler, Python.h or Cython, or unwanted")
def test_it_is_there_where_it_can_be_compiled():
    """Or `make setup` has not built it, and none of its tests ran."""
    assert reason == "yes", "run make setup"


@pytest.mark.slow
def test_a_switch_leaves_it_out():
    """INORDER_PURE=1: whoever doubts the compiled module can do without."""
    code = "from inorder.accelerated import native, reason; print(native, reason)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "INORDER_PURE": "1"}, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.strip() == "None no, INORDER_PURE is set"


def test_a_module_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch):
    """A stale one would do wrong things quickly."""
    monkeypatch.delenv("INORDER_PURE", raising=False)
    stale = SimpleNamespace(INTERFACE=accelerated.INTERFACE - 1, __file__="native.so")
    monkeypatch.setitem(sys.modules, "inorder.native", stale)
    with pytest.raises(ConfigError, match="of another version"):
        accelerated._load()


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ((), ""),
        (("native",), "pure Python instead of the compiled module (none here)"),
        (("uvloop",), "asyncio's own loop (uvloop is not installed)"),
        (
            ("native", "isal"),
            "pure Python instead of the compiled module (none here); the checksums",
        ),
    ],
)
def test_what_is_slower_is_named(
    missing: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
):
    """One line for the log; nothing where nothing is missing."""
    found = None if "native" in missing else SimpleNamespace()
    monkeypatch.setattr(accelerated, "native", found)
    monkeypatch.setattr(accelerated, "reason", "no, none here" if found is None else "yes")
    for name in missing:
        if name != "native":
            monkeypatch.setitem(sys.modules, name, None)
    slower = accelerated.slower_parts()
    assert slower.startswith(said) if said else slower == ""


@needs_compiled
def test_it_knows_the_names_of_the_numbers():
    """They stand in it once more, as letters."""
    assert native is not None
    text = f"UNIQ_KEY\x01u\x02{PRODUCER_ID}\x01p\x02{SEQUENCE}\x018\x02{PREDECESSOR}\x017\x02"
    size = 22 + 1 + len(text)
    body = b"".join(
        (size.to_bytes(4), bytes(12), (1).to_bytes(4), b"x", len(text).to_bytes(2), text.encode())
    )
    batch = native.split(body, 1 << 20)
    assert batch is not None
    assert (batch.producer, batch.named, batch.before) == (b"p", True, 7)
    assert array("q", batch.numbers()).tolist() == [8]


@needs_compiled
def test_records_are_packed_only_where_there_is_room():
    """Room that is too small is an error, not somebody's memory."""
    assert native is not None
    body = (23).to_bytes(4) + bytes(12) + (1).to_bytes(4) + b"x" + bytes(2)
    batch = native.split(body, 1 << 20)
    assert batch is not None
    size = batch.size_of(88)
    for room, at in ((size - 1, 0), (size, 1), (size, -1)):
        with pytest.raises(ValueError, match="do not fit"):
            batch.pack(bytearray(room), at, bytes(84), b"\x03Top", 0, 0, len)
    assert len(batch.pack(bytearray(size), 0, bytes(84), b"\x03Top", 0, 0, len)) == 20


LONG_TOPIC = "Topic" * 30
ENTRIES = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([0, -1, 1, 10, 90, 0x7FFFFFFF]), st.booleans()),
    max_size=30,
)


@needs_compiled
@settings(max_examples=200, deadline=None)
@given(ENTRIES, st.integers(0, 40), st.integers(0, 500), st.sampled_from([0, 25, 1 << 40]))
def test_ranges_of_entries_are_the_same(
    entries: list[tuple[int, int, bool]], count_max: int, bytes_max: int, oldest: int
):
    """Side by side or apart, fillers, removed ones, limits."""
    assert native is not None
    data, position = b"", 0
    for gap, size, whole in entries:
        position += gap
        data += ENTRY.pack(position, size, 5)
        position += max(0, min(size, 90)) if whole else 0
    data += b"rest"[: count_max % 5] if not len(data) % 20 and count_max > 35 else b""
    data = data[: len(data) // 20 * 20]
    expected = ranges_of(data, count_max, bytes_max, oldest, None)
    assert native.ranges_of(data, count_max, bytes_max, oldest) == expected


@needs_compiled
@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["T", "U", LONG_TOPIC]), st.binary(max_size=9)), max_size=8),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 255)), max_size=3),
    st.lists(st.tuples(st.integers(0, 200), st.integers(1, 255)), max_size=2),
    st.booleans(),
)
def test_entries_are_compared_with_records_alike(
    records: list[tuple[str, bytes]],
    flips: list[tuple[int, int]],
    entry_flips: list[tuple[int, int]],
    v6: bool,
):
    """Right ones, flipped ones, other topics, fillers, hosts of both kinds."""
    assert native is not None
    log, data = bytearray(), bytearray()
    for number, (topic, body) in enumerate(records):
        record = Record(
            topic, 3, number, 500 + len(log), body, b"", sys_flag=0x10 if v6 else 0,
            born_host=bytes(20) if v6 else bytes(8), version=2 if topic == LONG_TOPIC else 1,
        )  # fmt: skip
        packed = encode(record)
        data += ENTRY.pack(500 + len(log), len(packed), 0)
        log += packed
    for store, changes in ((log, flips), (data, entry_flips)):
        for at, mask in changes:
            if store:
                store[at % len(store)] ^= mask
    view = memoryview(bytes(log))
    for wanted in (b"T", LONG_TOPIC.encode()):
        for end in (500 + len(log), 500 + len(log) // 2):
            arguments = (bytes(data), view, 500, end, wanted, 3, 0)
            assert native.count_right(*arguments) == count_right(*arguments)


def built(folder: Path, **environment: str) -> tuple[Path, str]:
    """Build a wheel of this tree; return it and what was said."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    return wheel, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None, reason="hatchling is not installed"
)
def test_without_a_compiler_the_install_is_pure_and_works(tmp_path: Path):
    """It is said so in one line, and the wheel fits every platform."""
    wheel, said = built(tmp_path, CC="/bin/false", INORDER_PURE="0")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "inorder stays pure Python: /bin/false failed" in said
    with zipfile.ZipFile(wheel) as opened:
        assert not [name for name in opened.namelist() if name.endswith(".so")]
        opened.extractall(tmp_path / "installed")
    code = (
        "from inorder.accelerated import reason; import inorder.broker.sends.service; print(reason)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed"), "INORDER_PURE": "0"},
    )  # fmt: skip
    assert done.stdout.strip().startswith("no, this install has none: ")


@pytest.mark.slow
@pytest.mark.skipif(not BUILDABLE, reason="there is no C compiler, Python.h or Cython")
def test_a_wheel_with_the_module_is_of_its_platform(tmp_path: Path):
    """Nobody else gets it."""
    wheel, _ = built(tmp_path, INORDER_PURE="0", CFLAGS="-O0")
    assert not wheel.name.endswith("-none-any.whl")
    with zipfile.ZipFile(wheel) as opened:
        found = [name for name in opened.namelist() if name.endswith(".so")]
    assert found == [f"inorder/native{sysconfig.get_config_var('EXT_SUFFIX')}"]
