"""A sample of bit rot; `make rot` plays a minute of it, `make proof-rot` 5,000 cases."""

from __future__ import annotations

import os

import pytest

from inorder.broker.damage.storage import Reported
from tests.rot.rotting import Case, play

SEED = int(os.environ.get("INORDER_SEED", "1"))


@pytest.mark.sample
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


def judged(case: Case, *applied: bytes, said: str = "", loss: Reported | None = None) -> list[str]:
    """Return the problems when a, b and c are sent, c after the damage, and some have an effect."""
    case.before, case.after = [b"a", b"b"], [b"c"]
    for offset, body in enumerate((b"a", b"b", b"c")):
        case.note(body, queue=0, offset=offset, end=(offset + 1) * 100)
    case.old.applied = [b"a", b"b", b"c"]
    case.late.applied = list(applied)
    case.verdict.said = [said]
    case.losses = [] if loss is None else [loss]
    case.judge()
    return case.verdict.problems


def damaged(queue: int, offset: int) -> str:
    """Return what a client says of a damaged message."""
    error = "record at 0: its body has another checksum"
    return f"the message of orders/broker-a/{queue} at offset {offset}, or so, is damaged: {error}"


@pytest.mark.parametrize(
    ("applied", "said", "loss", "problem"),
    [
        ([b"a", b"b", b"c"], "", None, ""),
        ([b"a", b"b", b"a", b"c"], "", None, "1 effects came twice"),
        ([b"a", b"c"], "", None, "1 messages lost, not reported: [(0, 1)]"),
        ([b"a", b"c"], "", Reported(0, "", "orders", 0, 1, 2), ""),
        ([b"a", b"c"], "", Reported(0, "", "orders", 0, 0, 1), "1 messages lost"),
        ([b"a", b"c"], "", Reported(0, "", "orders", 1, 1, 2), "1 messages lost"),
        ([b"a", b"c"], "", Reported(0, "", low=100, high=200), ""),
        ([b"a", b"c"], "", Reported(0, "", low=0, high=100), "1 messages lost"),
        ([b"a"], damaged(0, 1), None, ""),
        ([b"a"], damaged(0, 2), None, "1 messages lost, not reported: [(0, 1)]"),
        ([b"a"], damaged(1, 0), None, "2 messages lost"),
    ],
)
def test_the_judge_excuses_what_a_report_names_and_nothing_else(
    applied: list[bytes], said: str, loss: Reported | None, problem: str
) -> None:
    """A loss of its queue and offset, or of its place in the log, or a damaged one before it."""
    found = judged(Case(SEED), *applied, said=said, loss=loss)
    assert len(found) == bool(problem)
    assert all(problem in one for one in found), found


def test_the_judge_sees_a_fence_that_went_back() -> None:
    """A new message that its fence refuses is a problem, whatever was reported."""
    case = Case(SEED)
    case.late.refused = [b"c"]
    found = judged(case, b"a", b"b", loss=Reported(0, "", "orders", 0, 0, 3))
    assert found == ["late: 1 new messages refused by their fence"]
