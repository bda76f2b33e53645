"""A page as data: what it shows, as values that JSON has. Pure.

Times are milliseconds since 1970, as everywhere. Numbers are not rounded and texts are not cut,
except bodies: of them there is as much as the page shows, as `text` or as `base64`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any, Final

BODY_BYTES_MAX: Final = 64 * 1024
ROW_BYTES_MAX: Final = 100
"""Of a body in a list."""
ENDING: Final = ".json"
FIRST: Final = "overview"


def plain(value: Any) -> Any:
    """Return a value as JSON has it. Raises TypeError for a kind that no page shows."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return _body(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return {
            one.name: plain(getattr(value, one.name))
            for one in fields(value)
            if one.repr and not one.name.startswith("_")
        }
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    raise TypeError(f"a page holds {type(value).__name__}")


def head(body: bytes, size: int) -> bytes:
    """Return the beginning of a body; it ends between characters of UTF-8."""
    if len(body) <= size:
        return body
    end = size
    while end > max(0, size - 4) and body[end] & 0xC0 == 0x80:
        end -= 1
    return body[:end]


def _body(body: bytes) -> dict[str, str]:
    part = head(body, BODY_BYTES_MAX)
    try:
        return {"text": part.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(part).decode()}


def page_parts(parts: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the page that `/topics/orders.json` means; None: that is no path of data.

    Names of topics and groups have no full stop, so no page is called so.
    """
    if not parts or not parts[-1].endswith(ENDING):
        return None
    last = parts[-1].removesuffix(ENDING)
    if len(parts) == 1 and last == FIRST:
        return ()
    return (*parts[:-1], last) if last else None


def path_of(at: str) -> str:
    """Return the path at which the page of a path is as data."""
    where, mark, query = at.partition("?")
    return f"{where if where != '/' else f'/{FIRST}'}{ENDING}{mark}{query}"
