"""The testing kit: a broker in the process, its faults, movable time, and the order checker.

Names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inorder.checker import Applied as Applied
    from inorder.checker import Committed as Committed
    from inorder.checker import Finding as Finding
    from inorder.checker import Granted as Granted
    from inorder.checker import Handled as Handled
    from inorder.checker import HandledResult as HandledResult
    from inorder.checker import Handling as Handling
    from inorder.checker import Kind as Kind
    from inorder.checker import Report as Report
    from inorder.checker import Rules as Rules
    from inorder.checker import Sent as Sent
    from inorder.checker import SentResult as SentResult
    from inorder.checker import Stored as Stored
    from inorder.checker import check as check
    from inorder.checker import queue_name as queue_name
    from inorder.checker import read_csv_history as read_csv_history
    from inorder.checker import read_history as read_history
    from inorder.checker import write_history as write_history
    from inorder.testing.brokers import AsyncRunningBroker as AsyncRunningBroker
    from inorder.testing.brokers import RunningBroker as RunningBroker
    from inorder.testing.brokers import broker as broker
    from inorder.testing.clock import FakeClock as FakeClock
    from inorder.testing.clock import MovableClock as MovableClock

# Public name -> the module that defines it.
_PUBLIC = {
    "Applied": "inorder.checker",
    "AsyncRunningBroker": "inorder.testing.brokers",
    "Committed": "inorder.checker",
    "FakeClock": "inorder.testing.clock",
    "Finding": "inorder.checker",
    "Granted": "inorder.checker",
    "Handled": "inorder.checker",
    "Handling": "inorder.checker",
    "Kind": "inorder.checker",
    "MovableClock": "inorder.testing.clock",
    "Report": "inorder.checker",
    "Rules": "inorder.checker",
    "RunningBroker": "inorder.testing.brokers",
    "Sent": "inorder.checker",
    "SentResult": "inorder.checker",
    "HandledResult": "inorder.checker",
    "Stored": "inorder.checker",
    "broker": "inorder.testing.brokers",
    "check": "inorder.checker",
    "queue_name": "inorder.checker",
    "read_csv_history": "inorder.checker",
    "read_history": "inorder.checker",
    "write_history": "inorder.checker",
}

__all__ = sorted(_PUBLIC)  # noqa: PLE0605  # _PUBLIC holds strings only


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'inorder.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value
