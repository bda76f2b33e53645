"""Small settings that outlive the name server: namespace -> key -> value, in memory.

RocketMQ keeps order topics here (namespace ORDER_TOPIC_CONFIG); admins may keep what they like.
Pure: `server.py` reads and writes the file, whose text is made here.
"""

from __future__ import annotations

from typing import Any, Final

from inorder.errors import RemoteProtocolError, SystemError_
from inorder.wire import fastjson

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"

ENTRIES_MAX: Final = 100_000
NAMESPACES_MAX: Final = 10_000
"""A namespace stays when its last value is deleted, so they have a limit of their own."""
TEXT_CHARS_MAX: Final = 64 * 1024
TABLE_CHARS_MAX: Final = 16 * 1024 * 1024
"""All names and values together: the whole table is written with every change."""


class KvTable:
    """The values. A namespace stays, empty, when its last key is deleted, as in RocketMQ."""

    def __init__(self) -> None:
        self._spaces: dict[str, dict[str, str]] = {}
        self._count = 0
        self._chars = 0

    def put(self, namespace: str, key: str, value: str) -> None:
        """Keep a value. Raises SystemError_ if it is too long or there are too many."""
        if len(namespace) + len(key) + len(value) > TEXT_CHARS_MAX:
            raise SystemError_(f"namespace, key and value have more than {TEXT_CHARS_MAX} chars")
        old = self.get(namespace, key)
        if old is None and self._count >= ENTRIES_MAX:
            raise SystemError_(f"there are {ENTRIES_MAX} values already; delete some first")
        if namespace not in self._spaces and len(self._spaces) >= NAMESPACES_MAX:
            raise SystemError_(f"there are {NAMESPACES_MAX} namespaces already")
        added = len(value) - len(old) if old is not None else len(key) + len(value)
        if namespace not in self._spaces:
            added += len(namespace)
        if added > 0 and self._chars + added > TABLE_CHARS_MAX:
            raise SystemError_(f"all values together have more than {TABLE_CHARS_MAX} chars")
        self._spaces.setdefault(namespace, {})[key] = value
        self._count += old is None
        self._chars += added

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, if there is one."""
        return self._spaces.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> bool:
        """Forget a value; tell whether there was one."""
        old = self._spaces.get(namespace, {}).pop(key, None)
        if old is None:
            return False
        self._count -= 1
        self._chars -= len(key) + len(old)
        return True

    def namespace(self, name: str) -> dict[str, str] | None:
        """Return a copy of all values of a namespace; None if there never was one."""
        found = self._spaces.get(name)
        return None if found is None else dict(found)

    def encode(self) -> bytes:
        """Return the text of kvConfig.json, as RocketMQ writes it."""
        return fastjson.dumps({"configTable": self._spaces})

    @classmethod
    def decode(cls, text: bytes) -> KvTable:
        """Return the table of a kvConfig.json. Raises RemoteProtocolError if it is not one."""
        table = cls()
        found = fastjson.loads(text, items_max=10 * ENTRIES_MAX)
        spaces = found.get("configTable") if isinstance(found, dict) else None
        if not isinstance(spaces, dict):
            raise RemoteProtocolError("no object with a configTable")
        for namespace, values in spaces.items():
            texts = table._spaces[_text(namespace)] = _texts(values)
            table._count += len(texts)
            table._chars += len(namespace) + sum(map(len, texts)) + sum(map(len, texts.values()))
        return table

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"KvTable(namespaces={len(self._spaces)}, values={len(self)})"


def _texts(values: Any) -> dict[str, str]:
    if not isinstance(values, dict):
        raise RemoteProtocolError("a namespace is not an object")
    return {_text(key): _text(value) for key, value in values.items()}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise RemoteProtocolError(f"{value!r:.50} is not text")
    return value
