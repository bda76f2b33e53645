"""The fuzz targets themselves: they take all seeds, and they notice what is wrong."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from inorder.wire.requests import sends as batch_module
from tests.fuzz import sanitized, seeds, targets
from tests.fuzz.run import blind, mutate

SEEDS = seeds.all_seeds()


@pytest.mark.slow
@pytest.mark.parametrize("name", targets.TARGETS)
def test_a_target_takes_its_seeds_and_their_neighbours(name: str) -> None:
    """No input of real peers, and none close to it, raises what it should not."""
    dice = random.Random(1)
    chosen = targets.TARGETS[name]
    assert SEEDS[name], "nothing to start from"
    some = SEEDS[name][:: max(1, len(SEEDS[name]) // 60)]
    for seed in some:
        chosen(seed)
        chosen(mutate(dice, seed, dice.choice(some)))


def test_a_broken_decoder_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that loses its length check is noticed within a second."""

    def careless(body: bytes) -> list[batch_module.BatchItem]:
        size = int.from_bytes(body[:4], "big", signed=True)
        return [batch_module.BatchItem(0, body[20 : size - 2], bytes((body[size - 1],)))]

    monkeypatch.setattr(targets, "decode_batch", careless)
    assert blind("batch", SEEDS["batch"], 5.0, seed=1) is not None


def test_sanitizers_see_all_that_calls_the_compiled_module():
    """A new test of the module, or a new target of it, runs under them, too."""
    assert "compiled_producer" in sanitized.TARGETS
    run = [path for one in sanitized.TESTS for path in _files(sanitized.ROOT / one)]
    for folder in ("tests/unit", "tests/property"):
        for path in _files(sanitized.ROOT / folder):
            text = path.read_text()
            if "native." in text and "accelerated import" in text:
                assert path in run, f"add {path} to TESTS"


def _files(path: Path) -> list[Path]:
    found = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
    assert found, path
    assert found[0].exists(), path
    return found
