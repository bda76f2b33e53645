"""Which name servers a client uses: one rule for Python, the command line and Spark.

An argument counts first, then INORDER_NAMESRV, then RocketMQ's NAMESRV_ADDR, then the address of
`inorder up`. An impossible address is refused before the client connects. Why a client names all of
them: decision 44.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from inorder.errors import ConfigError
from inorder.escaping import escaped

LOCAL: Final = "127.0.0.1:9876"
VARIABLES: Final = ("INORDER_NAMESRV", "NAMESRV_ADDR")
PORT_MAX: Final = 0xFFFF

_HOST: Final = re.compile(r"\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]|[0-9A-Fa-f:.]*::?[0-9A-Fa-f:.]*|[\w.-]+")


def choose(given: str | None, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the name servers, and where they were given."""
    if given is not None:
        return given, "argument"
    for variable in VARIABLES:
        if environment.get(variable, "").strip():
            return environment[variable], f"environment {variable}"
    return LOCAL, "default"


def parse_name_servers(text: str, origin: str = "argument") -> list[str]:
    """Return the addresses of `host:9876;host2:9876`. Raises ConfigError."""
    found = [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
    if not found:
        raise ConfigError("no name server is given; write host:9876, or host:9876;host2:9876")
    for address in found:
        wrong = what_is_wrong(address)
        if wrong:
            said = "" if origin == "argument" else f" ({origin})"
            raise ConfigError(f"name server {escaped(address, 200)!r}{said}: {wrong}")
    return found


def what_is_wrong(address: str) -> str:
    """Return why a text is no address of a name server, and what to write; empty if it is one."""
    scheme, found, rest = address.partition("://")
    if found:
        where = rest.partition("/")[0]
        instead = where if where and not what_is_wrong(where) else LOCAL
        return f"an address is host:port, without {escaped(scheme, 20)}://; write {instead}"
    where, found, _ = address.partition("/")
    if found:
        instead = where if where and not what_is_wrong(where) else LOCAL
        return f"an address is host:port, without a path; write {instead}"
    host, colon, port = address.rpartition(":")
    if not colon or host.endswith(":") or (host.startswith("[") and not host.endswith("]")):
        whole = f"[{address}]" if address.count(":") > 1 and "[" not in address else address
        return f"it has no port; write {escaped(whole, 200)}:9876"
    if not host:
        return f"it has no host; write 127.0.0.1:{escaped(port, 20)}"
    if not (port.isascii() and port.isdigit() and 0 < int(port[:9]) <= PORT_MAX):
        return f"its port is no number from 1 to {PORT_MAX}; a name server's is 9876 if not chosen"
    if not _HOST.fullmatch(host):
        return f"{escaped(host, 200)!r} is no host name; write host:port, as in {LOCAL}"
    return ""


def no_name_server(address: str) -> str:
    """Return the error text for a server that does not know the requests of a name server."""
    return (
        f"{address} is no name server: it does not know the requests of one. Is it the port of a "
        "broker (10911 if not chosen)? Give the name server's, which is 9876 if not chosen; "
        "clients learn from it where the brokers are"
    )
