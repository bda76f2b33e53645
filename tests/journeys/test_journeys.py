"""Journeys: what judges them, and a sample; `make proof-journeys` plays 500."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inorder.checker import Committed, Handling, Stored
from tests.journeys.judging import Journey, Life, judge, read_ledger
from tests.journeys.playing import KINDS, play

QUEUE = "orders/broker-a/0"


def lines(*runs: tuple[int, int, str]) -> str:
    """Return a ledger: (time, offset, what) of process 7; `done`, `cut` or `failed`."""
    text = ""
    for at, offset, what in runs:
        words = f"orders broker-a 0 {offset} k-{offset}"
        text += f"b 7 {at} {words}\n"
        if what != "cut":
            text += f"{'e' if what == 'done' else 'f'} 7 {at + 1} {words}\n"
    return text


def journey(text: str, stored: int = 3, **changes: object) -> Journey:
    """Return a journey of three messages that process 7 handled and ended cleanly at 100."""
    life = Life("service-1", 7, 0, 100, 0, frozenset({0}), clean=True)
    bodies = tuple(f"k-{number}" for number in range(stored))
    records = tuple(Stored(QUEUE, number, body, "k", number) for number, body in enumerate(bodies))
    made = Journey(read_ledger(text), (life,), bodies, records, (), Handling.QUEUE, False)
    return replace(made, **changes)  # type: ignore[arg-type]


GOOD = lines((10, 0, "done"), (20, 1, "done"), (30, 2, "done"))


def test_a_good_journey_has_no_findings():
    """Each message once, in order, all committed, the exit code as documented."""
    assert judge(journey(GOOD, commits=(Committed("x", QUEUE, 3, 50),))) == []


@pytest.mark.parametrize(
    ("text", "changes", "says"),
    [
        (lines((10, 0, "done"), (20, 1, "done")), {}, "no effect: ['k-2']"),
        (GOOD + lines((200, 1, "done")), {}, "before its clean end were handled again"),
        (lines((10, 0, "done"), (20, 2, "done"), (30, 1, "done")), {}, "inverted"),
        (GOOD + lines((40, 2, "cut")), {}, "cut off the handler of k-2"),
        (
            lines((10, 0, "done"), (20, 1, "done"), (60, 2, "done")),
            {"commits": (Committed("x", QUEUE, 3, 50),)},
            "commit_skip",
        ),
        (
            GOOD + lines((60, 2, "done")),
            {"commits": (Committed("x", QUEUE, 3, 50),), "disturbed": True},
            "below the committed offset came again",
        ),
        (GOOD, {"lives": (Life("s", 7, 0, 100, 1, frozenset({0})),)}, "ended with 1, not [0]"),
        (
            GOOD,
            {"lives": (Life("s", 7, 0, 100, 0, frozenset({0}), stop_s=60.0),)},
            "took 60.0 s to stop",
        ),
        (
            GOOD,
            {"lives": (Life("s", 7, 0, 100, 0, frozenset({0}), said="Task was destroyed"),)},
            "something of ours went wrong",
        ),
        (GOOD, {"outputs": ()}, "not sent on"),
        (
            GOOD,
            {"outputs": tuple(Stored("out", n, f"k-{b}") for n, b in enumerate((0, 2, 1)))},
            "k-1 was sent on behind k-2",
        ),
        (
            GOOD,
            {"outputs": tuple(Stored("out", n, f"k-{b}") for n, b in enumerate((0, 0, 1, 2)))},
            "sent on twice without a fault",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 else "",
)
def test_what_is_wrong_is_found(text: str, changes: dict[str, object], says: str):
    """Each fault by itself: the judge names it."""
    assert says in "\n".join(judge(journey(text, **changes)))


@pytest.mark.parametrize(
    ("stored", "code", "said", "says"),
    [
        ((0, 1, 2), 0, "", ""),
        ((0, 1), 0, "", "k-2 was acknowledged"),
        ((0, 1), 0, "1 messages had no outcome", ""),
        ((0, 1), -15, "", ""),
        ((0, 2), -15, "", "k-2 is stored, an earlier message of its key is not"),
        ((0, 2, 1), 0, "", "inverted"),
    ],
)
def test_what_a_job_hands_over_is_stored_or_its_loss_is_said(
    stored: tuple[int, ...], code: int, said: str, says: str
):
    """Exit code 0 without a word promises everything; one that is killed leaves no holes."""
    life = Life("job-1", 7, 0, 100, code, frozenset({0, -15}), said=said, finishes=True)
    records = tuple(Stored(QUEUE, at, f"k-{n}", "k", n) for at, n in enumerate(stored))
    made = journey(
        "".join(f"t 7 {number} k-{number}\n" for number in range(3)),
        lives=(life,), inputs=(), records=records, handling=None,
    )  # fmt: skip
    found = "\n".join(judge(made))
    assert says in found if says else not found


def test_a_ledger_whose_last_line_is_cut_is_read():
    """A program that was killed in the middle of a line."""
    assert len(read_ledger(GOOD + "b 7 40 orders bro").runs) == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["service", "transform", "command", "threads"])
def test_a_sample(tmp_path: Path, name: str):
    """One journey each of some programs; the stage `journeys` of the CI plays more."""
    assert name in {kind.name for kind in KINDS}
    told = play(1, 0, tmp_path / "round", only=name)
    assert told.findings == []
