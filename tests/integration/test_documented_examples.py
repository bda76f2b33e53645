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
PAGES = [
    "docs/tutorial/quickstart.md",
    "docs/howto/producing.md",
    "docs/howto/consuming.md",
    "docs/howto/fencing.md",
    "docs/howto/owners.md",
    "docs/howto/parking.md",
    "docs/howto/pulling.md",
    "docs/howto/coming-from-rocketmq.md",
    "docs/howto/coming-from-kafka.md",
]


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
    # asyncio in its development mode also complains of a machine that is busy with something else.
    complaints = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]
    assert (done.returncode, complaints) == (0, [])
    assert done.stdout


@pytest.mark.slow
def test_the_testing_page_runs_in_pytest(tmp_path: Path):
    """The fixture is found by its plugin; each example is a test that passes."""
    text = examples("docs/howto/testing.md")
    (tmp_path / "test_page.py").write_text(text)
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "inorder.testing.plugin",
            "-p", "no:cacheprovider", str(tmp_path),
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    count = len(re.findall(r"^def test_", text, re.MULTILINE))
    assert f"{count} passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_the_page_about_fencing_prints_what_it_says():
    """P7: a database, a file and a service take each message once, however often it is handled."""
    with inorder.testing.broker() as broker:
        code = examples("docs/howto/fencing.md").replace("127.0.0.1:9876", broker.namesrv)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.stdout.splitlines() == [
        "applied 100", "applied -30", "applied 5",
        "known already 100", "known already -30", "known already 5", "(75,)", "[75]",
        *3 * ["called"], *3 * ["the service has it"],
    ], done.stderr  # fmt: skip


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
        "order-42 0 created", "order-42 1 paid", "order-42 2 shipped",
        "ship order-42 created", "ship order-42 paid", "ship order-42 shipped", "3",
    ], done.stderr  # fmt: skip


# Pages whose examples run elsewhere, or are no programs.
ELSEWHERE = {
    "README.md": "test_readme.py, and the house runs its first example",
    "docs/howto/admin.md": "test_howto_pages.py",
    "docs/howto/ordered-processing.md": "tests/spark/test_howto_ordered.py",
    "docs/howto/pipeline-jobs.md": "tests/spark/test_howto_jobs.py",
    "docs/howto/resizing.md": "test_howto_pages.py",
    "docs/howto/spark.md": "needs the extra spark",
    "docs/howto/testing.md": "above, in pytest",
    "docs/reference/api.md": "signatures",
}


def test_no_page_is_forgotten():
    """A page with an example in Python is run somewhere, or says why not."""
    pages = {
        str(path.relative_to(ROOT))
        for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        if BLOCK.search(path.read_text(encoding="utf-8"))
    }
    assert pages == {*PAGES, *ELSEWHERE}
