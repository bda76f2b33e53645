"""Randomness, as an argument: independent streams from one printed seed."""

from __future__ import annotations

import random


def stream(seed: int, *name: object) -> random.Random:
    """Return the random numbers of one part of a test.

    Parts with different names do not disturb each other: one more draw in the network does not
    change what a producer sends.
    """
    return random.Random("/".join(map(str, (*name, seed))))
