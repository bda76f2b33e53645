"""Jobs over topics, each a function of a Spark session and a verb of `inorder pipeline`.

A job takes the session first and what it works on by name, tells a `Watch` how far it is, and
returns a summary that is a plain dataclass. It may be killed at any time and started again.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inorder.spark.jobs.archives import archive, merge, read_archive
    from inorder.spark.jobs.audits import audit
    from inorder.spark.jobs.deadletters import dead_letters
    from inorder.spark.jobs.lag import lag_over_time, samples_of
    from inorder.spark.jobs.lifecycles import orders
    from inorder.spark.jobs.replays import replay

_PUBLIC = {
    "archive": "inorder.spark.jobs.archives",
    "audit": "inorder.spark.jobs.audits",
    "dead_letters": "inorder.spark.jobs.deadletters",
    "lag_over_time": "inorder.spark.jobs.lag",
    "merge": "inorder.spark.jobs.archives",
    "orders": "inorder.spark.jobs.lifecycles",
    "read_archive": "inorder.spark.jobs.archives",
    "replay": "inorder.spark.jobs.replays",
    "samples_of": "inorder.spark.jobs.lag",
}

__all__ = [
    "archive",
    "audit",
    "dead_letters",
    "lag_over_time",
    "merge",
    "orders",
    "read_archive",
    "replay",
    "samples_of",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for: Spark takes a second to load."""
    if name not in _PUBLIC:
        raise AttributeError(f"inorder.spark.jobs has no {name}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
