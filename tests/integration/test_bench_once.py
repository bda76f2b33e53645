"""What the benchmarks and interop tests fetch and claim is fetched and claimed once."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path

import pytest

from bench.once import once
from bench.process import _claim, free_ports


def test_something_is_made_once_whoever_wants_it(tmp_path: Path) -> None:
    """Others wait until it is there; what failed is tried again."""
    stamp, made = tmp_path / "cache" / "thing" / "complete", []

    def fails() -> None:
        raise OSError("no network")

    with pytest.raises(OSError, match="no network"):
        once(stamp, fails)
    workers = [
        threading.Thread(target=once, args=(stamp, lambda: made.append(stamp.exists())))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (made, stamp.exists()) == ([False], True)


@pytest.mark.slow
def test_a_port_is_given_to_one_process() -> None:
    """Also when its server does not listen yet; it is free again when that process has ended."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        ports = set(pool.apply(free_ports, (2,)))
        assert [_claim({port}) for port in ports] == [False, False]
        pool.close()
        pool.join()
    assert _claim(ports)
