"""Examples print what their pages say. That all of them run is shown by tests/snippets."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import inorder.testing

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def examples(page: str) -> str:
    """Return all examples of a page, one after the other."""
    found = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    assert found, page
    return "\n\n".join(found)


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
