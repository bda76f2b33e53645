"""Whether the compiled module is used: it is there, it is wanted, and it fits this source.

`native.pyx` is compiled when inorder is installed where a C compiler is; everything works without
it, by the functions that it is the twin of. `INORDER_PURE=1` leaves it out.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Final

from inorder.errors import ConfigError

INTERFACE: Final = 3
"""What this source expects of the module: `native.INTERFACE`."""
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
