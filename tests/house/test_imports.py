"""Who may import whom: the contracts of pyproject.toml hold."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "inorder"


def contracts() -> dict[str, Any]:
    """Return the import contracts by name."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {found["name"]: found for found in config["tool"]["importlinter"]["contracts"]}


@pytest.mark.slow
def test_import_contracts_hold() -> None:
    """Upper layers import lower ones only; rules do no I/O; handlers are leaves."""
    # In a process of its own: import-linter switches off the loggers of the process that it is in.
    code = "import sys; from importlinter.cli import lint_imports; "
    code += "sys.exit(lint_imports(no_cache=True, no_logo=True))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_rules_and_records_are_under_contract() -> None:
    """The names of the closed list are what the contract goes by: no list to forget a module in."""
    sources = contracts()["rules and records do no I/O"]["source_modules"]
    assert {"inorder.**.rules", "inorder.**.records"} <= set(sources)
