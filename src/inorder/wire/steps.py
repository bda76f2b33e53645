"""Long computations in steps: a generator that yields when somebody else may come in between.

Pure code stays pure: who has no loop to share runs it to the end with `finish`, a server takes some
steps in each of its turns.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]


def finish(steps: Steps[T]) -> T:
    """Take all steps; return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
