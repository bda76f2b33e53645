"""The log settings of a server process: JSON lines, and the level of a logger."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_server_logs_json_lines(tmp_path: Path) -> None:
    """Each line on stderr is an object; the admin port is named in one of them."""
    words = ["nameserver", "--port", "0", "--data", str(tmp_path), "--set", "log_format=json",
             "--set", "admin_port=0", "--set", "log_levels=inorder.nameserver=error"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "inorder.cli.main", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready ")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    lines = [json.loads(line) for line in errors.splitlines()]
    assert lines
    assert all({"ts", "level", "logger", "event"} <= set(line) for line in lines)
    assert any("admin port of" in line["event"] for line in lines)
    assert not [line for line in lines if line["logger"] == "inorder.nameserver.server"]
