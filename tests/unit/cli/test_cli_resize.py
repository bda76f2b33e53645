"""How `inorder topic resize` shows where a topic stands."""

from __future__ import annotations

from pathlib import Path

from inorder.cli.topic import describe_resize, shown
from inorder.client.rules.resizing import TopicResize, WaitingGroup
from inorder.wire.requests.resizing import Plan

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "resizing.md"


def test_an_interrupted_resize_says_how_to_go_on() -> None:
    """The text of the how-to page, word by word."""
    plan = Plan("p", 2, "2/broker-a:0-7/broker-b:0-7")
    found = TopicResize(
        "trades", 1, 4, {"broker-a": 2, "broker-b": 2}, plan, ("broker-a",), (), (), 0
    )
    text = describe_resize(found)
    assert text in PAGE.read_text()
    assert "--resume" in text
    assert shown(found)["plan"] == {
        "id": "p", "version": 2, "queues": 16, "stopped": ["broker-a"], "opened": [],
    }  # fmt: skip
    assert not shown(found)["done"]


def test_groups_that_wait_are_named() -> None:
    """With what they have left, and where."""
    waiting = WaitingGroup("reports", 2, 1290, False, ("broker-a",))
    found = TopicResize("trades", 3, 5, {"broker-a": 5}, None, (), (), (waiting,), 11)
    text = describe_resize(found)
    assert text in PAGE.read_text()
    assert shown(found)["waiting"] == [
        {
            "group": "reports", "version": 2, "messages_left": 1290, "online": False,
            "brokers": ["broker-a"], "rests": False,
        }
    ]  # fmt: skip


def test_a_rewound_group_is_named() -> None:
    """With what it waits for, and where to look."""
    waiting = WaitingGroup("billing", 1, 4000, True, ("broker-a",), rests=True)
    found = TopicResize(
        "trades", 2, 16, {"broker-a": 8, "broker-b": 8}, None, (), (), (waiting,), 0
    )
    assert describe_resize(found) in PAGE.read_text()


def test_a_broker_that_was_not_told_of_an_abort_is_named() -> None:
    """And how to tell it."""
    found = TopicResize(
        "trades", 1, 4, {"broker-a": 2, "broker-b": 2}, None, (), (), (), 0, ("broker-b",)
    )
    assert describe_resize(found, aborted=True) in PAGE.read_text()
    assert shown(found)["away"] == ["broker-b"]
    assert "no answer from broker-b: what it knows is not in here" in describe_resize(found)
    assert not found.is_done


def test_a_group_that_could_go_on_and_does_not_is_told_of() -> None:
    """Nothing is left to handle: keys may be parked that have to be redriven first."""
    hint = "inorder parked billing"
    for behind, rests, told in ((0, False, True), (7, False, False), (0, True, False)):
        waiting = WaitingGroup("billing", 1, behind, True, (), rests=rests)
        found = TopicResize("trades", 2, 4, {"broker-a": 4}, None, (), (), (waiting,), 0)
        assert (hint in describe_resize(found)) == told
