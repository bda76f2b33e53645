"""Under which name rows are sent while their topic is resized, and which names have to be asked.

A producer's numbers ascend within a queue. When a resize puts a key into a queue where other keys
of the same producer are, some of its rows may have numbers below those that lie there already: the
broker would take them for repetitions. So a producer has a name for each version of the key map.
What its name of version n has stored is what was stored under version n.

A batch that is run again may have begun under a version that is over. Its rows may be stored under
each version since. A number below those of the batch says that an earlier batch ended under that
version, and so this one began under it, or later: no version before it has to be asked.
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
    """What is known of the version under which a producer's batch began."""

    first: int
    """The first number of the batch."""
    version: int = 0
    """It began under this version, or later."""

    def heard(self, version: int, last: int) -> None:
        """Take note of the last number that a queue has under a version, -1 for none."""
        if 0 <= last < self.first:
            self.version = max(self.version, version)

    def asks(self, version: int) -> bool:
        """Tell whether rows of the batch may be stored under a version."""
        return version >= self.version

    def asks_below(self, version: int) -> bool:
        """Tell whether rows may be stored under a version before this one."""
        return version > max(self.version, 1)
