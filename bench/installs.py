"""Which inorder is measured: what a plain `pip install .` gives, or this source tree.

A comparison that runs in the tree compares what its developers have: every extra, and a module
compiled on this machine. So the bench makes a fresh environment, installs the tree there as anyone
would, without extras, and starts brokers and clients from it. It is made once for each state of the
sources and kept in `.cache/bench`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from bench import loadgen
from bench.once import once
from bench.process import StartFailed

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "bench"
INSTALL_TIMEOUT_S = 600
_SOURCES = ("src/inorder/**/*.py", "src/inorder/*.pyx", "src/pyspark_inorder/*.py")
_HOW = ("pyproject.toml", "tools/compile_native.py")


@dataclass(frozen=True, slots=True)
class Install:
    """A Python that has inorder, and the folders that it must search as well."""

    name: str
    python: str
    folders: tuple[Path, ...]

    def environment(self) -> dict[str, str]:
        """Return what a process of this installation needs in its environment."""
        return {"PYTHONPATH": os.pathsep.join(map(str, self.folders))}

    def compiled(self) -> str:
        """Return whether its module is compiled, in its own words."""
        said = subprocess.run(
            [self.python, "-c", "from inorder.accelerated import reason; print(reason)"],
            env={**os.environ, **self.environment()},
            cwd=CACHE if CACHE.exists() else ROOT / "bench",
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return said.stdout.strip()


TREE = Install("the source tree", sys.executable, (ROOT / "src", ROOT))
_chosen = [TREE]


def current() -> Install:
    """Return the installation that is measured."""
    return _chosen[-1]


def choose(name: str) -> Install:
    """Measure `tree` or `default` from now on."""
    _chosen[:] = [TREE if name == "tree" else default()]
    return current()


def default() -> Install:
    """Return an environment with nothing but `pip install .`, made if it is not there."""
    home = CACHE / f"install-{_digest()}"
    python = home / "bin" / "python"
    found = Install("pip install .", str(python), (ROOT,))  # bench itself is not installed

    def install() -> None:
        venv.create(home, with_pip=True, clear=True)
        pip_install(python, str(ROOT))
        if loadgen.compiler() is not None and found.compiled() != "yes":
            raise StartFailed(f"pip install . compiled nothing: {found.compiled()}")

    once(home / "complete", install)
    return found


def of_commit(commit: str) -> Install:
    """Return an environment with inorder as it was at a commit, made if it is not there.

    It has the extra `fast`, which older commits need for what is an ordinary dependency now.
    """
    asked = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if asked.returncode != 0:
        raise StartFailed(f"git knows no commit {commit}; give one of `git log`")
    digest = asked.stdout.strip()
    home = CACHE / f"commit-{digest[:16]}"
    python = home / "venv" / "bin" / "python"

    def install() -> None:
        tree = home / "tree"
        tree.mkdir(exist_ok=True)
        packed = home / "tree.tar"
        subprocess.run(["git", "archive", "-o", str(packed), digest], cwd=ROOT, check=True)
        shutil.unpack_archive(packed, tree, filter="data")
        venv.create(home / "venv", with_pip=True, clear=True)
        pip_install(python, f"{tree}[fast]")

    once(home / "complete", install)
    return Install(f"commit {digest[:7]}", str(python), ())


def pip_install(python: Path, *wanted: str) -> None:
    """Install packages into the environment of a Python."""
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    try:
        done = subprocess.run(
            [*pip, *wanted], capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise StartFailed(f"pip took too long to install {' '.join(wanted)}") from error
    if done.returncode != 0:
        raise StartFailed(f"pip could not install {' '.join(wanted)}: {done.stderr[-1000:]}")


def _digest() -> str:
    """Name a state of the sources, and the Python."""
    total = hashlib.sha256(sys.version.encode())
    paths = [ROOT / name for name in _HOW]
    paths += [path for pattern in _SOURCES for path in ROOT.glob(pattern)]
    for path in sorted(paths):
        total.update(str(path.relative_to(ROOT)).encode())
        total.update(path.read_bytes())
    return total.hexdigest()[:16]
