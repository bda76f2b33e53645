"""The header classes of `inorder.wire.requests`: requests and replies, without their bodies."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType


def headers_of(modules: Iterable[ModuleType]) -> list[type]:
    """Return each class that stands for the fields of a request (it has a CODE) or of a reply."""
    return [
        cls
        for module in modules
        for name, cls in vars(module).items()
        if isinstance(cls, type) and cls.__module__ == module.__name__
        if hasattr(cls, "CODE") or name.endswith("Reply")
    ]
