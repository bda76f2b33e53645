"""A release whose reply was lost is sent again."""

from __future__ import annotations

import pytest

from inorder.broker.leases.rules import LeaseTable, Owner, Terms
from inorder.broker.offsets.rules import CommitTable, Committed, repeats_release
from inorder.model import GroupQueue
from inorder.wire.requests.leases import QueueCommit

KEY = GroupQueue("billing", "orders", 0)
ANNE = Owner("anne", "i1")
BOB = Owner("bob", "i2")


@pytest.mark.parametrize(
    ("owner", "released", "epoch", "number", "offset", "repeats"),
    [
        (ANNE, True, 0, 2, 10, True),  # commit and release, both known
        (ANNE, True, 0, 2, -1, True),  # a release without a commit
        (ANNE, False, 0, 2, 10, True),  # the commit is known, another owner followed
        (ANNE, False, 0, 2, -1, False),  # nothing shows that it was released
        (ANNE, True, 0, 3, -1, True),
        (ANNE, True, 0, 3, 12, False),  # its commit was not accepted
        (ANNE, True, 1, 2, 10, False),  # another epoch
        (BOB, True, 0, 3, -1, False),
    ],
)
def test_a_release_is_repeated(
    owner: Owner, *, released: bool, epoch: int, number: int, offset: int, repeats: bool
) -> None:
    """Then it is answered as before; a release that was not accepted is refused."""
    table, commits = LeaseTable(), CommitTable()
    decision = table.decide(KEY, ANNE, 0, terms=Terms(5000, 1000))
    table.apply(decision, 0)
    commits.put(KEY, Committed(decision.epoch, 2, 10))
    if released:
        table.release(KEY)
    one = QueueCommit("orders", 0, decision.epoch + epoch, number, offset)
    assert repeats_release(KEY, owner, one, leases=table, commits=commits) is repeats
