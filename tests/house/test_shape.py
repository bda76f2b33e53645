"""Sizes, words and tests: the parts of the style that a machine can see."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

from tests.house.sources import ROOT, SOURCE, modules

# A module is one subject that a reader understands alone; past this size it has a second one.
MODULE_LINES_MAX = 700
FUNCTION_LINES_MAX = 80
HOT_FUNCTION_LINES_MAX = 120


def functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return every function of a tree."""
    return [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function without its docstring."""
    first = function.body[0]
    skip = 0
    if ast.get_docstring(function) is not None:
        skip = (first.end_lineno or first.lineno) - first.lineno + 1
    return (function.end_lineno or function.lineno) - function.lineno + 1 - skip


def is_hot(path: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Tell whether a function carries the mark of a measured hot path."""
    lines = (SOURCE / path).read_text().splitlines()[function.lineno - 1 : function.end_lineno]
    return any("# hot:" in line for line in lines)


def test_modules_stay_small() -> None:
    """Past the ceiling there is a second noun in the file; the largest are printed with -s."""
    sizes = {path: len((SOURCE / path).read_text().splitlines()) for path in modules()}
    for path, lines in sorted(sizes.items(), key=lambda item: -item[1])[:10]:
        print(f"{lines:5d} {path}")
    print(f"{sum(sizes.values()):5d} lines in {len(sizes)} modules")
    assert {path: lines for path, lines in sizes.items() if lines > MODULE_LINES_MAX} == {}


def test_functions_fit_a_screen() -> None:
    """Long functions hide their steps; a loop marked `# hot:` may be longer, for calls cost."""
    long = {
        f"{path}:{function.lineno} {function.name}": code_lines(function)
        for path, tree in modules().items()
        for function in functions(tree)
        if code_lines(function)
        > (HOT_FUNCTION_LINES_MAX if is_hot(path, function) else FUNCTION_LINES_MAX)
    }
    assert long == {}


def test_every_module_says_why_it_exists() -> None:
    """The docstring at the head is where a reader starts."""
    silent = [path for path, tree in modules().items() if tree.body and not ast.get_docstring(tree)]
    assert silent == []


def test_public_classes_and_functions_are_documented() -> None:
    """What other rooms may use says what it does."""
    missing = [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in modules().items()
        for node in tree.body
        # A handler is named after the request that it serves, and documented there.
        if not re.search(r"/handlers(/|\.py)", path)
        and isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
        and ast.get_docstring(node) is None
    ]
    assert missing == []


def committed_files() -> list[Path]:
    """Return the text files that are, or are about to be, in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    suffixes = {".py", ".pyi", ".pyx", ".md", ".toml", ".txt", ".sh", ""}
    paths = [ROOT / name for name in listed if name]
    return [path for path in paths if path.suffix in suffixes and path.is_file()]


def test_no_leftovers_in_committed_files() -> None:
    """No notes to oneself, no paths of somebody's machine."""
    unwanted = re.compile(r"\b(TODO|FIXME|XXX)\b|/(work|home/\w+|root)/\w+")
    found = []
    for path in committed_files():
        if path in (Path(__file__), ROOT / "LICENSE"):
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue  # golden bytes
        found += [
            f"{path.relative_to(ROOT)}:{number} {line.strip()[:80]}"
            for number, line in enumerate(text.splitlines(), 1)
            if unwanted.search(line)
        ]
    assert found == []


def test_every_test_states_a_behaviour() -> None:
    """Each test has a docstring of its own; each file has another name."""
    missing = []
    names: Counter[str] = Counter()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        names[path.name] += 1
        missing += [
            f"{path.relative_to(ROOT)}:{function.lineno} {function.name}"
            for function in functions(ast.parse(path.read_text()))
            if function.name.startswith("test_") and not ast.get_docstring(function)
        ]
    assert missing == []
    assert [name for name, count in names.items() if count > 1] == []


def test_fast_tests_do_not_sleep() -> None:
    """Unit and property tests wait for nothing: time is an argument."""
    sleepers = [
        str(path.relative_to(ROOT))
        for room in ("unit", "property")
        for path in sorted((ROOT / "tests" / room).rglob("*.py"))
        if re.search(r"\btime\.sleep\(", path.read_text())
    ]
    assert sleepers == []
