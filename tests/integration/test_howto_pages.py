"""What the how-to pages show is what happens: their examples run as they are."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from inorder.testing.cluster import Cluster

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


def test_the_page_about_the_shell(tmp_path: Path) -> None:
    """Its commands, one after the other, all succeed and say nothing on stderr."""
    command = tmp_path / "inorder"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m inorder.cli.main "$@"\n')
    command.chmod(0o755)
    script = "\n".join(["set -e -o pipefail", *blocks("command-line.md", "bash")])

    async def story() -> tuple[int | None, str, str]:
        async with Cluster() as cluster:
            path = f"{tmp_path}:{os.environ['PATH']}"
            env = {"PATH": path, "INORDER_NAMESRV": cluster.namesrv}
            return await run("bash", "-c", script, env=env)

    code, out, errors = asyncio.run(story())
    assert (code, errors) == (0, "")
    assert "created\npaid\n" in out
    assert out.endswith("group billing deleted\ntopic orders deleted\n")


def test_the_page_about_resizing(tmp_path: Path) -> None:
    """Its example runs, and its command says what it says."""
    example = blocks("resizing.md", "python")[0]
    command, printed = blocks("resizing.md", "console")[0].removeprefix("$ inorder ").split("\n", 1)

    async def story() -> None:
        async with Cluster() as cluster:
            env = {"NAMESRV_ADDR": cluster.namesrv}
            assert await run(sys.executable, "-W", "error", "-c", example, env=env) == (0, "", "")
        async with Cluster() as cluster:
            env = {"NAMESRV_ADDR": cluster.namesrv}
            inorder = (sys.executable, "-m", "inorder.cli.main")
            await run(*inorder, "topic", "create", "orders", "--queues", "4", env=env)
            assert await run(*inorder, *command.split(), env=env) == (0, printed, "")

    asyncio.run(story())


def test_the_page_about_python() -> None:
    """Its examples print what it says."""
    example, printed = "\n".join(blocks("admin.md", "python")), "".join(blocks("admin.md", "text"))

    async def story() -> tuple[int | None, str, str]:
        async with Cluster() as cluster:
            code = example.replace("127.0.0.1:9876", cluster.namesrv)
            return await run(sys.executable, "-W", "error", "-c", code, env={})

    assert asyncio.run(story()) == (0, printed, "")
