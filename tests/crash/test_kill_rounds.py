"""kill -9 of a broker process under load: a sample of `tests.crash.killing`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.crash.killing import run

ROUNDS = int(os.environ.get("INORDER_ROUNDS", "4"))
SEED = int(os.environ.get("INORDER_SEED", "1"))


@pytest.mark.sample
def test_kill_9_under_load_loses_nothing_and_leaves_files_that_agree(tmp_path: Path) -> None:
    """Async and sync flush, killed again while recovering; `make proof-crash` plays 100 rounds."""
    figures = asyncio.run(run(ROUNDS, SEED, folder=tmp_path, rounds_per_life=3, load_s_max=0.5))
    print(f"seed={SEED} {figures}")
    assert figures.rounds == ROUNDS
    assert figures.kills_in_recovery
    assert min(figures.acks_by_mode.values()) > 100, "too little was sent to prove anything"
