"""Log lines as JSON, and levels of single loggers."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from inorder.logs import JsonLines, get_logger, set_levels


def line(text: str, *args: object, process: str = "") -> dict[str, object]:
    """Return a logged line, read again."""
    record = logging.LogRecord("inorder.x", logging.WARNING, "f", 1, text, args, None)
    record.created = 1_700_000_000.25
    found = JsonLines(process).format(record)
    assert "\n" not in found
    read = json.loads(found)
    assert read.pop("ts") == "2023-11-14T22:13:20.250Z"
    assert (read.pop("level"), read.pop("logger")) == ("warning", "inorder.x")
    return dict(read)


@pytest.mark.parametrize(
    ("text", "args", "wanted"),
    [
        ("broker started name=%s port=%d", ("a", 1),
         {"event": "broker started", "name": "a", "port": 1}),
        ("refused peer=%s: %s", ("p", "no room"), {"event": "refused : no room", "peer": "p"}),
        ("used=%.1f%% of the disk", (75.25,), {"event": "% of the disk", "used": 75.25}),
        ("plain", (), {"event": "plain"}),
        ("topic=%s", ("t",), {"event": "topic=t", "topic": "t"}),
        ("event=%s ts=%d", ("mine", 5), {"event": "event=mine ts=5"}),
        ("line\nbreak=%s", ("a\nb",), {"event": "line", "break": "a\nb"}),
    ],
)  # fmt: skip
def test_fields_come_from_the_text(
    text: str, args: tuple[object, ...], wanted: dict[str, object]
) -> None:
    """`name=%s` is a field; what has no name stays in the words; ours are never replaced."""
    assert line(text, *args) == wanted


def test_a_process_and_a_traceback_have_their_fields() -> None:
    """Lines of several processes are told apart, and a traceback is one field."""
    assert line("x", process="broker-b") == {"event": "x", "process": "broker-b"}
    try:
        raise ValueError("planted")
    except ValueError:
        record = logging.LogRecord("a", 40, "f", 1, "failed", (), sys.exc_info())
    assert "planted" in json.loads(JsonLines().format(record))["traceback"]


def test_levels_are_set_and_taken_back() -> None:
    """What is no longer named has its parent's level again."""
    first, second = get_logger("inorder.test_a"), get_logger("inorder.test_b")
    set_levels("inorder.test_a=debug,inorder.test_b=error")
    assert (first.level, second.level) == (logging.DEBUG, logging.ERROR)
    set_levels("inorder.test_b=info", before="inorder.test_a=debug,inorder.test_b=error")
    assert (first.level, second.level) == (logging.NOTSET, logging.INFO)
    set_levels("", before="inorder.test_b=info")
