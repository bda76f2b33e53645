"""Interop tests fetch and build other people's software; where they cannot they skip and say so."""

from __future__ import annotations

import subprocess
import threading

import pytest

from bench import rocketmq
from bench.process import StartFailed
from tests.interop.stock import KINDS
from tests.interop.toolchains import Lacking

# These skip client by client: some need no Java.
PER_CLIENT = (
    "test_rocketmq_clients",
    "test_rocketmq_handover",
    "test_rocketmq_scenarios",
    "test_rocketmq_tls",
    "test_mqadmin",
    "test_requests_with_java",
    "test_access_control",
)

# `make interop` gives whole files to its workers, in this order: what takes longest comes first,
# and beside what starts many clients at once comes what does not.
ORDER = (
    "test_rocketmq_scenarios",
    "test_rocketmq_clients",
    "test_rocketmq_handover",
    "test_rocketmq_comeback",
    "test_store_two_way",
    "test_mixed_groups",
    "test_delays_two_way",
    "test_java_broker_our_nameserver",
    "test_our_consumer_on_rocketmq",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this machine cannot run; bring the rest into order."""
    lacking = rocketmq.missing()
    for item in items:
        if lacking is None or item.get_closest_marker("interop") is None:
            continue
        if item.path.stem not in PER_CLIENT:
            item.add_marker(pytest.mark.skip(reason=f"interop needs java and mvn: {lacking}"))
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    return ORDER.index(item.path.stem) if item.path.stem in ORDER else len(ORDER)


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
        except (Lacking, StartFailed, OSError, subprocess.SubprocessError):
            continue  # whoever needs it asks again, and says what is wrong
