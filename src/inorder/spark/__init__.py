"""Ordered messages through Spark and back.

`session()` gives a Spark session; `format("inorder")` reads and writes topics in any session;
`process_in_order` takes a key's messages through a handler, in order, with the key's state.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inorder.spark.ordered import Waiting, process_in_order, waiting
    from inorder.spark.servers import Tls
    from inorder.spark.sessions import session
    from inorder.spark.sink import lineage
    from inorder.spark.state.messages import OrderedMessage

_PUBLIC = {
    "OrderedMessage": "inorder.spark.state.messages",
    "Tls": "inorder.spark.servers",
    "Waiting": "inorder.spark.ordered",
    "lineage": "inorder.spark.sink",
    "process_in_order": "inorder.spark.ordered",
    "session": "inorder.spark.sessions",
    "waiting": "inorder.spark.ordered",
}

__all__ = ["OrderedMessage", "Tls", "Waiting", "lineage", "process_in_order", "session", "waiting"]


def __getattr__(name: str) -> Any:
    """Import what is asked for: Spark takes a second to load."""
    if name not in _PUBLIC:
        raise AttributeError(f"inorder.spark has no {name}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
