"""Pieces of a buffer at many places, in one step and without an index for every byte."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def windows(data: Any, size: int) -> Array:
    """Return all pieces of so many bytes of a buffer, one at each place; they can be set, too."""
    return np.ndarray((len(data) - size + 1,), f"V{size}", data, strides=(1,))


def pieces(data: Any, places: Array, size: int) -> Array:
    """Return so many bytes from each place; all of them lie within the buffer."""
    return windows(data, size)[places]


def rows_of_bytes(taken: Array) -> Array:
    """Return pieces as a table: a row each, a column for each byte."""
    return taken.view(np.uint8).reshape(len(taken), taken.itemsize)
