"""The states of a search hold no cycles, and there are many: they are not looked through."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def _no_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()
