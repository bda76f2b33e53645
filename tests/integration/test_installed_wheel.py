"""A wheel in a new environment where no compiler is on the PATH: compiled, and everything works.

`make wheel` gives the wheel in INORDER_WHEEL, and its dependencies come from the package index.
Without that variable a wheel is built, and the dependencies are those of this environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WHEEL = os.environ.get("INORDER_WHEEL", "")
COMPILERS = ("cc", "gcc", "clang", "c++", "g++", "nasm")
BUILDABLE = (
    shutil.which("cc") is not None and (Path(sysconfig.get_path("include")) / "Python.h").exists()
)
TIMEOUT_S = 300

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="the servers need POSIX"),
]


def build(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build a wheel of this tree."""
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT, env={**os.environ, "INORDER_PURE": "0", **environment},
        capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip


def install(wheel: Path, folder: Path) -> tuple[Path, dict[str, str]]:
    """Install a wheel into a new environment; return its Python, and variables without compilers.

    Nothing may be built from source: a wheel, and wheels of the dependencies.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("CC", "INORDER_PURE", "PYTHONPATH", "VIRTUAL_ENV")
    }
    environment["PATH"] = str(folder / "bin")
    assert [name for name in COMPILERS if shutil.which(name, path=environment["PATH"])] == []
    words = ["--only-binary=:all:"] if WHEEL else ["--no-index", "--no-deps"]
    subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python),
         "install", "-q", *words, str(wheel)],
        env=environment, check=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    if not WHEEL:  # the folder alone: the path file of the editable inorder in it does not count
        (there,) = folder.glob("lib/python*/site-packages")
        (there / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return python, environment


def tried(python: Path, environment: dict[str, str], *words: str) -> str:
    """Return what tools/try_install.py says in that environment."""
    done = subprocess.run(
        [str(python), str(ROOT / "tools" / "try_install.py"), *words],
        cwd=python.parent, env=environment, capture_output=True, text=True, check=False,
        timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(not WHEEL and not BUILDABLE, reason="there is no C compiler or Python.h")
def test_a_wheel_is_compiled_where_no_compiler_is(tmp_path: Path) -> None:
    """Compiled module, uvloop and isal without an extra; servers start, messages go through."""
    wheel = Path(WHEEL)
    if not WHEEL:
        done = build(tmp_path, INORDER_COMPILED="1", CFLAGS="-O0")
        assert done.returncode == 0, done.stderr
        (wheel,) = tmp_path.glob("*.whl")
    python, environment = install(wheel, tmp_path / "new")
    assert tried(python, environment).endswith("compiled: yes\n")


def test_an_install_without_the_module_says_so_at_its_start(tmp_path: Path) -> None:
    """A platform without a wheel and without a compiler: the same results, and one log line."""
    done = build(tmp_path, CC="/bin/false")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*-none-any.whl")
    python, environment = install(wheel, tmp_path / "new")
    assert "compiled: no, this install has none" in tried(python, environment, "--pure")


def test_a_wheel_that_must_be_compiled_is_not_built_without(tmp_path: Path) -> None:
    """INORDER_COMPILED=1: nobody gives a pure wheel away by mistake."""
    done = build(tmp_path, CC="/bin/false", INORDER_COMPILED="1")
    assert done.returncode != 0
    assert "there is no compiled module: /bin/false failed" in done.stdout + done.stderr
    assert list(tmp_path.glob("*.whl")) == []
