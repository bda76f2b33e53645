"""Interop tests need Java and Maven; where they are missing the tests are skipped and say so."""

from __future__ import annotations

import pytest

from bench import rocketmq


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this machine cannot run."""
    if (lacking := rocketmq.missing()) is not None:
        for item in items:
            if item.get_closest_marker("interop") is not None:
                item.add_marker(pytest.mark.skip(reason=f"interop needs java and mvn: {lacking}"))


@pytest.fixture(scope="session", autouse=True)
def _rocketmq_jars() -> None:
    """Fetch Apache RocketMQ once, before the first test starts its clock."""
    if rocketmq.missing() is None:
        rocketmq.fetch()
