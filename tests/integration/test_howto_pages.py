"""The page about administration prints what it says. tests/snippets runs all pages."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.cluster import Cluster

pytestmark = pytest.mark.slow

HOWTO = Path(__file__).parents[2] / "docs" / "howto"


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced examples of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", (HOWTO / page).read_text(), re.DOTALL | re.M)


async def run(*words: str, env: dict[str, str]) -> tuple[int | None, str, str]:
    """Run a process beside the cluster; return its exit code and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *words, env={**os.environ, **env}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, errors = await process.communicate()
    return process.returncode, out.decode(), errors.decode()


def test_the_page_about_python() -> None:
    """Its examples print what it says."""
    example, printed = "\n".join(blocks("admin.md", "python")), "".join(blocks("admin.md", "text"))

    async def story() -> tuple[int | None, str, str]:
        async with Cluster() as cluster:
            code = example.replace("127.0.0.1:9876", cluster.namesrv)
            return await run(sys.executable, "-W", "error", "-c", code, env={})

    assert asyncio.run(story()) == (0, printed, "")
