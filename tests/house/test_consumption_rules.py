"""docs/reference/consumption-rules.md: every rule has a source, a verdict and tests that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.house.sources import ROOT

PAGE = ROOT / "docs" / "reference" / "consumption-rules.md"
NODE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
VERDICT = re.compile(r"\*\*(same|differs: (?:O\d+(?:, O\d+)*|\w+))\*\*")
HOLES = {
    "O6", "O7", "O8", "O9", "O10", "O11", "O12", "O13", "O22", "O23", "O25", "O26", "O28", "O29",
}  # fmt: skip
LEASES = "Leases, instead of lock one"
OF_A_LEASE = {
    "Acquired", "Refused", "Begun", "Renewed", "Trusted", "Unconfirmed",
    "A result while unconfirmed", "Lost", "Expired", "Late and alone", "Grace", "Silent", "Resumed",
    "Outlived", "Released", "Woken", "Stale", "Reset", "Forced", "Left",
}  # fmt: skip
"""What can become of a lease; each replaces a rule of RocketMQ's locks."""


def rows() -> Iterator[tuple[str, list[str]]]:
    """Give the cells of every rule, with the heading above."""
    heading = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            heading = line[3:]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 4 and cells[0] not in ("rule", "---"):
            yield heading, cells


RULES = list(rows())


@cache
def names_in(path: str) -> frozenset[str]:
    """Return the names of the tests in a file."""
    if not (ROOT / path).is_file():
        return frozenset()
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


@pytest.mark.parametrize(("heading", "cells"), RULES, ids=[cells[0][:50] for _, cells in RULES])
def test_every_rule_is_shown_by_tests_that_exist(heading: str, cells: list[str]) -> None:
    """A rule names its document, says same or differs, and each test that it names is there."""
    _, source, here, shown = cells
    assert re.match(r"\[[1-5]\] |RocketMQ 5\.3, [A-Z]\w+\.\w+$", source), "names no document"
    assert VERDICT.match(here), "neither same nor differs"
    nodes = NODE.findall(shown)
    assert len(nodes) == shown.count("::") > 0, "a test that is no pytest node"
    missing = [f"{path}::{name}" for path, name in nodes if name not in names_in(path)]
    assert missing == []


def test_the_page_covers_what_it_promises() -> None:
    """No part is empty, no rule is told twice, every hole that the rules close is among them."""
    assert len(RULES) > 90
    assert len({cells[0] for _, cells in RULES}) == len(RULES)
    parts = [part.split("\n")[0] for part in PAGE.read_text().split("\n## ")[1:]]
    assert {heading for heading, _ in RULES} == set(parts) - {"Left out", "Holes"}
    named = {hole for _, cells in RULES for hole in re.findall(r"O\d+", cells[2])}
    assert named >= HOLES
    listed = re.findall(r"^\| (O\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert named == set(listed)


def test_whatever_becomes_of_a_lease_has_its_rule() -> None:
    """And says how that differs from what the documents tell of a lock."""
    leases = [cells for heading, cells in RULES if heading == LEASES]
    assert {cells[0].split("*")[1] for cells in leases} == OF_A_LEASE
    assert all(cells[2].startswith("**differs: ") for cells in leases)
