"""Compressed bodies."""

from __future__ import annotations

import zlib

import lz4.frame
import pytest
import zstandard

from inorder.errors import CorruptRecord, LocalProtocolError
from inorder.wire.compression import COMPRESSION_FLAGS, compress_body, decompress_body

BODY = b"hello hello hello " * 100
LIMIT = len(BODY)


@pytest.mark.parametrize("algorithm", ["zlib", "lz4", "zstd"])
def test_round_trip(algorithm: str) -> None:
    """Each algorithm gives the body back, up to the limit exactly."""
    packed = compress_body(algorithm, BODY)
    flags = COMPRESSION_FLAGS[algorithm]
    assert len(packed) < len(BODY)
    assert decompress_body(flags, packed, limit=LIMIT) == BODY
    assert decompress_body(flags, memoryview(packed), limit=LIMIT) == BODY
    assert decompress_body(flags, compress_body(algorithm, b""), limit=0) == b""


@pytest.mark.parametrize("algorithm", ["zlib", "lz4", "zstd"])
def test_the_limit_holds(algorithm: str) -> None:
    """One byte beyond the limit is refused."""
    with pytest.raises(CorruptRecord, match="more than"):
        decompress_body(
            COMPRESSION_FLAGS[algorithm], compress_body(algorithm, BODY), limit=LIMIT - 1
        )


@pytest.mark.parametrize("algorithm", ["zlib", "lz4", "zstd"])
def test_bombs_stay_small(algorithm: str) -> None:
    """A body that grows a thousandfold is refused without being made."""
    bomb = compress_body(algorithm, bytes(64 * 1024 * 1024), 1)
    with pytest.raises(CorruptRecord):
        decompress_body(COMPRESSION_FLAGS[algorithm], bomb, limit=1024)


@pytest.mark.parametrize("algorithm", ["zlib", "lz4", "zstd"])
@pytest.mark.parametrize("keep", [0, 1, 5, 20, -1])
def test_cut_bodies_are_refused(algorithm: str, keep: int) -> None:
    """A cut body is never taken for a short one."""
    with pytest.raises(CorruptRecord):
        decompress_body(
            COMPRESSION_FLAGS[algorithm], compress_body(algorithm, BODY)[:keep], limit=LIMIT
        )


def test_zstd_without_a_size_is_read_and_checked() -> None:
    """Java writes frames as a stream, without their size."""
    packed = zstandard.ZstdCompressor(write_content_size=False).compress(BODY)
    assert decompress_body(0x201, packed, limit=LIMIT) == BODY
    with pytest.raises(CorruptRecord):
        decompress_body(0x201, packed[:-3], limit=LIMIT)


def test_lz4_in_blocks_is_read() -> None:
    """Java writes independent blocks of 64 KiB and more."""
    body = bytes(range(256)) * 2000
    packed = lz4.frame.compress(body, block_size=lz4.frame.BLOCKSIZE_MAX64KB, store_size=False)
    assert decompress_body(0x101, packed, limit=len(body)) == body


def test_old_flags_mean_zlib_and_no_flag_means_plain() -> None:
    """Old clients set one bit only."""
    assert decompress_body(0x1, zlib.compress(BODY), limit=LIMIT) == BODY
    assert decompress_body(0x300, b"plain", limit=0) == b"plain"


def test_unknown_algorithms() -> None:
    """What nobody defined is refused on both sides."""
    with pytest.raises(CorruptRecord, match="unknown"):
        decompress_body(0x701, b"", limit=1)
    with pytest.raises(LocalProtocolError, match="unknown"):
        compress_body("rar", b"")
