"""fastjson's `{"$ref":"$.path"}`: an object that stands elsewhere in the same text.

Only flat targets are taken (an attributes map, a list of names): that is what RocketMQ's tables can
share, and no reference can then make a loop or grow without bound.
"""

from __future__ import annotations

import re
from typing import Any, Final

from inorder.errors import RemoteProtocolError

_REFERENCE: Final = "$ref"
_PATH_CHARS_MAX: Final = 1024
_step = re.compile(r"\.((?:\\.|[^.\[\\])+)|\[([0-9]{1,9})\]").match
_escape: Final = re.compile(r"\\(.)")


def resolve(root: Any) -> Any:
    """Replace all references in a value, in place.

    Raises:
        RemoteProtocolError: a reference leads nowhere, or to something that is not flat.
    """
    flat: dict[int, bool] = {}
    waiting = [root] if isinstance(root, (dict, list)) else []
    while waiting:
        outer = waiting.pop()
        items = list(outer.items()) if isinstance(outer, dict) else list(enumerate(outer))
        for key, inner in items:
            if isinstance(inner, dict) and len(inner) == 1 and _REFERENCE in inner:
                target = _follow(root, inner[_REFERENCE])
                if id(target) not in flat:
                    flat[id(target)] = _is_flat(target)
                if not flat[id(target)]:
                    raise RemoteProtocolError(f"unusable JSON reference {inner[_REFERENCE]!r}")
                outer[key] = target
            elif isinstance(inner, (dict, list)):
                waiting.append(inner)
    return root


def _follow(root: Any, path: Any) -> Any:
    if not isinstance(path, str) or path[:1] != "$" or len(path) > _PATH_CHARS_MAX:
        raise RemoteProtocolError(f"unusable JSON reference {str(path)[:64]!r}")
    here, at = root, 1
    while at < len(path):
        step = _step(path, at)
        try:
            if step is None:
                raise KeyError(path)
            name, index = step.groups()
            here = here[int(index)] if name is None else here[_escape.sub(r"\1", name)]
        except (KeyError, IndexError, TypeError):
            raise RemoteProtocolError(f"JSON reference {path!r} leads nowhere") from None
        at = step.end()
    return here


def _is_flat(value: Any) -> bool:
    if isinstance(value, dict):
        return _REFERENCE not in value and not any(
            isinstance(item, (dict, list)) for item in value.values()
        )
    return isinstance(value, list) and not any(isinstance(item, (dict, list)) for item in value)
