"""What a coordinator does next, given what the brokers say."""

from __future__ import annotations

from dataclasses import replace as _replace

import pytest
from msgspec.structs import replace

from inorder.client.rules.resizing import (
    Decide,
    Go,
    Goal,
    Open,
    Publish,
    Step,
    Stop,
    TooLate,
    UnderWay,
    Withdraw,
    next_step,
    spread,
    summary,
    withdrawal,
)
from inorder.errors import UsageError
from inorder.wire.requests.resizing import GroupProgress, Plan, ResizeView

WANTED = (("a", 0), ("a", 1), ("b", 0))
PLAN = Plan("p", 2, "2/a:0-1/b:0-0")
IDLE = ResizeView("a", "t", 1, "1/a:0-0/b:0-0", 1)
PLANNED = replace(IDLE, plan=PLAN)
STOPPED = replace(PLANNED, ends={0: 7})
GOING = replace(STOPPED, going=True)
BACK = replace(IDLE, withdrawn=("o", "p"))
NEXT = Plan("q", 2, "2/a:0-1/b:0-0")
OPEN = ResizeView("a", "t", 2, PLAN.map, 2, opened="p")
GOAL = Goal("p", WANTED)
RESUME = Goal("x", None)
RIVAL = Goal("r", (("a", 0), ("b", 0), ("b", 1)))


@pytest.mark.parametrize(
    ("a", "b", "goal", "step"),
    [
        (IDLE, IDLE, GOAL, Decide("a", PLAN)),
        (IDLE, IDLE, RESUME, Publish(IDLE.map)),
        (IDLE, IDLE, Goal("p", (("a", 0), ("b", 0))), Publish(IDLE.map)),
        (PLANNED, IDLE, GOAL, Stop(("a", "b"), PLAN)),
        (PLANNED, IDLE, RESUME, Stop(("a", "b"), PLAN)),
        (PLANNED, IDLE, RIVAL, UnderWay(PLAN)),
        (PLANNED, STOPPED, GOAL, Stop(("a",), PLAN)),
        (STOPPED, IDLE, GOAL, Stop(("b",), PLAN)),
        (STOPPED, STOPPED, RESUME, Go("a", PLAN)),
        (GOING, STOPPED, RESUME, Open(("b",), PLAN)),
        (GOING, OPEN, GOAL, Open(("a",), PLAN)),
        (BACK, IDLE, Goal("q", WANTED), Decide("a", NEXT)),
        (BACK, STOPPED, Goal("q", WANTED), Withdraw(("b",), PLAN)),
        (replace(BACK, plan=NEXT, ends={}), STOPPED, RESUME, Withdraw(("b",), PLAN)),
        (replace(STOPPED, plan=NEXT), STOPPED, RESUME, Stop(("b",), NEXT)),
        (OPEN, OPEN, GOAL, Publish(PLAN.map)),
        (OPEN, OPEN, RIVAL, Decide("a", Plan("r", 3, "3/a:0-0/b:0-1"))),
    ],
)
def test_the_next_step(a: ResizeView, b: ResizeView, goal: Goal, step: Step) -> None:
    """Decide at the first, stop all, open the others, then the first, publish."""
    assert next_step({"a": a, "b": replace(b, broker="b")}, goal) == step


@pytest.mark.parametrize(
    ("a", "b", "step"),
    [
        (IDLE, IDLE, None),
        (IDLE, STOPPED, None),
        (PLANNED, IDLE, Withdraw(("a",), PLAN)),
        (STOPPED, STOPPED, Withdraw(("a",), PLAN)),
        (STOPPED, None, Withdraw(("a",), PLAN)),
        (BACK, STOPPED, Withdraw(("b",), PLAN)),
        (BACK, IDLE, Withdraw(("b",), Plan("p", 2, ""))),
        (BACK, BACK, None),
        (BACK, None, None),
        (GOING, STOPPED, TooLate(PLAN)),
        (STOPPED, OPEN, TooLate(PLAN)),
        (OPEN, OPEN, None),
    ],
)
def test_a_plan_is_withdrawn(
    a: ResizeView, b: ResizeView | None, step: Withdraw | TooLate | None
) -> None:
    """By the first broker, then by the others that answer; not once it may be open somewhere.

    What the first broker has not taken back nobody takes back, whatever another one knows.
    """
    views = {"a": a} | ({} if b is None else {"b": replace(b, broker="b")})
    assert withdrawal(views) == step


def test_queues_are_shared_out() -> None:
    """Evenly, one more to the first; each broker keeps one at least."""
    assert spread(["b", "a"], 5) == (("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1))
    with pytest.raises(UsageError, match="at least 2 queues"):
        spread(["a", "b"], 1)


def test_a_summary_names_who_waits() -> None:
    """The groups that are behind, where, and what can still be read of queues that went."""
    slow = GroupProgress("slow", 1, 1, 5, True)
    done = GroupProgress("done", 2, 2, 0, True)
    views = {
        "a": replace(OPEN, groups=(slow, done), read_queues=4, write_queues=2),
        "b": replace(OPEN, broker="b", groups=(replace(slow, behind=0, online=False),)),
    }
    found = summary("t", views)
    (waiting,) = found.waiting
    assert (waiting.group, waiting.behind, waiting.online, waiting.brokers) == (
        "slow", 5, True, ("a",),
    )  # fmt: skip
    assert (found.closing, found.is_done, found.queues, found.planned_queues) == (2, False, 3, 3)
    assert not waiting.rests
    back = {"b": replace(OPEN, groups=(replace(done, term=1, rests=True),))}
    assert [one.rests for one in summary("t", back).waiting] == [True]
    begun = summary("t", {"a": STOPPED, "b": replace(OPEN, broker="b")})
    assert (begun.stopped, begun.opened, begun.planned_queues) == (("a",), ("b",), 3)
    assert _replace(found, waiting=(), closing=0).is_done
