"""Addresses as records and message ids hold them: 4 or 16 bytes and a 4-byte port."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from inorder.errors import CorruptRecord, LocalProtocolError

HOST_V4_BYTES: Final = 8
HOST_V6_BYTES: Final = 20

_PORT: Final = struct.Struct(">i")


def pack_host(ip: str, port: int) -> bytes:
    """Return the 8 (IPv4) or 20 (IPv6) bytes of an address.

    Raises:
        LocalProtocolError: the text is not an IP address, or the port is none.
    """
    try:
        address = ip_address(ip.partition("%")[0])
        return address.packed + _PORT.pack(port)
    except (ValueError, struct.error):
        raise LocalProtocolError(f"not an IP address and port: {ip!r} {port!r}") from None


def unpack_host(packed: bytes) -> tuple[str, int]:
    """Return the address and port of packed bytes."""
    if len(packed) == HOST_V4_BYTES:
        return str(IPv4Address(packed[:4])), _PORT.unpack_from(packed, 4)[0]
    if len(packed) == HOST_V6_BYTES:
        return str(IPv6Address(packed[:16])), _PORT.unpack_from(packed, 16)[0]
    raise CorruptRecord(f"a packed host has 8 or 20 bytes, not {len(packed)}")


def show_address(host: str, port: int) -> str:
    """Write an address as routes and people do: `host:port`, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
