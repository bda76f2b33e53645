"""Log lines of our loggers."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import msgspec
import pytest

from inorder.logs import get_logger
from inorder.model import TopicQueue


@dataclass
class Report:
    """A value without words of its own."""

    removed: int
    name: str


class Plan(msgspec.Struct):
    """The same of msgspec."""

    id: str


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\nWARNING forged", "a\\nWARNING forged"),
        ("x" * 70_000, "x" * 500 + "… (70,000 characters)"),
        (b"\xffkey", "\\xffkey"),
        (TopicQueue("orders", "broker-a", 3), "orders/broker-a/3"),
        ([TopicQueue("orders", "broker-a", 3), TopicQueue("o\n", "b", 0)],
         "orders/broker-a/3, o\\n/b/0"),
        ({"orders": {1: 2}}, "orders=1=2"),
        ({"b", "a"}, "a, b"),
        (Report(3, "x"), "removed=3, name=x"),
        (Plan("p"), "id=p"),
        (range(3).__class__, "range"),
        (list(range(25)), ", ".join(map(str, range(20))) + ", … (5 more)"),
        (ValueError("bad\x1b"), "bad\\x1b"),
        (TimeoutError(), "TimeoutError"),
        (None, "None"),
        (1.5, "1.5"),
    ],
)  # fmt: skip
def test_what_fills_a_line_in_is_escaped_cut_and_in_words(
    value: object, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a call gives, its line is one line, of bounded length, without a Python repr."""
    with caplog.at_level(logging.INFO):
        get_logger("inorder.of.a.test").info("it is %s", value)
    assert caplog.messages == [f"it is {shown}"]


def test_a_line_says_where_it_was_logged_and_keeps_numbers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The logger stays an ordinary one: numbers stay numbers, the caller is the caller."""
    with caplog.at_level(logging.INFO):
        get_logger("inorder.of.a.test").info("%d of %.1f", 3, 4.0)
    assert caplog.messages == ["3 of 4.0"]
    assert caplog.records[0].filename == "test_logs.py"
    assert caplog.records[0].args == (3, 4.0)
