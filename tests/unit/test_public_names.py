"""`import inorder`: light, lazy, complete."""

from __future__ import annotations

import subprocess
import sys

import pytest

import inorder


def test_every_public_name_is_there() -> None:
    """What __all__ lists can be had, and dir() lists it."""
    for name in inorder.__all__:
        assert getattr(inorder, name) is not None
    assert set(dir(inorder)) == set(inorder.__all__)


def test_unknown_names_are_attribute_errors() -> None:
    """A typo fails as for any module."""
    with pytest.raises(AttributeError, match="Prodcer"):
        _ = inorder.Prodcer  # type: ignore[attr-defined]


def test_import_loads_nothing_else() -> None:
    """The package and the parser of the command line load neither broker nor asyncio."""
    code = (
        "import sys, inorder, inorder.cli.main, inorder.cli.contents;"
        "print([m for m in sys.modules if m in ('asyncio', 'rich', 'inorder.broker', 'numpy')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
