"""Plants a bug: a module of ours is read with one place of its text replaced.

`INORDER_MUTANT=name` (or `plant(name)`) before the first import of `inorder`. A place that is not
there exactly once is an error: whoever changes the code changes the list of mutants with it. As a
plugin of pytest: `python -m pytest -p tests.mutants.planting ...`.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from tests.mutants.mutants import BY_NAME, Mutant

SOURCE = Path(__file__).parents[2] / "src"


class NotPlanted(Exception):
    """The text that a mutant replaces is not in its module, or more than once."""


def path_of(module: str) -> Path:
    """Return where the text of a module is."""
    path = SOURCE / Path(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def mutated(mutant: Mutant) -> str:
    """Return the text of the module with the bug."""
    text = path_of(mutant.module).read_text()
    count = text.count(mutant.before)
    if count != 1:
        raise NotPlanted(f"{mutant.name}: its text is {count} times in {mutant.module}")
    return text.replace(mutant.before, mutant.after)


class Planter(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module, and gives it the changed text."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._text = mutated(mutant)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Answer for that module alone."""
        if name != self._mutant.module:
            return None
        return importlib.util.spec_from_loader(name, self, origin=str(path_of(name)))

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed text."""
        exec(compile(self._text, str(path_of(self._mutant.module)), "exec"), module.__dict__)


def plant(name: str) -> None:
    """Plant a bug by name."""
    mutant = BY_NAME[name]
    if mutant.module in sys.modules:
        raise NotPlanted(f"{mutant.module} is loaded already")
    sys.meta_path.insert(0, Planter(mutant))


if os.environ.get("INORDER_MUTANT"):
    plant(os.environ["INORDER_MUTANT"])
