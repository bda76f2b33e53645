"""Fetch or build something once, whatever the number of threads and processes that want it."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path


def once(stamp: Path, make: Callable[[], object]) -> None:
    """Make what lies in the folder of a stamp unless the stamp is there; it comes last.

    Whoever comes meanwhile waits. The lock lies beside the folder, which may be emptied first.
    """
    if stamp.exists():
        return
    home = stamp.parent
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_name(f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists():
            home.mkdir(exist_ok=True)
            make()
            stamp.touch()
