"""The text that Prometheus reads: families of numbers, their lines, and histograms.

Pure, and written by hand: a scrape of 10,000 queues by a library would stop the loop for 79 ms, and
one count by labels would cost a sixth of a send (decision 60).

    page = Page(openmetrics=False, series_max=50_000)
    page.begin(FAMILY)                      # HELP and TYPE, once, before its first line
    page.put(3, "orders", "billing")        # a value, and the values of the labels of the family
    page.take()                             # the text so far; `end()` after the last family

Labels that a peer could fill with anything come from known tables. What remains, topics and groups,
is bounded by `series_max`: further lines are left out and counted in `left_out`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
NAMES_KEPT: Final = 20_000
"""Label values whose escaped text is kept for the next page."""


class Family(NamedTuple):
    """A metric: its name as it is served, what it tells, and its labels."""

    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


class Histogram:
    """Counts of values in classes. One observation is a search in a short list."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, as often as it occurred."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """Return how many values were counted."""
        return sum(self.counts)

    def __repr__(self) -> str:
        return f"Histogram({self.count} values, {self.total:g} in all)"


def escape(value: str) -> str:
    """Return the value of a label as it stands between quotes."""
    # A lone surrogate has no UTF-8, and a page with one would not be read at all.
    plain = value.encode("utf-8", "replace").decode()
    return plain.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def number(value: float) -> str:
    """Return a number as it is written: whole ones without a point."""
    if isinstance(value, int):
        return str(value)
    if value != value:  # noqa: PLR0124  # NaN
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


class Page:
    """One answer to a scrape, made family by family."""

    def __init__(
        self,
        *,
        openmetrics: bool = False,
        series_max: int = 50_000,
        constant: Mapping[str, str] | None = None,
        only: Iterable[str] = (),
        names: dict[str, str] | None = None,
    ) -> None:
        self.openmetrics = openmetrics
        self.series = 0
        self.left_out = 0
        self._series_max = series_max
        self._constant = "".join(
            f',{name}="{escape(value)}"' for name, value in (constant or {}).items()
        )
        self._only = frozenset(only)
        self._names = {} if names is None else names
        self._lines: list[str] = []
        self._family: Family | None = None

    def wants(self, family: Family) -> bool:
        """Return whether the reader asked for a family."""
        return not self._only or family.name in self._only

    def begin(self, family: Family) -> None:
        """Write what a family is; its values follow."""
        self._family = family
        if not self.wants(family):
            return
        name = family.name
        if self.openmetrics and family.kind == "counter":
            name = name.removesuffix("_total")
        self._lines.append(f"# HELP {name} {_help(family.doc)}\n# TYPE {name} {family.kind}\n")

    def put(self, value: float, *labels: str) -> None:
        """Write a value of the present family, with the values of its labels."""
        family = self._present()
        if self.wants(family) and self._has_room(1):
            self._lines.append(f"{family.name}{self._braces(labels)} {number(value)}\n")

    def put_in_any_case(self, value: float) -> None:
        """Write a value without labels, also on a full page: how much it left out."""
        family = self._present()
        if self.wants(family):
            self._lines.append(f"{family.name}{self._braces(())} {number(value)}\n")

    def put_histogram(self, found: Histogram, *labels: str) -> None:
        """Write a histogram of the present family."""
        family = self._present()
        if not self.wants(family) or not self._has_room(len(found.counts) + 2):
            return
        inner, below = self._inner(labels), 0
        comma = "," if inner else ""
        for bound, count in zip((*found.bounds, float("inf")), found.counts, strict=True):
            below += count
            le = _bound(bound) if self.openmetrics else number(bound)
            self._lines.append(f'{family.name}_bucket{{{inner}{comma}le="{le}"}} {below}\n')
        braces = self._braces(labels)
        self._lines.append(f"{family.name}_sum{braces} {number(found.total)}\n")
        self._lines.append(f"{family.name}_count{braces} {below}\n")

    def take(self) -> bytes:
        """Return the text since the last call."""
        lines, self._lines = self._lines, []
        return "".join(lines).encode()

    def end(self) -> bytes:
        """Return the rest of the text."""
        if self.openmetrics:
            self._lines.append("# EOF\n")
        return self.take()

    def _present(self) -> Family:
        assert self._family is not None, "a family begins before its values"
        return self._family

    def _has_room(self, lines: int) -> bool:
        if self.series + lines > self._series_max:
            self.left_out += lines
            return False
        self.series += lines
        return True

    def _braces(self, labels: tuple[str, ...]) -> str:
        inner = self._inner(labels)
        return f"{{{inner}}}" if inner else ""

    def _inner(self, labels: tuple[str, ...]) -> str:
        names = self._present().labels
        assert len(names) == len(labels), f"{self._family}: {labels}"
        inner = ",".join(
            f'{name}="{self._escaped(value)}"' for name, value in zip(names, labels, strict=True)
        )
        return inner + self._constant if inner else self._constant[1:]

    def _escaped(self, value: str) -> str:
        found = self._names.get(value)
        if found is None:
            if len(self._names) >= NAMES_KEPT:
                self._names.clear()
            found = self._names[value] = escape(value)
        return found


def _help(doc: str) -> str:
    return doc.replace("\\", r"\\").replace("\n", r"\n")


def _bound(bound: float) -> str:
    """OpenMetrics wants a point in the bounds of buckets."""
    text = number(bound)
    return text if "." in text or "Inf" in text or "e" in text else f"{text}.0"
