"""Pictures of lines over time: panels one above the other, moments and stretches of time marked.

matplotlib draws them. It comes with the extra `plot` and is loaded only for a picture.
Why: decision 36.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from inorder.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The colours of Okabe and Ito: people who confuse red with green tell all of them apart.
COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9")
ALARM: Final = "#D55E00"
INK: Final = "#2d3748"
DASHES: Final = ("-", "-", "--", "-.", ":")
WIDTH_INCHES: Final = 10.0
PANEL_INCHES: Final = 3.4
HEAD_INCHES: Final = 0.8
DOTS_PER_INCH: Final = 110
HEADROOM: Final = 1.2  # above the highest line, for the words of the marks


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
class Stretch:
    """A shaded stretch of time, named in the legend of the first panel."""

    name: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines that share a scale."""

    title: str
    unit: str
    curves: Sequence[Curve] = field(default_factory=tuple)


def check_picture(path: str) -> None:
    """Raise ConfigError if no picture can be drawn into this file. Callers ask before the work."""
    if not path.endswith(".png"):
        raise ConfigError(f"{path}: pictures are PNG; give a name that ends with .png")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            f"{path} cannot be drawn: matplotlib is not installed; pip install 'inorder[plot]'"
        )


def save_picture(
    path: str,
    title: str,
    panels: Sequence[Panel],
    *,
    subtitle: str = "",
    marks: Sequence[Mark] = (),
    stretches: Sequence[Stretch] = (),
) -> None:
    """Draw a picture into a PNG file; its folder is made. Raises ConfigError without matplotlib."""
    check_picture(path)
    drawn = figure(title, panels, subtitle=subtitle, marks=marks, stretches=stretches)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, dpi=DOTS_PER_INCH)


def figure(
    title: str,
    panels: Sequence[Panel],
    *,
    subtitle: str = "",
    marks: Sequence[Mark] = (),
    stretches: Sequence[Stretch] = (),
) -> Figure:
    """Return the picture as a figure of matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    high = HEAD_INCHES + PANEL_INCHES * max(1, len(panels))
    drawn = Figure(figsize=(WIDTH_INCHES, high), facecolor="white")
    FigureCanvasAgg(drawn)  # needs no display
    drawn.text(0.01, 1 - 0.18 / high, title, va="top", fontsize=14, weight="bold", color=INK)
    drawn.text(0.01, 1 - 0.50 / high, subtitle, va="top", fontsize=10.5, color=INK)
    if panels:
        grid: Any = drawn.subplots(len(panels), 1, sharex=True, squeeze=False)
        for number, (axes, panel) in enumerate(zip(grid[:, 0], panels, strict=True)):
            _draw_panel(axes, panel)
            _mark(axes, marks, stretches, first=number == 0)
            if axes.get_legend_handles_labels()[1]:
                axes.legend(
                    loc="lower right", bbox_to_anchor=(1.0, 0.99), frameon=False, ncols=4,
                    fontsize=9.5, borderaxespad=0.2,
                )  # fmt: skip
        grid[-1, 0].set_xlabel("seconds since the start")
    drawn.tight_layout(rect=(0, 0, 1, 1 - 0.72 / high))
    return drawn


def _draw_panel(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for number, curve in enumerate(panel.curves):
        colour, dashes = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        axes.plot(
            curve.at_s, curve.values, label=curve.name, color=colour, linestyle=dashes, linewidth=2
        )
        if curve.filled:
            axes.fill_between(curve.at_s, curve.values, color=colour, alpha=0.18, linewidth=0)
    most = max((value for curve in panel.curves for value in curve.values), default=0.0)
    axes.set_ylim(0, (most or 1.0) * HEADROOM)
    axes.set_title(panel.title, loc="left", fontsize=11, color=INK)
    axes.set_ylabel(panel.unit)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(axis="y", color="#e2e8f0")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.01)
    axes.tick_params(labelbottom=True)


def _mark(axes: Axes, marks: Sequence[Mark], stretches: Sequence[Stretch], *, first: bool) -> None:
    for stretch in stretches:
        name = stretch.name if first else None
        axes.axvspan(
            stretch.begin_s, stretch.end_s, color=ALARM, alpha=0.13, linewidth=0, label=name
        )
    for mark in marks:
        axes.axvline(mark.at_s, color=ALARM, linestyle="--", linewidth=1.4)
        if first:
            to_left = mark.at_s > axes.get_xlim()[1] * 0.6  # the word stays within the picture
            axes.annotate(
                mark.name, (mark.at_s, 0.92), xycoords=("data", "axes fraction"),
                xytext=(-5 if to_left else 5, 0), textcoords="offset points",
                ha="right" if to_left else "left", color=ALARM, fontsize=9.5, weight="bold",
            )  # fmt: skip
