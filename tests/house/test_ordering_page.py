"""docs/design/ordering.md: every hole of RocketMQ is there, and every test that is named exists."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.house.sources import ROOT

PAGE = ROOT / "docs" / "design" / "ordering.md"
NODE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
MUTANTS = ROOT / "tests" / "mutants" / "mutants.py"
NOT_CLOSED = {"O14", "O15", "O19", "O20", "O21"}
"""They do not arise here: there are no replicas, and no POP."""


def rows(prefix: str) -> dict[str, list[str]]:
    """Return the rows of a table whose first cell is a letter and a number."""
    found = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and re.fullmatch(rf"{prefix}\d+", cells[0]):
            assert cells[0] not in found, f"{cells[0]} is there twice"
            found[cells[0]] = cells
    return found


@cache
def names_in(path: str) -> frozenset[str]:
    """Return what a file defines at its top: tests, and test cases made from state machines."""
    if not (ROOT / path).is_file():
        return frozenset()
    names = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(names)


@pytest.mark.parametrize(("prefix", "count"), [("P", 9), ("O", 29), ("A", 12)])
def test_every_row_names_tests_that_exist(prefix: str, count: int) -> None:
    """No promise, hole or schedule is missing, and none is without a test."""
    found = rows(prefix)
    assert list(found) == [f"{prefix}{number}" for number in range(1, count + 1)]
    for name, cells in found.items():
        nodes = NODE.findall(" ".join(cells))
        assert nodes, f"{name} names no test"
        missing = [f"{path}::{test}" for path, test in nodes if test not in names_in(path)]
        assert missing == [], f"{name} names tests that are not there"


def test_holes_are_closed_or_do_not_arise() -> None:
    """A hole that does not arise says so, and only those do."""
    assert {name for name, cells in rows("O").items() if "does not arise" in cells[2]} >= NOT_CLOSED


def test_planted_bugs_are_in_the_list() -> None:
    """What a schedule says is planted can be planted."""
    listed = MUTANTS.read_text()
    for name, cells in rows("A").items():
        for planted in cells[3].split(", ") if cells[3] != "-" else ():
            assert f'"{planted}"' in listed, f"{name} names {planted}, which nobody plants"
