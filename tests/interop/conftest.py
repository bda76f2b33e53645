"""Interop tests fetch and build other people's software; where they cannot they skip and say so."""

from __future__ import annotations

import threading

import pytest

from bench import rocketmq
from tests.interop.stock import KINDS
from tests.interop.toolchains import Lacking

# These skip client by client: some need no Java.
PER_CLIENT = (
    "test_stock_clients",
    "test_stock_handover",
    "test_stock_scenarios",
    "test_stock_tls",
    "test_mqadmin",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this machine cannot run."""
    if (lacking := rocketmq.missing()) is None:
        return
    for item in items:
        if item.get_closest_marker("interop") is not None and item.path.stem not in PER_CLIENT:
            item.add_marker(pytest.mark.skip(reason=f"interop needs java and mvn: {lacking}"))


@pytest.fixture(scope="session", autouse=True)
def _software() -> None:
    """Fetch Apache RocketMQ before the first test starts its clock; the clients come meanwhile."""
    if rocketmq.missing() is None:
        rocketmq.fetch()
    threading.Thread(target=_build_clients, name="build clients", daemon=True).start()


def _build_clients() -> None:
    """Build what the later tests need, so that they need not wait; they ask again and skip."""
    for kind in KINDS:
        try:
            kind.command()
        except Lacking:
            continue
