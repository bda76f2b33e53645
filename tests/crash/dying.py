"""`inorder` that kills itself: python -m tests.crash.dying N WORDS...

Counts what changes files, from the start of the process on, and at the N-th change sends itself
SIGKILL: before it, or in the middle of the bytes of a write. So a real process dies at a chosen
point of a real recovery.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inorder.cli.main import main
from inorder.disk import OsFile, OsFiles


class Death:
    """The N-th change is the last."""

    def __init__(self, at: int) -> None:
        self._left = at

    def next(self) -> bool:
        self._left -= 1
        return self._left == 0

    def wrap(self, owner: type, name: str) -> None:
        """Let a method that changes files count, and die."""
        real: Callable[..., Any] = getattr(owner, name)

        def counted(*args: Any, **options: Any) -> Any:
            if self.next():
                die()
            return real(*args, **options)

        setattr(owner, name, counted)


def die() -> None:
    """End as kill -9 does."""
    os.kill(os.getpid(), signal.SIGKILL)


def run(at: int, words: list[str]) -> None:
    """Serve until the end."""
    death = Death(at)
    write = OsFile.pwrite

    def pwrite(file: OsFile, data: Any, position: int) -> None:
        if death.next():
            write(file, bytes(data)[: len(data) // 2], position)
            die()
        write(file, data, position)

    OsFile.pwrite = pwrite  # type: ignore[method-assign, assignment]
    for name in ("fdatasync", "truncate"):
        death.wrap(OsFile, name)
    for name in ("remove", "remove_tree", "rename", "fsync_dir"):
        death.wrap(OsFiles, name)
    create = OsFiles.open

    def open_(files: OsFiles, path: Path, **options: Any) -> OsFile:
        if options.get("create") and not path.exists() and death.next():
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o644))  # made, and still empty
            die()
        return create(files, path, **options)

    OsFiles.open = open_  # type: ignore[method-assign, assignment]
    sys.argv = ["inorder", *words]
    main()


if __name__ == "__main__":
    run(int(sys.argv[1]), sys.argv[2:])
