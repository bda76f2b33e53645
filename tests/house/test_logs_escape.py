"""Every log line goes through the one place that escapes and cuts what peers said."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.house.sources import dotted, modules, used

LOGGERS_IN = {
    "logs.py": "the place itself",
    "cli/failures.py": "says where lines go, logs none",
    "demo/parking.py": "turns a level down, logs none",
}
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
LOGGER_NAMES = {"log", "logger", "_logger", "_log"}
# Whoever hands on a text that its own callers write; those are looked at in their place.
HANDED_ON = {("client/session.py", "say_once"), ("net/peerlog.py", "warning")}
TEXT_AT = {"say_once": 1, "quiet.warning": 1, "_quiet.warning": 1, "log.log": 1, "logger.log": 1}


def log_calls(tree: ast.Module) -> Iterator[tuple[ast.Call, int, str]]:
    """Give each call that logs, the place of its text, and the function that it stands in."""
    for outer in ast.walk(tree):
        if not isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(outer):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner, _, verb = dotted(node.func).rpartition(".")
            last = owner.rpartition(".")[2]
            at = TEXT_AT.get(verb, TEXT_AT.get(f"{last}.{verb}"))
            if at is not None:
                yield node, at, outer.name
            elif verb in LEVELS and last in LOGGER_NAMES:
                yield node, 0, outer.name


def test_every_logger_escapes() -> None:
    """A logger of `logging.getLogger` would print what a peer said as it is."""
    around = [
        f"{path}:{line} {name}"
        for path, tree in modules().items()
        if path not in LOGGERS_IN
        for name, line in used(tree)
        if name in ("logging.getLogger", "getLogger", "logging.Logger")
        if name != "logging.Logger" or path != "net/peerlog.py"  # a type there
    ]
    assert around == []


def test_the_text_of_a_line_is_a_constant() -> None:
    """What a peer said is filled in, where it is escaped; and never by `%r`, which is Python's."""
    bad, seen = [], 0
    for path, tree in modules().items():
        for call, at, function in log_calls(tree):
            seen += 1
            text = call.args[at] if len(call.args) > at else None
            if (path, function) in HANDED_ON or (isinstance(text, ast.Name) and text.id.isupper()):
                continue
            if not (isinstance(text, ast.Constant) and isinstance(text.value, str)):
                bad.append(f"{path}:{call.lineno} the text is no constant")
            elif "%r" in text.value:
                bad.append(f"{path}:{call.lineno} %r")
    assert bad == []
    assert seen > 150


PRINTING_IN = {
    "cli/output.py": "the place itself: it escapes",
    "cli/tail.py": "--format with --raw: what the person asks for, as it is",
    "cli/running.py": "the line that says `ready`, of our own addresses",
    "console/audit.py": "JSON for the console that started it",
    "demo/consumer.py": "JSON for the demo that started it",
    "demo/driver.py": "the same",
}


def test_commands_print_through_what_escapes() -> None:
    """A terminal obeys what is printed, and most of what commands print was said by others."""
    around = [
        f"{path}:{line} {name}"
        for path, tree in modules().items()
        if path not in PRINTING_IN
        for name, line in used(tree)
        if name in ("print", "typer.echo", "sys.stdout.write", "sys.stderr.write")
    ]
    assert around == []
