"""The documentation is true: links resolve, generated pages are fresh, examples run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.sources import ROOT, definitions
from tools.make_reference import PAGES, REFERENCE

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
NAME = r"`((?:[A-Z]\w*\.)?[A-Za-z_]\w*)`"
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def pages() -> list[Path]:
    """Return every Markdown page of the repository."""
    return sorted(
        [
            *ROOT.glob("*.md"),
            *(ROOT / "docs").rglob("*.md"),
            *ROOT.glob("bench/*.md"),
            *ROOT.glob("examples/*.md"),
        ]
    )


def anchors(page: Path) -> set[str]:
    """Return the anchors that the headings of a page make."""
    text = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    """Every relative link leads to a file, and to a heading where it names one."""
    broken = []
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("name", sorted(PAGES))
def test_generated_pages_are_fresh(name: str) -> None:
    """What is made from the code says what the code says; `make docs` renews it."""
    assert (REFERENCE / name).read_text() == PAGES[name]()


def test_every_decision_is_listed() -> None:
    """Each decision has a number of its own and is found from the index."""
    folder = ROOT / "docs" / "decisions"
    files = sorted(path.name for path in folder.glob("[0-9]*.md"))
    numbers = [name[:4] for name in files]
    assert len(set(numbers)) == len(numbers)
    assert re.findall(r"\]\((\d{4}[^)]+)\)", (folder / "index.md").read_text()) == files


@pytest.mark.parametrize("name", ["README.md", "docs/design/comparison.md"])
def test_figures_are_those_of_the_performance_page(name: str) -> None:
    """A figure of a comparison with other systems is one that was measured; a new run renews it."""
    measured = (ROOT / "docs" / "design" / "performance.md").read_text()
    rows = [line for line in (ROOT / name).read_text().splitlines() if line.startswith("| ")]
    figures = re.findall(r"\b(?:\d,\d{3},\d{3}|\d{2,3},\d{3})\b", "\n".join(rows))
    assert len(figures) >= 4
    assert [figure for figure in figures if figure not in measured] == []


def test_architecture_stays_short() -> None:
    """ARCHITECTURE.md can be read in one sitting."""
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) < 300


def test_files_named_by_pages_and_docstrings_exist() -> None:
    """A Python file that a page or a module names is there: in the tree, or beside the namer."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md", "*.py"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    paths = [Path(name) for name in listed if (ROOT / name).exists()]
    names = {path.name for path in paths}
    missing = []
    for path in paths:
        if path.name == "CHANGELOG.md" or path.parts[0] == "changes":
            continue
        places = [ROOT, ROOT / "src", ROOT / "src" / "inorder", ROOT / "tests"]
        places += [ROOT / parent for parent in path.parents]
        for named in re.findall(r"`((?:[\w.-]+/)*[\w-]+\.py)[`:]", (ROOT / path).read_text()):
            known = "/" not in named and named in names
            if not known and not any((place / named).exists() for place in places):
                missing.append(f"{path} names {named}")
    assert missing == []


@pytest.mark.parametrize(
    "name", ["ARCHITECTURE.md", "docs/design/features.md", "docs/design/ordering.md"]
)
def test_functions_named_by_pages_exist(name: str) -> None:
    """A function that a page names is there: in the file beside it, else anywhere in the source."""
    text = re.sub(r"\s+", " ", (ROOT / name).read_text())
    missing = [
        f"{function} in {path}"
        for path, inside in re.findall(r"`([\w/]+\.py)` \(([^)]*)\)", text)
        for function in re.findall(NAME, inside)
        if path in definitions() and function not in definitions()[path]
    ]
    missing += [
        f"{function} in {path}"
        for function, path in re.findall(rf"{NAME} in `([\w/]+\.py)`", text)
        if path in definitions() and function not in definitions()[path]
    ]
    known = frozenset[str]().union(*definitions().values())
    missing += [
        function
        for function in re.findall(NAME, text)
        if re.match(r"[A-Z]\w*\.|_|[a-z]+_", function) and function not in known
    ]
    assert missing == []


@pytest.mark.slow
def test_readme_example_runs(tmp_path: Path) -> None:
    """The ten lines of the README, pasted as they are, do what they show."""
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert example is not None
    server = subprocess.Popen(
        [
            sys.executable, "-m", "inorder.cli.main", "up", "--namesrv-port", "0",
            "--broker-port", "0", "--data", str(tmp_path), "--log-level", "error",
        ],
        stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        ready = re.match(r"ready namesrv=(\S+)", server.stdout.readline())
        assert ready is not None
        code = example[1].replace("127.0.0.1:9876", ready[1])
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "order-42 created\norder-42 paid\norder-42 shipped\n"
    finally:
        server.terminate()
        server.communicate(timeout=30)
