"""What an error of the disk means, for every kind of file."""

from __future__ import annotations

import errno

import pytest

from inorder.store.faults import Kind, Meaning, Step, judge

RETRY, REWRITE, FINAL = Meaning.RETRY, Meaning.REWRITE, Meaning.FINAL


@pytest.mark.parametrize(
    ("kind", "step", "error", "meaning"),
    [
        (Kind.LOG, Step.WRITE, errno.ENOSPC, RETRY),
        (Kind.LOG, Step.WRITE, errno.EDQUOT, RETRY),
        (Kind.LOG, Step.WRITE, errno.EFBIG, RETRY),
        (Kind.LOG, Step.WRITE, errno.EMFILE, RETRY),
        (Kind.LOG, Step.WRITE, errno.ENFILE, RETRY),
        (Kind.LOG, Step.WRITE, errno.EIO, FINAL),
        (Kind.LOG, Step.WRITE, errno.EROFS, FINAL),
        (Kind.LOG, Step.WRITE, None, FINAL),
        (Kind.LOG, Step.SYNC, errno.EMFILE, RETRY),
        (Kind.LOG, Step.SYNC, errno.ENFILE, RETRY),
        (Kind.LOG, Step.SYNC, errno.ENOSPC, FINAL),
        (Kind.LOG, Step.SYNC, errno.EIO, FINAL),
        (Kind.JOURNAL, Step.WRITE, errno.ENOSPC, RETRY),
        (Kind.JOURNAL, Step.WRITE, errno.EMFILE, RETRY),
        (Kind.JOURNAL, Step.WRITE, errno.EIO, RETRY),
        (Kind.JOURNAL, Step.SYNC, errno.EMFILE, RETRY),
        (Kind.JOURNAL, Step.SYNC, errno.ENOSPC, REWRITE),
        (Kind.JOURNAL, Step.SYNC, errno.EIO, REWRITE),
        (Kind.JOURNAL, Step.SYNC, None, REWRITE),
        (Kind.TABLE, Step.WRITE, errno.ENOSPC, RETRY),
        (Kind.TABLE, Step.WRITE, errno.EIO, RETRY),
        (Kind.TABLE, Step.SYNC, errno.ENFILE, RETRY),
        (Kind.TABLE, Step.SYNC, errno.ENOSPC, REWRITE),
        (Kind.TABLE, Step.SYNC, errno.EIO, REWRITE),
    ],
)
def test_what_an_error_means(kind: Kind, step: Step, error: int | None, meaning: Meaning) -> None:
    """Only a sync, or a write into the log, can be more than a reason to try again."""
    assert judge(kind, step, error) is meaning
