"""Words of the command line: times, permissions, pairs, lines."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from inorder.cli.output import (
    as_line,
    as_object,
    parse_pairs,
    parse_perm,
    parse_time,
    show_perm,
    show_time,
)
from inorder.cli.send import json_line, plain_line, sources
from inorder.cli.sending import lines_of
from inorder.client.rules.routes import moment_ms
from inorder.errors import UsageError
from inorder.model import ReceivedMessage, TopicQueue

NOW_MS = 1_794_716_671_692


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", NOW_MS - 90_000),
        ("15m", NOW_MS - 900_000),
        ("2h", NOW_MS - 7_200_000),
        ("1d", NOW_MS - 86_400_000),
        ("500ms", NOW_MS - 500),
        ("1794716671000ms", 1_794_716_671_000),
        ("2026-11-15T08:00:00+00:00", 1_794_729_600_000),
        ("2026-11-15", int(datetime(2026, 11, 15).timestamp() * 1000)),
    ],
)
def test_times_are_read(text: str, expected: int) -> None:
    """Ages, ISO times and milliseconds mean a moment."""
    assert moment_ms(parse_time(text, NOW_MS)) == expected


@pytest.mark.parametrize("text", ["", "soon", "12", "5 m", "2026-13-01", "-5m"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """The error shows the forms that are understood."""
    with pytest.raises(UsageError, match="is no time; give a time"):
        parse_time(text, NOW_MS)


def test_times_are_shown_in_utc() -> None:
    """What is shown can be given back; no time is no text."""
    assert show_time(NOW_MS) == "2026-11-15T04:24:31.692Z"
    assert moment_ms(parse_time(show_time(NOW_MS), 0)) == NOW_MS
    assert datetime.fromisoformat(show_time(NOW_MS)).tzinfo == UTC
    assert show_time(0) == show_time(-1) == ""


def test_permissions_by_letters() -> None:
    """rw is 6; what is no letter of them is refused."""
    assert [parse_perm(text) for text in ("rw", "r", "w", "-", "wr", "rr")] == [6, 4, 2, 0, 6, 4]
    assert [show_perm(perm) for perm in (6, 4, 2, 0, 7)] == ["rw", "r", "w", "-", "rw"]
    for text in ("", "x", "rwx"):
        with pytest.raises(UsageError, match="is no permission"):
            parse_perm(text)


def test_pairs_are_split_at_the_first_sign() -> None:
    """A value may hold the sign; a name may not be empty."""
    assert parse_pairs(["a=1", "b=x=y", "c="], "--set") == {"a": "1", "b": "x=y", "c": ""}
    assert parse_pairs(None, "--set") == {}
    for item in ("a", "=1"):
        with pytest.raises(UsageError, match=r"--set .* is not name=value"):
            parse_pairs([item], "--set")


def test_lines_of_files_and_whole_files(tmp_path: Path) -> None:
    """Each line with its place, empty ones left out; or the file as it is."""
    path = tmp_path / "f"
    path.write_bytes(b"a\r\n\nb")

    async def lines() -> list[tuple[str, bytes]]:
        return [each async for each in lines_of(sources(None, [path], False))]

    assert asyncio.run(lines()) == [(f"{path}, line 1", b"a"), (f"{path}, line 3", b"b")]
    assert list(sources(None, [path], True)) == [(str(path), b"a\r\n\nb")]
    assert list(sources("x", None, False)) == [("the body", b"x")]


def test_keys_come_from_lines() -> None:
    """Before a separator, or from a field of JSON; a line without one is named."""
    line = plain_line(":")("line 1", b"k:a:b")
    assert (line.key, line.body) == ("k", b"a:b")
    with pytest.raises(UsageError, match="line 2 has no ':'"):
        plain_line(":")("line 2", b"ab")
    line = json_line("id", "kind")("line 1", b'{"id": 7, "kind": "new"}')
    assert (line.key, line.tag, line.body) == ("7", "new", b'{"id": 7, "kind": "new"}')
    for data in (b'{"id": null}', b"[1]", b"{}"):
        with pytest.raises(UsageError, match="line 3 has no text or number in field 'id'"):
            json_line("id", None)("line 3", data)
    with pytest.raises(UsageError, match="line 4 is not JSON"):
        json_line(None, None)("line 4", b"{")


def test_a_body_that_is_no_text_is_shown_and_kept() -> None:
    """Escapes for people, base64 for programs."""
    queue = TopicQueue("t", "b", 1)
    message = ReceivedMessage("t", queue, 5, b"\xff!", {"TAGS": "T"}, "ID", 0, NOW_MS)
    assert as_line(message) == "2026-11-15T04:24:31.692Z  b/1@5  -  T  \\xff! (2 bytes, not UTF-8)"
    assert as_object(message)["body_base64"] == "/yE="
    assert "body" not in as_object(message)


def test_a_shell_can_complete_commands() -> None:
    """The protocol of bash: the words so far come in the environment."""
    done = subprocess.run(
        [sys.executable, "-c", "from inorder.cli.contents import app; app(prog_name='inorder')"],
        env={
            **os.environ,
            "_INORDER_COMPLETE": "complete_bash",
            "COMP_WORDS": "inorder topic d",
            "COMP_CWORD": "2",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["describe", "delete"]
