"""Commands set up logging for a process of their own; here it is put back after each test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root, loop = logging.getLogger(), logging.getLogger("asyncio")
    before = (root.handlers[:], root.level, loop.level)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    loop.setLevel(before[2])
