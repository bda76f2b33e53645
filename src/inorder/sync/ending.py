"""The end of an object of the blocking client: several threads may ask, each waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from inorder.sync.portal import Portal


class Ending:
    """Closes an object and gives its portal back, once the last who waits for that has its answer.

    The function that closes is called for each who asks, on the loop; it returns to all of them
    when the object is closed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = 0
        self._over = False

    def close(self, portal: Portal, close: Callable[[], Any]) -> None:
        """Close; in a forked child, and when it is over, nothing."""
        if portal.is_forked:
            return
        with self._lock:
            if self._over:
                return
            self._waiting += 1
        try:
            portal.call(close)
        finally:
            with self._lock:
                self._waiting -= 1
                last = self._over = self._waiting == 0
            if last:
                portal.release()
