"""Whether the compiled module is used: it is installed, it is wanted, and it fits this source.

Wheels hold the module. Where there is no wheel it is compiled at installation, if a C compiler is
available. Without it the equivalent Python functions do the work; servers and clients say so when
they start. `INORDER_PURE=1` disables it. What is compiled: decision 37.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from types import ModuleType
from typing import Final

from inorder.errors import ConfigError

INTERFACE: Final = 7
"""The value of `native.INTERFACE` that this source expects."""
SWITCH: Final = "INORDER_PURE"
_PACKAGES: Final = {"uvloop": "asyncio's own loop", "isal": "the checksums of zlib"}
"""Ordinary dependencies that some platforms lack, and what is used there instead."""


def _load() -> tuple[ModuleType | None, str]:
    """Return the module, or None, and whether it is used."""
    if os.environ.get(SWITCH, "") not in ("", "0"):
        return None, f"no, {SWITCH} is set"
    try:
        found = importlib.import_module("inorder.native")
    except ModuleNotFoundError:
        return None, "no, this install has none: it is no wheel, and there was no C compiler"
    if found.INTERFACE != INTERFACE:
        raise ConfigError(
            f"{found.__file__} is of another version of inorder ({found.INTERFACE}, not "
            f"{INTERFACE}): install inorder again, or set {SWITCH}=1"
        )
    return found, "yes"


native, reason = _load()


def slower_parts() -> str:
    """Return what is slower here than in an install from a wheel, for a log line; "" if nothing."""
    parts = [f"pure Python instead of the compiled module ({reason[4:]})"] if native is None else []
    parts += [
        f"{instead} ({name} is not installed)"
        for name, instead in _PACKAGES.items()
        if importlib.util.find_spec(name) is None
    ]
    return "; ".join(parts)
