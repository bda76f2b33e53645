"""The pytest fixture; pytest finds it by itself where inorder is installed.

def test_it(inorder_broker):
    with inorder_broker.producer() as producer:
        producer.send("orders", b"created", key="order-42")
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from inorder.testing.brokers import RunningBroker


def pytest_collection_finish(session: pytest.Session) -> None:
    """Load the broker before the first test that wants one, so that no test waits for that.

    It is 300 modules: 0.3 s, twice that where Python keeps no bytecode. Who uses none loads none.
    """
    if any("inorder_broker" in getattr(item, "fixturenames", ()) for item in session.items):
        from inorder.testing import brokers  # noqa: F401


@pytest.fixture
def inorder_broker() -> Iterator[RunningBroker]:
    """Run a name server and a broker for one test; see `inorder.testing.broker`."""
    from inorder.testing.brokers import broker  # every pytest loads this file, few need a broker

    with broker() as running:
        yield running
