"""Log lines about peers."""

from __future__ import annotations

import pytest

from inorder.logs import get_logger
from inorder.net.peerlog import QuietLog, Refusals


def test_a_burst_is_cut_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Beyond the burst lines are counted; the next period says how many there were."""
    quiet = QuietLog(get_logger("quiet"), burst=2, period_ms=1000)
    assert [quiet.warning(t, "peer=%s", "a\nb") for t in (0, 1, 2, 3)] == [True, True, False, False]
    assert quiet.warning(1000, "later")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["peer=a\\nb", "peer=a\\nb", "suppressed=2 similar lines", "later"]


def test_a_refusal_is_said_once_a_minute_for_each_client_and_code(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What was kept back is counted in the next line; other ports of a machine are the same one."""
    refusals = Refusals(get_logger("refused"))
    for at_ms in (0, 1, 59_999):
        refusals.refused(at_ms, f"10.0.0.1:{at_ms}", 7, 3, " no such\ncode")
    refusals.refused(2, "10.0.0.2:1", 7, 3, None)
    refusals.refused(3, "10.0.0.1:1", 310, 13, "DELAY=x")
    refusals.refused(60_000, "10.0.0.1:9", 7, 3, "again")
    assert caplog.messages == [
        "request refused peer=10.0.0.1:0 code=7 answered=3: no such\\ncode",
        "request refused peer=10.0.0.2:1 code=7 answered=3: ",
        "request refused peer=10.0.0.1:1 code=310 answered=13: DELAY=x",
        "request refused peer=10.0.0.1:9 code=7 answered=3: again; 2 more like it since the last "
        "line",
    ]


def test_the_table_of_refusals_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever tries every code fills the table, and the rest is counted until there is room."""
    refusals = Refusals(get_logger("refused"), room=4)
    for code in range(100):
        refusals.refused(code, "10.0.0.1:1", code, 3, "no")
    assert (len(refusals), len(caplog.messages)) == (4, 4)
    refusals.refused(60_001, "10.0.0.1:1", 200, 3, "no")
    assert len(refusals) == 3
    assert caplog.messages[4] == "suppressed=96 requests refused to others"
