"""What a broker did, held against the model: right traces are followed, wrong ones are not."""

from __future__ import annotations

import pytest

from tests.model.traces import Happened, follow_trace

GRANTED = Happened("ask", "a", answer="granted", new_epoch=7, fresh=True, committed=-1)
RENEWED = Happened("ask", "a", 7, answer="granted", new_epoch=7, committed=2)
COMMITTED = Happened("commit", "a", 7, 1, 2, "taken", committed=2)
RELEASED = Happened("release", "a", 7, 2, 3, "taken", committed=3)
HEIR = Happened("ask", "b", answer="granted", new_epoch=9, fresh=True, committed=3)
REFUSED = Happened("ask", "b", answer="refused", committed=2)
LEAVING = Happened("leaving", "a", 7, 2, 3, "taken", committed=3)
FREED = Happened("freed", "a", 7, committed=3)
GOES_ON = Happened("ask", "a", 7, answer="granted", new_epoch=7, committed=3)
COMMITS_ON = Happened("commit", "a", 7, 3, 4, "taken", committed=4)


def test_a_hand_over_is_a_run_of_the_model():
    """Granted, renewed, refused to another, committed, released, granted to the next."""
    assert follow_trace([GRANTED, COMMITTED, RENEWED, REFUSED, RELEASED, HEIR]) == ""


def test_a_restart_and_a_power_cut_are_runs_of_the_model():
    """After a kill the owner goes on under its epoch; after a power cut only under a new one."""
    killed, cut = Happened("killed", committed=2), Happened("cut", committed=0)
    assert follow_trace([GRANTED, COMMITTED, killed, RENEWED]) == ""
    anew = Happened("ask", "a", answer="granted", new_epoch=12, fresh=True, committed=0)
    assert follow_trace([GRANTED, COMMITTED, cut, anew]) == ""
    resumed = Happened("ask", "a", 7, answer="granted", new_epoch=7, committed=0)
    assert "cannot follow" in follow_trace([GRANTED, COMMITTED, cut, resumed])


@pytest.mark.parametrize(
    "wrong",
    [
        Happened("ask", "b", answer="granted", new_epoch=7, fresh=True, committed=2),
        Happened("commit", "b", 7, 2, 3, "taken", committed=3),
        Happened("commit", "a", 5, 2, 3, "taken", committed=3),
        Happened("commit", "a", 7, 1, 2, "lost", committed=2),
        Happened("commit", "a", 7, 2, 3, "taken", committed=2),
        Happened("ask", "a", 7, answer="refused", committed=2),
        Happened("ask", "a", 7, answer="granted", new_epoch=8, committed=2),
        Happened("killed", committed=1),
    ],
    ids=str,
)
def test_what_the_model_cannot_do_is_found(wrong: Happened):
    """An epoch given twice, a stale commit that counts, a lost one, a commit that is forgotten."""
    found = follow_trace([GRANTED, COMMITTED, wrong])
    assert "cannot follow" in found


def test_a_release_that_waits_for_the_disk_is_a_run_of_the_model():
    """Sync flush: until then the queue is the owner's, then the next one's; a kill frees it."""
    assert follow_trace([GRANTED, COMMITTED, LEAVING, GOES_ON, FREED, HEIR]) == ""
    assert follow_trace([GRANTED, COMMITTED, LEAVING, LEAVING, FREED, HEIR, FREED]) == ""
    killed = Happened("killed", committed=3)
    assert follow_trace([GRANTED, COMMITTED, LEAVING, killed, HEIR]) == ""
    bare = Happened("leaving", "a", 7, 0, -1, "taken", committed=2)
    late = Happened("commit", "a", 7, 2, 3, "taken", committed=3)
    assert follow_trace([GRANTED, COMMITTED, bare, late, FREED]) == "", "it came behind the release"


@pytest.mark.parametrize(
    "before",
    [
        [RELEASED],
        [LEAVING, FREED],
        [RELEASED, HEIR],
        [LEAVING, FREED, HEIR],
        [LEAVING, Happened("killed", committed=3)],
        [LEAVING, Happened("cut", committed=3)],
    ],
    ids=lambda steps: " ".join(step.kind for step in steps),
)
@pytest.mark.parametrize("wrong", [GOES_ON, COMMITS_ON], ids=["ask", "commit"])
def test_nobody_goes_on_after_a_release(before: list[Happened], wrong: Happened):
    """A renewal or a commit under the epoch that was given back is no run of the model."""
    found = follow_trace([GRANTED, COMMITTED, *before, wrong])
    assert "cannot follow" in found
    assert found.splitlines()[-1] == str(wrong)


def test_a_queue_that_nobody_released_is_not_freed():
    """By a release that never came, or came once."""
    assert "nobody released it" in follow_trace([GRANTED, COMMITTED, FREED])
    assert "nobody released it" in follow_trace([GRANTED, COMMITTED, LEAVING, FREED, FREED])


@pytest.mark.parametrize("cut", [False, True])
def test_a_commit_of_the_owner_is_lost_only_beyond_the_end(cut: bool):
    """A power cut took the end of the log: what lies behind it is refused, and only that."""
    began = [GRANTED, COMMITTED]
    if cut:
        again = Happened("ask", "a", answer="granted", new_epoch=9, fresh=True, committed=1)
        began = [GRANTED, COMMITTED, Happened("cut", committed=1), again]
    epoch, committed = (9, 1) if cut else (7, 2)
    beyond = Happened("commit", "a", epoch, 5, 6, "lost", committed=committed, end=5)
    assert follow_trace([*began, beyond]) == ""
    within = Happened("commit", "a", epoch, 5, 5, "lost", committed=committed, end=5)
    assert "it is taken" in follow_trace([*began, within])


def test_a_power_cut_undoes_a_reset_that_is_not_on_disk_and_no_other():
    """Sync flush: an order that was answered stays."""
    reset, kept = Happened("reset", committed=1), Happened("kept", committed=1)
    undone = Happened("cut", committed=2)
    assert follow_trace([GRANTED, COMMITTED, reset, undone]) == ""
    assert "commits nothing" in follow_trace([GRANTED, COMMITTED, reset, kept, undone])
    assert "commits nothing" in follow_trace(
        [GRANTED, COMMITTED, reset, Happened("cut", committed=1), undone]
    )
    assert "nothing was reset" in follow_trace([GRANTED, COMMITTED, Happened("kept", committed=2)])
