"""The map of finished messages belongs to the offset that it was committed with."""

from __future__ import annotations

from inorder.broker.offsets.rules import CommitTable, Committed
from inorder.model import GroupQueue

KEY = GroupQueue("billing", "orders", 0)


def test_a_map_is_void_above_another_offset() -> None:
    """A11: a client without maps, or an operator, has set the offset since: void."""
    commits = CommitTable()
    commits.put(KEY, Committed(1, 1, 100, "100:2c"))
    assert commits.finished(KEY, 100) == "100:2c"
    assert commits.finished(KEY, 50) == ""
    assert commits.finished(KEY, 120) == ""


def test_a_map_goes_with_its_commit() -> None:
    """The next commit of the queue brings its own, or none."""
    commits = CommitTable()
    commits.put(KEY, Committed(1, 1, 100, "100:2c"))
    commits.put(KEY, Committed(1, 2, 106))
    assert commits.finished(KEY, 106) == ""
    assert commits.finished(KEY, 100) == ""
