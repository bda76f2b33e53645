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
