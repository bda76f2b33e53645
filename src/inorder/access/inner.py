"""The credentials of a server's own requests: a broker's to name servers and to other brokers.

RocketMQ's settings hold them as JSON: `innerClientAuthenticationCredentials` as
`{"accessKey":"…","secretKey":"…"}`, `initAuthenticationUser` as `{"username":"…","password":"…"}`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from inorder.access.rules import User, check_name, check_secret
from inorder.errors import BrokerError, ConfigError
from inorder.wire.header import Command
from inorder.wire.signature import AK, SIGNATURE, content, sign


class _Init(msgspec.Struct):
    username: str
    password: str


class _Inner(msgspec.Struct):
    accessKey: str
    secretKey: str


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
    name, secret = user.name, user.secret

    def signed(command: Command) -> Command:
        command.fields.pop(SIGNATURE, None)
        command.fields[AK] = name
        command.fields[SIGNATURE] = sign(secret, content(command.fields, command.body))
        return command

    return signed
