"""Histories as text; see `inorder.checker.events`, where the command line reads them too."""

from inorder.checker.events import read_csv_history, read_history, write_history

__all__ = ["read_csv_history", "read_history", "write_history"]
