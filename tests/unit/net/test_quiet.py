"""Log lines about peers."""

from __future__ import annotations

import logging

import pytest

from inorder.net.quiet import QuietLog, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("a\r\nFAKE line", "a\\r\\nFAKE line"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("nul\x00", "nul\\x00"),
        ("schlüssel", "schlüssel"),
        ("\u202eright to left", "\\u202eright to left"),
        ("x" * 300, "x" * 200 + "..."),
        ("\n" * 300, "\\n" * 100 + "..."),
    ],
)
def test_control_characters_are_escaped_and_length_is_capped(text: str, shown: str) -> None:
    """Nothing that a peer sends can start a new log line or colour the terminal."""
    assert printable(text) == shown


def test_a_burst_is_cut_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Beyond the burst lines are counted; the next period says how many there were."""
    quiet = QuietLog(logging.getLogger("quiet"), burst=2, period_ms=1000)
    assert [quiet.warning(t, "peer=%s", "a\nb") for t in (0, 1, 2, 3)] == [True, True, False, False]
    assert quiet.warning(1000, "later")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["peer=a\\nb", "peer=a\\nb", "suppressed=2 similar lines", "later"]
