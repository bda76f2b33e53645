"""The producer names of the sink while a topic is resized, and which names have to be asked.

A producer's sequence numbers ascend within a queue. A resize may put a key into a queue that holds
other keys of the same producer. Some of its rows may then have numbers below those that are stored
there, and the broker would take them for repetitions. So a producer has one name for each version
of the key map: its name of version n has stored what was stored under version n.

A repeated batch may have begun under an older version, and its rows may be stored under each
version since. If the last number of a version is below those of the batch, an earlier batch ended
under that version. This batch began under it or later, so older versions need not be asked. Why:
decision 34.
"""

from __future__ import annotations

from dataclasses import dataclass


def name_at(name: str, version: int) -> str:
    """Return the name of a producer under a version of the key map; the first has none of its own.

    Version 0 is that of a topic without a map.
    """
    return name if version <= 1 else f"{name}@{version}"


@dataclass(slots=True)
class Begun:
    """The lowest key map version under which a producer's batch may have begun."""

    first: int
    """The first number of the batch."""
    version: int = 0
    """The batch began under this version or later."""

    def heard(self, version: int, last: int) -> None:
        """Learn the last number that a queue has under a version, -1 for none."""
        if 0 <= last < self.first:
            self.version = max(self.version, version)

    def asks(self, version: int) -> bool:
        """Return whether rows of the batch may be stored under a version."""
        return version >= self.version

    def asks_below(self, version: int) -> bool:
        """Return whether rows may be stored under a version before this one."""
        return version > max(self.version, 1)
