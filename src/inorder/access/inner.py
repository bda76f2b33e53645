"""The credentials of a server's own requests: a broker's to name servers and to other brokers.

RocketMQ's settings hold them as JSON: `innerClientAuthenticationCredentials` as
`{"accessKey":"…","secretKey":"…"}`, `initAuthenticationUser` as `{"username":"…","password":"…"}`.

A broker gives its users to name servers, also where there is no TLS. Their secrets are encrypted on
the way, with keys derived from these credentials: HMAC-SHA256 in counter mode, and a mark over the
name and what is encrypted. That needs nothing but the standard library.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable
from typing import Final

import msgspec

from inorder.access.records import Seal, Unseal, unplain
from inorder.access.rules import User, check_name, check_secret
from inorder.errors import BrokerError, ConfigError, RemoteProtocolError
from inorder.wire.header import Command
from inorder.wire.signature import AK, SIGNATURE, Keys, content


class _Init(msgspec.Struct):
    username: str
    password: str


class _Inner(msgspec.Struct):
    accessKey: str
    secretKey: str


_LINE_NAME: Final = "innerClientAuthenticationCredentials"
INIT_LINE = 'initAuthenticationUser={"username":"NAME","password":"SECRET"}'
INNER_LINE = 'innerClientAuthenticationCredentials={"accessKey":"NAME","secretKey":"SECRET"}'


def first_user(text: str) -> User | None:
    """Return the super user that a setting asks for; None: it asks for none."""
    if not text.strip():
        return None
    try:
        found = msgspec.json.decode(text, type=_Init)
    except (msgspec.MsgspecError, UnicodeError):
        raise ConfigError(f"initAuthenticationUser cannot be read; write {INIT_LINE}") from None
    return _user("initAuthenticationUser", found.username, found.password)


def inner_user(text: str) -> User | None:
    """Return the credentials among servers; None: there are none."""
    if not text.strip():
        return None
    try:
        found = msgspec.json.decode(text, type=_Inner)
    except (msgspec.MsgspecError, UnicodeError):
        raise ConfigError(
            f"innerClientAuthenticationCredentials cannot be read; write {INNER_LINE}"
        ) from None
    return _user("innerClientAuthenticationCredentials", found.accessKey, found.secretKey)


def _user(setting: str, name: str, secret: str) -> User:
    try:
        check_name(name)
        check_secret(name, secret)
    except BrokerError as error:
        raise ConfigError(f"{setting}: {error.remark}") from None
    return User(name, secret.encode(), is_super=True)


Signer = Callable[[Command], Command]


def signer(text: str) -> Signer:
    """Return the function that signs what a server sends to another one."""
    user = inner_user(text)
    if user is None:
        return lambda command: command
    name, keys = user.name, Keys(user.secret)

    def signed(command: Command) -> Command:
        command.fields.pop(SIGNATURE, None)
        command.fields[AK] = name
        command.fields[SIGNATURE] = keys.sign(content(command.fields, command.body)).decode()
        return command

    return signed


WRAPPED: Final = "wrapped:"
_NONCE_BYTES: Final = 16
_MARK_BYTES: Final = 16
_BLOCK_BYTES: Final = 32


def wrapping(text: str, draw: Callable[[int], bytes]) -> Seal | None:
    """Return how secrets of users are written for another server; None: there are no credentials.

    `draw` gives random bytes.
    """
    user = inner_user(text)
    if user is None:
        return None
    key, marking = _keys(user)

    def wrap(name: str, secret: bytes) -> str:
        nonce = draw(_NONCE_BYTES)
        hidden = _hidden(key, nonce, secret)
        mark = _mark(marking, nonce, name, hidden)
        return WRAPPED + base64.b64encode(nonce + mark + hidden).decode()

    return wrap


def unwrapping(text: str) -> Unseal:
    """Return how secrets of users are read that come from another server."""
    user = inner_user(text)
    if user is None:
        return unplain
    key, marking = _keys(user)

    def unwrap(name: str, found: str) -> bytes:
        if not found.startswith(WRAPPED):
            return unplain(name, found)
        try:
            data = base64.b64decode(found.removeprefix(WRAPPED), validate=True)
        except (binascii.Error, ValueError):
            data = b""
        nonce, rest = data[:_NONCE_BYTES], data[_NONCE_BYTES:]
        mark, hidden = rest[:_MARK_BYTES], rest[_MARK_BYTES:]
        if not hmac.compare_digest(mark, _mark(marking, nonce, name, hidden)):
            raise RemoteProtocolError(
                f"the secret of {name} comes from a server with other {_LINE_NAME}"
            )
        return _hidden(key, nonce, hidden)

    return unwrap


def _keys(user: User) -> tuple[bytes, bytes]:
    base = hmac.digest(user.secret, b"inorder: users on their way to a name server", "sha256")
    return hmac.digest(base, b"encrypt", "sha256"), hmac.digest(base, b"mark", "sha256")


def _hidden(key: bytes, nonce: bytes, text: bytes) -> bytes:
    """Encrypt a text, or decrypt it."""
    blocks = range(-(-len(text) // _BLOCK_BYTES))
    stream = b"".join(hmac.digest(key, nonce + at.to_bytes(4, "big"), "sha256") for at in blocks)
    return bytes(one ^ other for one, other in zip(text, stream, strict=False))


def _mark(key: bytes, nonce: bytes, name: str, hidden: bytes) -> bytes:
    about = name.encode("utf-8", "replace")
    return hmac.digest(key, nonce + len(about).to_bytes(4, "big") + about + hidden, "sha256")[
        :_MARK_BYTES
    ]
