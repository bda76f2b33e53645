"""Compressed bodies: zlib, LZ4 frames and Zstandard frames, each decompressed up to a limit.

lz4 and zstandard are optional packages (`inorder[lz4]`, `inorder[zstd]`), imported on first use.
Why they are optional: decision 1.
"""

from __future__ import annotations

import zlib
from types import ModuleType
from typing import Final

from inorder.errors import CorruptRecord, LocalProtocolError

COMPRESSED: Final = 0x1
COMPRESSION_MASK: Final = 0x700

COMPRESSION_FLAGS: Final = {"lz4": 0x101, "zstd": 0x201, "zlib": 0x301}
"""The sys-flag bits to set for each algorithm."""

_ALGORITHMS: Final = {0x000: "zlib", 0x100: "lz4", 0x200: "zstd", 0x300: "zlib"}
_ZSTD_WINDOW_BYTES_MAX: Final = 8 * 1024 * 1024
DEFAULT_LEVEL: Final = 5


def decompress_body(sys_flag: int, body: bytes | memoryview, *, limit: int) -> bytes:
    """Return the body as the producer had it; a body that is not compressed as it is.

    Raises:
        CorruptRecord: the data is broken or grows beyond the limit.
        LocalProtocolError: the package for the algorithm is not installed.
    """
    if not sys_flag & COMPRESSED:
        return bytes(body)
    algorithm = _ALGORITHMS.get(sys_flag & COMPRESSION_MASK)
    if algorithm is None:
        raise CorruptRecord(f"unknown compression in the flags {sys_flag:#x}")
    return _DECOMPRESS[algorithm](bytes(body), limit)


def compress_body(algorithm: str, body: bytes, level: int = DEFAULT_LEVEL) -> bytes:
    """Compress a body with `zlib`, `lz4` or `zstd`; see COMPRESSION_FLAGS for its flags."""
    if algorithm == "zlib":
        return zlib.compress(body, level)
    if algorithm == "lz4":
        return bytes(_lz4().compress(body, compression_level=level))
    if algorithm == "zstd":
        return bytes(_zstd().ZstdCompressor(level=level).compress(body))
    raise LocalProtocolError(f"unknown compression {algorithm!r}; use zlib, lz4 or zstd")


def _unzlib(body: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise CorruptRecord(f"zlib body is broken: {error}") from None
    return _checked(data, limit, stream.eof)


def _unlz4(body: bytes, limit: int) -> bytes:
    stream = _lz4().LZ4FrameDecompressor()
    try:
        data = stream.decompress(body, max_length=limit + 1)
        if not stream.eof and len(data) <= limit:
            data += stream.decompress(b"", max_length=limit + 1 - len(data))
    except (RuntimeError, ValueError, EOFError, MemoryError) as error:
        raise CorruptRecord(f"lz4 body is broken: {error}") from None
    return _checked(data, limit, stream.eof)


def _unzstd(body: bytes, limit: int) -> bytes:
    zstandard = _zstd()
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    parts: list[bytes] = []
    have = 0
    try:
        with decompressor.stream_reader(body) as reader:
            while have <= limit and (part := reader.read(min(limit + 1 - have, 1 << 20))):
                parts.append(part)
                have += len(part)
        complete = have > limit or _zstd_complete(zstandard, body, have)
    except (zstandard.ZstdError, ValueError, MemoryError) as error:
        raise CorruptRecord(f"zstd body is broken: {error}") from None
    return _checked(b"".join(parts), limit, complete)


def _zstd_complete(zstandard: ModuleType, body: bytes, have: int) -> bool:
    """Return whether the frame ended; a cut frame ends a stream without a complaint."""
    expected = zstandard.frame_content_size(body)
    if expected >= 0:
        return bool(have == expected)
    # Written without a size: decompress again, now that the result is known to be small.
    stream = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX).decompressobj()
    stream.decompress(body)
    return bool(stream.eof)


def _checked(data: bytes, limit: int, complete: bool) -> bytes:
    if len(data) > limit:
        raise CorruptRecord(f"body decompresses to more than {limit} bytes")
    if not complete:
        raise CorruptRecord("compressed body is cut short")
    return data


_DECOMPRESS: Final = {"zlib": _unzlib, "lz4": _unlz4, "zstd": _unzstd}


def _lz4() -> ModuleType:
    try:
        import lz4.frame
    except ImportError:
        raise LocalProtocolError("the body is compressed with lz4; install inorder[lz4]") from None
    module: ModuleType = lz4.frame
    return module


def _zstd() -> ModuleType:
    try:
        import zstandard
    except ImportError:
        raise LocalProtocolError(
            "the body is compressed with zstd; install inorder[zstd]"
        ) from None
    return zstandard
