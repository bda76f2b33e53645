"""The order checker: it takes the events of a run and names every breach of order.

Pure: it takes events and returns a report. It serves the simulation, the tests, the demo, and
anyone who writes such events to a log of their own, as JSON lines or CSV (`checker/events.py`).
"""

from inorder.checker.check import check
from inorder.checker.events import (
    Applied,
    Committed,
    Event,
    Granted,
    Handled,
    HandledResult,
    Sent,
    SentResult,
    Stored,
    queue_name,
    read_csv_history,
    read_history,
    write_history,
)
from inorder.checker.report import Finding, Handling, Kind, Report, Rules

__all__ = [
    "Applied",
    "Committed",
    "Event",
    "Finding",
    "Granted",
    "Handled",
    "HandledResult",
    "Handling",
    "Kind",
    "Report",
    "Rules",
    "Sent",
    "SentResult",
    "Stored",
    "check",
    "queue_name",
    "read_csv_history",
    "read_history",
    "write_history",
]
