"""A Java consumer that is stopped and comes back takes its group nowhere; see `comeback.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.comeback import come_back
from tests.interop.grounds import Ground
from tests.interop.handover import OURS

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def test_a_java_consumer_that_comes_back_lowers_no_offset(tmp_path: Path) -> None:
    """It is stopped and cut off, the other one takes its queues, it goes on: nothing goes back."""
    ground = Ground(OURS, relayed=True)
    try:
        outcome = come_back(ground, tmp_path, frozen_s=0)
    finally:
        ground.stop()
    print(outcome)
    assert outcome.back == []
