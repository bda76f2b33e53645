"""One Spark session for all tests of this folder, and a broker for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

SOURCES = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Return a local session; workers find the package by the search path of this process."""
    from inorder.spark.sessions import session

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SOURCES), before)))
    settings = {
        "spark.driver.memory": "768m",
        # Sorts of a few thousand rows spill, as those of a large batch do.
        "spark.shuffle.spill.numElementsForceSpillThreshold": "5000",
    }
    made = session("local[2]", conf=settings)
    yield made
    made.stop()


@pytest.fixture
def namesrv() -> Iterator[str]:
    """Return the address of a name server with one broker behind it."""
    from inorder.testing import broker

    with broker() as running:
        yield running.namesrv
