"""Copying of files in pieces, with their checksums: the memory that it takes is bounded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from inorder.disk import File, Files

CHUNK_BYTES: Final = 4 * 1024 * 1024
Advance = Callable[[int], None]
"""Is told how many more bytes are done."""


def copy(
    files: Files, source: File, length: int, target: Path, *, size: int, advance: Advance
) -> str:
    """Copy the first bytes of a file to a new, durable file of `size`; return their SHA-256."""
    digest = hashlib.sha256()
    files.remove(target)
    to = files.open(target, create=True, size=size)
    try:
        for at in range(0, length, CHUNK_BYTES):
            data = read(source, min(CHUNK_BYTES, length - at), at)
            digest.update(data)
            to.pwrite(data, at)
            advance(len(data))
        to.fdatasync()
    finally:
        to.close()
    return digest.hexdigest()


def read(file: File, length: int, at: int) -> bytes:
    """Return exactly `length` bytes of a file.

    Raises:
        FileNotFoundError: there are fewer.
    """
    data = file.pread(length, at)
    while len(data) < length:
        more = file.pread(length - len(data), at + len(data))
        if not more:
            raise FileNotFoundError("a file is shorter than it was")
        data += more
    return data


def digest_of(file: File, length: int) -> str:
    """Return the SHA-256 of the first bytes of a file."""
    digest = hashlib.sha256()
    for at in range(0, length, CHUNK_BYTES):
        digest.update(read(file, min(CHUNK_BYTES, length - at), at))
    return digest.hexdigest()


def write_durably(files: Files, path: Path, content: bytes) -> None:
    """Write a new file; it is on disk when the function returns, and its name after a sync."""
    files.remove(path)
    file = files.open(path, create=True, size=len(content))
    try:
        file.pwrite(content, 0)
        file.fdatasync()
    finally:
        file.close()


def read_whole(files: Files, path: Path) -> bytes:
    """Return the content of a small file; FileNotFoundError if there is none."""
    file = files.open(path)
    try:
        return read(file, file.size(), 0)
    finally:
        file.close()
