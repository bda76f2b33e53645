"""The picture of the demo: a PNG that says what it should, by its pixels."""

from __future__ import annotations

import struct
import zlib

import pytest

pytest.importorskip("numpy")

from inorder.spark.jobs.picture import COLOURS, MARKS, Curve, Mark, Panel, png


def pixels(data: bytes) -> tuple[int, int, bytes]:
    """Decode a PNG of ours: width, height, RGB without filters."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    at, raw, wide, high = 8, b"", 0, 0
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack_from(">I", data, at + 8 + size)[0] == zlib.crc32(kind + body)
        if kind == b"IHDR":
            wide, high = struct.unpack_from(">II", body)
        if kind == b"IDAT":
            raw += zlib.decompress(body)
        at += 12 + size
    rows = [raw[y * (wide * 3 + 1) + 1 : (y + 1) * (wide * 3 + 1)] for y in range(high)]
    return wide, high, b"".join(rows)


def test_a_picture_has_its_lines_and_marks() -> None:
    """Each curve in its colour, each moment in its own; nothing where there are none."""
    curves = [Curve("sent", [0, 5, 10], [0, 100, 3]), Curve("done", [0, 10], [0, 50], filled=True)]
    full = png("t", [Panel("rate", curves), Panel("lag", [Curve("lag", [0, 10], [9, 1])])],
               [Mark("kill", 4.0), Mark("on", 6.0)])  # fmt: skip
    wide, high, raw = pixels(full)
    seen = {raw[at : at + 3] for at in range(0, wide * high * 3, 3)}
    for colour in (*COLOURS[:2], *MARKS):
        assert bytes(colour) in seen
    wide, high, raw = pixels(png("t", [Panel("rate")]))
    assert bytes(COLOURS[0]) not in {raw[at : at + 3] for at in range(0, wide * high * 3, 3)}


def test_a_picture_of_nothing_is_one() -> None:
    """No samples, no values above zero: still a picture."""
    for panels in ([], [Panel("rate", [Curve("x", [], [])])], [Panel("r", [Curve("x", [1], [0])])]):
        assert pixels(png("é unknown characters", panels))[0] > 0
