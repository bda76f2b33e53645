"""What an error of the disk means: the one rule that every file of the data directory follows.

    retry    nothing has changed. The request is refused, and another try may succeed.
    rewrite  the content of the file on disk is unknown. The kernel may have dropped pages that it
             could not write, and the next sync of this file would report success. Nothing that
             depends on the file is acknowledged until a new file holds all of it and is synced.
    final    the same, for a file that cannot be written again from memory. The broker refuses
             writes until a restart has read what the disk really holds.

A process without a free descriptor has not touched the file: that is always
`retry`. Why: decision 4.
"""

from __future__ import annotations

import enum
import errno
from typing import Final

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})


class Kind(enum.Enum):
    """The role of a file, which decides what its errors mean."""

    LOG = "the commit log, its queues and its index: too large for memory"
    JOURNAL = "records one after the other; what they say stands in memory"
    TABLE = "a whole table, written to a draft that then takes the file's name"


class Step(enum.Enum):
    """The operation that failed."""

    WRITE = "open, make, write, set the length, rename or remove"
    SYNC = "sync the file, or the directory that has its name"


class Meaning(enum.Enum):
    """The consequence of an error: see the module's table."""

    RETRY = "retry"
    REWRITE = "rewrite"
    FINAL = "final"


def judge(kind: Kind, step: Step, error: int | None) -> Meaning:
    """Return what an error (its errno) means for a file."""
    if error in NO_DESCRIPTORS:
        return Meaning.RETRY
    if step is Step.SYNC:
        return Meaning.FINAL if kind is Kind.LOG else Meaning.REWRITE
    if kind is Kind.LOG and error not in NO_ROOM:
        return Meaning.FINAL  # part of a record may be on disk
    return Meaning.RETRY
