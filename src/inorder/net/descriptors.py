"""How a server shares the descriptors of its process (`ulimit -n`): files first, then connections.

The system gives every new descriptor the lowest free number. So a connection whose descriptor is
below `limit - kept` leaves `kept` descriptors free, whatever else the process has open: another
server, clients, files. One at or above it is closed at once.
"""

from __future__ import annotations

from typing import Final

from inorder.errors import ConfigError

OWN: Final = 24
"""What a process has open besides: standard streams, its loop, ports, connections of its own."""
CONNECTIONS_MIN: Final = 32
"""A server for which there is less room does not start."""


def connections_below(limit: int, kept: int, *, server: str) -> int:
    """Return the number that descriptors of connections stay below; `kept` are kept for files.

    Raises:
        ConfigError: too few are left for connections.
    """
    needed = OWN + kept + CONNECTIONS_MIN
    if limit < needed:
        raise ConfigError(
            f"{server} may open {limit} files and connections (ulimit -n) and needs {needed} at "
            f"least: {kept} for files, {CONNECTIONS_MIN} for connections, {OWN} besides; raise the "
            "limit (ulimit -n, LimitNOFILE= of systemd)"
        )
    return limit - kept
