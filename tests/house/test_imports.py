"""Who may import whom: the contracts of pyproject.toml hold, and cover every pure room."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "inorder"

# Rooms that must be pure as soon as they exist; see ARCHITECTURE.md.
PURE = [
    "model.py",
    "wire",
    "ordering",
    "checker",
    "nameserver/rules.py",
    "nameserver/rules.py",
    "spark/source/rules.py",
]


def contracts() -> dict[str, Any]:
    """Return the import contracts by name."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {found["name"]: found for found in config["tool"]["importlinter"]["contracts"]}


@pytest.mark.slow
def test_import_contracts_hold() -> None:
    """Upper floors import lower ones only; pure rooms do no I/O; the store knows no network."""
    # In a process of its own: import-linter switches off the loggers of the process that it is in.
    code = "import sys; from importlinter.cli import lint_imports; "
    code += "sys.exit(lint_imports(no_cache=True, no_logo=True))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_every_pure_room_is_under_contract() -> None:
    """A new state folder or pure module must be listed, or nothing would watch it."""
    rooms = [SOURCE / name for name in PURE] + sorted(SOURCE.glob("*/state"))
    modules = {
        "inorder." + ".".join(room.relative_to(SOURCE).with_suffix("").parts)
        for room in rooms
        if room.is_file() or (room / "__init__.py").exists()
    }
    assert modules == set(contracts()["pure rooms do no I/O"]["source_modules"])
