"""A sample of `make proof-spark`: a driver and a worker killed, each effect once, in order."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.spark.killing import Figures, Life

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("default")]


def test_two_kills(tmp_path: Path) -> None:
    """Behind both sinks, before Spark notes it; beside a decision; then other code to the end."""
    life = Life(tmp_path, Random(5), figures := Figures())
    life.timers, life.parks, life.sink = False, False, "both"
    try:
        life.begin()
        life.round("after sink")
        life.code = 2
        life.round("after decision")
        life.finish()
    finally:
        life.end()
    assert figures.effects + figures.letters == figures.sent > 0
