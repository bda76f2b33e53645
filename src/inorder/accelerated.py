"""Whether the compiled module is used: it is installed, it is wanted, and it fits this source.

`native.pyx` is compiled at installation where a C compiler is available. Without it the equivalent
Python functions do the work. `INORDER_PURE=1` disables it. What is compiled: decision 37.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Final

from inorder.errors import ConfigError

INTERFACE: Final = 4
"""The value of `native.INTERFACE` that this source expects."""
SWITCH: Final = "INORDER_PURE"


def _load() -> tuple[ModuleType | None, str]:
    """Return the module, or None, and whether it is used."""
    if os.environ.get(SWITCH, "") not in ("", "0"):
        return None, f"no, {SWITCH} is set"
    try:
        found = importlib.import_module("inorder.native")
    except ModuleNotFoundError:
        return None, "no, inorder was installed without a C compiler"
    if found.INTERFACE != INTERFACE:
        raise ConfigError(
            f"{found.__file__} is of another version of inorder ({found.INTERFACE}, not "
            f"{INTERFACE}): install inorder again, or set {SWITCH}=1"
        )
    return found, "yes"


native, reason = _load()
