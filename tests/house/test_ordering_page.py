"""docs/design/ordering.md: every hole of RocketMQ is there, and every test that is named exists."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.house.sources import ROOT
from tests.mutants.mutants import BY_NAME

PAGE = ROOT / "docs" / "design" / "ordering.md"
NODE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
NOT_CLOSED = {"O14", "O15"}
"""They do not arise here: there are no replicas."""


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


@pytest.mark.parametrize(("prefix", "count"), [("P", 9), ("O", 29), ("A", 16)])
def test_every_row_names_tests_that_exist(prefix: str, count: int) -> None:
    """No promise, hole or schedule is missing, and none is without a test."""
    found = rows(prefix)
    numbers = [int(name[1:]) for name in found]
    assert numbers == sorted(numbers)
    assert numbers[:count] == list(range(1, count + 1))
    for name, cells in found.items():
        nodes = NODE.findall(" ".join(cells))
        assert nodes, f"{name} names no test"
        missing = [f"{path}::{test}" for path, test in nodes if test not in names_in(path)]
        assert missing == [], f"{name} names tests that are not there"


def test_holes_are_closed_or_do_not_arise() -> None:
    """A hole that does not arise says so, and only those do."""
    assert {name for name, cells in rows("O").items() if "does not arise" in cells[2]} >= NOT_CLOSED


def test_every_directed_test_of_a_schedule_fails_without_its_rule() -> None:
    """Each is what catches a bug that is planted for that schedule; `make mutants` plants them."""
    for name, cells in rows("A").items():
        planted = cells[3].split(", ")
        unknown = [one for one in planted if one not in BY_NAME]
        assert unknown == [], f"{name} names bugs that nobody plants"
        for one in planted:
            assert name in BY_NAME[one].rule.split(", "), f"{one} is no bug of {name}"
        caught = {node for one in planted for node in BY_NAME[one].nodes}
        directed = {"::".join(node) for node in NODE.findall(cells[2])}
        assert directed - caught == set(), f"{name} names tests that no planted bug fails"


def test_every_bug_of_a_schedule_is_in_its_row() -> None:
    """Whoever plants one says so."""
    for name, cells in rows("A").items():
        planted = {one for one, bug in BY_NAME.items() if name in bug.rule.split(", ")}
        assert planted == set(cells[3].split(", ")), name
