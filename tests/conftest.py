"""For all tests: hypothesis judges what a test finds, not how long the machine takes for it."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A machine that stands still for a moment is no bug; whatever else a profile says stays as it is.
settings.register_profile("inorder", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("inorder")
