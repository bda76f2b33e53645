"""The text of metrics, to the byte."""

from __future__ import annotations

import pytest

from inorder.exposition import Family, Histogram, Page, escape, number

COUNTER = Family("a_total", "counter", "what\nit is", ("topic",))
GAUGE = Family("b", "gauge", "plain")
TIMES = Family("c_seconds", "histogram", "times", (), (0.5, 1))


def test_a_page_in_the_old_format() -> None:
    """Families have their heads once; labels of the page come last."""
    page = Page(constant={"node": "n"})
    page.begin(COUNTER)
    page.put(3, 'or"d')
    page.begin(GAUGE)
    page.put(0.5)
    assert page.end() == (
        b'# HELP a_total what\\nit is\n# TYPE a_total counter\na_total{topic="or\\"d",node="n"} 3\n'
        b'# HELP b plain\n# TYPE b gauge\nb{node="n"} 0.5\n'
    )


def test_a_page_of_openmetrics() -> None:
    """Counters lose their suffix in the head, bounds have a point, and the page has an end."""
    page = Page(openmetrics=True)
    page.begin(COUNTER)
    page.put(1, "t")
    page.begin(TIMES)
    found = Histogram(TIMES.buckets)
    found.observe(0.5)
    found.observe(2, 3)
    page.put_histogram(found)
    assert page.end().decode().splitlines() == [
        "# HELP a what\\nit is",
        "# TYPE a counter",
        'a_total{topic="t"} 1',
        "# HELP c_seconds times",
        "# TYPE c_seconds histogram",
        'c_seconds_bucket{le="0.5"} 1',
        'c_seconds_bucket{le="1.0"} 1',
        'c_seconds_bucket{le="+Inf"} 4',
        "c_seconds_sum 6.5",
        "c_seconds_count 4",
        "# EOF",
    ]


def test_lines_are_bounded_and_counted() -> None:
    """A page never grows beyond its limit; a histogram is whole or left out."""
    page = Page(series_max=2)
    page.begin(COUNTER)
    for name in ("x", "y", "z"):
        page.put(1, name)
    page.begin(TIMES)
    page.put_histogram(Histogram(TIMES.buckets))
    assert page.take().count(b"\na_total{") == 2
    assert (page.series, page.left_out) == (2, 6)


def test_a_reader_may_ask_for_some_families() -> None:
    """What nobody asked for takes no room."""
    page = Page(only=("b",), series_max=1)
    page.begin(COUNTER)
    page.put(1, "x")
    page.begin(GAUGE)
    page.put(2)
    assert page.end() == b"# HELP b plain\n# TYPE b gauge\nb 2\n"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(3, "3"), (3.0, "3"), (0.25, "0.25"), (float("nan"), "NaN"), (float("-inf"), "-Inf"),
     (float("inf"), "+Inf"), (1e20, "1e+20")],
)  # fmt: skip
def test_numbers(value: float, shown: str) -> None:
    """Whole numbers have no point; the three that are none have their names."""
    assert number(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [("a\\b", "a\\\\b"), ("a\nb", "a\\nb"), ('"', '\\"'), ("\ud800", "?")]
)
def test_labels_are_escaped(value: str, shown: str) -> None:
    """Nothing in a label ends it, and every page is UTF-8."""
    assert escape(value) == shown
