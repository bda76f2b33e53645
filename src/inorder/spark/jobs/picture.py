"""A PNG of lines over time, drawn with numpy: panels one above the other, and marked moments.

A drawing library would bring 60 MB for one picture. This file has lines, areas and a small font.
Why: decision 36.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

WIDTH: Final = 1100
PANEL: Final = 230
LEFT: Final = 110
RIGHT: Final = 30
TOP: Final = 46
GAP: Final = 56
BOTTOM: Final = 54
INK: Final = (45, 55, 72)
PALE: Final = (226, 232, 240)
COLOURS: Final = ((43, 108, 176), (221, 107, 32), (47, 133, 90), (107, 70, 193))
MARKS: Final = ((197, 48, 48), (47, 133, 90))
GLYPH_WIDE: Final = 6
FIRST_CHAR: Final = 32

# Five columns for each character from the blank on, the lowest bit at the top.
_FONT: Final = bytes.fromhex(
    "000000000000005f00000007000700147f147f14242a7f2a12231308646236495620500008070300001c224100"
    "0041221c002a1c7f1c2a08083e0808008070300008080808080000606000201008040"
    "23e5149453e00427f4000724949494621414949331814127f1027454545393c4a49493141211109073649494936"
    "464949291e000014000000403400000008142241141414141400412214080201590906"
    "3e415d594e7c1211127c7f494949363e414141227f4141413e7f494949417f090909013e414151737f0808087f"
    "00417f41002040413f017f081422417f404040407f021c027f7f0408107f3e4141413e7f090909063e4151215e"
    "7f09192946264949493203017f01033f4040403f1f2040201f3f4038403f63140814630304780403615949"
    "4d43007f4141410204081020004141417f04020102044040404040000307080020545478407f28444438384444"
    "4428384444287f385454541800087e090218a4a49c787f0804047800447d40002040403d007f1028440000417f"
    "40007c047804787c080404783844444438fc1824241818242418fc7c08040408485454542404043f4424"
    "3c4040207c1c2040201c3c4030403c44281028444c9090907c4464544c44000836410000007700000041360800"
    "0201020402".replace(" ", "")
)


@dataclass(frozen=True, slots=True)
class Curve:
    """A line: its name, and a value at each time in seconds."""

    name: str
    at_s: Sequence[float]
    values: Sequence[float]
    filled: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment: a line from top to bottom, with a word."""

    name: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines that share a scale."""

    title: str
    curves: Sequence[Curve] = field(default_factory=tuple)


def png(title: str, panels: Sequence[Panel], marks: Sequence[Mark] = ()) -> bytes:
    """Return the picture as the bytes of a PNG file."""
    canvas = Canvas(WIDTH, TOP + len(panels) * (PANEL + GAP) + BOTTOM - GAP + 20)
    canvas.text(LEFT, 12, title, scale=2)
    times = [at for panel in panels for curve in panel.curves for at in curve.at_s]
    last_s = max([*times, *(mark.at_s for mark in marks)], default=0.0) or 1.0
    for index, panel in enumerate(panels):
        top = TOP + 20 + index * (PANEL + GAP)
        _draw_panel(canvas, panel, top, last_s)
        for number, mark in enumerate(marks):
            x = _x(mark.at_s, last_s)
            colour = MARKS[number % len(MARKS)]
            for y in range(top, top + PANEL, 8):
                canvas.fill(x - 1, y, x + 1, y + 5, colour)
            canvas.text(x + 6, top + 6 + 18 * (number % 2), mark.name, colour)
    return canvas.encode()


def _x(at_s: float, last_s: float) -> int:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * at_s / last_s)


def _draw_panel(canvas: Canvas, panel: Panel, top: int, last_s: float) -> None:
    bottom = top + PANEL
    most = _rounded(max((value for one in panel.curves for value in one.values), default=0.0))
    for step in range(5):
        y = round(bottom - PANEL * step / 4)
        canvas.fill(LEFT, y, WIDTH - RIGHT, y + 1, PALE)
        label = f"{most * step / 4:,.0f}"
        canvas.text(LEFT - 8 - canvas.width_of(label), y - 6, label)
        x, seconds = _x(last_s * step / 4, last_s), f"{last_s * step / 4:.0f} s"
        canvas.text(min(x, WIDTH - RIGHT - 30) - 8, bottom + 8, seconds)
    x = LEFT
    for index, curve in enumerate(panel.curves):
        colour = COLOURS[index % len(COLOURS)]
        xs = [_x(at, last_s) for at in curve.at_s]
        ys = [bottom - PANEL * value / most for value in curve.values]
        canvas.curve(xs, ys, colour, bottom if curve.filled else None)
        canvas.text(x, top - 18, curve.name, colour)
        x += canvas.width_of(curve.name) + 24
    canvas.text(WIDTH - RIGHT - canvas.width_of(panel.title), top - 18, panel.title)


def _rounded(value: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten: a scale that people can read."""
    if value <= 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(value))
    return float(next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value))


class Canvas:
    """Pixels."""

    def __init__(self, wide: int, high: int) -> None:
        self._pixels: Any = np.full((high, wide, 3), 255, np.uint8)

    def fill(self, left: int, top: int, right: int, bottom: int, colour: Sequence[int]) -> None:
        """Fill a rectangle; parts outside the picture are left out."""
        self._pixels[max(0, top) : max(0, bottom), max(0, left) : max(0, right)] = colour

    def width_of(self, text: str, scale: float = 1) -> int:
        """Return how wide a text is."""
        return round(len(text) * GLYPH_WIDE * 2 * scale) - 2

    def text(
        self, x: int, y: int, text: str, colour: Sequence[int] = INK, *, scale: int = 1
    ) -> None:
        """Write a text; characters outside of ASCII are question marks."""
        size = 2 if scale == 1 else 3
        for at, char in enumerate(text):
            code = ord(char) if 32 <= ord(char) < 127 else ord("?")
            columns = _FONT[(code - FIRST_CHAR) * 5 : (code - FIRST_CHAR) * 5 + 5]
            for column, bits in enumerate(columns):
                for row in range(8):
                    if bits >> row & 1:
                        left, top = x + (at * GLYPH_WIDE + column) * size, y + row * size
                        self.fill(left, top, left + size, top + size, colour)

    def curve(
        self,
        xs: Sequence[int],
        ys: Sequence[float],
        colour: Sequence[int],
        floor: int | None = None,
    ) -> None:
        """Draw a line through points; with a floor, the area down to it is tinted."""
        if not xs:
            return
        columns = np.arange(min(xs), max(xs) + 1)
        heights = np.interp(columns, xs, ys)
        tint = [round(255 - (255 - part) * 0.18) for part in colour]
        before = heights[0]
        for column, height in zip(columns.tolist(), heights.tolist(), strict=True):
            low, high = sorted((before, height))
            if floor is not None:
                self.fill(column, round(height), column + 1, floor, tint)
            self.fill(column, round(low) - 1, column + 1, round(high) + 2, colour)
            before = height

    def encode(self) -> bytes:
        """Return the picture as PNG."""
        high, wide, _ = self._pixels.shape
        raw = np.zeros((high, wide * 3 + 1), np.uint8)  # each row begins with its filter, 0
        raw[:, 1:] = self._pixels.reshape(high, wide * 3)
        head = struct.pack(">IIBBBBB", wide, high, 8, 2, 0, 0, 0)
        chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(raw.tobytes(), 9)), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            for kind, data in chunks
        )
