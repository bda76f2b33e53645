"""Who a broker is: a random text in its directory, made at the first start, the same ever after.

Name servers tell by it a broker that comes back from another one with its name
(`nameserver/rules.py`). A directory of RocketMQ, or of an older version, gets one when it is
opened.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

import msgspec

from inorder.errors import RemoteProtocolError
from inorder.store.snapshot import Snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from inorder.disk import Files

_BITS: Final = 128
_CHARS_MAX: Final = 64


class _File(msgspec.Struct, frozen=True):
    identity: str


def load_identity(files: Files, path: Path, draw: Random) -> str:
    """Return the identity of a directory; it is on disk when this returns.

    Raises:
        OSError: it cannot be written.
        StoreError: it cannot be read.
    """
    found = ""

    def decode(data: bytes) -> None:
        nonlocal found
        try:
            found = msgspec.json.decode(data, type=_File).identity
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise RemoteProtocolError(f"not the identity of a broker: {error}") from None
        if not 0 < len(found) <= _CHARS_MAX:
            raise RemoteProtocolError("the identity of a broker has 1 to 64 characters")

    file = Snapshot(files, path)
    file.load(decode)
    if not found:
        found = f"{draw.getrandbits(_BITS):032x}"
        file.save(msgspec.json.encode(_File(found)))
    return found
