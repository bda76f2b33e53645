"""What stops a broker that still runs: files of `inorder/` whose sync has failed.

Owners, commits, generations and versions rest on these files. While one of them is in doubt the
broker takes no messages, grants, renews and frees no queue under an epoch and takes no commit:
whatever it acknowledged might be gone after a restart. What was stored before can be read. Each
file is written anew, whole, until a new one is on disk (`store/faults.py`); then all goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inorder.errors import StoreFailed
from inorder.logs import get_logger

if TYPE_CHECKING:
    from pathlib import Path

log = get_logger(__name__)


class Safety:
    """The files in doubt, by name. Each is said once when it breaks and once when it is mended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._broken: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Safety(broken={sorted(self._broken)})"

    @property
    def broken(self) -> bool:
        """Tell whether a file is in doubt."""
        return bool(self._broken)

    @property
    def reason(self) -> str | None:
        """Return why nothing is acknowledged, None if all is well."""
        for name, why in list(self._broken.items()):
            return f"{self._folder / name} is in doubt and being written anew: {why}"
        return None

    def is_broken(self, name: str) -> bool:
        """Tell whether this file is in doubt."""
        return name in self._broken

    def require(self) -> None:
        """Refuse what rests on these files.

        Raises:
            StoreFailed: one of them is in doubt.
        """
        if self._broken:
            raise StoreFailed(self.reason or "")

    def broke(self, name: str, error: object) -> None:
        """Take note of a failed sync; for any thread."""
        if name not in self._broken:
            log.critical(
                "a sync failed: the broker takes no more messages and commits and grants no queues "
                "until the file is written anew and that is on disk; that is tried every few "
                "seconds, reads go on. Look at the disk. file=%s error=%s",
                self._folder / name,
                error,
            )
        self._broken[name] = str(error)

    def mended(self, name: str) -> None:
        """Take note that all that the file must hold is in a new one, on disk; for any thread."""
        if self._broken.pop(name, None) is not None:
            more = ": commits and grants are taken again, and messages unless the log has failed"
            log.warning(
                "written anew and on disk file=%s%s",
                self._folder / name,
                "" if self._broken else more,
            )
