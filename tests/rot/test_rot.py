"""A sample of bit rot; `make rot` plays a minute of it, `make proof-rot` 5,000 cases."""

from __future__ import annotations

import os

import pytest

from tests.rot.rotting import Case, play

SEED = int(os.environ.get("INORDER_SEED", "1"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("only", "kind"),
    [
        ("consumequeue", "removed"), ("consumequeue", "zeroed"), ("consumequeue", "flipped"),
        ("consumequeue", "cut"), ("consumequeue", "swapped"), ("commitlog", "zeroed"),
        ("commitlog", "removed"), ("inorder/owners", "removed"), ("inorder/start.json", "removed"),
        ("inorder/ends", "swapped"), ("inorder/positions", "flipped"), ("config/", "flipped"),
    ],
)  # fmt: skip
def test_a_damaged_file_loses_nothing_silently(only: str, kind: str) -> None:
    """Each message has its effect once, or its loss is reported; fences do not go back."""
    for seed in range(SEED, SEED + 3):
        verdict = play(seed, only=only, kind=kind)
        assert not verdict.problems, verdict


@pytest.mark.slow
def test_a_negative_position_does_not_move_the_beginning_of_a_queue() -> None:
    """A group that begins there later gets what lies before that entry, too."""
    verdict = play(20037)
    assert not verdict.problems, verdict


@pytest.mark.slow
@pytest.mark.parametrize("seed", [767, 956, 1408, 1548, 1888, 2406, 3342, 4918])
def test_a_log_that_lost_its_end_in_a_kill_begins_a_generation(seed: int) -> None:
    """Its last file is removed, zeroed or an older copy before entries of queues were written."""
    verdict = play(seed)
    assert not verdict.problems, verdict


@pytest.mark.slow
def test_what_lies_behind_a_message_with_wrong_lengths_waits_and_the_client_names_it() -> None:
    """A log file ends within a record; its topic and offset are there, its properties are not."""
    verdict = play(2005)
    assert not verdict.problems, verdict


def test_the_judge_sees_a_loss_and_a_fence_that_went_back() -> None:
    """Messages without an effect, and without a word, are problems; new ones in any case."""
    case = Case(SEED)
    case.before, case.after = [b"a", b"b"], [b"c"]
    for group in (case.old, case.late):
        group.applied = [b"a", b"a"]
    case.late.refused = [b"c"]
    case.judge()
    assert sorted(case.verdict.problems) == [
        "late: 1 effects came twice",
        "late: 1 messages lost, not reported",
        "late: 1 new messages without effect, 1 refused by their fence",
        "old: 1 effects came twice",
        "old: 1 messages lost, not reported",
        "old: 1 new messages without effect, 0 refused by their fence",
    ]
