"""The clients of this process, for whoever measures them. None is kept alive by it."""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakSet

_CLIENTS: Final[WeakSet[Any]] = WeakSet()


def made(client: Any) -> None:
    """Note a producer or consumer."""
    _CLIENTS.add(client)


def clients() -> list[Any]:
    """Return the clients that are alive."""
    while True:
        try:
            return list(_CLIENTS)
        except RuntimeError:  # another thread made one meanwhile
            continue
