"""Planted bugs are caught: all can be planted, a sample is run (`make mutants` runs all)."""

from __future__ import annotations

import pytest

from tests.mutants.mutants import BY_NAME, MUTANTS, Mutant
from tests.mutants.planting import NATIVE, mutated, path_of
from tests.mutants.run import try_mutant

SAMPLE = ("commit-without-epoch", "release-forgets-its-commit")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_can_be_planted(mutant: Mutant):
    """The text that it replaces is there once, and what comes of it is Python, or Cython."""
    if mutant.module == NATIVE:
        assert mutated(mutant)
        return
    compile(mutated(mutant), str(path_of(mutant.module)), "exec")


def test_there_are_enough_of_them():
    """At least 25, each with a name of its own."""
    assert len(BY_NAME) == len(MUTANTS) >= 25


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_a_planted_bug_is_caught(name: str):
    """By what the list says."""
    verdict = try_mutant(BY_NAME[name])
    assert verdict.caught, verdict.output[-3000:]
