"""Every Python example of the tutorial and the how-to pages runs as it is written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import inorder.testing

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = ["docs/tutorial/quickstart.md", "docs/howto/producing.md", "docs/howto/pulling.md"]


def examples(page: str) -> str:
    """Return all examples of a page, one after the other."""
    found = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    assert found, page
    return "\n\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_examples_run(page: str, tmp_path: Path):
    """In one process, in their order, against a server; not a warning is left behind."""
    script = tmp_path / "example.py"
    with inorder.testing.broker() as broker:
        script.write_text(examples(page).replace("127.0.0.1:9876", broker.namesrv))
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-W", "error", str(script)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.slow
def test_the_testing_page_runs_in_pytest(tmp_path: Path):
    """The fixture is found by its plugin; each example is a test that passes."""
    (tmp_path / "test_page.py").write_text(examples("docs/howto/testing.md"))
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "inorder.testing.plugin",
            "-p", "no:cacheprovider", str(tmp_path),
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "4 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_the_quick_start_prints_what_it_says():
    """Three steps of one order, in one queue, read back in order."""
    with inorder.testing.broker() as broker:
        code = examples("docs/tutorial/quickstart.md").replace("127.0.0.1:9876", broker.namesrv)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
    lines = done.stdout.splitlines()
    assert len({line.split()[0] for line in lines[:3]}) == 1
    assert lines[3:] == [
        "order-42 0 created", "order-42 1 paid", "order-42 2 shipped", "3",
    ], done.stderr  # fmt: skip
