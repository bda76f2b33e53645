"""Compiles `src/inorder/native.pyx` when inorder is built; without a C compiler inorder stays pure.

Hatchling calls the hook for every wheel. For the editable one of `make setup` the module is put
beside its source. A failure is reported in one line and is no error: inorder works without the
module. With `INORDER_COMPILED=1`, as for wheels that are given away (`make wheel`), it is an error.
A wheel is tagged for its platform only if it holds a module.

    python tools/compile_native.py [OPTION ...]     beside its source, with options for the compiler
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src/inorder/native.pyx")
FLAGS = ("-O3", "-fPIC", "-fwrapv", "-fno-strict-aliasing", "-DNDEBUG", "-w")
SECONDS_MAX = 600


class NotCompiled(Exception):
    """Why there is no compiled module."""


class CustomBuildHook(BuildHookInterface[Any]):
    """What hatchling calls."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the module into the wheel that is being built."""
        if self.target_name != "wheel":
            return
        source = Path(self.root) / SOURCE
        folder = source.parent if version == "editable" else Path(tempfile.mkdtemp())
        try:
            made = compile_native(source, folder)
        except NotCompiled as reason:
            if _is_set("INORDER_COMPILED"):
                self.app.abort(f"there is no compiled module: {reason}")
            for stale in source.parent.glob("native.*.so") if version == "editable" else ():
                stale.unlink()
            self.app.display_warning(f"inorder stays pure Python: {reason}")
            return
        self.app.display_info(f"inorder is compiled: {made.name}")
        if version != "editable":
            build_data["force_include"][str(made)] = f"inorder/{made.name}"
            build_data["pure_python"] = False
            build_data["infer_tag"] = True


def compile_native(source: Path, folder: Path, *options: str) -> Path:
    """Return the compiled module, put into a folder. Raises NotCompiled."""
    if _is_set("INORDER_PURE"):
        raise NotCompiled("INORDER_PURE is set")
    if os.name != "posix":
        raise NotCompiled(f"not tried on {sys.platform}")
    if importlib.util.find_spec("Cython") is None:
        raise NotCompiled("Cython is not installed")
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        raise NotCompiled(f"{headers} has no Python.h (Debian: apt-get install python3-dev)")
    compiler = _compiler()
    made = folder / f"native{sysconfig.get_config_var('EXT_SUFFIX')}"
    with tempfile.TemporaryDirectory() as scratch:
        text = Path(scratch) / "native.c"
        draft = Path(scratch) / made.name
        _run("Cython", [sys.executable, "-m", "cython", "-3", str(source), "-o", str(text)])
        shared = ["-bundle", "-undefined", "dynamic_lookup"] if _is_mac() else ["-shared"]
        given = " ".join(os.environ.get(name, "") for name in ("ARCHFLAGS", "CFLAGS"))
        more = [*options, *shlex.split(given)]
        _run(
            compiler[0],
            [*compiler, *FLAGS, *more, *shared, f"-I{headers}", str(text), "-o", str(draft)],
        )
        if not options:
            code = "import sys; sys.path.insert(0, sys.argv[1]); import native"
            _run("the compiled module", [sys.executable, "-c", code, scratch])
        # In one step: whoever uses the old one keeps it.
        shutil.copy(draft, made.with_suffix(".new"))
        made.with_suffix(".new").replace(made)
    return made


def _compiler() -> list[str]:
    """Return the compiler that is there: the user's, Python's own, or just cc."""
    given = os.environ.get("CC")
    for words in [given] if given else [sysconfig.get_config_var("CC"), "cc", "gcc", "clang"]:
        found = shlex.split(words or "")
        if found and shutil.which(found[0]) is not None:
            return found
    raise NotCompiled(f"no C compiler is there{f' by the name of {given}' if given else ''}")


def _is_set(switch: str) -> bool:
    return os.environ.get(switch, "") not in ("", "0")


def _is_mac() -> bool:
    return sys.platform == "darwin"


def _run(what: str, command: list[str]) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - the compiler that the user chose
            command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotCompiled(f"{what} failed: {error}") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise NotCompiled(
            f"{what} failed ({done.returncode}){': ' + said[-1][:300] if said else ''}"
        )


if __name__ == "__main__":
    root = Path(__file__).parents[1]
    try:
        print(compile_native(root / SOURCE, root / SOURCE.parent, *sys.argv[1:]))
    except NotCompiled as reason:
        sys.exit(f"inorder stays pure Python: {reason}")
