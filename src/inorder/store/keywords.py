"""Which keys a record has: its id and the words of KEYS."""

from __future__ import annotations

from inorder.wire.properties import get


# hot: 0.8 µs
def keys_of(properties: bytes) -> list[bytes]:
    """Return the keys of a record: its id and the words of KEYS."""
    keys = []
    unique = get(properties, b"UNIQ_KEY")
    if unique is not None:
        keys.append(unique)
    words = get(properties, b"KEYS")
    if words is not None:
        keys += [word for word in words.split(b" ") if word] if b" " in words else [words]
    return keys
