"""A Java for Spark: which one is taken, and what the wrapper does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from inorder.errors import ConfigError
from inorder.spark.sessions import java_home, with_retries, wrapped


def fake_java(home: Path, version: str, modules: str = "java.base@21") -> Path:
    """Make a `java` that says a version and repeats its arguments."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        f'case "$1" in -version) echo \'openjdk version "{version}"\' >&2;; '
        f'--list-modules) echo \'{modules}\';; *) for a in "$@"; do echo "<$a>"; done;; esac\n'
    )
    java.chmod(0o755)
    return home


def test_the_wrapper_drops_one_argument(tmp_path: Path) -> None:
    """All others arrive as they are, spaces and quotes too."""
    home = wrapped(fake_java(tmp_path / "it's java" / "jre", "21"), tmp_path / "cache")
    words = ["-x", "--add-modules=jdk.incubator.vector", "a b", "", "it's", '"']
    done = subprocess.run(
        [str(home / "bin" / "java"), *words], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["<-x>", "<a b>", "<>", "<it's>", '<">']


def test_the_wrapper_is_made_once(tmp_path: Path) -> None:
    """A second call finds it; nothing else is left in the cache."""
    home = fake_java(tmp_path / "jre", "21")
    first = wrapped(home, tmp_path / "cache")
    assert wrapped(home, tmp_path / "cache") == first
    assert os.listdir(tmp_path / "cache") == [first.name]


def test_java_home_goes_first(tmp_path: Path) -> None:
    """The user's own Java is used, if it will do."""
    home = fake_java(tmp_path / "own", "17.0.2")
    assert java_home({"JAVA_HOME": str(home), "PATH": ""}) == home


@pytest.mark.parametrize(("version", "says"), [("11.0.1", "it is Java 11"), ("x", "its version")])
def test_a_java_that_will_not_do_is_named(tmp_path: Path, version: str, says: str) -> None:
    """A JAVA_HOME that is too old is an error with the way out, not a crash of the JVM."""
    home = fake_java(tmp_path / "old", version)
    with pytest.raises(ConfigError, match=says):
        java_home({"JAVA_HOME": str(home)})


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    """It is said what is missing."""
    with pytest.raises(ConfigError, match="there is no"):
        java_home({"JAVA_HOME": str(tmp_path)})


def test_the_java_of_the_search_path_needs_the_module(tmp_path: Path) -> None:
    """With the module that Spark asks for nothing has to be set."""
    home = fake_java(tmp_path / "jdk", "21", "jdk.incubator.vector@21")
    assert java_home({"PATH": str(home / "bin")}) is None


@pytest.mark.parametrize(
    ("given", "used"),
    [("local", "local[1,4]"), ("local[2]", "local[2,4]"), ("local[*]", "local[*,4]"),
     ("local[2,1]", "local[2,1]"), ("spark://h:7077", "spark://h:7077")],
)  # fmt: skip
def test_a_local_master_retries_tasks(given: str, used: str) -> None:
    """Plain `local[2]` never repeats a failed task."""
    assert with_retries(given) == used


def test_the_public_names_are_what_they_say() -> None:
    """`from inorder.spark import session` gives a function, not a module of that name."""
    import importlib

    import inorder.spark
    import inorder.spark.jobs

    for package in (inorder.spark, inorder.spark.jobs):
        for name in package.__all__:
            module = f"{package.__name__}.{name}"
            assert importlib.util.find_spec(module) is None, f"{module} would hide {name}"
