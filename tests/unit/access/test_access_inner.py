"""Secrets of users on their way from a broker to a name server."""

from __future__ import annotations

import base64
import os

import pytest

from inorder.access.inner import WRAPPED, unwrapping, wrapping
from inorder.errors import RemoteProtocolError

LINE = '{"accessKey":"server","secretKey":"a-long-inner-secret"}'
OTHER = '{"accessKey":"server","secretKey":"another-inner-secret"}'


@pytest.mark.parametrize("secret", [b"x", b"a-secret-of-alice", b"\x00\xff" * 100, "ä€".encode()])
def test_a_secret_comes_back(secret: bytes) -> None:
    """Any bytes of any length, and never twice in the same form."""
    wrap, unwrap = wrapping(LINE, os.urandom), unwrapping(LINE)
    assert wrap is not None
    one, two = wrap("alice", secret), wrap("alice", secret)
    assert one != two
    assert one.startswith(WRAPPED)
    assert secret not in base64.b64decode(one.removeprefix(WRAPPED)) or len(secret) == 1
    assert unwrap("alice", one) == unwrap("alice", two) == secret


def test_a_changed_or_foreign_secret_is_refused() -> None:
    """One bit, another user's name, other credentials, a piece, nothing."""
    wrap, unwrap = wrapping(LINE, os.urandom), unwrapping(LINE)
    assert wrap is not None
    text = wrap("alice", b"a-secret-of-alice")
    data = bytearray(base64.b64decode(text.removeprefix(WRAPPED)))
    for at in range(len(data)):
        changed = data.copy()
        changed[at] ^= 1
        with pytest.raises(RemoteProtocolError):
            unwrap("alice", WRAPPED + base64.b64encode(changed).decode())
    for name, found, other in (
        ("bob", text, unwrap), ("alice", text, unwrapping(OTHER)), ("alice", text[:30], unwrap),
        ("alice", WRAPPED, unwrap), ("alice", WRAPPED + "!", unwrap),
    ):  # fmt: skip
        with pytest.raises(RemoteProtocolError, match="innerClientAuthenticationCredentials"):
            other(name, found)


def test_without_credentials_nothing_is_sent() -> None:
    """A broker without them has no way to give users away."""
    assert wrapping("", os.urandom) is None
