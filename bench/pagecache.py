"""Fills the page cache before a comparison, as on a machine that has run for a day.

A virtual machine often gives memory that is free back to its host, and the next write to such a
page costs the host microseconds, which count as CPU of the writer. A broker that writes 500 MB/s
then costs more than twice as much from the first page on that was free. With a full page cache the
kernel takes pages of old files instead, which are there.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.loadgen import CACHE

LEFT_BYTES = 3 << 30
"""Memory that the measured programs may need beside the cache."""
CHUNK = bytes(1 << 24)


def available_bytes() -> int:
    """Return how much memory programs and the page cache may take, 0 if the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    found = next((line for line in lines if line.startswith("MemAvailable:")), "")
    return int(found.split()[1]) * 1024 if found else 0


@contextmanager
def full_page_cache(say: Callable[[str], None]) -> Iterator[None]:
    """Write a file as large as the free memory; keep it while something is measured."""
    CACHE.mkdir(parents=True, exist_ok=True)
    path = CACHE / "pagecache"
    path.unlink(missing_ok=True)
    size = min(available_bytes() - LEFT_BYTES, shutil.disk_usage(CACHE).free // 2)
    if size <= 0:
        say("the page cache is not filled: the size of the memory is not known")
        yield
        return
    say(f"filling the page cache with {size >> 20:,} MB")
    try:
        with path.open("wb") as file:
            for _ in range(0, size, len(CHUNK)):
                file.write(CHUNK)
        yield
    finally:
        path.unlink(missing_ok=True)
