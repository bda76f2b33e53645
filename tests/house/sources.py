"""The source files of inorder, parsed once, for the tests of the house."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "inorder"


@cache
def modules() -> dict[str, ast.Module]:
    """Return path below src/inorder -> syntax tree."""
    return {
        str(path.relative_to(SOURCE)): ast.parse(path.read_text(), str(path))
        for path in sorted(SOURCE.rglob("*.py"))
    }


@cache
def definitions() -> dict[str, frozenset[str]]:
    """Return path -> its functions, classes, `Class.method`s, arguments and attributes."""
    found = {}
    for path, tree in modules().items():
        names = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.arg):
                names.add(node.arg)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
            if isinstance(node, ast.ClassDef):
                functions = (ast.FunctionDef, ast.AsyncFunctionDef)
                names |= {
                    f"{node.name}.{one.name}" for one in node.body if isinstance(one, functions)
                }
        found[path] = frozenset(names)
    return found


def dotted(node: ast.expr) -> str:
    """Return `a.b.c` for a chain of names, with `?` for what is not a name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return "?"


def imported(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Give every imported module, and every `module.name` of a from-import, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.lineno
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


@cache
def used(tree: ast.Module) -> tuple[tuple[str, int], ...]:
    """Return every dotted name that the code uses, with its line."""
    return tuple(
        (dotted(node), node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute | ast.Name)
    )
