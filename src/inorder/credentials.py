"""Who a client is: an access key and a secret, from an argument, the environment, or a file.

    environment   INORDER_ACCESS_KEY and INORDER_SECRET_KEY (INORDER_SECURITY_TOKEN), or
                  INORDER_CREDENTIALS_FILE with the path of a file
    file          lines `access_key = name`, `secret_key = secret`. RocketMQ's spellings count, too
                  (`accessKey: name`), so its `tools.yml` and its key files are read as they are.
                  Nobody but its owner may read it

A secret is never shown: not by `repr`, not in an error, not in a log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inorder.errors import ConfigError, UsageError

ACCESS_KEY: Final = "INORDER_ACCESS_KEY"
SECRET_KEY: Final = "INORDER_SECRET_KEY"  # noqa: S105 - the name of a variable
SECURITY_TOKEN: Final = "INORDER_SECURITY_TOKEN"  # noqa: S105 - the same
FILE: Final = "INORDER_CREDENTIALS_FILE"

FILE_BYTES_MAX: Final = 64 * 1024

_LINE: Final = re.compile(r"\s*([A-Za-z_]+)\s*[=:]\s*(.*?)\s*")
_NAMES: Final = {
    "accesskey": "access_key",
    "secretkey": "secret_key",
    "securitytoken": "security_token",
}
_OTHERS: Final = 0o077
_QUOTES: Final = "\"'"


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """The access key (a user's name), the secret, and a token of a cloud provider, if need be."""

    access_key: str
    secret_key: str
    security_token: str | None = None

    def __post_init__(self) -> None:
        # An empty key or secret signs, too, and anybody can compute that signature.
        for name in ("access_key", "secret_key"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise UsageError(f"Credentials: {name} must be a text that is not empty")

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r})"

    @classmethod
    def from_file(cls, path: str | Path) -> Credentials:
        """Read a file that only its owner may read. Raises ConfigError."""
        return _parse(Path(path), read_private(Path(path)))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Credentials | None:
        """Return what the variables say; None if there are none. Raises ConfigError."""
        access_key, secret_key = environment.get(ACCESS_KEY), environment.get(SECRET_KEY)
        file = environment.get(FILE)
        if file and (access_key or secret_key):
            raise ConfigError(f"{FILE} and {ACCESS_KEY} are both set; unset one")
        if file:
            return cls.from_file(file)
        if not access_key and not secret_key:
            return None
        if not access_key or not secret_key:
            missing = SECRET_KEY if access_key else ACCESS_KEY
            raise ConfigError(f"{missing} is not set; a client needs both keys, or none")
        return cls(access_key, secret_key, environment.get(SECURITY_TOKEN) or None)


def read_private(path: Path) -> str:
    """Return the text of a file with secrets. Raises ConfigError if others may read it."""
    try:
        with path.open("rb") as file:
            require_private(path)
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ConfigError(f"{path} is larger than {FILE_BYTES_MAX} bytes; is it the file?")
        return data.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"credentials: {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"credentials: {path} is no text in UTF-8") from None


def require_private(path: Path) -> None:
    """Refuse a file with secrets that others than its owner may use. Raises ConfigError."""
    mode = path.stat().st_mode
    if mode & _OTHERS:
        raise ConfigError(
            f"{path} holds a secret, and others than its owner may use it (mode {mode & 0o777:o}); "
            f"run `chmod 600 {path}`"
        )


def _parse(path: Path, text: str) -> Credentials:
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith(("#", "---")):
            continue
        match = _LINE.fullmatch(line)
        name = match and _NAMES.get(match[1].lower().replace("_", ""))
        if match is None or name is None or name in found:  # the line may hold a secret
            raise ConfigError(
                f"{path}, line {number}: write `access_key = NAME`, `secret_key = SECRET`, each "
                "once"
            )
        found[name] = _unquoted(match[2])
    missing = [name for name in ("access_key", "secret_key") if not found.get(name)]
    if missing:
        raise ConfigError(f"{path} has no {missing[0]}; write `{missing[0]} = …`")
    return Credentials(
        found["access_key"], found["secret_key"], found.get("security_token") or None
    )


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in _QUOTES:
        return text[1:-1]
    return text
