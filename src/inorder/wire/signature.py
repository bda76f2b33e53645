"""How a request is signed: RocketMQ's signature, and the mark of one connection of ours.

    content    the bytes that RocketMQ's signature covers: the values of the fields, in the order of
               the fields' names, and the body. Code, names and boundaries are not covered
    sign       base64(HMAC-SHA1(secret, content)), which goes into the field `Signature`
    contents   the contents that a server has to try: some clients leave fields out
    bound      what covers the rest: connection, counter, code, names and lengths

Clients of inorder send `bound` beside RocketMQ's signature to servers that gave the connection a
session. A captured request then is of no use on another connection, a second time, or with another
code.
"""

from __future__ import annotations

import hmac
import struct
from binascii import b2a_base64
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from inorder.wire.extensions import BOUND

AK: Final = "AccessKey"
SIGNATURE: Final = "Signature"
TOKEN: Final = "SecurityToken"  # noqa: S105 - a name

UNSHOWN: Final = frozenset((SIGNATURE, TOKEN, BOUND))
"""Fields that no log shows: who has them may guess at the secret."""

Content = tuple[bytes, bytes | memoryview]
"""The values of the fields, and the body."""

_UNIQUE_KEY: Final = "_UNIQUE_KEY_QUERY"
_ZONE: Final = ("__ZONE_NAME", "__ZONE_MODE")
_NULL: Final = b"null"

# Java clients up to 4.9.3 do not sign the mark of a query by unique key. 5.x clients add the zone
# after signing. Go clients do not sign the token.
_LEFT_OUT: Final = ((_UNIQUE_KEY,), _ZONE, (TOKEN,))

_NUMBERS: Final = struct.Struct(">QiQHI")


def content(
    fields: Mapping[str, str], body: bytes | memoryview, *, without: Collection[str] = ()
) -> Content:
    """Return what RocketMQ's signature covers; it never covers `Signature` itself."""
    # hot: 1.5 us for the 14 fields of a send.
    values = [fields[name] for name in sorted(fields) if name != SIGNATURE and name not in without]
    return "".join(values).encode("utf-8", "replace"), body


def contents(fields: Mapping[str, str], body: bytes | memoryview) -> Iterator[Content]:
    """Yield the contents that may have been signed, the usual one first."""
    yield content(fields, body)
    for names in _LEFT_OUT:
        if any(name in fields for name in names):
            yield content(fields, body, without=names)
    if not all(fields.values()):
        # A Java client writes an absent value as four letters, and the header then has none.
        yield (
            b"".join(
                fields[name].encode("utf-8", "replace") or _NULL
                for name in sorted(fields)
                if name != SIGNATURE
            ),
            body,
        )


def sign(secret: bytes, parts: Iterable[bytes | memoryview]) -> str:
    """Return RocketMQ's signature of a content."""
    # hot: 2 us for a send of 256 B.
    return b2a_base64(hmac.digest(secret, b"".join(parts), "sha1"), newline=False).decode()


def bound(  # noqa: PLR0917 - what is covered, in its order
    secret: bytes,
    session: str,
    counter: int,
    code: int,
    fields: Mapping[str, str],
    body_length: int,
) -> str:
    """Return the mark of a request on one connection, in hex.

    Covered are the counter (u64), the code (i32), the length of the body (u64), the length of the
    session (u16), the number of the fields (u32), the lengths of their names and then of their
    values in characters (u32 each), then the session, the names and the values, as UTF-8 and in
    the order of the names. `Signature` and the mark itself are not covered.
    """
    # hot: 4 us for the 16 fields of a send.
    names = sorted(fields)
    if SIGNATURE in fields:
        names.remove(SIGNATURE)
    if BOUND in fields:
        names.remove(BOUND)
    values = [fields[name] for name in names]
    count = len(names)
    lengths = struct.pack(f">{2 * count}I", *map(len, names), *map(len, values))
    numbers = _NUMBERS.pack(counter, code, body_length, len(session), count)
    texts = f"{session}{''.join(names)}{''.join(values)}".encode("utf-8", "replace")
    return hmac.digest(secret, b"".join((numbers, lengths, texts)), "sha256").hex()
