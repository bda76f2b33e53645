"""The attacked process, with a gauge in its event loop.

`python -m tests.garbage.measured FILE up ...` is `inorder up ...` with a timer that should ring
every few milliseconds and notes how late it does. SIGUSR1 writes what was noted since the last one
to FILE: how long a request that is already there waits before the loop can look at it. A process
that is kept off the core is late as well, so the CPU time between two rings is noted too: what the
loop did in one go is at most that, whoever else uses the machine.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from inorder.cli import running
from inorder.cli.main import main

INTERVAL_S = 0.004


class Gauge:
    """Notes how late the loop is."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._late_ms: list[float] = []
        self._work_ms: list[float] = []
        self._due = 0.0
        self._worked = 0.0

    def start(self) -> None:
        """Begin, on the running loop."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self._report)
        self._due = time.monotonic() + INTERVAL_S
        self._worked = time.thread_time()
        loop.call_later(INTERVAL_S, self._ring)

    def _ring(self) -> None:
        now = time.monotonic()
        late = now - self._due
        worked, self._worked = self._worked, time.thread_time()
        self._work_ms.append((self._worked - worked) * 1000)
        # As many as would have rung: a loop that stops for a second is late for all of them.
        while late >= 0:
            self._late_ms.append(late * 1000)
            late -= INTERVAL_S
            self._due += INTERVAL_S
        asyncio.get_running_loop().call_later(max(0.0, self._due - now), self._ring)

    def _report(self) -> None:
        late_ms, self._late_ms = self._late_ms, []
        work_ms, self._work_ms = self._work_ms, []
        said = {"late": _percentiles(late_ms), "work": _percentiles(work_ms)}
        draft = self._file.with_suffix(".draft")
        draft.write_text(json.dumps(said))
        draft.rename(self._file)


def _percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values) or [0.0]
    return {
        "p99": round(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)], 2),
        "max": round(ordered[-1], 2),
    }


def run(file: Path) -> None:
    """Put the gauge in and start the command."""
    serve: Any = running._serve

    async def measured(*args: Any) -> None:
        Gauge(file).start()
        await serve(*args)

    running._serve = measured  # the one place where its loop is known
    main()


if __name__ == "__main__":
    path = Path(sys.argv.pop(1))
    run(path)
