"""Plants a bug: a module of ours is read with one place of its text replaced.

`INORDER_MUTANT=name` (or `plant(name)`) before the first import of `inorder`. A place that is not
there exactly once is an error: whoever changes the code changes the list of mutants with it. As a
plugin of pytest: `python -m pytest -p tests.mutants.planting ...`. The compiled module is compiled
anew, into a directory of its own.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from tests.mutants.mutants import BY_NAME, Mutant
from tools.compile_native import compile_native

SOURCE = Path(__file__).parents[2] / "src"
NATIVE = "inorder.native"


class NotPlanted(Exception):
    """The text that a mutant replaces is not in its module, or more than once."""


def path_of(module: str) -> Path:
    """Return where the text of a module is."""
    path = SOURCE / Path(*module.split("."))
    if module == NATIVE:
        return path.with_suffix(".pyx")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def mutated(mutant: Mutant) -> str:
    """Return the text of the module with the bug."""
    text = path_of(mutant.module).read_text()
    count = text.count(mutant.before)
    if count != 1:
        raise NotPlanted(f"{mutant.name}: its text is {count} times in {mutant.module}")
    return text.replace(mutant.before, mutant.after)


def compiled(text: str) -> Path:
    """Compile a text of the compiled module; return the file, which goes with this process."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source = folder / "native.pyx"
    source.write_text(text)
    return compile_native(source, folder, "-O1")


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
        if name == NATIVE:
            return importlib.util.spec_from_file_location(name, compiled(self._text))
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
