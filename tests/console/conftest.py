"""Chromium, a cluster with its console in processes of their own, and a shop at work.

Chromium and its driver are Debian's (`chromium`, `chromium-driver`), selenium is in
requirements/console.txt. Without them the tests are skipped, with the reason.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "build" / "console"
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--window-size=1280,900", "--force-color-profile=srgb",
)  # fmt: skip
PATH = "/usr/bin:/bin"


@dataclass
class Place:
    """The running processes."""

    url: str
    enter: str
    namesrv: str
    pid: int
    """The process of the console."""
    shop: subprocess.Popen[str]

    def tell_shop(self, word: str) -> None:
        """Give the shop an order, and wait until it has heard."""
        assert self.shop.stdin is not None
        assert self.shop.stdout is not None
        self.shop.stdin.write(f"{word}\n")
        self.shop.stdin.flush()
        assert self.shop.stdout.readline().strip() == word


def started(words: list[str], **more: Any) -> subprocess.Popen[str]:
    """Start a program of ours."""
    return subprocess.Popen(
        [sys.executable, "-P", *words], cwd=ROOT, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": PATH},
        **more,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> None:
    """End a program cleanly, or kill it."""
    if process.stdin is not None:
        process.stdin.close()
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the path of Chromium."""
    pytest.importorskip("selenium", reason="pip install -r requirements/console.txt")
    path = shutil.which("chromium")
    if path is None or shutil.which("chromedriver") is None:
        pytest.skip("Chromium is not installed: apt-get install chromium chromium-driver")
    return path


@pytest.fixture(scope="session")
def place(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Run a cluster, its console and the shop."""
    data = tmp_path_factory.mktemp("data")
    up = started(
        ["-m", "inorder.cli.main", "up", "--namesrv-port", "0", "--broker-port", "0",
         "--data", str(data), "--set", "traceTopicEnable=true", "--set", "remote_config=true",
         "-o", "json",
         "--log-level", "error"],
    )  # fmt: skip
    console = shop = None
    try:
        assert up.stdout is not None
        namesrv = json.loads(up.stdout.readline())["namesrv"]
        console = started(
            ["-m", "inorder.cli.main", "console", "--namesrv", namesrv, "--port", "0", "-o", "json"]
        )
        assert console.stdout is not None
        ready = json.loads(console.stdout.readline())
        shop = started(["-m", "tests.console.shop", namesrv])
        assert shop.stdout is not None
        assert shop.stdout.readline().strip() == "filled"
        yield Place(ready["console"], ready["enter"], namesrv, console.pid, shop)
    finally:
        for process in (shop, console, up):
            if process is not None:
                ended(process)


def driver(chromium: str, *, dark: bool = False) -> Any:
    """Start Chromium."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    found.set_page_load_timeout(30)
    scheme = "dark" if dark else "light"
    found.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    return found
