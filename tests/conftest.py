"""For all tests: hypothesis judges what a test finds, not how long the machine takes for it.

Programs that tests start are ended by Ctrl-C, also where the tests run in the background.
"""

from __future__ import annotations

import gc

import pytest
from hypothesis import HealthCheck, settings

from tests.signals import hear_ctrl_c

# A machine that stands still for a moment is no bug; whatever else a profile says stays as it is.
settings.register_profile("inorder", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("inorder")

hear_ctrl_c()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep the collected tests out of garbage collections: nearly 7,000 items live to the end."""
    gc.collect()
    gc.freeze()
