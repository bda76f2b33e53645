"""Which servers, and how to speak to them: name servers and TLS, as options of Spark name them.

The names of TLS are those of the commands and profiles: `tls`, `tls_ca`, `tls_cert`, `tls_key`,
`tls_insecure`. Files are named, not sent: driver and executors have them at the same place.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from inorder.client.nameservers import name_servers
from inorder.errors import ConfigError
from inorder.net.tls import client_context

NAMES: Final = ("tls", "tls_ca", "tls_cert", "tls_key", "tls_insecure")
_KNOWN: Final = {name.replace("_", ""): name for name in NAMES}
_WORDS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Tls:
    """How to encrypt: PEM files of who signs the servers' certificates, and of our own.

    Without `ca` the authorities of the system count; `insecure` trusts any certificate.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    insecure: bool = False

    def __post_init__(self) -> None:
        if self.key and not self.cert:
            raise ConfigError("tls_key is of no use without tls_cert; give both")

    def options(self) -> dict[str, str]:
        """Return the options of source and sink that mean this."""
        given = {"tls_ca": self.ca, "tls_cert": self.cert, "tls_key": self.key}
        found = {name: value for name, value in given.items() if value}
        return {"tls": "true", **found, **({"tls_insecure": "true"} if self.insecure else {})}

    def context(self) -> ssl.SSLContext:
        """Return the context of this process. Raises ConfigError for a bad file."""
        return _context(self)


@lru_cache(maxsize=16)
def _context(tls: Tls) -> ssl.SSLContext:
    files = [path for path in (tls.ca, tls.cert, tls.key) if path]
    for path in files:
        if not Path(path).is_file():
            raise ConfigError(
                f"there is no file {path} here; tls_ca, tls_cert and tls_key are PEM files that "
                "the driver and all executors have at the same place"
            )
    try:
        return client_context(
            authorities=tls.ca or None, trust_any=tls.insecure, certificate=tls.cert, key=tls.key
        )
    except (OSError, ssl.SSLError) as error:
        named = ", ".join(files)
        raise ConfigError(f"TLS with {named}: {error}; are they PEM, and a pair?") from None


@dataclass(frozen=True, slots=True)
class Servers:
    """The name servers of a cluster, and how it is spoken to."""

    namesrv: str
    tls: Tls | None = None

    @classmethod
    def of(cls, namesrv: str | None, tls: Tls | None = None) -> Servers:
        """Return those given, else those that the environment of this process means."""
        return cls(chosen_servers(namesrv), tls)

    def context(self) -> ssl.SSLContext | None:
        """Return how to encrypt; None: not at all."""
        return None if self.tls is None else self.tls.context()

    def options(self) -> dict[str, str]:
        """Return the options of source and sink that mean this."""
        return {"namesrv": self.namesrv, **({} if self.tls is None else self.tls.options())}


def chosen_servers(namesrv: str | None) -> str:
    """Return `host:9876;host2:9876`: given, or of the environment. Raises ConfigError.

    Executors have another environment, so this is asked where the options are read.
    """
    return ";".join(name_servers(namesrv or None))


def tls_name(option: str) -> str | None:
    """Return the name of an option of TLS, however it is written: `tlsCa`, `tls-ca`; or None."""
    return _KNOWN.get(option.lower().replace("_", "").replace("-", ""))


def read_tls(given: Mapping[str, str]) -> Tls | None:
    """Read the options of TLS by their names; who names a file means TLS. Raises ConfigError."""
    insecure = _flag(given, "tls_insecure") or False
    tls = Tls(
        given.get("tls_ca", ""), given.get("tls_cert", ""), given.get("tls_key", ""), insecure
    )
    wanted = _flag(given, "tls")
    return tls if wanted or (wanted is None and tls != Tls()) else None


def _flag(given: Mapping[str, str], name: str) -> bool | None:
    text = given.get(name)
    if text is None:
        return None
    if text.strip().lower() not in _WORDS:
        raise ConfigError(f"{name}: {text[:80]!r} is neither true nor false")
    return _WORDS[text.strip().lower()]
