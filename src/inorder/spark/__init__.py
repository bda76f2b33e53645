"""Ordered messages through Spark and back.

`session()` gives a Spark session; `format("inorder")` reads and writes topics in any session.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inorder.spark.session import session
    from inorder.spark.sink import lineage

_PUBLIC = {"lineage": "inorder.spark.sink", "session": "inorder.spark.session"}

__all__ = ["lineage", "session"]


def __getattr__(name: str) -> Any:
    """Import what is asked for: Spark takes a second to load."""
    if name not in _PUBLIC:
        raise AttributeError(f"inorder.spark has no {name}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
